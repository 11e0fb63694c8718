"""Days of a lake in longer panes: the states of a day's panes, merged exactly, in one step for every reader.

    day folder -> `valid_rows` -> the engine's trees -> a state for each longer pane -> files -> the log -> the old files go

Of panes of several lengths in one day folder only the longest that have groups count (`layout.longest_us`). So the file with the
groups comes last, as one file: before its rename readers find the old panes, after it the new ones. The panes that are merged
then count no more, whichever step a crash stops, and the next compaction removes their files. A late revision of one of them is
not stored. Imports pyarrow and numpy.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elf.cbt._kernel import make_rows
from elf.cbt.budget import Budget
from elf.cbt.rows import Rows
from elf.errors import ElfError, PeerError
from elf.jobmaster.plan.codec import decode
from elf.jobmaster.plan.plan import Plan, WindowSpec
from elf.jobmaster.windows.counters import lost_rows
from elf.jobmaster.windows.lanes import LINE_OPS
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import COUNTERS, PaneState, Revision
from elf.jobmaster.windows.state import StateMaker
from elf.sinks.lake import layout
from elf.sinks.lake.cells.tables import file_schema, has_no_groups, pane_tables
from elf.sinks.lake.compact import remove_merged
from elf.sinks.lake.files import about, read_about, write_file
from elf.sinks.lake.frames import Level, PaneFrame, Schema
from elf.sinks.lake.index import Index
from elf.sinks.lake.parquet import FramedPane
from elf.sinks.lake.stored import EPOCH_DAY
from elf.sinks.lake.trees.state_rows import rows_of
from elf.sinks.lake.trees.valid import valid_rows

MEMORY_BYTES = 160 << 20
"""Of the trees; what is above goes to disk."""


class Coarsened(msgspec.Struct, frozen=True):
    """A table: days that have longer panes now, and their panes before and after. removed: files."""

    job: str
    folder: str
    days: int = 0
    before: int = 0
    after: int = 0
    removed: int = 0


def coarsen_lake(directory: Path, job: str | None, levels: Sequence[Level]) -> Iterator[Coarsened]:
    """Merge the panes of the days of a lake, or of a job, that are of such an age. Yields the tables in which there were any.
    Raises UsageError if there is no lake or job, ElfError if a file cannot be read or written: the next time goes on."""
    for table in layout.existing_tables(directory, job):
        name = layout.job_of(table)
        found = Coarsened(name, str(table.relative_to(directory)))
        index = Index(table)
        try:
            for folder in layout.day_folders(table):
                counts = _coarsen_day(folder, levels_of(name, levels), index)
                if counts is not None:
                    before, after, removed = counts
                    found = Coarsened(
                        name,
                        found.folder,
                        found.days + 1,
                        found.before + before,
                        found.after + after,
                        found.removed + removed,
                    )
        except (OSError, pa.ArrowException) as error:
            raise ElfError(f"{table}: not merged into longer windows: {error}") from error
        if found.days:
            yield found


def levels_of(job: str, levels: Sequence[Level]) -> list[Level]:
    """Those of the job: if some name it, these alone. The longest panes first."""
    own = [level for level in levels if level.job == job]
    return sorted(
        own or [level for level in levels if level.job is None], key=lambda each: each.pane_us, reverse=True
    )


def _coarsen_day(folder: Path, levels: Sequence[Level], index: Index) -> tuple[int, int, int] | None:
    """(panes before, panes after, files removed); None if the folder has no such panes, if another process works in it, or if one
    of its files cannot be read: that may hold the newest revision of a pane."""
    until = _end_of(folder)
    ripe = [level.pane_us for level in levels if until is not None and until <= level.before]
    if not ripe or _fitting(folder, ripe) is None:
        return None
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # it has expired
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    else:
        layout.remove_abandoned(folder)
        pane_us = _fitting(folder, ripe)
        try:
            return None if pane_us is None else _merge(folder, pane_us, index)
        except (pa.ArrowException, PeerError, KeyError):
            return None
    finally:
        os.close(fd)


def _end_of(folder: Path) -> int | None:
    """The end of the day; None for panes without a time."""
    if folder.name == layout.NO_WINDOW:
        return None
    with suppress(ValueError):
        day = date.fromisoformat(folder.name.removeprefix("date=")).toordinal() - EPOCH_DAY
        return (day + 1) * layout.DAY_US
    return None


def _fitting(folder: Path, lengths: Sequence[int]) -> int | None:
    """The first of the lengths, which come down, if the panes of the day make up such panes; None if they are as long already."""
    files = layout.files(folder)
    own = files[0].pane_us if files else 0
    for length in lengths:
        if own >= length:
            return None
        fits = own and length % own == 0 and layout.DAY_US % length == 0
        if fits and not any(start % own for file in files for start in file.panes):
            return length
    return None


class _Head(msgspec.Struct):
    """What a longer pane says of itself, from those that it is made of. lacking: (agents missing, -reporting, expected) of that
    which lacks most."""

    withdrawn: bool = True
    revised: bool = False
    lacking: tuple[int, int, int] = (-1, 0, 0)
    lines: tuple[int, ...] = (0,) * len(COUNTERS)
    lost: dict[str, int] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        if row["_status"] == "withdrawn":
            return
        self.withdrawn = False
        self.revised |= row["_status"] == "revised"
        reporting, expected = row["_agents_reporting"], row["_agents_expected"]
        self.lacking = max(self.lacking, (expected - reporting, -reporting, expected))
        self.lines = tuple(
            known + row[f"_lines_{name}"] for known, name in zip(self.lines, COUNTERS, strict=True)
        )
        for name, count in row["_not_converted"] or ():
            self.lost[name] = self.lost.get(name, 0) + count


def _merge(folder: Path, pane_us: int, index: Index) -> tuple[int, int, int] | None:
    files = layout.files(folder)
    newest = max(files, key=lambda file: (file.until, file.path.name))
    known = read_about(newest.path)
    plan = msgspec.structs.replace(
        decode(base64.b64decode(known["plan"])), window=WindowSpec(pane_us, pane_us)
    )
    budget = Budget(MEMORY_BYTES)
    panes = Panes(plan, budget)
    try:
        heads, before, revision = _read(folder, panes, plan, known["columns"])
        maker = StateMaker(known["job"], known["version"], plan, budget)
        schema = Schema(
            0,
            str(folder.parents[3]),
            known["job"],
            known["version"],
            maker.columns,
            base64.b64decode(known["plan"]),
            json.dumps(known["recipe"], separators=(",", ":")).encode(),
            known["elf_version"],
        )
        framed = [
            FramedPane(state, 0, number)
            for number, state in enumerate(_states(maker, panes, heads, revision))
        ]
        is_written = _write(folder, schema, framed, any(not file.is_empty for file in files))
    finally:
        panes.close()
        budget.close()
    return (before, len(heads), remove_merged(folder, index)) if is_written else None


def _read(
    folder: Path, panes: Panes, plan: Plan, columns: Sequence[Mapping[str, str]]
) -> tuple[dict[int, _Head], int, Revision]:
    """Merge the day's rows. Returns what each longer pane says of itself, the number of panes, and their highest revision."""
    assert plan.window is not None
    keys = [column for column in columns if column["role"] == "key"]
    names = {f"#k{i}": column["stored"] for i, column in enumerate(keys)}
    names |= {column["name"]: column["stored"] for column in columns if column["role"] != "key"}
    heads: dict[int, _Head] = {}
    seen: set[int] = set()
    revision: Revision = (0, 0, 0)
    for table in valid_rows(folder):
        starts = table.column("_pane_start").cast(pa.int64()).to_numpy(zero_copy_only=False)
        longer = starts - np.mod(starts, plan.window.pane_us)
        fresh = np.unique(starts, return_index=True)[1]
        head = ("_status", *_REVISION, *_COVERAGE, "_not_converted")
        for at, row in zip(fresh.tolist(), table.select(head).take(pa.array(fresh)).to_pylist(), strict=True):
            if int(starts[at]) not in seen:
                seen.add(int(starts[at]))
                heads.setdefault(int(longer[at]), _Head(lost={})).add(row)
                epoch, node, n = (row[name] for name in _REVISION)
                revision = max(revision, (epoch, int(node, 16), n))
        has_groups = pc.and_(
            pc.invert(table.column("_empty")), pc.not_equal(table.column("_status"), "withdrawn")
        )
        rows = table.filter(has_groups)
        if rows.num_rows:
            panes.merge(rows_of(rows, longer[has_groups.to_numpy(zero_copy_only=False)], plan, names))
    panes.insert(1, _counters(heads))
    for pane, found in heads.items():
        if found.lost:
            panes.insert(1, lost_rows({(name, pane): count for name, count in found.lost.items()}))
    return heads, len(seen), revision


_REVISION = ("_revision_epoch", "_revision_node", "_revision_n")
_COVERAGE = ("_agents_reporting", "_agents_expected", *(f"_lines_{name}" for name in COUNTERS))


def _counters(heads: Mapping[int, _Head]) -> Rows:
    """A row of line counters for each longer pane."""
    found = np.array(sorted(heads), dtype=np.int64)
    lanes = np.array([heads[pane].lines for pane in found.tolist()], dtype=np.int64).T.copy()
    none = np.empty(0, dtype=np.uint8), np.zeros(len(found), dtype=np.uint64)
    return make_rows(found, *none, None, lanes, LINE_OPS)


def _states(
    maker: StateMaker, panes: Panes, heads: Mapping[int, _Head], revision: Revision
) -> Iterator[PaneState]:
    """One state for each longer pane. All have the day's highest revision, so that one file can hold them all."""
    for state in maker.states(panes.pieces(split=True), panes.lines(), "final", revision):
        head = heads[state.start]
        status = "withdrawn" if head.withdrawn else "revised" if head.revised else "final"
        _, reporting, expected = head.lacking
        about = {"status": status, "agents_reporting": -reporting, "agents_expected": expected}
        yield msgspec.structs.replace(state, **about)


def _write(folder: Path, schema: Schema, framed: Sequence[FramedPane], had_groups: bool) -> bool:
    """Write the panes without groups, and then those with groups, as one file. Writes nothing if no group counts any more, but
    there are files with some: compaction removes these first."""
    heads = [msgspec.msgpack.decode(each.head, type=PaneFrame) for each in framed]
    places = [layout.Pane(f.start, f.end, f.revision, f.digest) for f in heads]
    parts = dict(zip(places, zip(heads, framed, strict=True), strict=True))
    empty = {place for place in places if has_no_groups(parts[place][1].parts())}
    full = [place for place in places if place not in empty]
    if had_groups and not full:
        return False
    named = list(layout.files_of(schema.job, schema.version, empty, True)) if full else []
    last = full or places
    for name, part in [*named, (layout.whole_name(schema.job, schema.version, last, not full), last)]:
        tables = pane_tables(schema, {parts[place][0]: parts[place][1].parts() for place in part})
        write_file(folder / name, about(schema), part, file_schema(schema.columns), tables)
    return True
