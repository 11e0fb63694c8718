"""The streams that an agent serves: sinks that write the rows of final windows on its standard output.

    put   -> the window as text, in memory
    show  -> an open window, the same, if no text waits
    flush -> all text is written; one that fails, or meets a reader that does not read, goes on later where it ended

So a window is written once in a life of the process. Its ledger (`elf.agent.host.sinks.sink_host`) keeps the next life from
writing it again.
"""

from __future__ import annotations

import errno
import select
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, cast

from elf.agent.host.only_job import NewSink
from elf.jobmaster.windows.result import Revision, Sink, StreamClosed, Window
from elf.sinks.console.terminal import drawing

PART_BYTES = 4096
"""A pipe that is ready takes so many bytes (PIPE_BUF) without blocking the thread, in which lakes are written too."""
PATIENCE_MS = 1000
"""How long a reader may read nothing before the other sinks have their turn."""
FINALS_MAX = 4096
"""Final windows that are remembered: an open one of the same time that comes later is an older one."""
Key = tuple[str, str, str, int | None]
"""Stream, job, version and start of a window."""


class Streams:
    """All streams of a process: they share its standard output. forms: the output format of each, by name. opens: those that show
    open windows too; without a reader, the process has nothing to live for. new_sink: makes what draws windows; None: what draws
    those of several jobs, in that format."""

    def __init__(
        self, forms: Mapping[str, str], opens: Collection[str] = (), new_sink: NewSink | None = None
    ) -> None:
        self._forms, self._opens, self._new_sink = forms, opens, new_sink
        self._finals: dict[Key, Revision] = {}
        self._sinks: dict[str, Sink] = {}
        self._text = _Text()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._forms)

    def __contains__(self, name: str) -> bool:
        return name in self._forms

    def put(self, name: str, window: Window) -> None:
        """Add a window to the text. If that raises, nothing is added."""
        with drawing:
            begun = len(self._text.written)
            try:
                sink = self._sinks.get(name) or self._open(name)
                sink.put(window)
                sink.flush()
            except BaseException:
                self._sinks.pop(name, None)
                del self._text.written[begun:]
                raise
        if name in self._opens:
            self._note(_key(name, window), window)

    def _note(self, key: Key, window: Window) -> None:
        if window.status == "withdrawn":  # it may begin anew
            self._finals.pop(key, None)
        elif window.status != "open":
            self._finals[key] = window.revision
            if len(self._finals) > FINALS_MAX:
                del self._finals[next(iter(self._finals))]

    def show(self, name: str, window: Window) -> None:
        """Write an open window, or one that this sink is not sent as final, unless it was final before. While text waits for its
        reader, such windows are left out: a later one of the same shows all that this one does. Raises as `flush`."""
        self.flush()
        final = self._finals.get(_key(name, window))
        if final is None or (window.status != "open" and window.revision > final):
            self.put(name, window)
            self.flush()

    def _open(self, name: str) -> Sink:
        from elf.sinks.console.terminal import new_console

        stream = cast(BinaryIO, self._text)
        if self._new_sink is not None:
            sink = self._new_sink(stream)
        else:
            opens = name in self._opens
            sink = new_console(self._forms[name], meta=True, opens=opens, empties=True, stream=stream)
        self._sinks[name] = sink
        return sink

    def flush(self) -> None:
        """Write what has been put. Raises OSError; call it again then. Raises StreamClosed if the reader of one that shows open
        windows has gone."""
        text = self._text.written
        try:
            with drawing:
                while text:
                    del text[: _write(text[:PART_BYTES], PATIENCE_MS)]
        except OSError as error:
            if (self._opens or self._new_sink is not None) and error.errno == errno.EPIPE:
                raise StreamClosed from error
            raise OSError(error.errno, error.strerror, "standard output") from error

    def close(self) -> None:
        """Write what those hold back that show open windows. Raises as `flush`."""
        for name in self._opens:
            if name in self._sinks:
                self._sinks.pop(name).close()
        self.flush()


def _key(name: str, window: Window) -> Key:
    return name, window.job, window.version, window.start


class _Text:
    """Stands for standard output while text is made."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, block: bytes) -> int:
        self.written += block
        return len(block)

    def flush(self) -> None:
        """On a terminal at once, as far as it takes text: a table makes way for a message."""
        if self.isatty():
            with suppress(OSError):
                del self.written[: _write(self.written[:PART_BYTES], 0)]

    def isatty(self) -> bool:
        return sys.stdout is not None and sys.stdout.isatty()

    def fileno(self) -> int:
        return sys.stdout.fileno()


def _write(part: bytes | bytearray, patience_ms: int) -> int:
    """Write some of these bytes on standard output. Returns how many. Raises OSError."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "is closed")
    buffer: Any = sys.stdout.buffer
    output = getattr(buffer, "raw", None)
    if output is None:  # a test's
        return int(buffer.write(part))
    ready = select.poll()
    ready.register(output.fileno(), select.POLLOUT)
    if not ready.poll(patience_ms):
        raise OSError(errno.EAGAIN, "its reader does not read")
    return output.write(part) or 0
