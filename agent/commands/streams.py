"""What the commands share: messages on stderr, and the sinks of `--sink`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from elf.errors import UsageError
from elf.sinks import spec
from elf.sinks.cells import escape
from elf.sinks.spec import SinkSpec


def say(message: str) -> None:
    """One line on stderr, safe for a terminal."""
    print(f"elf: {escape(message)}", file=sys.stderr, flush=True)


def notices(quiet: bool) -> Callable[[str], None]:
    return _silence if quiet else say


def _silence(message: str) -> None:
    del message


def sink_specs(texts: Sequence[str]) -> list[SinkSpec]:
    """The sinks of `--sink`. Raises `UsageError`."""
    try:
        return [spec.parse(text) for text in texts]
    except ValueError as error:
        raise UsageError(f"--sink: expected {error}, found {', '.join(texts)!r}") from error
