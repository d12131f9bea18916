"""The pages of docs/build.py, and the notebooks."""
import html
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest

from course import notebooks
from docs import build
from docs.equations import EIGHT, ROOT, module


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Session 3 as a lecturer hands it out, run in a folder far from the project."""
    for library in ("markdown_it", "mdit_py_plugins", "latex2mathml", "pygments", "jupytext",
                    "nbclient", "ipykernel"):
        pytest.importorskip(library)
    import jupytext
    folder = tmp_path_factory.mktemp("class")
    assert notebooks.main([str(folder / "handout")]) == 0
    assert notebooks.main([str(folder / "handout")]) == 2        # which would overwrite them
    for path in (folder / "handout").iterdir():
        sources = [cell.source for cell in jupytext.read(path).cells]
        asked = "".join(sources).count(notebooks.PREDICT)
        assert sources.count("*Your prediction:*") == asked > 0
        session = (ROOT / "course" / path.with_suffix(".py").name).read_text("utf-8")
        answers = [source for source in sources if "**Answer.**" in source]
        assert len(answers) == session.count("\n# **Answer.**")
        assert all(source.startswith("<details>") for source in answers)
    handout = jupytext.read(folder / "handout" / "session3.ipynb")
    handout = notebooks.execute(handout, folder)
    handout.cells = [cell for cell in handout.cells if cell.source != "*Your prediction:*"]
    for cell in handout.cells:                           # as in the session
        cell.source = re.sub("^<details>.*\n\n|\n\n</details>$", "", cell.source)
    return handout


@pytest.fixture(scope="module")
def site(notebook, tmp_path_factory):
    """The folder of the pages. Of the sessions one is run, which takes seconds."""
    def execute(session, folder):
        return notebook if "Session 3" in session.cells[1].source else session

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "execute", execute)
        build.main([str(folder)])
    return folder


def test_another_site_is_not_overwritten(tmp_path, capsys):
    pytest.importorskip("jupytext")
    (tmp_path / "style.css").write_text("", "utf-8")
    assert build.main([str(tmp_path)]) == 2
    assert "holds something else" in capsys.readouterr().err


def test_a_project_here_is_found_from_everywhere(tmp_path, monkeypatch):
    jupytext = pytest.importorskip("jupytext")
    monkeypatch.chdir(ROOT)
    assert notebooks.main([str(tmp_path / "new"), "--project", "."]) == 0
    first = jupytext.read(tmp_path / "new" / "session1.ipynb").cells[0].source
    assert repr(str(ROOT)) in first


@pytest.fixture(scope="module")
def pages(site):
    """{path: text} of the whole site."""
    return {path: path.read_text("utf-8") for path in site.rglob("*.html")}


@pytest.mark.parametrize("project, environment", [
    (str(ROOT), None), ("none", str(ROOT)), ("https://host/name.git", None)])
def test_a_notebook_elsewhere_finds_the_project(project, environment, tmp_path, monkeypatch):
    """By --project, or by the environment variable PROJECT, which counts more; or it clones it."""
    pytest.importorskip("jupytext")
    pytest.importorskip("nbclient")
    if environment:
        monkeypatch.setenv("PROJECT", environment)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path[:])
    ran = []
    monkeypatch.setattr(subprocess, "run", lambda words, check: ran.append(words))
    first = notebooks.read_session(ROOT / "course" / "session1.py", project).cells[0].source
    exec(first.removesuffix("%matplotlib inline"), {})
    if project != "https://host/name.git":
        assert sys.path[0] == str(ROOT / "course") and not ran
        return
    assert sys.path[0] == str(tmp_path / "project" / "course")
    assert ran[0] == ["git", "clone", "--quiet", project, "project"]
    assert ran[1][1:] == "-m pip install --quiet -r project/requirements.txt".split()


def test_every_link_resolves_within_the_site(pages):
    ids = {path: set(re.findall(r' id="([^"]+)"', page)) for path, page in pages.items()}
    broken = []
    for path, page in pages.items():
        page = re.sub("<pre>.*?</pre>", "", page, flags=re.DOTALL)
        for link in set(re.findall(r' (?:href|src)="([^"]*)"', page)):
            if not link.startswith(("http://", "https://", "data:")):
                place, _, part = link.partition("#")
                target = (path.parent / place).resolve() if place else path
                if not target.is_file() or part and part not in ids[target]:
                    broken.append(f"{path.name}: {link}")
        assert not re.search(r"<(?:img|link|script)[^>]+(?:src|href)=\"(?:https?:)?//", page)
        assert ("<script" in page) == (path.name == "session3.py.html")
    assert not broken


def test_every_formula_is_mathml(pages, site):
    for path, page in pages.items():
        for formula in re.findall(r"<math.*?</math>", page, re.DOTALL):
            assert "merror" not in {node.tag for node in tree.fromstring(formula).iter()}
        prose = re.sub(r"<(pre|code|math)\b.*?</\1>|<[^>]+>", "", page, flags=re.DOTALL)
        if "tests" not in path.relative_to(site).parts:
            assert not re.search(r"\$\$|\\[a-zA-Z]+|\$[^$\s][^$]*\$", prose), path


def test_links_lead_to_lines_of_code_and_parts_of_pages(site):
    navigation = build.NAVIGATION
    for file, name in (navigation["Code"] | navigation["Results"]).items():
        assert name in (file, Path(file).stem.title())
    for path in ROOT.glob("*/__init__.py"):
        assert (site / path.parent.name / "__init__.py.html").exists()
    docs = ROOT / "docs"
    source = ("`routing_em.py: m_step`, `transformer.py`, [names](running.md#names), "
              "[`routing_em.py: e_step`](../routing_em.py)")
    text = build.markdown(source, docs / "claims.md", docs)
    for name in ("m_step", "e_step"):
        line = module("routing_em.py").start(name)
        assert text.count(f'href="../routing_em.py.html#L{line}"') == 1
    assert 'href="running.html#names"' in text and 'href="../transformer.py.html"' in text
    heading = '<h2 id="x">X</h2>'
    assert not build.contents(2 * heading) and build.contents(3 * heading).count("<li>") == 3
    assert "<summary>Contents</summary>" in (site / "docs" / "running.html").read_text("utf-8")


@pytest.mark.parametrize("title, number", [("Mean", "Eq. 10"), ("Variance", "Eq. 11")])
def test_an_equation_is_beside_its_line(site, title, number):
    beside = build.notes(ROOT / "routing_em.py")
    back = f'<a href="docs/equations.html#{title.lower()}">{title}</a>.'
    line, = [line for line, note in beside.items() if back in note]
    assert number in module("routing_em.py").lines[line - 1]
    assert 'href="tests/equations/test_routing_em.py.html#L' in beside[line]
    page = (site / "docs" / "equations.html").read_text("utf-8")
    assert f'<h3 id="{title.lower()}">' in page and f'routing_em.py.html#L{line}"' in page
    row = f'<div class="row" id="L{line}"><div class="note">{beside[line]}</div>'
    assert row in (site / "routing_em.py.html").read_text("utf-8")


def test_a_docstring_keeps_the_ends_of_its_lines():
    """But for those that are due to the width."""
    text = "What it does, in words.\nOf a line.\nReturns\nx.\n\n>>> f(1)\n2"
    kept = "What it does, in words.\nOf a line.  \nReturns\nx.\n\n```python\n>>> f(1)\n2\n```"
    shown = build.docstring_markdown(text, width=28)     # of which three quotes take a part
    assert shown == kept


@pytest.mark.parametrize("file", [*EIGHT, "train_mt.py"])
def test_the_code_is_whole_but_for_docstrings(pages, site, file):
    shown = re.findall(r'data-n="(\d+)">(.*?)\n</span>', pages[site / f"{file}.html"], re.DOTALL)
    code = [(int(n), html.unescape(re.sub(r"<[^>]+>", "", line))) for n, line in shown]
    lines = dict(enumerate((ROOT / file).read_text("utf-8").splitlines(), 1))
    for _, hidden in module(file).docstrings().values():
        for n in hidden:
            del lines[n]
    assert code == [*lines.items()]


def test_a_session_has_its_output_figures_and_notebook(site, pages):
    """Without what it writes to stderr."""
    from nbformat.v4 import new_output
    assert "1 &lt; 2" in build.output_html(new_output("stream", name="stdout", text="1 < 2"))
    assert build.output_html(new_output("stream", name="stderr", text="a warning")) == ""
    page = pages[site / "course" / "session3.py.html"]
    assert "<title>Session 3: Dynamic routing</title>" in page
    assert "Finds the project" not in page               # the notebook's first cell
    assert "<math" in page and "squash: length  0.1 -&gt; " in page
    assert page.count('<img src="data:image/png;base64,') == 3
    assert page.count('] = "data:image/png;base64,') == 4          # the frames of the player
    assert "►" in page and '<i class="fa' not in page     # buttons without icons from the web
    assert 'type="range"' in page and 'href="session3.ipynb"' in page
    assert re.findall(r' aria-current="page">(.*?)</a>', page) == ["Session 3"]
    assert "squash: length  0.1 -> " in (site / "course" / "session3.ipynb").read_text("utf-8")
    folded = re.findall(r"<summary>Output</summary>(.*?)(?=<h2|<p>How)", page, re.DOTALL)
    assert ["squash: length  0.1" in text for text in folded] == [True, False, False]
    assert ["shares for whole 0 [1.0, 1.0" in text for text in folded] == [False, True, False]


@pytest.mark.parametrize("number", range(1, 8))
def test_a_session_folds_what_is_to_be_predicted(number, pages, site):
    """The answer, too. At its end are links to what comes next."""
    page = pages[site / "course" / f"session{number}.py.html"]
    depth = 0
    for mark in re.findall(r"<details>|</details>|<strong>Answer", page):
        if mark == "<details>":
            depth += 1
        elif mark == "</details>":
            depth -= 1
        else:
            assert depth == 1
    assert depth == 0
    assert page.count("<summary>Output</summary>") == page.count("Predict before you run")
    session = (ROOT / "course" / f"session{number}.py").read_text("utf-8")
    assert page.count("<summary>Code of the figure") == session.count('{"source_hidden": true}')
    end = page[page.rindex("<strong>Next:</strong>"):]
    assert f"course.html#questions-of-session-{number}" in end and "</details>" not in end
    assert ("#what-came-after" if number == 7 else f"session{number + 1}.py.html") in end


@pytest.mark.parametrize("name", ["docs.build", "course.notebooks"])
def test_without_its_packages_there_is_one_line(name):
    program = subprocess.run([sys.executable, "-S", "-m", name], cwd=ROOT, capture_output=True,
                             text=True)
    assert program.returncode == 2 and program.stderr.count("\n") == 1
    assert program.stderr.startswith(f"python -m {name}: error: needs ")
    assert "jupytext" in program.stderr and ": pip install -r " in program.stderr
