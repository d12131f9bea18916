"""Figures that cannot end a run, with literal text in fonts that have its letters."""
import contextlib
import re
import sys
import warnings

from tools.streams import print_once

# font families with Chinese, Japanese or Korean letters
CJK = ("CJK|Noto Sans (JP|KR|SC|TC)|Source Han|WenQuanYi|Droid Sans Fallback|IPA|Takao|VL P?Gothic"
       "|Nanum|Hiragino|PingFang|Heiti|Arial Unicode|YaHei|SimHei|Yu Gothic|Malgun")


@contextlib.contextmanager
def literal_text(look: dict | None = None):
    """A context or decorator for drawing with the settings `look` of matplotlib. A dollar sign
    starts no formula, CJK fonts complete the usual one, and all letters without a font give one
    warning."""
    from matplotlib import font_manager, get_cachedir, rc_context, rcParams
    fonts = [name for name in sorted(font_manager.get_font_names()) if re.search(CJK, name)]
    text = {"text.parse_math": False, "font.family": [*rcParams["font.family"], *fonts]}
    with rc_context({**(look or {}), **text}), warnings.catch_warnings(record=True) as caught:
        yield
    for w in caught:
        if re.search("missing from (current )?font", str(w.message)):      # matplotlib 3.8, 3.9
            print_once("warning: no font has some letters of the figures: install one, such as the "
                       "package fonts-noto-cjk, and delete matplotlib's list in "
                       f"{get_cachedir()}", file=sys.stderr)
        else:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)


@contextlib.contextmanager
def optional_figure(name: str):
    """Decorates a function that draws a figure. Its failure prints one line and does not end the
    program, which may have run for hours."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        print(f"warning: {name} is not drawn ({reason})", file=sys.stderr)
