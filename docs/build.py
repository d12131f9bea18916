"""Writes the project's pages into a folder, by default site/: the documents, the sessions of the
course with what they print and draw, and code beside the papers' equations.

    pip install -r requirements.txt -r requirements-docs.txt
    python -m docs.build [FOLDER]

From README.md on, whatever a page links to becomes a page, too; files that are neither Markdown nor
Python are copied. The pages need no server and no script.
"""
import argparse
import contextlib
import html
import io
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
except ImportError as missing:
    print(f"docs.build: {missing}: pip install -r requirements.txt -r requirements-docs.txt",
          file=sys.stderr)
    sys.exit(2)

from docs.equations import EIGHT, ROOT, module, read
from nmt.streams import setup_streams

DOCS = ROOT / "docs"
PAGE = Template((DOCS / "page.html").read_text("utf-8"))
BESIDE = (*EIGHT, "train_mt.py")                 # files with notes beside the code
FOLDERS = (".", "nmt", "papers", "tasks", "toy", "course", "tests", "tests/*")      # of code
SESSIONS = {f"course/session{n}.py": f"Session {n}" for n in range(1, 8)}
NAVIGATION = {                                   # heading -> {file: its name in the navigation}
    "Learn": {"README.md": "Overview", "docs/running.md": "Running", "docs/course.md": "Course",
              **SESSIONS, "exercises/README.md": "Exercises"},
    "Code": {"docs/equations.md": "Equations", **{file: file for file in BESIDE},
             "docs/readings.md": "Readings"},
    "Results": {"RESULTS.md": "Results", "docs/claims.md": "Claims", "docs/plan.md": "Plan"},
}


# ---- Where a page is, and links to it

class Site:
    """The pages known so far, and those still to be written."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.known = set()                       # files of the project that have a page
        self.waiting = []

    def address(self, path: Path) -> Path:
        """The page of a file or folder of the project, relative to the site."""
        place = path.relative_to(ROOT)
        if place.name == "README.md":
            return place.with_name("index.html")
        if path.is_dir():
            return place / "index.html"
        if path.suffix == ".md":
            return place.with_suffix(".html")
        return place.with_name(place.name + ".html") if path.suffix == ".py" else place

    def link(self, target: Path, page: Path) -> str:
        """The link from the page of one file to that of another, which will be written, too."""
        if target not in self.known:
            self.known.add(target)
            self.waiting.append(target)
        start = self.address(page).parent
        return os.path.relpath(self.address(target), start).replace(os.sep, "/")

    def link_text(self, address: str, page: Path, folder: Path) -> str:
        """A link in a Markdown text, relative to `folder` of the project, as one of the site."""
        path, mark, part = address.partition("#")
        if "://" in address or not path:
            return address
        return self.link((folder / path).resolve(), page) + mark + part

    def link_code(self, text: str, page: Path) -> str | None:
        """The link of `file.py`, `file.py: name` or `test_file.py::test`, None for other code."""
        match = re.fullmatch(r"([\w/]+\.py)(?:(?:: |::)([\w.]+))?", text.strip())
        files = [path for path in python_files() if match and f"/{path}".endswith(f"/{match[1]}")]
        if not files:
            return None
        link = self.link(files[0], page)
        code = module(files[0].relative_to(ROOT).as_posix())
        return f"{link}#L{code.start(match[2])}" if match[2] in code.nodes else link


@cache
def python_files() -> list[Path]:
    """The project's Python files."""
    return [path for folder in FOLDERS for path in sorted(ROOT.glob(f"{folder}/*.py"))]


# ---- Markdown

def math(latex: str, options: dict) -> str:
    """LaTeX as MathML."""
    mathml = convert(latex, display="block" if options["display_mode"] else "inline")
    mathml = re.sub("<mo>(min|max)</mo>", r"<mi>\1</mi>", mathml)
    return mathml.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em" />')


def color(code: str, language: str, _=None) -> str:
    """Highlighted code, or "" without a language."""
    if not language:
        return ""
    return highlight(code, get_lexer_by_name(language, stripnl=False), HtmlFormatter(nowrap=True))


MARKDOWN = MarkdownIt("commonmark", {"highlight": color}).enable("table")
MARKDOWN.use(anchors_plugin, max_level=4).use(dollarmath_plugin, renderer=math)


def markdown(site: Site, text: str, page: Path, folder: Path) -> str:
    """A Markdown text as HTML for the page of a file. Links relative to `folder` of the project
    lead to pages of the site, names of code to the code, and images to themselves."""
    tokens = MARKDOWN.parse(text)
    for block in tokens:
        linked = False
        for token in block.children or ():
            if token.type in ("link_open", "link_close"):
                linked = token.type == "link_open"
            for name in {"href", "src"} & token.attrs.keys():
                token.attrSet(name, site.link_text(token.attrs[name], page, folder))
            link = None
            if token.type == "image":
                link = token.attrs["src"]
                token.content = f'<img src="{link}" alt="{html.escape(token.content)}">'
            elif token.type == "code_inline":
                link = None if linked else site.link_code(token.content, page)
                code = re.sub(r"(::|[_/.])", r"\1<wbr>", html.escape(token.content))
                token.content = f"<code>{code}</code>"
            else:
                continue
            token.type = "html_inline"
            if link:
                token.content = f'<a href="{link}">{token.content}</a>'
    rendered = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
    # a browser would put the comma after a formula on the next line
    rendered = re.sub(r'\(?<span class="math inline">.*?</span>[.,;:)]*',
                      r'<span class="whole">\g<0></span>', rendered)
    rendered = rendered.replace("<table>", '<div class="table"><table>')
    return rendered.replace("</table>", "</table></div>")


def contents(body: str) -> str:
    """Links to the sections of a page, where there are several."""
    sections = re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', body)
    if len(sections) < 3:
        return ""
    links = [f'<li><a href="#{name}">{re.sub("<.*?>", "", title)}</a></li>'
             for name, title in sections]
    return f"<details><summary>Contents</summary><ul>{''.join(links)}</ul></details>"


# ---- Code, with equations and prose beside it

def notes(site: Site, path: Path) -> dict[int, str]:
    """{line: docstring and equations beside the code from there on}."""
    file = path.relative_to(ROOT).as_posix()
    code = module(file)
    beside = {}
    for line, (text, _) in code.docstrings().items():
        text = re.sub(r"(?ms)^>>> .+?(?=\n\n|\Z)", r"```python\n\g<0>\n```", text)
        beside[line] = f"<section>{markdown(site, text, path, path.parent)}</section>"
    for entry in read(DOCS / "equations.md"):
        for where, name in entry.code:
            if where == file:
                tests = ", ".join(f"`{test_file}::{test}`" for test_file, test in entry.tests)
                text = markdown(site, f"{entry.text}\n\nTests: {tests}", path, DOCS)
                line = code.place(entry, name)
                beside[line] = beside.get(line, "") + f"<section>{text}</section>"
    return beside


def code_page(site: Site, path: Path) -> str:
    """A Python file. Those in BESIDE are rows of notes and of the lines that they belong to; their
    docstrings are left out, and their imports are folded."""
    file = path.relative_to(ROOT).as_posix()
    code = module(file)
    highlighted = color("\n".join(code.lines), "python").splitlines()
    lines = [f'<span class="line" id="L{n}" data-n="{n}">{line}\n</span>'
             for n, line in enumerate(highlighted, 1)]
    if file not in BESIDE:
        return f'<h1>{file}</h1>\n<div class="row"><pre>{"".join(lines)}</pre></div>'
    for _, hidden in code.docstrings().values():
        for n in hidden:
            lines[n - 1] = ""
    beside = notes(site, path)
    starts = sorted({1, *beside, code.imports.start, code.imports.stop})
    rows = []
    for start, end in zip(starts, [*starts[1:], len(lines) + 1]):
        text = f"<pre>{''.join(lines[start - 1:end - 1])}</pre>"
        if start in code.imports:
            text = f"<details><summary>imports</summary>{text}</details>"
        rows.append(f'<div class="row"><div class="note">{beside.get(start, "")}</div>{text}</div>')
    return f'<h1>{file}</h1>\n<div class="notes">{"".join(rows)}</div>'


def session_page(site: Site, path: Path) -> str:
    """A session of the course, a py:percent file: its prose, code, output and figures."""
    folder = (site.folder / site.address(path)).parent
    # for course/lesson.py and matplotlib
    os.environ |= {"FIGURES": str(folder), "FIGURE_FORMAT": "png", "MPLBACKEND": "Agg"}
    sys.path.insert(0, str(path.parent))
    names = {"__name__": "__main__"}
    parts = []
    for cell in re.split(r"(?m)^# %%", path.read_text("utf-8"))[1:]:
        kind, _, source = cell.partition("\n")
        source = source.strip("\n")
        if "[markdown]" in kind:
            text = re.sub("(?m)^# ?", "", source)
            parts.append(markdown(site, text, path, path.parent))
            continue
        parts.append(f"<pre>{color(source, 'python')}</pre>")
        printed, drawn = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(drawn):
            exec(compile(source, path, "exec"), names)
        if printed.getvalue():
            parts.append(f'<pre class="output">{html.escape(printed.getvalue())}</pre>')
        for figure in re.findall("(?m)^figure: (.+)$", drawn.getvalue()):
            name = Path(figure).name
            parts.append(f'<p><a href="{name}"><img src="{name}" alt="{name}"></a></p>')
    return "\n".join(parts)


# ---- The pages

def navigation(site: Site, page: Path) -> tuple[str, str]:
    """The links at the top of a page, and those at its end to the pages before and after."""
    rows = []
    links = []
    at = None
    for heading, files in NAVIGATION.items():
        row = [f"<b>{heading}</b>"]
        for file, name in files.items():
            here = ""
            if ROOT / file == page:
                at = len(links)
                here = ' aria-current="page"'
            row.append(f'<a href="{site.link(ROOT / file, page)}"{here}>{name}</a>')
            links.append(row[-1])
        rows.append(f"<p>{' '.join(row)}</p>")
    around = ""
    if at:
        around = f"← {links[at - 1]} "
    if at is not None and at + 1 < len(links):
        around += f"{links[at + 1]} →"
    return "\n".join(rows), around


def write(site: Site, path: Path) -> None:
    """The page of a file or folder of the project."""
    target = site.folder / site.address(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    kind = "text"
    if path.is_dir():
        files = "\n".join(f"- [{file.name}]({file.name})" for file in sorted(path.iterdir()))
        body = markdown(site, f"# {path.name}\n\n{files}", path, path)
    elif path.suffix == ".md":
        body = markdown(site, path.read_text("utf-8"), path, path.parent)
        body = body.replace("</h1>", f"</h1>\n{contents(body)}", 1)
    elif path.relative_to(ROOT).as_posix() in SESSIONS:
        body = session_page(site, path)
    elif path.suffix == ".py":
        kind, body = "code", code_page(site, path)
    else:
        shutil.copyfile(path, target)
        return
    title = re.sub("<.*?>", "", re.search("<h1.*?</h1>", body)[0])
    root = "../" * (len(site.address(path).parts) - 1)
    menu, around = navigation(site, path)
    page = PAGE.substitute(title=title, root=root, menu=menu, kind=kind, body=body, around=around)
    target.write_text(page, "utf-8")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    setup_streams()
    parser = argparse.ArgumentParser(prog="python -m docs.build",
                                     description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site",
                        help="where the pages go (default: site)")
    folder = parser.parse_args(argv).folder
    if folder.exists() and not (folder / "style.css").exists() and any(folder.iterdir()):
        print(f"{folder}: holds something else: name a new folder", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    light = HtmlFormatter(style="xcode").get_style_defs("pre")
    dark = HtmlFormatter(style="github-dark").get_style_defs("pre")
    style = (DOCS / "style.css").read_text("utf-8")
    (folder / "style.css").write_text(
        f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{style}", "utf-8")
    site = Site(folder)
    site.link(ROOT / "README.md", ROOT / "README.md")
    while site.waiting:
        write(site, site.waiting.pop())
    print(f"{len(site.known)} pages and files; open {folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
