"""signals.py: the first signal is noted, a second one ends the program."""
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import signal, time
from tools.signals import defer_signals, hold_signals
stop = defer_signals()
with hold_signals():
    signal.raise_signal(signal.SIGTERM)
    print(len(stop))
signal.raise_signal(signal.SIGTERM)
print(stop == [signal.SIGTERM], flush=True)
time.sleep(1.1)
signal.raise_signal(signal.SIGTERM)
print("went on")
"""


def test_a_second_signal_ends_the_program_at_once():
    """Not one right after the first; and a signal waits for the end of `hold_signals`."""
    program = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True,
                             encoding="utf-8", cwd=Path(__file__).resolve().parents[2])
    held = hasattr(signal, "pthread_sigmask")
    assert program.stdout.splitlines() == ["0" if held else "1", "True"], program.stderr
    assert program.returncode not in (0, 1)              # 1: an error of Python
