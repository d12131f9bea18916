"""Writes the project's pages into a folder, by default site/: the documents, the sessions of the
course with their output and figures, and code beside the papers' equations.

    pip install -r requirements.txt -r requirements-docs.txt
    python -m docs.build [FOLDER]

The pages need no server. Only the players in the sessions need scripts.
"""
import html
import os
import re
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template

if not __package__:
    print("error: start it in the project's folder: python -m docs.build", file=sys.stderr)
    sys.exit(2)

from course.notebooks import ANSWER, PREDICT, execute, read_session, require
from docs.equations import EIGHT, EQUATIONS, ROOT, module, read
from tools.command_line import flag, run
from tools.files import UserError

DOCS = ROOT / "docs"
PAGE = Template((DOCS / "page.html").read_text("utf-8"))
BESIDE = (*EIGHT, "train_mt.py")                 # files with notes beside the code
PAGES = ("*.py", "nmt/*.py", "tools/*.py", "papers/*.py", "tasks/*.py", "toy/*.py", "course/*.py",
         "tests/*.py", "tests/*/*.py", "exercises/*.py", "docs/*.py", "*.md", "docs/*.md",
         "exercises/*.md", "results")
COPIES = ("CITATION.cff", "LICENSE", "docs/*.svg", "docs/*.png", "results/*")
SESSIONS = {f"course/session{n}.py": f"Session {n}" for n in range(1, 8)}
NAVIGATION = {                                   # heading -> {file: its name in the navigation}
    "Learn": {"README.md": "Overview", "docs/running.md": "Running", "docs/course.md": "Course",
              **SESSIONS, "exercises/README.md": "Exercises"},
    "Code": {"docs/equations.md": "Equations", **{file: file for file in BESIDE},
             "docs/readings.md": "Readings"},
    "Results": {"results/README.md": "Results"},
}


# ---- Where a page is, and links to it

def address(path: Path) -> Path:
    """The page of a file or folder of the project, relative to the site."""
    place = path.relative_to(ROOT)
    if path.is_dir():
        return place / "index.html"
    if place.name == "README.md":
        return place.with_name("index.html")
    endings = {".md": ".html", ".py": ".py.html"}
    return place.with_suffix(endings.get(place.suffix, place.suffix))


def link(target: Path, page: Path) -> str:
    """The link from the page of one file to that of another."""
    return os.path.relpath(address(target), address(page).parent).replace(os.sep, "/")


def link_text(target: str, page: Path, folder: Path) -> str:
    """Translates a link of a Markdown text, relative to `folder`, into a link of the site."""
    path, mark, part = target.partition("#")
    if "://" in target or not path:
        return target
    return link((folder / path).resolve(), page) + mark + part


def link_code(text: str, page: Path) -> str | None:
    """Returns the link of `file.py`, `file.py: name` or `test_file.py::test`, otherwise None."""
    match = re.fullmatch(r"([\w/]+\.py)(?:(?:: |::)([\w.]+))?", text.strip())
    files = [path for path in files_of(PAGES) if match and f"/{path}".endswith(f"/{match[1]}")]
    if not files:
        return None
    code = module(files[0].relative_to(ROOT).as_posix())
    part = f"#L{code.start(match[2])}" if match[2] in code.nodes else ""
    return link(files[0], page) + part


@cache
def files_of(patterns: tuple) -> list[Path]:
    """The project's files of these patterns."""
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]


# ---- Markdown

def math(latex: str, options: dict) -> str:
    """Converts LaTeX to MathML."""
    from latex2mathml.converter import convert
    mathml = convert(latex, display="block" if options["display_mode"] else "inline")
    mathml = re.sub("<mo>(min|max)</mo>", r"<mi>\1</mi>", mathml)
    return mathml.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em" />')


def color(code: str, language: str, _=None) -> str:
    """Returns highlighted code, or "" without a language."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    if not language:
        return ""
    return highlight(code, get_lexer_by_name(language, stripnl=False), HtmlFormatter(nowrap=True))


@cache
def markdown_parser():
    """Returns the parser, which colors code and converts formulas."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.anchors import anchors_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    parser = MarkdownIt("commonmark", {"highlight": color}).enable("table")
    return parser.use(anchors_plugin, max_level=4).use(dollarmath_plugin, renderer=math)


def markdown(text: str, page: Path, folder: Path) -> str:
    """Converts Markdown to HTML for the page of a file. Links relative to `folder` of the project
    become links to pages of the site, and names of code become links to the code."""
    parser = markdown_parser()
    tokens = parser.parse(text)
    for block in tokens:
        around = None                            # the link around a token
        for token in block.children or ():
            for name in {"href", "src"} & token.attrs.keys():
                token.attrSet(name, link_text(token.attrs[name], page, folder))
            if token.type in ("link_open", "link_close"):
                around = token if token.type == "link_open" else None
            elif token.type == "code_inline":
                place = link_code(token.content, page)
                token.type = "html_inline"
                code = re.sub(r"(::|[_/.])", r"\1<wbr>", html.escape(token.content))
                token.content = f"<code>{code}</code>"
                if place and not around:
                    token.content = f'<a href="{place}">{token.content}</a>'
                elif place and place.startswith(around.attrs["href"]):
                    around.attrSet("href", place)                  # the same file, with the line
    rendered = parser.renderer.render(tokens, parser.options, {})
    # a browser would put the comma after a formula on the next line
    return re.sub(r'\(?<span class="math inline">.*?</span>[.,;:)]*',
                  r'<span class="whole">\g<0></span>', rendered)


def contents(body: str) -> str:
    """Returns links to the sections of a page, "" if there are fewer than three."""
    sections = re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', body)
    if len(sections) < 3:
        return ""
    links = [f'<li><a href="#{name}">{re.sub("<.*?>", "", title)}</a></li>'
             for name, title in sections]
    return f"<details><summary>Contents</summary><ul>{''.join(links)}</ul></details>"


# ---- Code, with equations and prose beside it

def notes(path: Path) -> dict[int, str]:
    """Returns {line: docstrings and equations beside the code that starts at this line}."""
    file = path.relative_to(ROOT).as_posix()
    code = module(file)
    beside = {}
    for line, (text, hidden) in code.docstrings().items():
        first = code.lines[hidden.start - 1]
        text = docstring_markdown(text, width=100 - first.index('"'))
        beside[line] = f"<section>{markdown(text, path, path.parent)}</section>"
    for entry in read(EQUATIONS):
        for where, name in entry.code:
            if where == file:
                tests = ", ".join(f"`{test_file}::{test}`" for test_file, test in entry.tests)
                title = f"**[{entry.title}](equations.md#{entry.anchor}).**"
                text = markdown(f"{title} {entry.text}\n\nTests: {tests}", path, DOCS)
                line = code.place(entry, name)
                beside[line] = beside.get(line, "") + f"<section>{text}</section>"
    return beside


def docstring_markdown(text: str, width: int) -> str:
    """Marks examples as code, and the ends of lines that are no accident of the width: a sentence
    ends there, and the next word would have fitted."""
    quotes = '"""'                               # which the first line starts with
    paragraphs = []
    for paragraph in f"{quotes}{text}".split("\n\n"):
        lines = paragraph.splitlines()
        if paragraph.startswith(">>> "):
            lines = ["```python", *lines, "```"]
        else:
            for i, after in enumerate(lines[1:]):
                fits = len(lines[i]) + 1 + len(after.split()[0]) <= width
                if fits and lines[i].endswith((".", ":")):
                    lines[i] += "  "             # a line break in Markdown
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs).removeprefix(quotes)


def code_page(path: Path) -> str:
    """Returns the page of a Python file. Files in BESIDE are shown in rows, notes beside their
    lines. There the docstrings are among the notes."""
    file = path.relative_to(ROOT).as_posix()
    highlighted = color(path.read_text("utf-8"), "python").splitlines()
    lines = [f'<span class="line" id="L{n}" data-n="{n}">{line}\n</span>'
             for n, line in enumerate(highlighted, 1)]
    if file not in BESIDE:
        return f'<h1>{file}</h1>\n<div class="row"><pre>{"".join(lines)}</pre></div>'
    for _, hidden in module(file).docstrings().values():
        for n in hidden:
            lines[n - 1] = ""
    beside = notes(path)
    starts = sorted({1, *beside})
    rows = []
    for start, end in zip(starts, [*starts[1:], len(lines) + 1]):
        # a link to the first line leads to the row, so that the note is in sight, too
        text = "".join(lines[start - 1:end - 1]).replace(f' id="L{start}"', "")
        note = f'<div class="note">{beside.get(start, "")}</div>'
        rows.append(f'<div class="row" id="L{start}">{note}<pre>{text}</pre></div>')
    return f'<h1>{file}</h1>\n<div class="notes">{"".join(rows)}</div>'


def session_page(path: Path, download: Path) -> str:
    """Runs a session of the course. Returns its prose, code, output and figures, and writes the
    notebook with the outputs to `download`."""
    import jupytext
    from nbformat.v4 import new_markdown_cell
    notebook = execute(read_session(path), path.parent)
    jupytext.write(notebook, download)
    parts = []
    predicted = False                            # whether the next output is to be predicted
    folded = False                               # whether the next parts are below such an output
    # without the cell that finds the project
    for cell in [*notebook.cells[1:], new_markdown_cell(next_steps(path))]:
        if cell.cell_type == "markdown":
            if folded and not cell.source.startswith(ANSWER):
                parts.append("</details>")
                folded = False
            parts.append(markdown(cell.source, path, path.parent))
            predicted = PREDICT in cell.source
            continue
        code = f"<pre>{color(cell.source, 'python')}</pre>"
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            code = f"<details><summary>Code of the figure</summary>{code}</details>"
        parts.append(code)
        if predicted:
            parts.append("<details><summary>Output</summary>")
            predicted = False
            folded = True
        parts += [output_html(output) for output in cell.outputs]
    offer = f'</h1>\n<p><a href="{download.name}" download>Notebook</a></p>'
    return "\n".join(parts).replace("</h1>", offer, 1)


def next_steps(path: Path) -> str:
    """Returns links from the end of a session to its questions and exercises, and to the next
    session, as Markdown."""
    number = int(path.stem.removeprefix("session"))
    after = f"[Session {number + 1}](session{number + 1}.py)"
    if f"course/session{number + 1}.py" not in SESSIONS:
        after = "[What came after](../docs/course.md#what-came-after)"
    return (f"**Next:** [Questions](../docs/course.md#questions-of-session-{number}) | "
            f"[Exercises](../exercises/README.md) | {after}")


def output_html(output) -> str:
    """Converts printed text, a figure or a player to HTML. Leaves out stderr."""
    if output.get("name") == "stdout":
        return f'<pre class="output">{html.escape(output.text)}</pre>'
    data = output.get("data", {})
    if "image/png" in data:
        return f'<p><img src="data:image/png;base64,{data["image/png"].strip()}" alt="figure"></p>'
    return data.get("text/html", "")


# ---- The pages

def navigation(page: Path) -> str:
    """Returns the links at the top of a page."""
    rows = []
    for heading, files in NAVIGATION.items():
        links = []
        for file, name in files.items():
            here = ' aria-current="page"' if ROOT / file == page else ""
            links.append(f'<a href="{link(ROOT / file, page)}"{here}>{name}</a>')
        rows.append(f"<p><b>{heading}</b> {' '.join(links)}</p>")
    return "\n".join(rows)


def write(path: Path, folder: Path) -> None:
    """Writes the page of a file or folder of the project into the site's folder."""
    target = folder / address(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    kind = "text"
    if path.is_dir():
        files = "\n".join(f"- [{file.name}]({file.name})" for file in sorted(path.iterdir()))
        body = markdown(f"# {path.name}\n\n{files}", path, path)
    elif path.suffix == ".md":
        body = markdown(path.read_text("utf-8"), path, path.parent)
        body = body.replace("</h1>", f"</h1>\n{contents(body)}", 1)
    elif path.relative_to(ROOT).as_posix() in SESSIONS:
        body = session_page(path, target.parent / f"{path.stem}.ipynb")
    else:
        kind, body = "code", code_page(path)
    title = re.sub("<.*?>", "", re.search("<h1.*?</h1>", body)[0])
    root = "../" * (len(address(path).parts) - 1)
    page = PAGE.substitute(title=title, root=root, menu=navigation(path), kind=kind, body=body)
    target.write_text(page, "utf-8")


@dataclass
class Settings:
    folder: Path = flag(ROOT / "site", "where the pages go (site)", positional=True,
                        metavar="FOLDER")


def build(s: Settings) -> None:
    """Writes all pages into a folder: a new one, or one that has them already."""
    folder = s.folder
    require("markdown_it", "mdit_py_plugins", "latex2mathml", "pygments", "jupytext",
            "nbclient", "ipykernel")
    from pygments.formatters import HtmlFormatter
    from tqdm import tqdm
    ours = (folder / "aggregation.py.html").exists()
    if folder.exists() and not ours and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder}: holds something else: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path in tqdm(files_of(PAGES), "pages", leave=False, disable=None):
        write(path, folder)
    for path in files_of(COPIES):
        shutil.copyfile(path, folder / address(path))
    light = HtmlFormatter(style="xcode").get_style_defs("pre")
    dark = HtmlFormatter(style="github-dark").get_style_defs("pre")
    style = (DOCS / "style.css").read_text("utf-8")
    (folder / "style.css").write_text(
        f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{style}", "utf-8")
    print(f"{len(files_of(PAGES))} pages; open {folder / 'index.html'}")


def main(argv=None) -> int:
    return run(build, Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
