"""A lake in the engine's own trees: what is stored, the valid panes, and their state merged to any longer window.

As `elf.sinks.lake.spark_read`, for a lake on this machine that is small enough not to need Spark: the same panes, merged as in
agents and masters, and the job's own plan for the results. Imports pyarrow.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from elf.cbt.budget import Budget
from elf.errors import ElfError, UsageError
from elf.jobmaster.plan.codec import decode
from elf.jobmaster.plan.plan import Plan, WindowSpec
from elf.jobmaster.values.zones import DAY_US, zone_named
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import COUNTERS
from elf.jobmaster.windows.windows import Publisher
from elf.sinks.lake import layout
from elf.sinks.lake.every import Every, Span
from elf.sinks.lake.files import read_about
from elf.sinks.lake.stored import Stored, days_span, longer_days
from elf.sinks.lake.theta import Hashes, hashes_of, united
from elf.sinks.lake.trees.state_rows import rows_of
from elf.sinks.lake.trees.valid import valid_rows as day_rows

MEMORY_BYTES = 1 << 30
"""Of the trees; what is above goes to disk."""
HEAD = ("_pane_start", "_pane_end", "_status", "_empty")
COVERAGE = ("_agents_reporting", "_agents_expected", *(f"_lines_{name}" for name in COUNTERS))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raise errors of the lake's files as an ElfError of one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise ElfError("the lake was compacted while it was read; run the report again") from error
    except (pa.ArrowException, OSError) as error:
        raise ElfError(f"the lake cannot be read: {' '.join(str(error).split())[:300]}") from error


def stored_jobs(directory: Path) -> list[Stored]:
    """As `spark_read.stored_jobs`. Raises UsageError if there is no lake, ElfError for one of another version of elf."""
    with _one_line_errors():
        found = [
            stored
            for table in layout.existing_tables(directory)
            for version in sorted(table.glob("version=v*"))
            if (stored := _stored(version)) is not None
        ]
    if not found:
        raise UsageError(f"the lake {directory} is empty: no job has written a final window yet")
    return sorted(found, key=lambda s: (s.job, s.newest, s.version))


def _stored(version: Path) -> Stored | None:
    days = sorted(version.glob("date=*"))
    for day in reversed(days):
        if files := layout.files(day):
            newest = max(files, key=lambda file: (file.until, file.path.name))
            about = read_about(newest.path)
            if about.get("layout") != layout.LAYOUT or not about.get("recipe"):
                wrote = f"elf {about.get('elf_version')} wrote it"
                raise ElfError(
                    f"{newest.path.absolute()} is not of this version of elf, layout {layout.LAYOUT}; {wrote}"
                )
            order = f"/{day.name}/{newest.until:020}"
            own_us = about["recipe"]["pane_us"]
            span = days_span([f"/{each.name}" for each in days], own_us)
            lengths = [(each.name, layout.longest_us(layout.all_files(each))) for each in days]
            return Stored(
                about["job"],
                about["version"],
                str(version),
                order,
                about["columns"],
                about["recipe"],
                span,
                about["plan"],
                longer=longer_days(lengths, own_us),
            )
    return None


def size(directory: Path) -> int:
    """Bytes of the lake's files, superseded ones included. O(files)."""
    tables = (table for job in layout.jobs(directory) for table in layout.tables(directory, job))
    folders = (folder for table in tables for folder in layout.day_folders(table))
    with _one_line_errors():
        return sum(file.path.stat().st_size for folder in folders for file in layout.files(folder))


def valid_rows(stored: Stored, columns: Sequence[str]) -> Iterator[Any]:
    """The rows of the valid panes, withdrawn ones left out, with the columns `HEAD` and these: a table for each row group."""
    with _one_line_errors():
        yield from _valid_rows(stored, columns)


def _valid_rows(stored: Stored, columns: Sequence[str]) -> Iterator[Any]:
    for folder in sorted(Path(stored.folder).glob("date=*")):
        for table in day_rows(folder, [*HEAD, *columns]):
            at = pc.fill_null(table.column("_pane_start").cast(pa.int64()), 0)
            mask = pc.not_equal(table.column("_status"), "withdrawn")
            for compare, bound in zip((pc.greater_equal, pc.less), stored.bounds, strict=True):
                mask = pc.and_(mask, compare(at, bound)) if bound is not None else mask
            yield table.filter(mask)


def coverage(stored: Stored) -> list[dict[str, Any]]:
    """For each pane of a version, the values of the columns `HEAD` and `COVERAGE`."""
    panes: dict[int | None, dict[str, Any]] = {}
    for table in valid_rows(stored, COVERAGE):
        starts = table.column("_pane_start").cast(pa.int64()).to_numpy(zero_copy_only=False)
        first = np.unique(starts, return_index=True)[1] if table.num_rows else np.empty(0, np.int64)
        for row in table.take(pa.array(first, pa.int64())).to_pylist():
            panes[row["_pane_start"]] = row
    return list(panes.values())


def counted(stored: Stored) -> tuple[Any, ...]:
    """Panes, from, until (microseconds or None), line counters, and incomplete panes of a version."""
    rows = coverage(stored)
    if not rows:
        return (0, None, None, *(None for _ in COUNTERS), 0)
    starts = [at for row in rows if (at := row["_pane_start"]) is not None]
    ends = [at for row in rows if (at := row["_pane_end"]) is not None]
    totals = [sum(row[f"_lines_{name}"] for row in rows) for name in COUNTERS]
    incomplete = sum(row["_agents_reporting"] < row["_agents_expected"] for row in rows)
    bounds = (micros(min(starts)) if starts else None, micros(max(ends)) if ends else None)
    return (len(rows), *bounds, *totals, incomplete)


def incomplete(stored: Stored) -> list[Span]:
    """The panes of a version that lack an agent: (start, end), in microseconds; none of a query without windows."""
    return [
        (micros(row["_pane_start"]), micros(row["_pane_end"]))
        for row in coverage(stored)
        if row["_agents_reporting"] < row["_agents_expected"] and row["_pane_start"] is not None
    ]


def micros(at: Any) -> int:
    """A time of a table, in microseconds since 1970."""
    return int(pa.scalar(at, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py())


def plan_of(stored: Stored) -> Plan:
    """Raises PeerError for a plan of another version of elf."""
    return decode(base64.b64decode(stored.plan))


def results(
    stored: Stored, plan: Plan, every: Every | None, keys: Mapping[int, int] | None = None
) -> Iterator[tuple[Any, ...]]:
    """The rows of the plan's result in such windows, or, for None, in one of all time; windows in time order.

    keys: which of the stored keys each of the plan's keys is, if it has not all of them.
    """
    zone = every.zone if every is not None and every.us % DAY_US == 0 and every.zone != "UTC" else ""
    window = None if every is None else WindowSpec(every.us, every.us, zone)
    merged = _merged(stored, replace(plan, window=window), lambda rows: _targets(rows, every, zone), keys)
    for _, found in merged:
        yield from found


def windows(stored: Stored, plan: Plan) -> Iterator[tuple[int, Sequence[tuple[Any, ...]]]]:
    """(start, rows) of each window of the job's own size that has a group: in time order; of sliding ones first those that begin
    at multiples of the size, and so on."""
    spec = plan.window
    assert spec is not None
    apart = replace(plan, window=WindowSpec(spec.size_us, spec.size_us))
    for shift in range(0, spec.size_us, spec.slide_us):
        yield from _merged(stored, apart, partial(_starts_of, size_us=spec.size_us, shift_us=shift), None)


def sets_by_day(stored: Stored, column: str, every: Every) -> Iterator[tuple[int, Hashes]]:
    """(begin of the day, set) of a column of sets, from each table: days of the zone of `every`, which is a day."""
    zone = every.zone if every.zone != "UTC" else ""
    name = next(each["stored"] for each in stored.states if each["name"] == column)
    for table in valid_rows(stored, [name]):
        rows = table.filter(pc.invert(table.column("_empty")))
        days = _targets(rows, every, zone)
        sets = [hashes_of(sketch) for sketch in rows.column(name).to_pylist()]
        for day in np.unique(days):
            begin = zone_named(zone).utc_of(int(day)) if zone else int(day)
            yield begin, united(*(sets[at] for at in np.flatnonzero(days == day)))


def _merged(
    stored: Stored, plan: Plan, targets: Callable[[Any], Any], keys: Mapping[int, int] | None
) -> Iterator[tuple[int, Sequence[tuple[Any, ...]]]]:
    """(start, rows) of each window with a group. targets: the start of the window of each row of a table."""
    stored_keys = stored.keys
    names = {f"#k{i}": stored_keys[i if keys is None else keys[i]]["stored"] for i in range(len(plan.keys))}
    names |= {column["name"]: column["stored"] for column in stored.states}
    wanted = [f"_acc{i}" for i in range(len(plan.accumulators))] + [
        f"_fam{i}" for i in range(len(plan.families))
    ]
    read = dict.fromkeys(
        [*(names[f"#k{i}"] for i in range(len(plan.keys))), *(names[name] for name in wanted)]
    )
    budget = Budget(MEMORY_BYTES)
    panes = Panes(plan, budget)
    try:
        for table in valid_rows(stored, list(read)):
            rows = table.filter(pc.invert(table.column("_empty")))
            if rows.num_rows:
                panes.merge(rows_of(rows, targets(rows), plan, names))
        yield from Publisher(stored.job, plan, budget).results(panes.pieces(members=False))
    finally:
        panes.close()
        budget.close()


def _pane_starts(table: Any) -> Any:
    return pc.fill_null(table.column("_pane_start").cast(pa.int64()), 0).to_numpy(zero_copy_only=False)


def _starts_of(table: Any, size_us: int, shift_us: int) -> Any:
    """The start of the window of each row, of windows that begin `shift_us` past the multiples of their size."""
    starts = _pane_starts(table)
    return starts - np.mod(starts - shift_us, size_us)


def _targets(table: Any, every: Every | None, zone: str) -> Any:
    """The start of the window of each row: local time where the windows have a zone."""
    starts = _pane_starts(table)
    if every is None:
        return np.zeros(len(starts), dtype=np.int64)
    local = zone_named(zone).local(starts) if zone else starts
    return local - np.mod(local, every.us)
