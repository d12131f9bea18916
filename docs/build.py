"""Writes the project's pages into a folder, by default site/: documents, code, and beside the code
of the eight files the papers' equations. They need no server and no script.

    pip install -r requirements-docs.txt
    python -m docs.build [FOLDER]

From README.md on, whatever a page links to becomes a page: Markdown, Python, the list of a folder;
other files are copied.
"""
import argparse
import html
import os
import re
import shutil
import sys
from functools import cache
from pathlib import Path
from string import Template

try:
    from latex2mathml.converter import convert
    from markdown_it import MarkdownIt
    from mdit_py_plugins.anchors import anchors_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound
except ImportError as missing:
    print(f"docs.build: {missing}: pip install -r requirements-docs.txt", file=sys.stderr)
    sys.exit(2)

from docs.equations import EIGHT, ROOT, Entry, module, read

DOCS = ROOT / "docs"
LIGHT, DARK = "xcode", "github-dark"             # Pygments' colours
NOTED = (*EIGHT, "train_mt.py")                  # files with equations beside their lines
OMITTED = {"site", "runs", "data", "__pycache__", "exercises", "mine"}


# ---- Where a page lies, and what leads to it

class Site:
    """The pages written so far, and those still to be written."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.known = set()                       # files of the project that have a page
        self.waiting = []

    def address(self, path: Path) -> Path:
        """The page of a file or folder of the project, from the site's top."""
        place = path.relative_to(ROOT)
        if place.name == "README.md":
            return place.with_name("index.html")
        if path.is_dir():
            return place / "index.html"
        if path.suffix == ".md":
            return place.with_suffix(".html")
        return place.with_name(place.name + ".html") if path.suffix == ".py" else place

    def link(self, target: Path, page: Path) -> str:
        """The link from the page of one file to that of another, which will be written too."""
        if target not in self.known:
            self.known.add(target)
            self.waiting.append(target)
        start = self.address(page).parent
        return os.path.relpath(self.address(target), start).replace(os.sep, "/")


@cache
def python_files() -> list[Path]:
    """The project's Python files."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in OMITTED and name[0] != ".")
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    return found


def code_address(site: Site, text: str, page: Path) -> str | None:
    """The link of `file.py`, `file.py: name` or `test_file.py::test`, None for other code."""
    named = re.fullmatch(r"([\w/]+\.py)(?:(?:: |::)([\w.]+))?", text.strip())
    files = [path for path in python_files() if named and f"/{path}".endswith(f"/{named[1]}")]
    if not files:
        return None
    address = site.link(files[0], page)
    code = module(files[0].relative_to(ROOT).as_posix())
    return f"{address}#L{code.start(named[2])}" if named[2] in code.nodes else address


# ---- Markdown

def math(latex: str, options: dict) -> str:
    """LaTeX as MathML."""
    made = convert(latex, display="block" if options["display_mode"] else "inline")
    made = re.sub("<mo>(min|max)</mo>", r"<mi>\1</mi>", made)
    return made.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em" />')


def colours(code: str, language: str, _) -> str:
    """Code in a fence, or "" where its language has no name."""
    try:
        return highlight(code, get_lexer_by_name(language), HtmlFormatter(nowrap=True))
    except ClassNotFound:
        return ""


MARKDOWN = MarkdownIt("commonmark", {"highlight": colours}).enable("table")
MARKDOWN.use(anchors_plugin, max_level=4).use(dollarmath_plugin, renderer=math)


def markdown(site: Site, text: str, page: Path, folder: Path) -> str:
    """A Markdown text as HTML for the page of a file, its links, relative to a folder of the
    project, led to the site's pages."""
    tokens = MARKDOWN.parse(text)
    for block in tokens:
        linked = False
        for token in block.children or ():
            if token.type in ("link_open", "link_close"):
                linked = token.type == "link_open"
            for name in ("href", "src"):
                if name in token.attrs:
                    token.attrSet(name, led(site, token.attrs[name], page, folder))
            if token.type == "code_inline" and not linked:
                address = code_address(site, token.content, page)
                if address:
                    code = html.escape(token.content)
                    token.type = "html_inline"
                    token.content = f'<a href="{address}"><code>{code}</code></a>'
    made = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
    return made.replace("<table>", '<div class="table"><table>').replace("</table>",
                                                                         "</table></div>")


def led(site: Site, address: str, page: Path, folder: Path) -> str:
    """A link in the project's Markdown as one of the site."""
    path, mark, part = address.partition("#")
    if "://" in address or not path:
        return address
    return site.link((folder / path).resolve(), page) + mark + part


# ---- Code, with equations or prose beside it

def notes(site: Site, path: Path) -> dict[int, list[str]]:
    """{line: what stands beside the code from there on}."""
    file = path.relative_to(ROOT).as_posix()
    found = {}
    for entry in read(DOCS / "equations.md"):
        for where, name in entry.code:
            if where == file and file in NOTED:
                note = markdown(site, entry.text, path, DOCS) + tested(site, entry, path)
                found.setdefault(module(file).place(entry, name), []).append(note)
    return found


def tested(site: Site, entry: Entry, path: Path) -> str:
    """The links to an entry's tests."""
    links = []
    for file, test in entry.tests:
        address = code_address(site, f"{file}::{test}", path)
        links.append(f'<a href="{address}"><code>{test}</code></a>')
    return f'<p class="tests">{"<br>".join(links)}</p>'


def code_page(site: Site, path: Path) -> str:
    """A Python file: rows of notes and of the lines that they belong to."""
    made = highlight(path.read_text("utf-8"), get_lexer_by_name("python", stripnl=False),
                     HtmlFormatter(nowrap=True))
    lines = [f'<span class="line" id="L{n}" data-n="{n}">{line}\n</span>'
             for n, line in enumerate(made.rstrip("\n").split("\n"), 1)]
    beside = notes(site, path)
    starts = sorted({1, *beside})
    rows = []
    for start, end in zip(starts, [*starts[1:], len(lines) + 1]):
        note = "".join(f"<section>{text}</section>" for text in beside.get(start, ()))
        code = "".join(lines[start - 1:end - 1])
        aside = f'<div class="note">{note}</div>' if beside else ""
        rows.append(f'<div class="row">{aside}<pre>{code}</pre></div>')
    kind = "notes" if beside else "plain"
    return f'<h1>{path.relative_to(ROOT)}</h1>\n<div class="{kind}">{"".join(rows)}</div>'


# ---- The pages

def menu(site: Site, page: Path) -> str:
    """The links at the top of every page."""
    groups = ([ROOT / "README.md", ROOT / "RESULTS.md", *sorted(DOCS.glob("*.md"))],
              [ROOT / file for file in NOTED])
    rows = []
    for group in groups:
        links = []
        for path in group:
            name = path.stem if path.suffix == ".md" else path.name
            here = ' aria-current="page"' if path == page else ""
            links.append(f'<a href="{site.link(path, page)}"{here}>{name}</a>')
        rows.append(f"<p>{' '.join(links)}</p>")
    return "\n".join(rows)


def write(site: Site, template: Template, path: Path) -> None:
    """The page of a file or folder of the project."""
    target = site.folder / site.address(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    kind = "text"
    if path.is_dir():
        files = "\n".join(f"- [{file.name}]({file.name})" for file in sorted(path.iterdir()))
        body = markdown(site, f"# {path.name}\n\n{files}", path, path)
    elif path.suffix == ".md":
        body = markdown(site, path.read_text("utf-8"), path, path.parent)
    elif path.suffix == ".py":
        kind, body = "code", code_page(site, path)
    else:
        shutil.copyfile(path, target)
        return
    root = "../" * (len(site.address(path).parts) - 1)
    title = html.escape(path.relative_to(ROOT.parent).name)
    page = template.substitute(title=title, root=root, menu=menu(site, path), kind=kind, body=body)
    target.write_text(page, "utf-8")


def build(folder: Path) -> int:
    """Writes the site; returns the number of its pages and files."""
    site = Site(folder)
    folder.mkdir(parents=True, exist_ok=True)
    template = Template((DOCS / "page.html").read_text("utf-8"))
    light, dark = (HtmlFormatter(style=style).get_style_defs("pre") for style in (LIGHT, DARK))
    style = (DOCS / "style.css").read_text("utf-8")
    (folder / "style.css").write_text(
        f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{style}", "utf-8")
    site.link(ROOT / "README.md", ROOT / "README.md")
    while site.waiting:
        write(site, template, site.waiting.pop())
    return len(site.known)


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.build",
                                     description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site",
                        help="where the pages go (default: site)")
    folder = parser.parse_args(argv).folder
    holds = folder.is_dir() and any(folder.iterdir())
    if folder.is_file() or holds and not (folder / "style.css").exists():
        print(f"{folder}: holds something else: name a new folder", file=sys.stderr)
        return 2
    print(f"{build(folder)} pages and files; open {folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
