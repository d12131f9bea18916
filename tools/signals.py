"""The signals that stop a program."""
import contextlib
import math
import multiprocessing
import signal
import sys
import time

# what ends a program: Ctrl-C, kill, a closed terminal, Slurm before the end of a job
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
           if hasattr(signal, name)]                     # Windows lacks some


def handle_signals(numbers, handler) -> None:
    """Sets the handler of these signals, but for those that are ignored, as nohup makes it."""
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def end_program(number: int, _) -> None:
    """Ends the program as a signal does in a shell, with its files closed."""
    sys.exit(128 + number)


def defer_signals() -> list[int]:
    """Returns a list to which the first of SIGNALS is appended, instead of ending the program. A
    second one ends it at once, unless it comes within a second: torchrun passes on what the
    terminal has sent already."""
    stop = []
    first = math.inf

    def defer(number: int, _) -> None:
        """Keeps the first signal, and lets a later one end the program."""
        nonlocal first
        if not stop:
            stop.append(number)
            first = time.monotonic()
        elif time.monotonic() > first + 1:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    handle_signals(SIGNALS, defer)
    return stop


def restore_signals() -> None:
    """Ends `defer_signals`: SIGNALS end the program again."""
    handle_signals(SIGNALS, end_program)


@contextlib.contextmanager
def hold_signals():
    """A context that SIGNALS reach only at its end, where the system can hold them back. Processes
    that start in it hold them back for ever."""
    if not hasattr(signal, "pthread_sigmask"):           # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        # starts a helper of Python, if it needs one; that lets signals through again
        multiprocessing.Lock()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
