"""The streams that an agent serves: sinks that write the rows of final windows on its standard output.

    put   -> the window as text, in memory
    flush -> all text is written; one that fails, or meets a reader that does not read, goes on later where it ended

So a window is written once in a life of the process. Its ledger (`elf.agent.host.sinks.sink_host`) keeps the next life from
writing it again.
"""

from __future__ import annotations

import errno
import select
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, cast

from elf.jobmaster.windows.result import Sink, Window

PART_BYTES = 4096
"""A pipe that is ready takes so many bytes (PIPE_BUF) without blocking the thread, in which lakes are written too."""
PATIENCE_MS = 1000
"""How long a reader may read nothing before the other sinks have their turn."""


class Streams:
    """All streams of a process: they share its standard output. forms: the output format of each, by name."""

    def __init__(self, forms: Mapping[str, str]) -> None:
        self._forms = forms
        self._sinks: dict[str, Sink] = {}
        self._text = _Text()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._forms)

    def __contains__(self, name: str) -> bool:
        return name in self._forms

    def put(self, name: str, window: Window) -> None:
        """Add a window to the text. If that raises, nothing is added."""
        begun = len(self._text.written)
        try:
            sink = self._sinks.get(name) or self._open(name)
            sink.put(window)
            sink.flush()
        except BaseException:
            self._sinks.pop(name, None)
            del self._text.written[begun:]
            raise

    def _open(self, name: str) -> Sink:
        from elf.sinks.console.terminal import new_console

        stream = cast(BinaryIO, self._text)
        sink = new_console(self._forms[name], meta=True, opens=False, empties=True, stream=stream)
        self._sinks[name] = sink
        return sink

    def flush(self) -> None:
        """Write what has been put. Raises OSError; call it again then."""
        text = self._text.written
        while text:
            try:
                del text[: _write(text[:PART_BYTES])]
            except OSError as error:
                raise OSError(error.errno, error.strerror, "standard output") from error


class _Text:
    """Stands for standard output while text is made."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, block: bytes) -> int:
        self.written += block
        return len(block)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return sys.stdout is not None and sys.stdout.isatty()

    def fileno(self) -> int:
        return sys.stdout.fileno()


def _write(part: bytes | bytearray) -> int:
    """Write some of these bytes on standard output. Returns how many. Raises OSError."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "is closed")
    buffer: Any = sys.stdout.buffer
    output = getattr(buffer, "raw", None)
    if output is None:  # a test's
        return int(buffer.write(part))
    ready = select.poll()
    ready.register(output.fileno(), select.POLLOUT)
    if not ready.poll(PATIENCE_MS):
        raise OSError(errno.EAGAIN, "its reader does not read")
    return output.write(part) or 0
