"""The device, and the processes of a distributed run."""
import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import shutil
import sysconfig
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.files import UserError

DEVICES = "auto, cpu, cuda, cuda:N or mps"        # for --device
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = timedelta(hours=12)   # the other processes wait while the first validates and tests


def launched_by_torchrun() -> bool:
    """Whether torchrun started this process. Clusters set some of the variables without it."""
    return all(os.environ.get(variable) for variable in TORCHRUN)


def pick_device(name: str) -> torch.device:
    """Returns the device of that name; "auto" is the first CUDA GPU, or the CPU if there is none.
    Raises UserError for an unknown or missing device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|mps|cuda(:\d\d?)?", name):
        raise UserError(f"--device {name}: choose {DEVICES}")
    device = torch.device(name)
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": torch.mps.device_count()}
    if (device.index or 0) >= count[device.type]:
        choice = "choose cpu or auto"
        if launched_by_torchrun():
            choice += ", or start at most one process per GPU"
        raise UserError(f"--device {name}: torch finds {count[device.type]} such GPUs here; "
                        f"{choice}")
    on_gpu = device.type == "cuda"
    # "high": TF32, with which the beam search, in float32, is 1.5 times as fast on a GPU
    torch.set_float32_matmul_precision("high" if on_gpu else "highest")
    # cuDNN's attention plans anew for every shape, and batches of sentences have hundreds
    torch.backends.cuda.enable_cudnn_sdp(False)
    # on a GPU the memory-efficient kernel takes half the time for sentences of 25 tokens
    torch.backends.cuda.enable_flash_sdp(not on_gpu)
    if device.index is not None:        # otherwise pinned memory takes some of the first GPU
        torch.cuda.set_device(device)
    return device


def processor(device: torch.device) -> str:
    """Returns the name of the GPU or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    text = info.read_text("utf-8", "replace") if info.exists() else ""
    model_name = re.search(r"model name\s*: (.*)", text)
    return model_name[1] if model_name else platform.machine()


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16 products; False if torch cannot tell."""
    if device.type == "cuda":           # older GPUs emulate it, slowly
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()        # from torch 2.11 on
        return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return False


def can_compile() -> bool:
    """Whether torch.compile can make kernels for a GPU: it needs Triton, which torch brings on
    Linux, a C compiler and Python's header."""
    compiler = shutil.which(os.environ.get("CC") or "gcc") or shutil.which("clang")
    header = Path(sysconfig.get_path("include"), "Python.h")
    return bool(importlib.util.find_spec("triton") and compiler and header.exists())


def check_compiler(device: torch.device) -> None:
    """Raises UserError where torch.compile does not work, as without a C++ compiler."""
    try:
        torch.compile(lambda x: x + 1, dynamic=True)(torch.zeros(2, device=device))
    except RuntimeError as error:
        reason, *_ = str(error).splitlines()
        raise UserError(f"--compile: torch cannot compile here ({reason}): use --no-compile"
                        ) from error


def machine_defaults(name: str) -> dict:
    """Returns the defaults on the device of that name: of --amp and --workers, of --graphs for
    small batches, and of --compile for large models."""
    device = pick_device(name)
    on_gpu = device.type == "cuda"
    amp = has_bfloat16(device)
    return {"amp": amp, "workers": 2 if on_gpu else 0,
            "graphs": on_gpu and not launched_by_torchrun(),
            "compile": on_gpu and amp and can_compile()}


@contextlib.contextmanager
def mixed_precision(device: torch.device, amp: bool):
    """A context in which, with amp, matrix products are in bfloat16. On a CPU the attention is then
    computed from matrix products: the backward pass of the fused kernel takes ten times as long."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, torch.bfloat16, enabled=amp))
        if amp and device.type == "cpu":
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield


class Machine(NamedTuple):
    """The device of this process and its rank among the processes of the run."""
    device: torch.device
    rank: int = 0
    world: int = 1
    cpu_group: object = None            # for messages that do not wait for the device

    @property
    def first(self) -> bool:
        """True for the process that validates, writes and prints."""
        return self.rank == 0

    @contextlib.contextmanager
    def first_on_each_node(self):
        """A context: each node's first process runs the block before the others."""
        rank = int(os.environ["LOCAL_RANK"]) if self.world > 1 else 0
        if rank > 0:
            self.wait()
        yield
        if rank == 0:
            self.wait()

    def wait(self) -> None:
        """Waits until all processes have called this."""
        if self.world > 1:
            dist.barrier(self.cpu_group)

    def largest(self, number: int) -> int:
        """Returns the largest number of all processes."""
        numbers = torch.tensor([number])
        if self.world > 1:
            dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.cpu_group)
        return int(numbers)

    def all_equal(self, number: int) -> bool:
        """Whether all processes have the same number."""
        highest = self.largest(number)
        lowest = -self.largest(-number)
        return highest == lowest

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the tensors of all processes."""
        if self.world > 1:
            dist.all_reduce(x)
        return x


def setup_machine(name: str) -> Machine:
    """Picks the device of that name, and joins the other processes if torchrun started this one."""
    device = pick_device(name)
    keep_freed_memory()
    world = int(os.environ["WORLD_SIZE"]) if launched_by_torchrun() else 1
    if world == 1:
        return Machine(device)
    if device.type == "cuda":           # without its device NCCL guesses it from the rank
        device = pick_device(f"cuda:{os.environ['LOCAL_RANK']}")
        dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    return Machine(device, dist.get_rank(), world, dist.new_group(timeout=TIMEOUT, backend="gloo"))


def seed_torch(*numbers: int) -> None:
    """Seeds torch's generators with numbers >= 0, such as seed, process and step."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks: page faults take a sixth of the training time otherwise."""
    with contextlib.suppress(AttributeError, OSError, TypeError):    # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-4, 0)                                   # M_MMAP_MAX
        mallopt(-1, -1)                                  # M_TRIM_THRESHOLD: never
