"""The device, and the processes of a distributed run."""
import contextlib
import ctypes
import os
import re
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmt.command_line import UserError

DEVICES = "auto, cpu, cuda, cuda:N or mps"        # for --device
TIMEOUT = timedelta(hours=12)   # the other processes wait while the first validates and tests


def pick_device(name: str) -> torch.device:
    """Returns the device of that name; "auto" is the first CUDA GPU, or the CPU if there is none.
    Raises UserError for an unknown name, and for Apple's GPU with a torch that gets its attention
    masks wrong."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise UserError(f"--device {name}: choose {DEVICES}")
    device = torch.device(name)
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if device.type == "mps" and version < (2, 13):
        raise UserError("--device mps needs torch 2.13 or newer: older ones apply the attention "
                        "mask of a batch wrongly")
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


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16 products; False if torch cannot tell."""
    if device.type == "cuda":           # older GPUs emulate it, slowly
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()        # from torch 2.11 on
        return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return False


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
            dist.barrier()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the tensors of all processes."""
        if self.world > 1:
            dist.all_reduce(x)
        return x

    def move(self, x: torch.Tensor) -> torch.Tensor:
        """Copies a tensor to the device. A GPU with CUDA does not wait for the copy."""
        if self.device.type == "cuda":
            return x.pin_memory().to(self.device, non_blocking=True)
        return x.to(self.device)


def setup_machine(name: str) -> Machine:
    """Picks the device of that name, and joins the other processes if torchrun started this one."""
    device = pick_device(name)
    keep_freed_memory()
    if not dist.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1":
        return Machine(device)
    if device.type == "cuda":           # without its device NCCL guesses it from the rank
        device = pick_device(f"cuda:{os.environ['LOCAL_RANK']}")
        dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    return Machine(device, dist.get_rank(), dist.get_world_size())


def seed_torch(*numbers: int) -> None:
    """Seeds torch's generators with numbers >= 0, such as seed, process and step."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks: page faults take a sixth of the training time otherwise."""
    with contextlib.suppress(AttributeError, OSError, TypeError):    # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-4, 0)                                   # M_MMAP_MAX
        mallopt(-1, -1)                                  # M_TRIM_THRESHOLD: never
