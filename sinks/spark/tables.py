"""What a read of the lake is of: one table of a job, at one version of its Delta log, and the panes to read of its files.

    options -> `Options` -> `Snapshot` (files and schema by the log, recipes by the files' footers) -> `parts`

The log names the files of the newest revisions, so no pane is in two of them. Imports pyarrow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from elf.errors import ElfError, UsageError
from elf.sinks.lake import delta, layout
from elf.sinks.lake.every import Every
from elf.sinks.lake.files import read_about
from elf.sinks.lake.index import Index
from elf.sinks.lake.layout import DAY_US, LakeFile
from elf.sinks.lake.stored import Longer, Stored, longer_days
from elf.sinks.spark.rollup import length_us

OPTIONS = ("path", "job", "table", "columns", "every", "since", "until", "as_of", "maxFilesPerTrigger")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Options(msgspec.Struct, frozen=True):
    """Of a read. since, until: microseconds UTC, of the panes' starts. as_of: a version of the log, or a time in ms.
    columns: those to read, None for all. every_us: the length of the windows into which panes are merged, None for as they are.
    files_max: of a batch of a stream."""

    lake: Path
    job: str | None = None
    table: str | None = None
    columns: tuple[str, ...] | None = None
    since: int | None = None
    until: int | None = None
    as_of: int | datetime | None = None
    files_max: int | None = None
    every_us: int | None = None


class Version(msgspec.Struct, frozen=True):
    """One version of the job: what its files' footers say of it (see `elf.sinks.lake.spark_read.Stored`)."""

    job: str
    version: str
    columns: list[dict[str, str]]
    recipe: dict[str, Any]
    span: tuple[int, int]
    longer: tuple[Longer, ...] = ()


class Part(msgspec.Struct, frozen=True):
    """The panes to read of one file. starts: of these; None: all of its panes. gone: they have no groups any more, and
    no file: one row each is made. every_us: see `Options`."""

    path: str
    version: str
    day: str | None
    size: int
    starts: tuple[int, ...] | None = None
    gone: bool = False
    pane_us: int = 0
    every_us: int | None = None


def options(given: Mapping[str, str]) -> Options:
    """From the options of a data source. Raises UsageError for one that is unknown, or has no sense."""
    texts = {name.lower(): text for name, text in given.items()}
    known = {name.lower(): name for name in OPTIONS}
    for name in texts:
        if name not in known:
            raise UsageError(f"there is no option {name}; the options are {', '.join(OPTIONS[1:])}")
    path = texts.get("path", "").removeprefix("file://").removeprefix("file:")
    if not path or "://" in path:
        raise UsageError(f"load(LAKE) takes the folder of a lake, not {path or 'nothing'}")
    names = [name.strip() for name in texts["columns"].split(",")] if texts.get("columns") else None
    most = texts.get("maxfilespertrigger")
    if most is not None and not (most.isdigit() and int(most)):
        raise UsageError(f"option maxFilesPerTrigger: {most!r} is no number of files")
    return Options(
        Path(path),
        texts.get("job"),
        texts.get("table"),
        None if names is None else tuple(names),
        _micros(texts, "since"),
        _micros(texts, "until"),
        _as_of(texts.get("as_of")),
        None if most is None else int(most),
        _every_us(texts.get("every")),
    )


def _every_us(text: str | None) -> int | None:
    if text is None:
        return None
    found = length_us(text)
    if DAY_US % found:
        raise UsageError(
            f"option every: {text} is no day, nor a part of one; merge days with elf.spark.rollup(frame, every={text!r})"
        )
    return found


def _time(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"option {name}: {text!r} is no time; give one such as 2026-01-31 or 2026-01-31T12:00Z"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def micros(time: datetime) -> int:
    """Microseconds since 1970; a time without a zone is UTC."""
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def _micros(texts: Mapping[str, str], name: str) -> int | None:
    return micros(_time(name, texts[name])) if name in texts else None


def _as_of(text: str | None) -> int | datetime | None:
    if text is None:
        return None
    return int(text) if text.isdigit() else _time("as_of", text)


def table_of(asked: Options) -> Path:
    """The table to read: that of the newest columns of the job, unless another is named. Raises UsageError."""
    found = layout.existing_tables(asked.lake, asked.job)
    jobs = sorted({layout.job_of(table) for table in found})
    if len(jobs) > 1:
        raise UsageError(
            f"the lake {asked.lake} has several jobs; name one with option job: {', '.join(jobs)}"
        )
    if asked.table is not None:
        named = [table for table in found if table.name == asked.table]
        if not named:
            raise UsageError(
                f"job {jobs[0]} has no table {asked.table}; it has {', '.join(t.name for t in found)}"
            )
        return named[0]
    newest = max(found, key=lambda table: (_newest_day(table), table))
    return newest


def _newest_day(table: Path) -> str:
    return max((folder.name for folder in layout.day_folders(table) if layout.files(folder)), default="")


class Snapshot:
    """A table at one version of its log. Raises UsageError without a log, or without that version; ElfError if files are gone."""

    def __init__(self, table: Path, as_of: int | datetime | None = None) -> None:
        self.table, self.index = table, Index(table)
        if isinstance(as_of, datetime):
            as_of = version_at(table, as_of)
        try:
            self.index.refresh(as_of)
        except delta.LogError as error:
            if as_of is not None:
                raise UsageError(f"as_of: {table} no longer has version {as_of}: {error}") from error
            raise ElfError(
                f"{table}/_delta_log: {error}; `elf lake verify LAKE --repair` makes it again"
            ) from error
        if self.state.version < 0 or self.state.meta_data is None:
            raise UsageError(f"{table} has no Delta log; `elf lake verify LAKE --repair` makes it")
        if as_of is not None and self.state.version != as_of:
            raise UsageError(f"as_of: {table} has no version {as_of}; its newest is {self.state.version}")

    @property
    def state(self) -> delta.State:
        return self.index.state

    def fields(self, asked: Iterable[str] | None) -> list[dict[str, Any]]:
        """The fields of the schema, as Spark's JSON has them, that are asked for. Raises UsageError for one that there is not."""
        assert self.state.meta_data is not None
        known = {
            field["name"].lower(): field for field in json.loads(self.state.meta_data.schema_string)["fields"]
        }
        if asked is None:
            return list(known.values())
        for name in asked:
            if name.lower() not in known:
                raise UsageError(
                    f"option columns: there is no {name}; there are {', '.join(f['name'] for f in known.values())}"
                )
        return [known[name.lower()] for name in asked]

    def files(self) -> Iterator[tuple[LakeFile, delta.Add]]:
        """The files to read, each with the log's entry, and of which panes."""
        for path, add in sorted(self.state.shown.items()):
            if (file := layout.parse(self.table / path)) is not None:
                yield file, add

    def versions_of(self, asked: Options) -> list[Version]:
        """The versions as a read with these options has them. Raises UsageError if `every` does not fit one's windows."""
        found = self.versions(asked.since, asked.until)
        if asked.every_us is None:
            return found
        for each in found:
            stored = Stored(
                each.job, each.version, "", "", each.columns, each.recipe, each.span, longer=each.longer
            )
            if (misfit := stored.misfit(Every(asked.every_us))) is not None:
                raise UsageError(f"job {each.job}: {misfit.replace('--every', 'the option every')}")
        return [
            msgspec.structs.replace(each, longer=((*each.span, asked.every_us),))
            if each.recipe["pane_us"] < asked.every_us
            else each
            for each in found
        ]

    def parts(self, since: int | None = None, until: int | None = None) -> list[Part]:
        """What to read, without the panes that start before `since`, or at `until` or later."""
        found = [part_of(file, add, since, until) for file, add in self.files()]
        parts = [part for part in found if part is not None]
        for part in parts:
            if not os.path.exists(part.path):
                raise ElfError(
                    f"{part.path} is gone: the lake was compacted since version {self.state.version} of its log, where travel in "
                    "time ends; read again, or a later version"
                )
        return parts

    def versions(self, since: int | None = None, until: int | None = None) -> list[Version]:
        """The versions of the job that the table holds, oldest first, and which of the days between have longer panes. Reads one
        footer for each."""
        newest: dict[str, LakeFile] = {}
        days: dict[str, list[int]] = {}
        lengths: dict[str, dict[str, int]] = {}
        for file, add in self.files():
            version = str(add.partition_values["version"])
            if version not in newest or newest[version].until < file.until:
                newest[version] = file
            days.setdefault(version, []).extend((min(file.panes), file.until))
            if part_of(file, add, since, until) is not None:
                lengths.setdefault(version, {})[file.path.parent.name] = file.pane_us
        found = []
        for version, file in sorted(newest.items(), key=lambda each: each[1].until):
            about = read_about(file.path)
            if about.get("layout") != layout.LAYOUT:
                raise ElfError(
                    f"{file.path} is of layout {about.get('layout')}, which this version of elf does not read"
                )
            span = (min(days[version]) // DAY_US * DAY_US, max(days[version]))
            longer = longer_days(lengths.get(version, {}).items(), about["recipe"]["pane_us"])
            named = about["job"], about["version"], about["columns"], about["recipe"]
            found.append(Version(*named, span, longer))
        return found


def part_of(file: LakeFile, add: delta.Add, since: int | None, until: int | None) -> Part | None:
    """What to read of a file; None if all its panes are outside."""
    starts = tuple(
        start
        for start in sorted(file.panes)
        if (since is None or start >= since) and (until is None or start < until)
    )
    if not starts:
        return None
    values = add.partition_values
    kept = None if len(starts) == len(file.panes) else starts
    return Part(str(file.path), str(values["version"]), values["date"], add.size, kept, pane_us=file.pane_us)


def version_at(table: Path, time: datetime) -> int:
    """The last version that was committed by that time. Raises UsageError if the log begins later."""
    found, first = None, None
    for path in sorted((table / "_delta_log").glob("*.json")):
        infos = [action.commit_info for action in delta.decode(path.read_bytes()) if action.commit_info]
        at = EPOCH + timedelta(milliseconds=max((int(info.get("timestamp", 0)) for info in infos), default=0))
        first = first or at
        if at > time:
            break
        found = int(path.stem)
    if found is None:
        begins = f"its log begins at {first:%Y-%m-%dT%H:%M:%SZ}" if first else "it has no log"
        raise UsageError(f"as_of: {table} has no version of {time:%Y-%m-%dT%H:%M:%SZ}; {begins}")
    return found


def day_of(part: Part) -> date | None:
    return date.fromisoformat(part.day) if part.day is not None else None
