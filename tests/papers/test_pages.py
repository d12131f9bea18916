"""The pages of docs/build.py and the figures of docs/plots.py: links resolve, no LaTeX is left,
every equation is beside its line."""
import html
import importlib
import re
import sys
import xml.etree.ElementTree as tree

import pytest

from docs import plots
from docs.equations import EIGHT, ROOT, module, read

FILES = (*EIGHT, "train_mt.py")


def test_the_figures_are_those_of_the_code(tmp_path):
    plots.main(tmp_path)
    for drawn in tmp_path.iterdir():
        words = [node.text for node in tree.parse(drawn).iter() if node.text]
        committed = tree.parse(ROOT / "docs" / drawn.name)
        assert words == [node.text for node in committed.iter() if node.text]


def test_em_finds_the_planted_clusters_of_the_figure():
    """Dynamic routing does not where the poses are short."""
    zeros = plots.torch.zeros(3)
    for length in (1, 4):
        assert plots.members(length, plots.em_routing, zeros, zeros)[-1] > 0.99
        assert plots.members(length, plots.em_routing, zeros, zeros, density="sum")[-1] < 0.6
    assert plots.members(1, plots.dynamic_routing)[-1] < 0.2
    assert 0.6 < plots.members(4, plots.dynamic_routing)[-1] < 0.9


def test_a_missing_library_is_one_clear_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    monkeypatch.delitem(sys.modules, "docs.build", raising=False)
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module("docs.build")
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "requirements-docs.txt" in error


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the pages."""
    for library in ("markdown_it", "mdit_py_plugins", "latex2mathml", "pygments"):
        pytest.importorskip(library)
    from docs.build import main
    folder = tmp_path_factory.mktemp("site")
    assert main([str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """{path: text} of the whole site."""
    return {path: path.read_text("utf-8") for path in site.rglob("*.html")}


def test_a_folder_of_something_else_is_left_alone(site, tmp_path, capsys):
    from docs.build import main
    (tmp_path / "thesis.txt").write_text("mine")
    assert main([str(tmp_path)]) == 2
    assert "holds something else" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_every_document_and_file_has_a_page(pages, site):
    documents = [f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md")]
    assert all(site / f"{name}.html" in pages for name in (*FILES, *documents))


def test_every_link_resolves(pages):
    ids = {path: set(re.findall(r' id="([^"]+)"', page)) for path, page in pages.items()}
    broken = []
    for path, page in pages.items():
        for link in set(re.findall(r' (?:href|src)="([^"]*)"', page)):
            if not link.startswith(("http://", "https://", "data:")):
                place, _, part = link.partition("#")
                target = (path.parent / place).resolve() if place else path
                if not target.is_file() or part and part not in ids[target]:
                    broken.append(f"{path.name}: {link}")
    assert not broken


def test_nothing_is_loaded_from_elsewhere(pages):
    for page in pages.values():
        assert "<script" not in page
        assert not re.search(r"<(?:img|link|iframe)[^>]+(?:src|href)=\"(?:https?:)?//", page)


def test_no_latex_is_left(pages, site):
    """Every formula is well-formed MathML without an error's mark."""
    count = 0
    for path, page in pages.items():
        for formula in re.findall(r"<math.*?</math>", page, re.DOTALL):
            assert "merror" not in {node.tag for node in tree.fromstring(formula).iter()}
            count += 1
        prose = re.sub(r"<(pre|code|math)\b.*?</\1>|<[^>]+>", "", page, flags=re.DOTALL)
        if "tests" not in path.relative_to(site).parts:
            assert not re.search(r"\$\$|\\[a-zA-Z]+|\$[^$\s][^$]*\$", prose), path
    assert count > 100


def test_every_equation_is_beside_its_line(pages, site):
    from docs.build import math
    for entry in read(ROOT / "docs" / "equations.md"):
        for file, name in entry.code:
            if file in EIGHT:
                line = module(file).place(entry, name)
                rows = pages[site / f"{file}.html"].split('<div class="row">')[1:]
                (row,) = [row for row in rows if f'<pre><span class="line" id="L{line}"' in row]
                assert f"<strong>{entry.title}.</strong>" in row
                for latex in entry.latex:
                    assert math(latex, {"display_mode": True}) in row


@pytest.mark.parametrize("file", FILES)
def test_the_code_is_whole(pages, site, file):
    page = re.sub(r"<div class=\"note\">.*?</div>", "", pages[site / f"{file}.html"])
    code = "".join(re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL))
    text = html.unescape(re.sub(r"<[^>]+>", "", code))
    assert text.rstrip("\n") == (ROOT / file).read_text().rstrip("\n")
