"""Where a program computes: the device, the processes of a distributed run, and the signals that
stop it."""
import contextlib
import ctypes
import os
import platform
import re
import signal
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from nmt.flags import UserError

DEVICES = "auto, cpu, cuda, cuda:N or mps"        # of --device


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first GPU of CUDA, else the CPU. Raises UserError for
    one that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|mps|cuda(:\d\d?)?", name):
        raise UserError(f"--device {name}: choose {DEVICES}")
    device = torch.device(name)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("--device mps: torch finds no Apple GPU here; choose cpu or auto")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise UserError(f"--device {name}: this machine has {count} GPUs; choose cpu or auto")
    if device.type == "cuda":
        # cuDNN's attention plans anew for every shape, and batches of sentences have hundreds
        torch.backends.cuda.enable_cudnn_sdp(False)
    if device.index is not None:        # pinned memory would take some of the first GPU otherwise
        torch.cuda.set_device(device)
    return device


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device is a GPU that computes in bfloat16 itself: older ones emulate it, slowly."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def processor(device: torch.device) -> str:
    """The name of a device; of the CPU, the machine's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.machine()


def memory(device: torch.device) -> int:
    """The memory of a device in bytes; of the CPU, the machine's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if not hasattr(os, "sysconf"):                       # Windows: not asked
        return 2 ** 63
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_fits(model: torch.nn.Module, device: torch.device) -> None:
    """Raises UserError for a model (on the meta device) too large to train, before the system runs
    out of memory."""
    count = sum(p.numel() for p in model.parameters())
    needed = 16 * count                                  # weight, gradient, Adam's two averages
    there = memory(device)
    if needed > there:
        raise UserError(f"a model of {count:,} parameters takes {needed / 2 ** 30:,.0f} GiB in"
                        f" training, and {device} has {there / 2 ** 30:,.0f}: choose a smaller"
                        " --arch, --layers, --d-model or --vocab-size")


class Machine(NamedTuple):
    """Where this process computes: its device, and its place among the processes of the run."""
    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that validates, writes and talks."""
        return self.rank == 0

    @contextlib.contextmanager
    def first_alone(self):
        """A block that the first process of every node runs before the others."""
        alone = int(os.environ.get("LOCAL_RANK", 0)) == 0
        if self.world > 1 and not alone:
            dist.barrier()
        yield
        if self.world > 1 and alone:
            dist.barrier()


def keep_freed_memory() -> None:
    """Tells glibc to keep large freed blocks: a CPU spends a sixth of its training time on page
    faults otherwise."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):         # another C library, another system
        return
    M_TRIM_THRESHOLD = -1
    M_MMAP_MAX = -4
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)                        # never give back


def machine(name: str) -> Machine:
    """The device called name ("auto" prefers a GPU); joins the other processes where torchrun
    started this one."""
    device = pick_device(name)
    world = int(os.environ.get("WORLD_SIZE", 1))
    keep_freed_memory()
    if device.type == "cuda" and world > 1:
        device = pick_device(f"cuda:{os.environ['LOCAL_RANK']}")
    if world == 1:
        return Machine(device)
    if device.type == "cuda":           # without its device NCCL guesses it from the rank
        dist.init_process_group("nccl", timeout=timedelta(hours=2), device_id=device)
    else:
        dist.init_process_group("gloo", timeout=timedelta(hours=2))
    return Machine(device, dist.get_rank(), world)


@contextlib.contextmanager
def stopped_by_signals(stop: list):
    """A block in which the first SIGINT or SIGTERM is only noted in `stop`; a second one ends the
    program at once."""
    def note(number, frame):
        if stop:
            raise SystemExit(128 + number)
        stop.append(number)
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def agreed(stop: list, step: int, where: Machine) -> bool:
    """Whether to stop here; several processes ask each other now and then, for they must stop at
    the same step."""
    if where.world == 1:
        return bool(stop)
    if step % 10:
        return False
    votes = torch.tensor([max(stop, default=0)], device=where.device)
    dist.all_reduce(votes, dist.ReduceOp.MAX)
    stop[:] = [int(votes)] if votes else []
    return bool(stop)
