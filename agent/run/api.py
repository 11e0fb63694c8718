"""`elf run` from Python: `elf.run(query, files)` gives the windows, or the rows of lines, and all rows as Arrow."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from elf.agent.config import units
from elf.agent.run.engine import MEMORY_MAX, RunOptions, Summary
from elf.agent.run.engine import run as run_engine
from elf.agent.run.progress import count
from elf.errors import SourceError, UsageError
from elf.jobmaster.values.columns import CellColumn, ColumnRows, Texts
from elf.jobmaster.values.sql_types import WINDOW_TYPE
from elf.jobmaster.windows.order import join
from elf.jobmaster.windows.result import ColumnInfo, PaneState, Window

TEXTS_MAX = 32 << 20
"""Bytes of dictionaries kept for a result's columns of text; further rows are kept as tuples, with only their own texts."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Result:
    """The windows of a run, in time order, and the `summary` of what was read. The rows of lines are in one window.

    Iterating gives `Window`s. `rows()` gives all rows as dictionaries. It is an Arrow stream (`__arrow_c_stream__`), so pandas,
    Polars, DuckDB and pyarrow take it as it is, e.g. `pyarrow.table(result)`, `polars.DataFrame(result)`; this needs pyarrow.
    `lost` says which input is missing, if any: then every window has the status "incomplete".
    """

    def __init__(self, windows: Sequence[Window], summary: Summary) -> None:
        self.windows, self.summary = list(windows), summary

    def __iter__(self) -> Iterator[Window]:
        return iter(self.windows)

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(self.summary.lost)

    @property
    def columns(self) -> tuple[ColumnInfo, ...]:
        return self.summary.columns

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row of every window: values by column name; timestamps and windows as aware datetimes."""
        names = [column.name for column in self.columns]
        times = [i for i, column in enumerate(self.columns) if column.type in ("timestamp", WINDOW_TYPE)]
        for window in self.windows:
            for row in window.rows:
                values = list(row)
                for i in times:
                    values[i] = _aware(values[i])
                yield dict(zip(names, values, strict=True))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` of all rows."""
        try:
            from elf.sinks.results import arrow
        except ImportError as error:
            raise UsageError("Arrow needs pyarrow: pip install 'elf-mesh[lake]'") from error
        return arrow.table(self.columns, [window.rows for window in self.windows])


def _aware(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        return {"start": _aware(value[0]), "end": _aware(value[1])}
    return EPOCH + timedelta(microseconds=value)


class _Collect:
    """A sink that keeps every window. The parts of a result without a time become one window."""

    wants_open = False
    wants_state = False

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._parts: list[Sequence[tuple[Any, ...]]] = []
        self._texts: dict[int, Texts] = {}
        self._texts_bytes = 0

    def put(self, window: Window) -> None:
        # The rows of a large window are on disk, and readable only during this call.
        kept = self._kept(window.rows)
        if window.start is None:
            self._parts.append(kept)
            self.windows = [window]
        else:
            self.windows.append(msgspec.structs.replace(window, rows=kept))

    def _kept(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        if not isinstance(rows, ColumnRows):
            return list(rows)
        cells = rows.cells
        # Texts of these rows alone are no dictionary: as tuples they would take more.
        shared = [each.texts for each in cells if each.texts is not None and len(each.texts.ends) > len(rows)]
        fresh = {id(texts): texts for texts in shared}
        fresh = {key: texts for key, texts in fresh.items() if key not in self._texts}
        held = self._texts_bytes + sum(texts.text.nbytes + texts.ends.nbytes for texts in fresh.values())
        if held > TEXTS_MAX:
            return list(rows)
        self._texts_bytes = held
        self._texts |= fresh
        # Copies: the rows within a LIMIT must not keep the whole large result in memory.
        return ColumnRows([_copied(column) for column in cells], 0, len(rows))

    def put_state(self, state: PaneState) -> None:
        raise AssertionError("wants_state is False")

    def flush(self) -> None: ...

    def close(self) -> None:
        """Join the parts."""
        parts, self._parts = self._parts, []
        if parts:
            self.windows = [msgspec.structs.replace(self.windows[-1], rows=_joined(parts))]


def _joined(parts: Sequence[Sequence[tuple[Any, ...]]]) -> Sequence[tuple[Any, ...]]:
    """All rows; as columns, if all parts are."""
    columns = [part.cells for part in parts if isinstance(part, ColumnRows)]
    if len(parts) == 1:
        return parts[0]
    if len(columns) == len(parts):
        return ColumnRows([join(each) for each in zip(*columns, strict=True)], 0, sum(map(len, parts)))
    return [row for part in parts for row in part]


def _copied(column: CellColumn) -> CellColumn:
    valid = None if column.valid is None else column.valid.copy()
    return CellColumn(column.type, column.values.copy(), valid, column.texts)


def run(
    query: str,
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str = "auto",
    memory_max: int | str = MEMORY_MAX,
    timezone: str = "UTC",
    params: Mapping[str, object] | None = None,
) -> Result:
    """Run a query over log files and return its windows.

    files: a path, a glob, or several. memory_max: bytes, or a text like "256MiB"; beyond it state goes to disk (the result
    itself is held in memory). params: the values of the query's parameters (`:name`). Raises QueryError, FormatError, UsageError,
    and SourceError when there are lines and none can be parsed (all `elf.ElfError`). If one of several files cannot be read, or
    one not to its end, warns (RuntimeWarning) and goes on; see `Result.lost`.
    """
    many = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    if not many:
        raise UsageError("no file to read; name one")
    bytes_max = memory_max if isinstance(memory_max, int) else _size(memory_max)
    sink = _Collect()
    options = RunOptions(
        query,
        tuple(os.fspath(file) for file in many),
        format,
        memory_max=bytes_max,
        timezone=timezone,
        parameters={name: str(value) for name, value in (params or {}).items()},
    )
    summary = run_engine(options, [sink])
    sink.close()
    for lost in summary.lost:
        warnings.warn(f"the result is incomplete: {lost}", RuntimeWarning, stacklevel=2)
    if summary.lines and not summary.parsed:
        reasons = ", ".join(f"{n:,} {reason.value}" for reason, n in summary.rejects.items())
        none = f"none of {count(summary.lines, 'line')} could be parsed ({reasons})"
        raise SourceError(f"{summary.rejected_in}: {none}; name the log's format with format=")
    return Result(sink.windows, summary)


def _size(text: str) -> int:
    try:
        return units.size(text)
    except ValueError as error:
        raise UsageError(f"memory_max: expected {error}, found {text!r}") from error
