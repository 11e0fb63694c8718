"""The end of a command: an error becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any


def ended(command: Callable[[list[str]], object], argv: Sequence[str]) -> int:
    """Run `command(argv)` without --debug. Its exit code: the one that it returns, else 0, or that of the error it raises."""
    arguments = list(argv)
    _open_missing_streams()
    debug = _take_debug(arguments)
    try:
        code = command(arguments)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        if debug and not isinstance(error, (SystemExit, BrokenPipeError)):
            import traceback

            traceback.print_exc()
        return _exit_code(error)


def _open_missing_streams() -> None:
    """Open /dev/null for standard streams that the caller closed, so that no file opened later gets their descriptors."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _take_debug(argv: list[str]) -> bool:
    """Remove --debug, anywhere before `--`, and return whether it was there."""
    end = argv.index("--") if "--" in argv else len(argv)
    found = "--debug" in argv[:end]
    if found:
        argv.remove("--debug")
    return found


def _drop_output() -> None:
    """Discard what is buffered for standard output: its reader has gone, and Python would report that when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _exit_code(error: BaseException) -> int:
    """Print the error in one line and return the exit code. For an internal error the line says how to see more."""
    from elf.errors import ElfError
    from elf.jobmaster.windows.result import StreamClosed

    if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, (StreamClosed, BrokenPipeError, SystemExit)):  # click makes an exit of a broken pipe
        _drop_output()
        return 0
    if isinstance(error, ElfError):
        return _say(str(error), error.exit_code)
    if _is_click(error):
        return _usage(error)
    if isinstance(error, OSError):
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        place = f"{error.filename}: " if error.filename else ""
        return _say(f"{place}{error.strerror or str(error) or type(error).__name__}", 1)
    if isinstance(error, MemoryError):
        return _say("out of memory; give --memory-max, to spill to disk instead", 1)
    kind = type(error).__name__
    return _say(f"internal error: {kind}: {error}; please report it, with what --debug shows", 1)


def _is_click(error: BaseException) -> bool:
    # typer carries its own click under a private name, or uses the package, depending on its version.
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "elf"
    if type(error).__name__ == "NoArgsIsHelpError":  # a bare `elf` or `elf agent`
        print(error.format_message(), file=sys.stderr)
        return 2
    message = " ".join(error.format_message().split()).rstrip(".")
    if "unexpected extra argument" in message and _takes_config(context):
        message += "; a configuration is given with --config"
    return _say(f"{message[:1].lower()}{message[1:]}; see {command} --help", error.exit_code)


def _takes_config(context: Any) -> bool:
    return context is not None and any("--config" in option.opts for option in context.command.params)


def _say(message: str, code: int) -> int:
    from elf.sinks.console.cells import escape

    print(f"elf: {escape(message)}", file=sys.stderr)
    return code
