"""machine.py: what the processor is asked for; seeds."""
import itertools
import platform
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tools.files import UserError
from tools.machine import (
    TORCHRUN,
    Machine,
    has_bfloat16,
    machine_defaults,
    mixed_precision,
    pick_device,
    processor,
    seed_torch,
    setup_machine,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("capabilities, has", [
    ({"avx512_bf16": True, "amx_bf16": False}, True), ({"amx_bf16": True}, True),
    ({"bf16": True}, True), ({"avx2": True, "avx512_bf16": False}, False)])
def test_bfloat16_of_a_processor(capabilities, has, monkeypatch):
    """None where torch does not answer."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert has_bfloat16(CPU) == has
    assert machine_defaults("cpu") == {"amp": has, "workers": 0, "graphs": False, "compile": False}
    assert not has_bfloat16(torch.device("mps"))
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not has_bfloat16(CPU)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported",
                        lambda including_emulation=True: including_emulation)
    assert not has_bfloat16(torch.device("cuda"))        # an older GPU, which emulates it


def test_the_name_of_the_processor(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", str)
    assert processor(torch.device("cuda:1")) == "cuda:1"
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr(Path, "read_text", lambda path, *_: "cores\t: 2\nmodel name\t: A 9\nx: y")
    assert processor(CPU) == "A 9"
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert processor(CPU) == platform.machine()


@pytest.mark.parametrize("name, gpus", [("cuda", 0), ("cuda:2", 2), ("mps", 0)])
def test_a_gpu_that_is_not_there_is_a_mistake(name, gpus, monkeypatch):
    for module in (torch.cuda, torch.mps):
        monkeypatch.setattr(module, "device_count", lambda: gpus)
    with pytest.raises(UserError, match=f"--device {name}: .* {gpus} .* choose cpu or auto$"):
        pick_device(name)
    for variable in TORCHRUN:
        monkeypatch.setenv(variable, "2")
    with pytest.raises(UserError, match="choose cpu or auto, or start at most one process per GPU"):
        pick_device(name)


def test_the_kernels_of_a_device(monkeypatch):
    """And the device of pinned memory."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    torch.backends.cuda.enable_cudnn_sdp(True)
    for name, precision in (("auto", "high"), ("cuda:1", "high"), ("cpu", "highest")):
        device = pick_device(name)
        assert device == torch.device("cuda" if name == "auto" else name)
        assert torch.get_float32_matmul_precision() == precision
        assert torch.backends.cuda.flash_sdp_enabled() == (device.type == "cpu")
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert chosen == [torch.device("cuda:1")]


@pytest.mark.parametrize("missing", ["importlib.util.find_spec", "shutil.which",
                                     "pathlib.Path.exists"])
def test_nothing_is_compiled_without_the_tools(missing, monkeypatch):
    monkeypatch.setenv("CC", "cc-9")
    for tool in ("importlib.util.find_spec", "shutil.which", "pathlib.Path.exists"):
        monkeypatch.setattr(tool, lambda *args: True)
    monkeypatch.setattr("shutil.which", lambda name: name == "cc-9")
    monkeypatch.setattr("tools.machine.pick_device", torch.device)
    monkeypatch.setattr("tools.machine.has_bfloat16", lambda device: True)
    on_gpu = {"amp": True, "workers": 2, "graphs": True, "compile": True}
    assert machine_defaults("cuda") == on_gpu
    monkeypatch.setattr(missing, lambda *args: None)
    on_gpu["compile"] = False
    assert machine_defaults("cuda") == on_gpu
    for name in TORCHRUN:                    # several processes
        monkeypatch.setenv(name, "2")
    assert machine_defaults("cuda") == on_gpu | {"graphs": False}


def test_attention_in_bfloat16_on_a_cpu_is_not_fused():
    """Its gradient is that of the fused kernel, to the precision of bfloat16."""
    Q, K, V = torch.randn(3, 2, 4, 16, 8)
    gradients = []
    for amp in (False, True):
        with mixed_precision(CPU, amp):
            assert torch.backends.cuda.flash_sdp_enabled() != amp
            q = Q.clone().requires_grad_()
            torch.nn.functional.scaled_dot_product_attention(q, K, V).square().sum().backward()
        gradients.append(q.grad)
    torch.testing.assert_close(*gradients, atol=0.1, rtol=0.1)


def test_the_order_of_seed_process_and_step_counts():
    drawn = set()
    for numbers in itertools.permutations((0, 1, 2)):
        seed_torch(*numbers)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 6


def test_some_of_torchruns_variables_start_no_process_group(monkeypatch):
    """As a cluster sets them."""
    for name in TORCHRUN[:-1]:
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("LOCAL_RANK", "")
    monkeypatch.delenv(TORCHRUN[-1], raising=False)
    machine = setup_machine("cpu")
    with machine.first_on_each_node():
        assert (machine.world, machine.rank) == (1, 0)


@pytest.mark.parametrize("name, backend, more", [
    ("cpu", "gloo", {}), ("cuda", "nccl", {"device_id": torch.device("cuda:2")})])
def test_processes_wait_for_half_a_day(name, backend, more, monkeypatch):
    """While the first validates and tests; on a GPU each has the one of its rank on its node."""
    groups = []
    for variable in TORCHRUN:
        monkeypatch.setenv(variable, "3" if variable == "RANK" else "2")
    monkeypatch.setattr("tools.machine.pick_device", torch.device)
    monkeypatch.setattr(dist, "init_process_group",
                        lambda *args, **options: groups.append((*args, options)))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "new_group", lambda **options: options)
    monkeypatch.setattr(dist, "barrier", groups.append)
    machine = setup_machine(name)
    machine.wait()
    hours = {"timeout": timedelta(hours=12)}
    on_cpu = hours | {"backend": "gloo"}
    assert groups == [(backend, hours | more), on_cpu]
    assert machine == (more.get("device_id", CPU), 1, 2, on_cpu) and not machine.first


@pytest.mark.parametrize("rank, order", [(0, ["works", "waits"]), (1, ["waits", "works"])])
def test_the_first_process_of_a_node_works_first(rank, order, monkeypatch):
    done = []
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setattr(Machine, "wait", lambda machine: done.append("waits"))
    with Machine(CPU, rank + 4, 6).first_on_each_node():
        done.append("works")
    assert done == order


def test_two_processes_agree_on_the_largest_number():
    """Two threads in their place."""
    store = dist.HashStore()

    def take_part(rank: int) -> tuple:
        group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
        machine = Machine(CPU, rank, 2, group)
        return machine.largest(3 + rank), machine.all_equal(7), machine.all_equal(7 + rank)

    with ThreadPoolExecutor() as threads:
        assert [*threads.map(take_part, range(2))] == [(4, True, False)] * 2
