"""The short-lived process that writes results as Parquet: `python -m elf.sinks.results.writer`, a request in on stdin, an answer
out on stdout.

    FOLDER/JOB/2026-11-24T13.parquet       the windows that start in that hour (UTC), in order, each in its newest revision
    FOLDER/JOB/2026-11-24T13~2.parquet     more of them, once the file before has `PART_ROWS` rows
    FOLDER/JOB~2/2026-11-25T09.parquet     from the change on that gave the query other columns, or columns of other types

Each file is replaced as a whole, by a rename, so a reader finds the windows of before or those of now. Names and revisions of
windows stand in the file's metadata (`elf`), in the order of the rows. A window that is in the file in the same revision or a
later one is not written again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from elf.sinks.results.frames import ResultAnswer, ResultRequest, ResultWindow

HOUR_US = 3_600_000_000
PART_ROWS = 200_000
"""A file is written again with each of its windows: some 30 ms for so many rows of four columns."""
KEY = b"elf"
LOCK = ".elf.lock"
Name = tuple[str, int]
"""(version, start) of a window."""


class Held(msgspec.Struct, array_like=True):
    """A window in a file: its revision, and how many rows it has there. Without rows it is empty or withdrawn."""

    version: str
    start: int
    revision: str
    rows: int

    @property
    def name(self) -> Name:
        return (self.version, self.start)


class Unreadable(Exception):  # noqa: N818 (the name of a finding)
    """A file in the place of one of these is none."""


def order_of(revision: str) -> tuple[int, str, int]:
    """The parts of a revision, which sort in order."""
    epoch, maker, n = revision.split(".")
    return int(epoch), maker, int(n)


def write(request: ResultRequest) -> ResultAnswer:
    """Write the windows, hour by hour. Raises nothing that a disk or a window can cause."""
    folder, written, declined = Path(request.folder), list[int](), dict[int, str]()
    try:
        with _locked(folder):
            for (job, hour), numbers in _by_file(request.windows).items():
                fresh = dict[int, Any]()
                for number in numbers:
                    try:
                        fresh[number] = _table(request.windows[number])
                    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
                        text = " ".join(str(error).split())
                        declined[number] = f"job {job}: a window fits no Parquet column ({text})"
                _write_hour(folder, job, hour, {request.windows[n]: table for n, table in fresh.items()})
                written += fresh
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return ResultAnswer(written, declined, f"{where}{error.strerror or error}")
    except Unreadable as error:
        return ResultAnswer(written, declined, str(error))
    return ResultAnswer(written, declined)


def _by_file(windows: Sequence[ResultWindow]) -> dict[tuple[str, int], list[int]]:
    """{(job, start of the hour): positions of the windows}"""
    found: dict[tuple[str, int], list[int]] = {}
    for number, window in enumerate(windows):
        found.setdefault((window.job, window.start - window.start % HOUR_US), []).append(number)
    return found


def _write_hour(folder: Path, job: str, hour: int, fresh: dict[ResultWindow, Any]) -> None:
    """Each window goes into the folder of its columns. A withdrawn one has none: it leaves the file that has it. Raises OSError,
    Unreadable."""
    from elf.sinks.lake.files import sync_folder

    stem = f"{datetime.fromtimestamp(hour / 1e6, UTC):%Y-%m-%dT%H}"
    tables = list(_tables(folder, job))
    into: dict[Path, dict[ResultWindow, Any]] = {}
    for window, table in fresh.items():
        if window.status == "withdrawn":
            for each in tables:
                into.setdefault(each, {})[window] = None
            continue
        place = next((each for each in tables if _has_columns(each, table.schema)), None)
        if place is None:
            place = folder / (_folder_name(job) + (f"~{len(tables) + 1}" if tables else ""))
            place.mkdir()
            sync_folder(folder)
            tables.append(place)
        into.setdefault(place, {})[window] = table
    for place, windows in into.items():
        for path, some in _by_part(place, stem, windows).items():
            _write_file(path, some)


def _by_part(place: Path, stem: str, fresh: dict[ResultWindow, Any]) -> dict[Path, dict[ResultWindow, Any]]:
    """In which file of the hour each window is, or is to be. Raises OSError, Unreadable."""
    parts, where, rows = [place / f"{stem}.parquet"], dict[Name, Path](), 0
    for number in count(2):
        held = _held(parts[-1])
        where |= {each.name: parts[-1] for each in held}
        rows = sum(each.rows for each in held)
        following = place / f"{stem}~{number}.parquet"
        if not following.exists():
            break
        parts.append(following)
    found: dict[Path, dict[ResultWindow, Any]] = {}
    for window, table in fresh.items():
        path = where.get((window.version, window.start))
        if path is None:
            if rows >= PART_ROWS:
                parts.append(place / f"{stem}~{len(parts) + 1}.parquet")
                rows = 0
            path = parts[-1]
            rows += 0 if table is None else table.num_rows
        found.setdefault(path, {})[window] = table
    return found


def _held(path: Path) -> list[Held]:
    """The windows of a file, from its metadata; none if there is no file. Raises OSError, Unreadable."""
    import pyarrow.parquet as pq

    if not path.exists():
        return []
    with _reading(path):
        return msgspec.json.decode((pq.read_schema(path).metadata or {})[KEY], type=list[Held])


def _folder_name(job: str) -> str:
    return quote(job, safe="")


def _tables(folder: Path, job: str) -> Iterator[Path]:
    """The job's folders, in the order in which its columns changed."""
    name = _folder_name(job)
    for number in count(1):
        place = folder / (name if number == 1 else f"{name}~{number}")
        if not place.is_dir():
            return
        yield place


def _has_columns(place: Path, schema: Any) -> bool:
    """Whether the files of a folder have these columns; of an empty folder True. Raises OSError, Unreadable."""
    import pyarrow.parquet as pq

    some = next(place.glob("*.parquet"), None)
    if some is None:
        return True
    with _reading(some):
        there = pq.read_schema(some)
        if KEY not in (there.metadata or {}):
            raise KeyError(some)
        return bool(there.remove_metadata().equals(schema))


def _write_file(path: Path, fresh: dict[ResultWindow, Any]) -> None:
    """Replace the windows of a file that are older. Raises OSError, Unreadable."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts, held = _read(path)
    changed = False
    for window, table in fresh.items():
        name = (window.version, window.start)
        known = held.get(name)
        if known is None and table is None:
            continue  # it is in no file
        if known is not None and order_of(known.revision) >= order_of(window.revision):
            continue
        held[name] = Held(*name, window.revision, 0 if table is None else table.num_rows)
        parts[name] = table
        changed = True
    if not changed:
        return
    names = sorted(held, key=lambda name: (name[1], order_of(held[name].revision), name[0]))
    tables = [parts[name] for name in names if parts.get(name) is not None]
    if not tables:
        tables = [pq.read_schema(path).remove_metadata().empty_table()]
    whole = pa.concat_tables(tables)
    about = msgspec.json.encode([held[name] for name in names])
    _replace(path, whole.replace_schema_metadata({KEY: about}))


def _read(path: Path) -> tuple[dict[Name, Any], dict[Name, Held]]:
    """The rows of each window of a file, and what it says of them; nothing if there is none. Raises OSError, Unreadable."""
    import pyarrow.parquet as pq

    if not path.exists():
        return {}, {}
    with _reading(path):
        table = pq.read_table(path, partitioning=None)
        held = msgspec.json.decode((table.schema.metadata or {})[KEY], type=list[Held])
        if sum(each.rows for each in held) != table.num_rows:
            raise Unreadable(f"{path}: its rows are not those of its windows; move it away")
    table, parts, at = table.replace_schema_metadata(None), dict[Name, Any](), 0
    for each in held:
        parts[each.name] = table.slice(at, each.rows) if each.rows else None
        at += each.rows
    return parts, {each.name: each for each in held}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises Unreadable for a file that is damaged or another's."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, msgspec.MsgspecError, KeyError):
        raise Unreadable(f"{path}: is no file of this sink, or damaged; move it away") from None


def _replace(path: Path, table: Any) -> None:
    """The file has these rows, and all is on the disk. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from elf.sinks.lake.files import sync_folder

    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            try:
                pq.write_table(table, file, compression="zstd")
            except pa.ArrowException as error:
                raise OSError(errno.EIO, str(error), str(part)) from None
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The process of an agent that was killed may still write. Raises OSError."""
    with (folder / LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- values ----

_json = msgspec.json.Decoder(float_hook=Decimal)


def _table(window: ResultWindow) -> Any:
    """The window's rows, None for a withdrawn one. Raises ValueError, TypeError, KeyError, ArithmeticError for values that the
    columns cannot hold."""
    if window.status == "withdrawn":
        return None
    import pyarrow as pa

    from elf.sinks.lake.types import arrow_type

    rows = _json.decode(window.body)["rows"]
    columns, fields = [], []
    for name, text in window.columns:
        kind = arrow_type(text)
        fields.append(pa.field(name, kind))
        columns.append(_column([row[name] for row in rows], kind))
    return pa.table(columns, schema=pa.schema(fields))


def _column(values: Sequence[Any], kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_decimal(
        kind
    ):  # from text: Arrow infers a precision of numbers, and refuses others that have more digits
        texts = [None if value is None else str(value) for value in values]
        return pa.array(texts, pa.string()).cast(kind)
    return pa.array([_value(value, kind) for value in values], kind)


def _value(value: Any, kind: Any) -> Any:
    """A value as it is in JSON, as Arrow takes it."""
    import pyarrow.types as of

    if value is None:
        return None
    if of.is_timestamp(kind):
        return datetime.fromisoformat(value)
    if of.is_floating(kind):
        return float(value)  # NaN and infinities are texts
    if of.is_decimal(kind):
        return Decimal(value)
    if of.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    if of.is_list(kind):
        return [_value(each, kind.value_type) for each in value]
    return value


def main() -> None:
    """Serve one request and exit."""
    with suppress(OSError):
        os.nice(5)  # the web server on this host has priority
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ResultRequest)
    # pyarrow works without numpy, which nothing here needs; without it the process starts in half the time.
    sys.modules["numpy"] = None  # type: ignore[assignment]
    with suppress(BrokenPipeError):  # the agent was killed
        sys.stdout.buffer.write(msgspec.msgpack.encode(write(request)))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
