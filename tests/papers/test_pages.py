"""The pages of docs/build.py and the figures: every link resolves, no LaTeX is left, every equation
stands beside its line; a browser, where there is one, shows them without a complaint."""

import html
import importlib
import re
import shutil
import sys
import xml.etree.ElementTree as tree
from html.parser import HTMLParser

import pytest

from docs import plots
from docs.equations import EIGHT, ROOT, module, read

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


# ---- The figures


def test_the_figures_are_drawn_anew(tmp_path):
    plots.main(tmp_path)
    for drawn in tmp_path.iterdir():
        committed = ROOT / "docs" / drawn.name
        assert [node.text for node in tree.parse(drawn).iter() if node.text] == [
            node.text for node in tree.parse(committed).iter() if node.text
        ]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("name", ["heads", "coupling", "logits", "vectors"])
def test_figures_are_small(name):
    assert (ROOT / "docs" / f"{name}.svg").stat().st_size < 50_000


def test_what_the_figure_of_the_coupling_shows():
    """EM finds the clusters, dynamic routing leaves those whose poses are short."""
    zeros = plots.torch.zeros(3)
    for length in (1, 4):
        assert plots.members(length, plots.em_routing, zeros, zeros)[-1] > 0.99
        released = plots.members(length, plots.em_routing, zeros, zeros, schedule="released")
        assert 0.6 < released[-1] < 0.9
        assert plots.members(length, plots.em_routing, zeros, zeros, density="sum")[-1] < 0.6
    assert plots.members(1, plots.dynamic_routing)[-1] < 0.2
    assert 0.6 < plots.members(4, plots.dynamic_routing)[-1] < 0.9


# ---- The pages


class Reader(HTMLParser):
    """Reads a page: whether its tags are balanced, and its text outside of code."""

    VOID = {"meta", "link", "img", "br", "hr"}

    def __init__(self, page: str):
        super().__init__()
        self.open = []
        self.text = []  # outside of code
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert not (tag == "a" and "a" in self.open), "a link in a link"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"code", "pre"} & set(self.open):
            self.text.append(data)


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
    for folder in (tmp_path, tmp_path / "thesis.txt"):
        assert main([str(folder)]) == 2
        assert "holds something else" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_every_document_and_every_file_has_a_page(pages, site):
    for file in (*EIGHT, "train_mt.py"):
        assert site / f"{file}.html" in pages
    for document in (ROOT / "docs").glob("*.md"):
        assert site / "docs" / f"{document.stem}.html" in pages


def test_every_link_resolves(pages):
    ids = {path: set(re.findall(r' id="([^"]+)"', page)) for path, page in pages.items()}
    broken = []
    for path, page in pages.items():
        for link in set(re.findall(r' (?:href|src)="([^"]*)"', page)):
            place, _, part = link.partition("#")
            target = (path.parent / place).resolve() if place else path
            if link.startswith(("http://", "https://", "data:")):
                continue
            if not target.is_file() or part and part not in ids[target]:
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_nothing_comes_from_elsewhere(pages):
    """No script, and nothing to load but from the site."""
    for text in pages.values():
        assert "<script" not in text
        assert not re.search(r"<(?:img|link|iframe)[^>]+(?:src|href)=\"(?:https?:)?//", text)


def test_tags_are_balanced_and_no_latex_is_left(pages, site):
    for path, page in pages.items():
        if "tests" not in path.relative_to(site).parts:
            text = "".join(Reader(page).text)
            assert not re.search(r"\$\$|\\[a-zA-Z]+|\$[^$\s][^$]*\$", text), path


def test_mathml_is_whole(pages):
    """Well-formed, and without an error's mark."""
    found = 0
    for text in pages.values():
        for math in re.findall(r"<math.*?</math>", text, re.DOTALL):
            names = {node.tag.partition("}")[2] for node in tree.fromstring(math).iter()}
            assert "merror" not in names and "math" in names
            found += 1
    assert found > 100


def test_every_equation_stands_beside_its_line(pages, site):
    """In the row that begins with its line."""
    from docs.build import math

    for entry in read(ROOT / "docs" / "equations.md"):
        for file, name in entry.code:
            if file in EIGHT:
                line = module(file).place(entry, name)
                page = pages[site / f"{file}.html"]
                rows = page.split('<div class="row">')[1:]
                (row,) = [row for row in rows if f'<pre><span class="line" id="L{line}"' in row]
                assert f"<strong>{entry.title}.</strong>" in row
                for latex in entry.latex:
                    assert math(latex, {"display_mode": True}) in row


def test_the_code_is_whole(pages, site):
    """The lines of a page are the file's."""
    for file in (*EIGHT, "train_mt.py"):
        page = re.sub(r"<div class=\"note\">.*?</div>", "", pages[site / f"{file}.html"])
        code = "".join(re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL))
        text = html.unescape(re.sub(r"<[^>]+>", "", code))
        assert text.rstrip("\n") == (ROOT / file).read_text().rstrip("\n")


# ---- In a browser


@pytest.fixture(scope="module")
def window(site):
    """A window of a headless Chromium, and what it has complained of so far."""
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no Chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        window = browser.new_page()
        window.complaints = []
        window.on("console", lambda message: window.complaints.append(message.text))
        window.on("pageerror", lambda error: window.complaints.append(str(error)))
        window.on("requestfailed", lambda request: window.complaints.append(request.url))
        yield window
        browser.close()


BOXES = """[...document.querySelectorAll('.note:not(:empty)')].map(
    note => [note.getBoundingClientRect(), note.nextSibling.getBoundingClientRect()])"""
WIDTHS = """[...document.querySelectorAll('math')].map(
    math => [math.getBoundingClientRect().width, math.parentNode.clientWidth])"""


@pytest.mark.parametrize("file", [*EIGHT, "train_mt.py"])
def test_a_browser_sets_the_equations_level_with_their_code(window, site, file):
    """Beside it in a wide window, above it on a phone; no page is wider than its window, no formula
    is empty, and nothing is amiss."""
    window.goto((site / f"{file}.html").as_uri())
    for width in (1440, 390):
        window.set_viewport_size({"width": width, "height": 900})
        assert window.evaluate("document.documentElement.scrollWidth") <= width
        boxes = window.evaluate(BOXES)
        assert boxes
        for note, code in boxes:
            if width == 1440:
                assert note["top"] == code["top"] and note["right"] <= code["left"]
            else:
                assert note["bottom"] <= code["top"] and note["left"] <= code["left"]
    assert all(formula > 0 for formula, _ in window.evaluate(WIDTHS))
    assert not window.complaints


def test_a_browser_goes_from_the_readme_to_a_test(window, site):
    """To a file, to the test of an equation beside it, by clicks; by day and by night."""
    window.set_viewport_size({"width": 1440, "height": 900})
    window.goto((site / "index.html").as_uri())
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    for scheme in ("light", "dark"):
        window.emulate_media(color_scheme=scheme)
        assert (min(window.evaluate(ground)) > 200) == (scheme == "light")
    window.click("nav >> text=routing_em.py")
    window.click("text=test_li2019_eq12_li2021_eq15_gu_eq15_coupling")
    assert window.url.split("#")[0].endswith("tests/equations/test_routing_em.py.html")
    line = window.locator(":target")
    assert "every_density" in line.inner_text() and line.is_visible()
    assert not window.complaints


def test_a_browser_fits_the_documents_into_a_phone(window, site):
    window.set_viewport_size({"width": 390, "height": 900})
    for path in (site / "index.html", *sorted((site / "docs").glob("*.html"))):
        window.goto(path.as_uri())
        assert window.evaluate("document.documentElement.scrollWidth") <= 390, path.name
    assert not window.complaints
