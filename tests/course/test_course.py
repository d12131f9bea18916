"""The seven sessions of the course run from top to bottom and print what docs/course.md says; the
two mechanisms of course/later.py."""
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot
from matplotlib.text import Text
from torch.nn.functional import cross_entropy

import transformer
from attention import MultiHeadAttention
from capsule_transformer import CapsuleRouting
from transformer import Transformer, TransformerConfig

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "course"))

from later import GatedAttention, TalkingHeads  # noqa: E402

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
# torch's tensors do not know numpy's newest way of being drawn
DRAWS_TENSORS = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def value(number: str) -> float:
    return float(number.replace(",", ""))


def words(text: str) -> list[str]:
    return re.sub(NUMBER, "#", text).split()


@DRAWS_TENSORS
@pytest.mark.parametrize("number", range(1, 8))
def test_a_session_prints_what_the_course_says(number, monkeypatch, tmp_path, capsys):
    """The same words. Numbers to a unit of the last digit that the course prints; in the sessions
    that optimize (2) or train (6 and 7) to what a processor changes there. Code that draws has
    cells of its own, which the pages and JupyterLab fold."""
    name = f"course/session{number}.py"
    document = (ROOT / "docs" / "course.md").read_text("utf-8")
    promised = re.search(rf"```\n\$ python {name}\n(.*?)```", document, flags=re.DOTALL)[1]
    file_format = "svg" if number == 2 else "png"
    folder = tmp_path / "new" / "folder"
    monkeypatch.setenv("FIGURES", str(folder))
    monkeypatch.setenv("FIGURE_FORMAT", file_format)
    pyplot.switch_backend("Agg")
    savefig = pyplot.savefig

    def check_and_save(path, **settings):
        """Heads count from 1; axes and color bars say what they show."""
        assert "head 0" not in {x.get_text() for x in pyplot.gcf().findobj(Text)}
        assert all(ax.get_xlabel() or ax.get_ylabel() for ax in pyplot.gcf().axes[-1:])
        savefig(path, **settings)

    monkeypatch.setattr(pyplot, "savefig", check_and_save)
    runpy.run_path(str(ROOT / name))
    printed = capsys.readouterr().out
    assert words(printed) == words(promised)
    for got, want in zip(re.findall(NUMBER, printed), re.findall(NUMBER, promised), strict=True):
        _, _, decimals = want.partition(".")
        assert len(got.partition(".")[2]) == len(decimals)
        change = {2: 0.005, 6: 0.02, 7: 0.02}.get(number, 0)
        tolerance = max(1.01 * 10.0 ** -len(decimals), change, change * abs(value(want)))
        assert value(got) == pytest.approx(value(want), rel=0, abs=tolerance)
    code = (ROOT / name).read_text("utf-8")
    figures = re.findall(rf'"(session{number}-\w+)"', code)
    assert {path.name for path in folder.iterdir()} == {f"{x}.{file_format}" for x in figures}
    assert not pyplot.get_fignums()
    cells = code.split("\n# %%")
    drawing = [cell for cell in cells if "pyplot.subplots(" in cell or "\nplay(" in cell]
    assert drawing
    for cell in drawing:
        assert cell.startswith(' jupyter={"source_hidden": true}\n') and "print(" not in cell


@DRAWS_TENSORS
def test_session_6_takes_another_model(monkeypatch, tmp_path):
    """In place of the line that trains and the one below it, as docs/course.md says."""
    from training import tokenizer
    monkeypatch.setenv("FIGURES", str(tmp_path))
    pyplot.switch_backend("Agg")
    config = TransformerConfig(600, d_model=16, heads=4, d_ff=16, layers=1,
                               capsule_attention=("enc",))
    lines = (ROOT / "course" / "session6.py").read_text("utf-8").splitlines()
    place, = [number for number, line in enumerate(lines) if "= train(" in line]
    lines[place:place + 2] = ["model, tokenizer = loaded"]
    exec("\n".join(lines), {"loaded": (Transformer(config), tokenizer)})
    assert (tmp_path / "session6-trained.png").exists()


def test_a_session_draws_and_prints_what_its_surroundings_lack(tmp_path):
    """The backend of a notebook, which Colab sets for the commands of a cell, too; letters that a
    Japanese Windows cannot show."""
    code = ("import sys; sys.stdout.reconfigure(encoding='cp932'); "
            "import lesson; lesson.pyplot.plot([1]); lesson.show('line'); print('H\\xf6ren')")
    environment = dict(os.environ, MPLBACKEND="module://missing.backend",
                       PYTHONPATH=str(ROOT / "course"))
    program = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment,
                             capture_output=True)
    assert (tmp_path / "figures" / "line.png").exists() and program.stdout.strip() == b"H?ren"


@pytest.mark.parametrize("ending, status, message", [
    ("lesson.show('a/b')", 2, "error: figures/a/b.png: cannot write (No such file or directory): "),
    ("print('a', file=open('/dev/full', 'w', 1))", 2, "error: output: No space left on device: "),
    ("open('gone')", 1, "Traceback "), ("raise BrokenPipeError", 141, ""),
    ("import os; os.environ['FIGURE_FORMAT'] = 'gif'; lesson.show('a')", 2,
     "error: FIGURE_FORMAT=gif: choose png, svg or pdf\n")])
def test_a_session_ends_as_other_programs_do(ending, status, message, tmp_path):
    program = subprocess.run(
        [sys.executable, "-c", f"import lesson; lesson.pyplot.plot([1]); {ending}"], cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT / "course")}, text=True,
        capture_output=True)
    assert program.returncode == status
    assert program.stderr.startswith(message) and bool(program.stderr) == bool(message)


# ---- What came after: course/later.py

LATER = pytest.mark.parametrize("kind", [GatedAttention, TalkingHeads])


@LATER
def test_later_attention_routes_its_logits(kind):
    """At the start the gates are 1/2, and nothing is mixed."""
    plain = MultiHeadAttention(12, 3, capsule=CapsuleRouting(3)).eval()
    later = kind(12, 3, 0.0, None, plain.capsule).eval()
    later.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 5, 12)
    want = plain(x)[1].outputs
    g = 1 / 2 if kind is GatedAttention else 1
    torch.testing.assert_close(later(x)[1].outputs, g * want)
    plain.capsule = None
    assert not plain(x)[1].outputs.allclose(want)


@LATER
@pytest.mark.parametrize("settings", [{}, {"causal": True}, {"need_weights": True}], ids=str)
def test_later_attention_is_plain_but_for_its_gates_and_mixtures(kind, settings):
    """Heads that a permutation before the softmax moves are moved back after it."""
    plain = MultiHeadAttention(12, 3).eval()
    later = kind(12, 3, 0.5).eval()
    later.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 5, 12)
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None, None, None]
    _, want = plain(x, x, mask, **settings)
    g = torch.ones(())
    if kind is GatedAttention:
        assert not later.gate(x).any()                   # at the start every gate is 1/2
        torch.nn.init.normal_(later.gate.weight)
        g = torch.sigmoid(later.gate(x)).transpose(1, 2).unsqueeze(-1)       # [B, H, L_q, 1]
    else:
        permutation = torch.eye(3)[[2, 0, 1]]
        later.before.data, later.after.data = permutation, permutation.T
    out, heads = later(x, x, mask, **settings)
    torch.testing.assert_close(heads.outputs, g * want.outputs)
    torch.testing.assert_close(out, plain.aggregation(heads.outputs))
    assert "need_weights" not in settings or heads.weights.allclose(want.weights, atol=1e-6)
    if kind is TalkingHeads:
        later.after.data = torch.eye(3)
        assert not torch.allclose(later(x, x, mask, **settings)[0], out, atol=1e-3)
    later.train()                                        # with dropout
    assert not torch.equal(later(x)[0], later(x)[0])


@LATER
def test_later_attention_trains_in_a_transformer(kind, monkeypatch):
    """In encoder and decoder; every parameter that it adds has a gradient."""
    monkeypatch.setattr(transformer, "MultiHeadAttention", kind)
    model = Transformer(TransformerConfig(20, d_model=12, heads=3, layers=1, d_ff=8, dropout=0.0))
    plain = MultiHeadAttention(12, 3).state_dict().keys()
    source = torch.randint(1, 20, (4, 5))
    logits, heads = model(source, source)
    assert logits.shape == (4, 5, 20) and heads["cross"][0].outputs.shape == (4, 3, 5, 4)
    cross_entropy(logits.flatten(0, 1), source.flatten()).backward()
    layer = model.decoder.layers[0]
    for attention in (model.encoder.layers[0].attention, layer.attention, layer.cross):
        added = {name: p for name, p in attention.named_parameters() if name not in plain}
        assert added and all(p.grad.any() for p in added.values())
