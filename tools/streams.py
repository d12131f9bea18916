"""Standard input, output and error as every script uses them."""
import functools
import os
import sys

print_once = functools.cache(print)


def setup_streams() -> None:
    """Makes lines appear as they are printed, in a file or pipe as well, with "?" for what a
    terminal cannot show. A stream that is closed, as cron may do it, becomes /dev/null."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")
            os.set_inheritable(stream.fileno(), True)    # for child processes
            vars(sys)[name] = stream
    if hasattr(sys.stdout, "reconfigure"):               # not where a test or notebook replaced it
        sys.stdout.reconfigure(errors="replace", line_buffering=True)
