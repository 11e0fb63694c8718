"""Writes the lake's files: panes to Parquet, each file whole and durable before it is visible.

Imports pyarrow, so only the writer process (`elf.sinks.lake.writer`) and tests import this module.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elf.errors import ElfError
from elf.sinks.lake import layout
from elf.sinks.lake.cells.tables import (
    ROWS_PER_GROUP,
    Panes,
    file_schema,
    has_no_groups,
    pane_tables,
    stored_names,
)
from elf.sinks.lake.frames import Done, PaneFrame, Schema
from elf.sinks.lake.removal import remove_day

UNSOUGHT = ("_acc", "_fam", "_lines_", "_not_", "_revision_", "_digest")
"""How columns begin by whose smallest and greatest value nobody leaves rows out: they have no statistics."""


def write_panes(schemas: dict[int, Schema], panes: Panes, touched: set[Path]) -> Iterator[Done]:
    """Write the panes, usually one file per hour. A pane below its highest revision in the lake, or of a day that has expired or
    has longer panes by now, is only acknowledged. touched: the folders are added to it."""

    table_of = {
        number: layout.table_folder(Path(schema.directory), schema.job, schema.columns)
        for number, schema in schemas.items()
    }
    folder_of: dict[tuple[int, int | None], str] = {}

    def place(pane: PaneFrame) -> tuple[int, str, int]:
        number, day = pane.schema, pane.start // layout.DAY_US if pane.end > pane.start else None
        if (number, day) not in folder_of:
            folder = layout.pane_folder(table_of[number], schemas[number].version, pane.start, pane.end)
            folder_of[number, day] = str(folder)
        return number, folder_of[number, day], pane.start // layout.HOUR_US

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
    fitting = [frame for frame in panes if frame.end - frame.start >= least_us]
    if left_out := len(panes) - len(fitting):
        yield Done(left_out=left_out)
    fresh = [frame for frame in fitting if frame.revision >= known.get(frame.start, frame.revision)]
    by_pane = {layout.Pane(f.start, f.end, f.revision, f.digest): f for f in fresh}
    for is_empty in (False, True):
        kind = {pane for pane, frame in by_pane.items() if has_no_groups(panes[frame]) is is_empty}
        for name, part in layout.files_of(schema.job, schema.version, kind, is_empty):
            chosen = [by_pane[pane] for pane in part]
            tables = pane_tables(schema, {frame: panes[frame] for frame in chosen})
            write_file(folder / name, about(schema), part, file_schema(schema.columns), tables)
            yield Done(tuple(frame.number for frame in chosen))


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


class DamagedError(ElfError):
    """A file of the lake that was cut short or has other bytes than were written, or is none of ours. path: which."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is damaged: {' '.join(str(reason).split())[:300]}")
        self.path = path


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Raises DamagedError where the bytes of the file cannot be decoded, OSError where the disk does not give them."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise  # Arrow's own have none
        raise DamagedError(path, error) from error
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise DamagedError(path, error) from error


def read_about(path: Path) -> dict[str, Any]:
    """The metadata of a file: `about` and the list of panes. Reads its footer only. Raises OSError, DamagedError."""
    with decoding(path):
        found: dict[str, Any] = json.loads(pq.read_metadata(path).metadata[b"elf"])
    return found


def read_panes(path: Path) -> list[layout.Pane]:
    """The panes in a file, by its metadata. Raises OSError, DamagedError."""
    with decoding(path):
        return panes_of(pq.read_metadata(path))


def panes_of(metadata: Any) -> list[layout.Pane]:
    """The panes of a file's metadata."""
    listed = json.loads(metadata.metadata[b"elf"])["panes"]
    return [layout.Pane(start, end, (epoch, int(node, 16), n), d) for start, end, epoch, node, n, d in listed]


def withdrawn_panes(folder: Path) -> Iterator[tuple[int, int, str, int]]:
    """The withdrawals in one day folder: starts, and their revisions, the node in hex. Leaves out files that cannot be read.
    Compaction of the folder waits meanwhile, so no file disappears."""
    import pyarrow.compute as pc  # late: writing needs none of it

    names = ("_pane_start", "_revision_epoch", "_revision_node", "_revision_n")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_SH)
        for found in filter(lambda file: file.is_empty, layout.files(folder)):
            with suppress(DamagedError), decoding(found.path), pq.ParquetFile(found.path) as file:
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
    options["write_statistics"] = [field.name for field in arrow if not field.name.startswith(UNSOUGHT)]
    options["write_batch_size"] = ROWS_PER_GROUP  # a third faster than the 1,024 rows of the default
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
