"""What the sinks that print rows on a stream have in common: which rows are news, blocks of them, and a safe terminal."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, BinaryIO

from elf.jobmaster.values.columns import CellColumn, ColumnRows
from elf.jobmaster.windows.result import PaneState, StreamClosed, Window
from elf.sinks.console.cells import WINDOW_TYPE, Changes, chunks, escape_lines

Rows = Sequence[tuple[Any, ...]]


class RowStream(ABC):
    """A sink of bytes. Open windows give the rows that changed, final ones all. A form of output says what a block of rows is.

    On a terminal, characters that it might obey are written as escapes.
    """

    wants_open = True
    wants_state = False

    def __init__(self, stream: BinaryIO | None = None, *, meta: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._meta = meta
        self._terminal = self._stream.isatty()
        self._changes = Changes()

    @abstractmethod
    def lay_out(self, window: Window) -> None:
        """Called before the blocks of each window: its columns and what stands beside them."""

    @abstractmethod
    def column_block(self, columns: Sequence[CellColumn]) -> bytes:
        """Rows that are held as columns, as bytes."""

    @abstractmethod
    def row_block(self, rows: Rows) -> bytes:
        """Rows that are tuples, as the same bytes."""

    def put(self, window: Window) -> None:
        self.lay_out(window)
        rows = self._changes.rows(window)
        if window.status == "withdrawn" and self._meta and window.columns:
            self.write(
                self.row_block([_nothing(window)])
            )  # its rows were told, and nothing else says that they went
        if isinstance(rows, ColumnRows):
            for part in rows.chunks():
                self.write(self.column_block(part.cells))
        else:
            for chunk in chunks(rows):
                self.write(self.row_block(chunk))

    def write(self, block: bytes) -> None:
        if self._terminal:
            block = escape_lines(block.decode("utf-8", "replace")).encode()
        write(self._stream, block)

    def put_state(self, state: PaneState) -> None:  # noqa: B027 (not abstract: there is nothing to do)
        """Nothing: this sink does not want state."""

    def flush(self) -> None:
        flush(self._stream)

    def close(self) -> None:
        self.flush()


def _nothing(window: Window) -> tuple[Any, ...]:
    """A row that says no more than of which window it is."""
    bounds = (window.start, window.end)
    return tuple(bounds if column.type == WINDOW_TYPE else None for column in window.columns)


def write(stream: BinaryIO, block: bytes) -> None:
    """Write all of `block`. Raises `StreamClosed` when nobody reads any more, OSError that names standard output."""
    try:
        stream.write(block)
    except OSError as error:
        raise _told(error) from error


def flush(stream: BinaryIO) -> None:
    try:
        stream.flush()
    except OSError as error:
        raise _told(error) from error


def _told(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return StreamClosed()
    return OSError(error.errno, error.strerror, "standard output")
