"""`elf`, and `python -m elf`: a plain `elf run` starts at once, everything else goes through typer."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elf` with `argv` (default: the process's). Returns the exit code; errors are one line on stderr."""
    # Imports make many objects and no garbage: looking for it every 700 objects costs a tenth of the start.
    gc.set_threshold(20_000)
    from elf.agent.commands.exits import ended

    return ended(_command, sys.argv[1:] if argv is None else argv)


def _command(argv: list[str]) -> object:
    from elf.agent.commands import run_line

    given = run_line.read(argv)
    if given is None:
        from elf.typer_cli import command

        return command(argv)
    from elf.agent.startup import light_imports

    light_imports()
    from elf.agent.commands.run import Arguments, run_command

    return run_command(Arguments(**given))


if __name__ == "__main__":
    sys.exit(main())
