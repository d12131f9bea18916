"""Every mechanism on a GPU that need not be there: torch's fake tensors have shapes, types and
devices and no data, and tell where an operation takes tensors of two devices. They need a torch
built with CUDA; a backward pass needs the GPU."""
import pytest
import torch

from disagreement import KINDS
from nmt import search
from nmt.flags import UserError
from nmt.loss import Objective, _SmoothedCrossEntropy
from nmt.machine import machine
from tasks.logic_model import LogicModel
from transformer import COMPONENTS, Transformer, TransformerConfig

fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")

SMALL = dict(vocab_size=300, d_model=8, heads=2, layers=1, d_ff=8)
EVERYWHERE = dict(agg_at=COMPONENTS)
MECHANISMS = {
    "em, capsule attention": dict(agg="em", capsule_attention=("enc", "dec"), **EVERYWHERE),
    "dynamic, every disagreement": dict(agg="dynamic", reg=tuple(KINDS), **EVERYWHERE),
    "gu-dynamic, random": dict(agg="gu-dynamic", coupling="random", **EVERYWHERE),
    "gu-em, sum": dict(agg="gu-em", em_gradient="full", em_density="sum", **EVERYWHERE),
}


@pytest.fixture
def gpu(monkeypatch):
    """The device, in a block of fake tensors without gradients, under autocast."""
    def tolist(tensor):         # what the search reads: of several sentences the first is done
        if tensor.dtype == torch.bool:
            return [True] + [False] * (len(tensor) - 1)
        return [1.0] * len(tensor) if tensor.is_floating_point() else [[1]] * len(tensor)

    monkeypatch.setattr(fake_tensor.FakeTensor, "tolist", tolist)
    monkeypatch.setattr(fake_tensor.FakeTensor, "__int__", lambda tensor: 4)
    device = torch.device("cuda", 0)
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with fake_tensor.FakeTensorMode(), torch.no_grad():
        try:
            torch.ones(2, device=device)[0] = 2
        except RuntimeError as error:
            pytest.skip(f"torch was built without CUDA: {error}")
        torch.set_autocast_enabled("cuda", True)             # torch.autocast asks for a GPU
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            yield device
        finally:
            torch.clear_autocast_cache()
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])


def built(kind: type, config: TransformerConfig, device, *arguments):
    """A model on the device, as training has it."""
    with torch.device(device):
        return kind(config, *arguments)


def test_fake_tensors_tell_a_wrong_device(gpu):
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(2, device=gpu) + torch.ones(2)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_training_makes_its_tensors_on_the_gpu(mechanism, gpu):
    model = built(Transformer, TransformerConfig(**SMALL, **MECHANISMS[mechanism]), gpu)
    source = torch.ones(3, 6, dtype=torch.long, device=gpu)
    target = torch.ones(3, 5, dtype=torch.long, device=gpu)
    cross_entropy, D = Objective(model)(source, target, 10, 0.1)
    assert cross_entropy.device == gpu and cross_entropy.dtype == torch.float32
    assert D.device == gpu and (D.dtype == torch.float32 or not model.config.reg)
    hidden = model.hidden(source, target)[0].flatten(0, 1)
    with_gradients = _SmoothedCrossEntropy.apply(hidden, model.output.weight, target.flatten(),
                                                 0.1, True)
    assert with_gradients.device == gpu


def test_beam_search_makes_its_tensors_on_the_gpu(gpu):
    config = TransformerConfig(**SMALL, **MECHANISMS["em, capsule attention"])
    model = built(Transformer, config, gpu).eval()
    source = torch.ones(3, 6, dtype=torch.long, device=gpu)
    without_inference_mode = search.beam_search.__wrapped__                  # which asks the driver
    found = without_inference_mode(model, source, beam=2)
    assert found[0] == [search.Hypothesis([1], 1.0)]


@pytest.mark.parametrize("reach", [0, 9])
def test_logic_makes_its_tensors_on_the_gpu(reach, gpu):
    config = TransformerConfig(**SMALL, agg="em", reg=("output",), decoder=False)
    model = built(LogicModel, config, gpu, reach)
    formulas = torch.ones(3, 2, 5, dtype=torch.long, device=gpu)
    assert model.loss(formulas, torch.ones(6, 6, dtype=torch.long, device=gpu)).device == gpu
    assert model.eval()(formulas)[0].device == gpu


def test_a_process_takes_the_gpu_of_its_number(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert machine("cuda:1").device == torch.device("cuda", 1)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert taken == [torch.device("cuda", 1)]
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="cuda:2: this machine has 2 GPUs"):
        machine("cuda")
