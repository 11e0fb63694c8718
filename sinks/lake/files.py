"""Writes the lake's files: panes to Parquet, each file whole and durable before it is visible.

Imports pyarrow, so only the writer process (`elf.sinks.lake.writer`) and tests import this module.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elf.jobmaster.windows.result import StateColumn, whole_parts
from elf.sinks.lake import layout
from elf.sinks.lake.frames import Done, PaneFrame, PartFrame, Schema
from elf.sinks.lake.removal import remove_day
from elf.sinks.lake.types import arrow_array, arrow_type

ROWS_PER_GROUP = 1 << 16
SKETCHES_PER_GROUP = 1 << 12
"""Rows of a table whose rows have sketches: 16 MiB of them for each such column."""
SHORT_BYTES = 1 << 12
PARTITIONS = ("version", "date")

_TIMESTAMP = "timestamp"
PANE_COLUMNS: tuple[tuple[str, str, Callable[[PaneFrame], Any]], ...] = (
    ("_pane_start", _TIMESTAMP, lambda p: p.start if p.end > p.start else None),
    ("_pane_end", _TIMESTAMP, lambda p: p.end if p.end > p.start else None),
    ("_status", "string", lambda p: p.status),
    ("_revision_epoch", "bigint", lambda p: p.epoch),
    ("_revision_node", "string", lambda p: p.node),
    ("_revision_n", "bigint", lambda p: p.n),
    ("_digest", "string", lambda p: p.digest),
    ("_agents_reporting", "int", lambda p: p.agents_reporting),
    ("_agents_expected", "int", lambda p: p.agents_expected),
    ("_lines_read", "bigint", lambda p: p.lines.read),
    ("_lines_parsed", "bigint", lambda p: p.lines.parsed),
    ("_lines_rejected", "bigint", lambda p: p.lines.rejected),
    ("_lines_late", "bigint", lambda p: p.lines.late),
    ("_not_converted", "map<string,bigint>", lambda p: p.lines.not_converted or None),
)


Panes = Mapping[PaneFrame, Iterable[PartFrame]]


def write_panes(schemas: dict[int, Schema], panes: Panes, touched: set[Path]) -> Iterator[Done]:
    """Write the panes, usually one file per hour. A pane below its highest revision in the lake, or of a day that has expired or
    has longer panes by now, is only acknowledged. touched: the folders are added to it."""

    def place(pane: PaneFrame) -> tuple[int, str, int]:
        schema = schemas[pane.schema]
        table = layout.table_folder(Path(schema.directory), schema.job, schema.columns)
        folder = layout.pane_folder(table, schema.version, pane.start, pane.end)
        return pane.schema, str(folder), pane.start // layout.HOUR_US

    for (number, path, _), group in groupby(sorted(panes, key=place), place):
        folder, own = Path(path), {frame: panes[frame] for frame in group}
        done: set[int] = set()
        if not layout.is_expired(folder):
            try:
                for answer in _write_folder(schemas[number], folder, own):
                    done.update(answer.panes)
                    yield answer
                touched.add(folder)
            except (
                FileNotFoundError
            ):  # another process may have removed the folder, since the day expired meanwhile
                if not layout.is_expired(folder):
                    raise
            if layout.is_expired(folder):
                remove_day(folder)
                touched.discard(folder)
        yield Done(tuple(frame.number for frame in own if frame.number not in done))


def _write_folder(schema: Schema, folder: Path, panes: Panes) -> Iterator[Done]:
    make_folder(folder)
    layout.remove_abandoned(folder)
    known, least_us = layout.folder_ledger(folder), layout.longest_us(layout.all_files(folder))
    fresh = [
        frame
        for frame in panes
        if frame.end - frame.start >= least_us and frame.revision >= known.get(frame.start, frame.revision)
    ]
    by_pane = {layout.Pane(f.start, f.end, f.revision, f.digest): f for f in fresh}
    for is_empty in (False, True):
        kind = {pane for pane, frame in by_pane.items() if has_no_groups(panes[frame]) is is_empty}
        for name, part in layout.files_of(schema.job, schema.version, kind, is_empty):
            chosen = [by_pane[pane] for pane in part]
            tables = pane_tables(schema, {frame: panes[frame] for frame in chosen})
            write_file(folder / name, about(schema), part, file_schema(schema.columns), tables)
            yield Done(tuple(frame.number for frame in chosen))


def stored_names(columns: Iterable[StateColumn]) -> list[str]:
    """The columns' names within a file: their own names, unless a pane column, a folder or another column has that name.

    Names are compared without case, as Spark does: a key `date` is stored as `date_1`, because `date=` is a folder.
    """
    taken = {name.lower() for name, _, _ in PANE_COLUMNS} | set(PARTITIONS) | {"_empty"}
    names = []
    for column in columns:
        name, n = column.name, 0
        while name.lower() in taken:
            n += 1
            name = f"{column.name}_{n}"
        taken.add(name.lower())
        names.append(name)
    return names


def file_schema(columns: Iterable[StateColumn]) -> Any:
    """The Arrow schema of a file: pane columns, `_empty`, state columns."""
    columns = tuple(columns)
    fields = [(name, arrow_type(kind)) for name, kind, _ in PANE_COLUMNS]
    fields.append(("_empty", pa.bool_()))
    named = zip(stored_names(columns), columns, strict=True)
    return pa.schema(fields + [(name, arrow_type(column.type)) for name, column in named])


def about(schema: Schema) -> dict[str, Any]:
    """A file's metadata under the key `elf`, as JSON; `write_file` adds its panes."""
    columns = [
        {"name": column.name, "type": column.type, "role": column.role, "stored": name}
        for name, column in zip(stored_names(schema.columns), schema.columns, strict=True)
    ]
    return {
        "layout": layout.LAYOUT,
        "elf_version": schema.elf_version,
        "job": schema.job,
        "version": schema.version,
        "columns": columns,
        "plan": base64.b64encode(schema.plan).decode(),
        "recipe": json.loads(schema.recipe or b"null"),
    }


def has_no_groups(parts: Iterable[PartFrame]) -> bool:
    """Whether a pane has no groups. Only short parts are decoded: an empty column has at most 5 bytes."""
    return not any(
        len(part.values) > SHORT_BYTES or any(msgspec.msgpack.decode(part.values)) for part in parts
    )


def pane_tables(schema: Schema, panes: Panes) -> Iterator[Any]:
    """The panes' rows, in tables of about `ROWS_PER_GROUP`: one row per group, or one marked `_empty`."""
    arrow = file_schema(schema.columns)
    most = ROWS_PER_GROUP if pa.binary() not in arrow.types else SKETCHES_PER_GROUP
    heads: list[tuple[PaneFrame, int]] = []
    columns: list[list[Any]] = [[] for _ in schema.columns]
    rows = 0
    for pane, groups, values in _decoded(panes, len(columns), most):
        heads.append((pane, groups))
        for column, added in zip(columns, values, strict=True):
            column.extend(added if groups else (None,))
        rows += max(groups, 1)
        if rows >= most:
            yield _table(heads, columns, arrow)
            heads, columns, rows = [], [[] for _ in schema.columns], 0
    if heads:
        yield _table(heads, columns, arrow)


def _decoded(panes: Panes, width: int, most: int) -> Iterator[tuple[PaneFrame, int, list[list[Any]]]]:
    """Each part of each pane, of `most` groups at most: the pane, the number of groups, and their values. A pane without groups
    has one empty part."""
    for pane, parts in panes.items():
        none = True
        for values in whole_parts((part.values, part.more) for part in parts):
            groups = len(values[0]) if values else 0
            for at in range(0, groups, most):
                none = False
                yield pane, min(most, groups - at), [column[at : at + most] for column in values]
        if none:
            yield pane, 0, [[]] * width


def _table(heads: list[tuple[PaneFrame, int]], columns: list[list[Any]], arrow: Any) -> Any:
    places = array(
        "i"
    )  # of each row's pane: what a pane repeats in its rows is copied by Arrow, not as objects of Python
    for at, (_, groups) in enumerate(heads):
        places += array("i", (at,)) * max(groups, 1)
    rows = pa.Array.from_buffers(pa.int32(), len(places), [None, pa.py_buffer(places)])
    arrays = [
        pa.array([read(pane) for pane, _ in heads], arrow_type(kind)).take(rows)
        for _, kind, read in PANE_COLUMNS
    ]
    arrays.append(pa.array([not groups for _, groups in heads], pa.bool_()).take(rows))
    types = arrow.types[len(arrays) :]
    arrays += [arrow_array(values, kind) for values, kind in zip(columns, types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow)


def write_file(
    path: Path, about: dict[str, Any], panes: Iterable[layout.Pane], arrow: Any, tables: Iterable[Any]
) -> None:
    """Write a file under a temporary name, sync it, rename it, sync the folder. Does nothing if the file exists already."""
    if not path.exists():
        unfinished = path.with_name(f".{path.stem[-16:]}.{os.urandom(4).hex()}.tmp")
        fd = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(fd, "wb") as file:
                with suppress(OSError):  # a file system without locks: unfinished files are not removed there
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write_parquet(file, _metadata(about, panes), arrow, tables)
                file.flush()
                os.fsync(fd)
                os.rename(unfinished, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise
    sync_folder(path.parent)


def _metadata(about: dict[str, Any], panes: Iterable[layout.Pane]) -> dict[str, str]:
    """The file's metadata under one key: pyarrow does not keep the order of several, and equal content must give equal bytes."""
    listed = [
        (p.start, p.end, p.revision[0], f"{p.revision[1]:048x}", p.revision[2], p.digest) for p in panes
    ]
    return {"elf": json.dumps(about | {"panes": listed}, separators=(",", ":"), sort_keys=True)}


def read_about(path: Path) -> dict[str, Any]:
    """The metadata of a file: `about` and the list of panes. Reads its footer only."""
    found: dict[str, Any] = json.loads(pq.read_metadata(path).metadata[b"elf"])
    return found


def read_panes(path: Path) -> list[layout.Pane]:
    """The panes in a file, by its metadata."""
    return panes_of(pq.read_metadata(path))


def panes_of(metadata: Any) -> list[layout.Pane]:
    """The panes of a file's metadata."""
    listed = json.loads(metadata.metadata[b"elf"])["panes"]
    return [layout.Pane(start, end, (epoch, int(node, 16), n), d) for start, end, epoch, node, n, d in listed]


def withdrawn_panes(folder: Path) -> Iterator[tuple[int, int, str, int]]:
    """The withdrawals in one day folder: starts, and their revisions, the node in hex. Leaves out files that cannot be read.
    Compaction of the folder waits meanwhile, so no file disappears."""
    names = ("_pane_start", "_revision_epoch", "_revision_node", "_revision_n")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_SH)
        for found in filter(lambda file: file.is_empty, layout.files(folder)):
            with suppress(pa.ArrowException), pq.ParquetFile(found.path) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=[*names, "_status"])
                    gone = table.filter(pc.equal(table.column("_status"), "withdrawn"))
                    starts = gone.column(names[0]).cast(pa.int64()).to_pylist()
                    revisions = (gone.column(name).to_pylist() for name in names[1:])
                    yield from zip((start or 0 for start in starts), *revisions, strict=True)
    finally:
        os.close(fd)


def _write_parquet(file: Any, metadata: dict[str, str], arrow: Any, tables: Iterable[Any]) -> None:
    # Sums hardly repeat: a dictionary of them makes a file larger, and takes a quarter of the time.
    repeating = [field.name for field in arrow if not pa.types.is_decimal(field.type)]
    options: dict[str, Any] = {"compression": "zstd", "store_schema": False, "use_dictionary": repeating}
    with pq.ParquetWriter(file, arrow, **options) as writer:
        for table in tables:
            writer.write_table(table)
        writer.add_key_value_metadata(metadata)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and make each of their names durable."""
    if not folder.is_dir():
        make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
