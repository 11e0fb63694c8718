"""The base of sinks that print rows on a stream: it selects the rows to print, and escapes them for a terminal."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from elf.jobmaster.values.columns import CellColumn, in_columns
from elf.jobmaster.values.sql_types import WINDOW_TYPE
from elf.jobmaster.windows.result import INCOMPLETE, PaneState, StreamClosed, Window
from elf.sinks.console.cells import Changes, escape_lines


class RowStream(ABC):
    """A sink that writes bytes: of open windows the rows that changed, of final windows all rows.

    Subclasses encode blocks of rows. On a terminal, characters that could control it are written as escapes. opens: take open
    windows. empties: a window that is final without rows is a record too, so that no result does not look like no life.
    """

    wants_state = False

    def __init__(
        self,
        stream: BinaryIO | None = None,
        *,
        meta: bool = False,
        opens: bool = True,
        empties: bool = False,
    ) -> None:
        self.wants_open, self._empties = opens, empties
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._meta = meta
        self._terminal = self._stream.isatty()
        self._changes = Changes()

    @abstractmethod
    def lay_out(self, window: Window, *, is_other: bool = False) -> None:
        """Prepare for the blocks of a window. is_other: for its last row, which is no group (`Window.others`)."""

    @abstractmethod
    def block(self, columns: Sequence[CellColumn]) -> bytes:
        """Rows as bytes."""

    def put(self, window: Window) -> None:
        if window.status == INCOMPLETE:
            self._meta = True  # without it, the rows would pass for those of whole windows
        if self._empties and window.start is not None and window.status != "open" and not len(window.rows):
            if self._changes.is_new(window):
                self.put_empty(window)
            return
        rows = self._changes.rows(window)
        other: Sequence[tuple[Any, ...]] = ()
        if window.others:
            rows = list(rows)
            other = [rows.pop()] if rows[-1:] == list(window.rows[-1:]) else ()
        self._put_rows(window, rows)
        if other:
            self._put_rows(window, other, is_other=True)

    @abstractmethod
    def put_empty(self, window: Window) -> None:
        """Write the record of a window without rows."""

    def _put_rows(self, window: Window, rows: Iterable[tuple[Any, ...]], *, is_other: bool = False) -> None:
        self.lay_out(window, is_other=is_other)
        if window.status == "withdrawn" and self._meta and window.columns:
            # The window's rows were written, and only this row shows that they are withdrawn.
            rows = [empty_row(window)]
        for columns in in_columns(rows, [column.type for column in window.columns]):
            self.write(self.block(columns))

    def write(self, block: bytes) -> None:
        if self._terminal:
            block = escape_lines(block.decode("utf-8", "replace")).encode()
        write(self._stream, block)

    def put_state(self, state: PaneState) -> None:  # noqa: B027 (not abstract: there is nothing to do)
        """Does nothing: this sink has no use for states."""

    def flush(self) -> None:
        flush(self._stream)

    def close(self) -> None:
        self.flush()


def empty_row(window: Window) -> tuple[Any, ...]:
    """A row with the window's bounds, and NULL in all other columns."""
    bounds = (window.start, window.end)
    return tuple(bounds if column.type == WINDOW_TYPE else None for column in window.columns)


def write(stream: BinaryIO, block: bytes) -> None:
    """Write all of `block`. Raises `StreamClosed` if the reader has closed the stream, else OSError about standard output."""
    try:
        stream.write(block)
    except OSError as error:
        raise _named(error) from error


def flush(stream: BinaryIO) -> None:
    try:
        stream.flush()
    except OSError as error:
        raise _named(error) from error


def _named(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return StreamClosed()
    return OSError(error.errno, error.strerror, "standard output")
