"""Results as CSV: one header, NULL as an empty cell, the window as two columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from elf.jobmaster.values.columns import CellColumn, column_of, in_columns
from elf.jobmaster.values.sql_types import WINDOW_TYPE
from elf.jobmaster.windows.result import COUNTERS, ColumnInfo, Window
from elf.sinks.console.cells import unique_names
from elf.sinks.console.column_text import csv_block
from elf.sinks.console.row_stream import RowStream, empty_row

META = (
    "elf_status",
    "elf_revision",
    "elf_agents_reporting",
    "elf_agents_expected",
    *(f"elf_lines_{name}" for name in COUNTERS),
)


class Csv(RowStream):
    """Writes windows to a binary stream as RFC 4180 CSV with '\\n' line ends.

    Of open windows the rows that changed are written, of final windows all rows. `meta` adds the columns `META` at the end. The
    header comes with the first window (or with `begin`), and again when the columns change (another job on the same stream).
    """

    def __init__(
        self,
        stream: BinaryIO | None = None,
        *,
        meta: bool = False,
        opens: bool = True,
        empties: bool = False,
    ) -> None:
        super().__init__(stream, meta=meta, opens=opens, empties=empties)
        self._columns: tuple[ColumnInfo, ...] = ()
        self._tail = b""

    def begin(self, columns: tuple[ColumnInfo, ...]) -> None:
        """Write the header, unless it is written already: a result without any window has a header too."""
        if columns == self._columns:
            return
        self._columns = columns
        names: list[str] = []
        for name, column in zip(unique_names(columns), columns, strict=True):
            names += [f"{name}_start", f"{name}_end"] if column.type == WINDOW_TYPE else [name]
        header = [*names, *(META if self._meta else ())]
        self.write(csv_block([column_of("string", [name]) for name in header]))

    def lay_out(self, window: Window, *, is_other: bool = False) -> None:
        self.begin(window.columns)
        self._tail = b"," + meta_text(window).encode() if self._meta else b""

    def put_empty(self, window: Window) -> None:
        """A row with the window's bounds and empty cells; none where no column says which window it is."""
        self.lay_out(window)
        if self._meta or any(column.type == WINDOW_TYPE for column in window.columns):
            self.write(
                self.block(next(in_columns([empty_row(window)], [each.type for each in window.columns])))
            )

    def block(self, columns: Sequence[CellColumn]) -> bytes:
        return csv_block(columns, self._tail)


def meta_text(window: Window) -> str:
    """The cells of `META`."""
    lines, revision = window.lines, ".".join(map(str, window.revision))
    agents = f"{window.agents_reporting},{window.agents_expected}"
    return f"{window.status},{revision},{agents},{lines.read},{lines.parsed},{lines.rejected},{lines.late}"
