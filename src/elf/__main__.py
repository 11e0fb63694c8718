"""`elf`, and `python -m elf`: a plain `elf run` or `elf agent run` starts at once, everything else goes through typer."""

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
    """The process `elf`. It ends at once: destroying the modules takes 25 ms, and the system frees their memory anyway."""
    gc.disable()  # imports make many objects and no garbage
    code = main()
    if active_count() == 1:
        with suppress(OSError, ValueError):  # if the output cannot be written, `sys.exit` below reports that
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
    """Collect garbage from now on: only among objects made from now on, and after `every` of them instead of 700."""
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(every)
        gc.enable()


def _command(argv: list[str]) -> object:
    from elf.agent.commands import agent_line

    line = agent_line.read(argv)
    if line is not None:
        _collect_again(20_000)
        return agent_line.serve(line)
    from elf.agent.commands import run_line

    given = run_line.read(argv)
    if given is None:
        from elf.typer_cli import command

        _collect_again(20_000)
        return command(argv)
    from elf.agent.host.startup import light_imports

    light_imports()
    from elf.agent.commands.run import run_command

    _collect_again(50_000)  # the SQL compiler alone makes that many, and all of them stay
    return run_command(given)


if __name__ == "__main__":
    start()
