"""Messages for people: on stderr, one line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from elf.sinks.console.cells import escape
from elf.sinks.console.terminal import make_way


def say(message: str) -> None:
    """Print one line on stderr, safe for a terminal, and not in the midst of a table. Errors of stderr are ignored."""
    make_way()
    try:
        print(f"elf: {escape(message)}", file=sys.stderr, flush=True)
    except OSError:
        # What is still buffered would fail again at exit, and then decide the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def notices(quiet: bool) -> Callable[[str], None]:
    return (lambda message: None) if quiet else say
