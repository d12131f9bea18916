"""The pages of docs/build.py and the figures of docs/plots.py."""
import html
import re
import shutil
import subprocess
import xml.etree.ElementTree as tree

import pytest

from docs import plots
from docs.equations import EIGHT, ROOT, module, read


def test_the_words_in_the_figures_are_those_of_the_code(tmp_path):
    plots.main(tmp_path)
    for drawn in tmp_path.iterdir():
        letters = []
        for path in (drawn, ROOT / "docs" / drawn.name):     # versions of matplotlib order formulas
            text = "".join(tree.parse(path).getroot().itertext())
            letters.append(sorted("".join(text.split())))
        assert letters[0] == letters[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the pages. Of the sessions two are run, which takes seconds each."""
    for library in ("markdown_it", "mdit_py_plugins", "latex2mathml", "pygments", "jupytext",
                    "nbclient", "ipykernel"):
        pytest.importorskip(library)
    from course.notebooks import read_session, run_session
    from docs import build

    def run_some(path, target):
        if path.stem in ("session3", "session4"):
            return run_session(path, target)
        target.write_text("{}")
        return read_session(path)

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "run_session", run_some)
        assert build.main([str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """{path: text} of the whole site."""
    return {path: path.read_text("utf-8") for path in site.rglob("*.html")}


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
        assert ("<script" in page) == (path.name in ("session3.py.html", "session4.py.html"))
    assert not broken


def test_every_formula_is_mathml(pages, site):
    for path, page in pages.items():
        for formula in re.findall(r"<math.*?</math>", page, re.DOTALL):
            assert "merror" not in {node.tag for node in tree.fromstring(formula).iter()}
        prose = re.sub(r"<(pre|code|math)\b.*?</\1>|<[^>]+>", "", page, flags=re.DOTALL)
        if "tests" not in path.relative_to(site).parts:
            assert not re.search(r"\$\$|\\[a-zA-Z]+|\$[^$\s][^$]*\$", prose), path


def test_every_equation_is_beside_its_line(pages, site):
    from docs.build import math
    for entry in read(ROOT / "docs" / "equations.md"):
        for file, name in entry.code:
            if file not in EIGHT:
                continue
            code = module(file)
            line = code.place(entry, name)
            for _, hidden in code.docstrings().values():
                line = hidden.stop if line in hidden else line
            rows = pages[site / f"{file}.html"].split('<div class="row">')[1:]
            (row,) = [row for row in rows if f'<pre><span class="line" id="L{line}"' in row]
            assert f"<strong>{entry.title}.</strong>" in row
            for latex in entry.latex:
                assert math(latex, {"display_mode": True}) in row


@pytest.mark.parametrize("file", [*EIGHT, "train_mt.py"])
def test_the_code_is_whole_but_for_docstrings(pages, site, file):
    shown = re.findall(r'data-n="(\d+)">(.*?)\n</span>', pages[site / f"{file}.html"], re.DOTALL)
    code = {int(n): html.unescape(re.sub(r"<[^>]+>", "", line)) for n, line in shown}
    lines = dict(enumerate((ROOT / file).read_text().splitlines(), 1))
    for _, hidden in module(file).docstrings().values():
        for n in hidden:
            del lines[n]
    assert code == lines


def test_a_session_has_its_output_figures_and_notebook(site, pages):
    page = pages[site / "course" / "session3.py.html"]
    assert "<math" in page and "squash: length  0.1 -&gt; " in page
    assert page.count('<img src="data:image/png;base64,') == 3
    assert 'type="range"' in page and 'href="session3.ipynb"' in page
    assert "squash: length  0.1 -> " in (site / "course" / "session3.ipynb").read_text("utf-8")


def test_names_in_the_equations_lead_to_their_line(pages, site):
    line = module("routing_em.py").start("m_step")
    page = pages[site / "docs" / "equations.html"]
    assert f'<a href="../routing_em.py.html#L{line}"><code>' in page


WIDTHS = """<iframe id="page" width="420"></iframe><script>
page.onload = () => document.title = page.contentDocument.documentElement.scrollWidth
page.src = location.hash.slice(1)</script>"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
@pytest.mark.parametrize("page", ["index", "docs/course", "docs/equations", "docs/claims",
                                  "course/session4.py", "course/session6.py",
                                  "capsule_transformer.py"])
def test_a_page_is_as_wide_as_a_phone(site, tmp_path, page):
    """Nothing overflows at 420 pixels."""
    frame = tmp_path / "frame.html"
    frame.write_text(WIDTHS)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               "--no-first-run", "--allow-file-access-from-files", f"--user-data-dir={tmp_path}",
               "--virtual-time-budget=5000", "--dump-dom", f"{frame.as_uri()}#{site}/{page}.html"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert int(re.search("<title>([0-9]+)</title>", printed)[1]) <= 420
