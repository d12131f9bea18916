"""Every mechanism on a GPU that need not exist: torch's fake tensors have shapes, types and devices
but no data, and raise where an operation takes tensors of two devices. They need a torch built with
CUDA."""
import pytest
import torch

from disagreement import KINDS
from nmt.flags import UserError
from nmt.loss import Objective, _SmoothedCrossEntropy
from nmt.machine import setup_machine
from nmt.search import Hypothesis, beam_search
from tasks.logic_data import Formulas
from tasks.logic_model import LogicModel
from transformer import COMPONENTS, Transformer, TransformerConfig

fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")

GPU = torch.device("cuda", 0)
SMALL = dict(vocab_size=300, d_model=8, heads=2, layers=1, d_ff=8)
EM_AND_CAPSULE = dict(agg="em", agg_at=COMPONENTS, capsule_attention=("enc", "dec"))
MECHANISMS = [
    EM_AND_CAPSULE,
    dict(agg="dynamic", agg_at=COMPONENTS, reg=tuple(KINDS)),
    dict(agg="gu-dynamic", agg_at=COMPONENTS, coupling="random"),
    dict(agg="gu-em", agg_at=COMPONENTS, em_gradient="full", em_density="sum"),
]


@pytest.fixture
def fake_gpu(monkeypatch):
    """A block in which tensors are fake, without gradients, under autocast."""
    def tolist(tensor):         # what the search reads: of several sentences the first is done
        if tensor.dim() == 2:
            return [[1.0]] * len(tensor)                 # scores of the hypotheses that end
        if tensor.is_floating_point():
            return [1.0] + [2.0] * (len(tensor) - 1)     # bounds of the scores to come
        return [1] * len(tensor)                         # tokens

    monkeypatch.setattr(fake_tensor.FakeTensor, "tolist", tolist)
    monkeypatch.setattr(fake_tensor.FakeTensor, "__int__", lambda tensor: 4)
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with fake_tensor.FakeTensorMode(), torch.no_grad():
        try:
            torch.ones(2, device=GPU)[0] = 2
        except RuntimeError as error:
            pytest.skip(f"torch was built without CUDA: {error}")
        torch.set_autocast_enabled("cuda", True)         # torch.autocast needs a real GPU
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            yield
        finally:
            torch.clear_autocast_cache()
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])


def build(kind: type, *arguments, **mechanisms):
    """A model on the device, as training has it."""
    with torch.device(GPU):
        return kind(TransformerConfig(**SMALL, **mechanisms), *arguments)


def ones(*shape):
    """Token ids on the device."""
    return torch.ones(*shape, dtype=torch.long, device=GPU)


def test_fake_tensors_find_a_wrong_device(fake_gpu):
    with pytest.raises(RuntimeError, match="device"):
        ones(2) + torch.ones(2)


@pytest.mark.parametrize("mechanisms", MECHANISMS, ids=str)
def test_training(mechanisms, fake_gpu):
    model = build(Transformer, **mechanisms)
    target = ones(3, 5)
    cross_entropy, D = Objective(model)(ones(3, 6), target, 10, 0.1)
    assert cross_entropy.device == GPU and cross_entropy.dtype == torch.float32
    assert D.device == GPU and (D.dtype == torch.float32 or not model.config.reg)
    hidden = model.hidden(ones(3, 6), target)[0].flatten(0, 1)
    with_gradients = _SmoothedCrossEntropy.apply(
        hidden, model.output.weight, target.flatten(), 0.1, True)
    assert with_gradients.device == GPU


def test_beam_search(fake_gpu):
    model = build(Transformer, **EM_AND_CAPSULE).eval()
    without_inference_mode = beam_search.__wrapped__     # which needs a driver
    assert without_inference_mode(model, ones(3, 6), beam=2)[0] == [Hypothesis([], 1.0)]


@pytest.mark.parametrize("reach", [0, 9])
def test_logic(reach, fake_gpu):
    model = build(LogicModel, reach, agg="em", reg=("output",), decoder=False)
    formulas = Formulas(ones(4, 5), ones(6))
    assert model.loss(formulas, ones(4, 4)).device == GPU
    assert model.eval()(formulas).device == GPU


def test_a_process_takes_the_gpu_of_its_number(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert setup_machine("cuda:1").device == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1)]
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="cuda:2"):
        setup_machine("cuda")
