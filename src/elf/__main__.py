"""`elf`, and `python -m elf`: a plain `elf run` starts at once, everything else goes through typer."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import active_count
from typing import NoReturn


def start() -> NoReturn:
    """The process `elf`. It ends at once: taking the modules apart takes 25 ms, and frees what the system frees anyway."""
    gc.disable()  # imports make many objects and no garbage
    code = main()
    if active_count() == 1:
        with suppress(OSError, ValueError):  # what cannot be written any more decides the exit code below
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elf` with `argv` (default: the process's). Returns the exit code; errors are one line on stderr."""
    from elf.agent.commands.exits import ended

    return ended(_command, sys.argv[1:] if argv is None else argv)


def _collect_again(every: int) -> None:
    """From now on garbage is looked for, among what is made from now on, and every so many objects instead of 700."""
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(every)
        gc.enable()


def _command(argv: list[str]) -> object:
    from elf.agent.commands import run_line

    given = run_line.read(argv)
    if given is None:
        from elf.typer_cli import command

        _collect_again(20_000)
        return command(argv)
    from elf.agent.host.startup import light_imports

    light_imports()
    from elf.agent.commands.run import run_command

    _collect_again(50_000)  # the SQL compiler alone makes that many, all of them to stay
    return run_command(given)


if __name__ == "__main__":
    start()
