"""What a table's Delta log means, and what a commit to it holds. No IO.

The format is https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
The log is an index over the lake's files and can be made again from them. It shows each pane of a day folder once, at its highest
revision; panes without groups stay outside. Delta knows whole files only:

    files of a folder -> `cover`: the files to show, and the panes for which a file must be written -> `changes`: a commit

A file is shown if all its panes have their highest revision. So a revision of one pane of a file hides the file, and the file's
other panes are written again, once, into a file that takes its place in the same commit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from elf.jobmaster.windows.result import Revision
from elf.sinks.lake.layout import NO_WINDOW, LakeFile

READER, WRITER = 1, 2
"""The protocol's versions: no deletion vectors, no column mapping, nothing but files."""
_FLAT = {"int": "integer", "bigint": "long"}
_SAME = {"boolean", "double", "string", "binary", "timestamp"}


class LogError(Exception):
    """The log is damaged, or needs a version of the protocol that we do not write."""


class Format(msgspec.Struct, frozen=True):
    provider: str = "parquet"
    options: dict[str, str] = {}


class MetaData(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    name: str
    schema_string: str
    partition_columns: tuple[str, ...]
    created_time: int
    format: Format = Format()
    configuration: dict[str, str] = {}


class Protocol(msgspec.Struct, frozen=True, rename="camel"):
    min_reader_version: int = READER
    min_writer_version: int = WRITER


class Add(msgspec.Struct, frozen=True, rename="camel"):
    """path: relative to the table. modification_time: ms since 1970. stats: JSON."""

    path: str
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None


class Remove(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    deletion_timestamp: int
    data_change: bool
    extended_file_metadata: bool = True
    partition_values: dict[str, str | None] = {}
    size: int = 0


class Action(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One line of a commit. Exactly one field is set, or none for an action that does not matter here."""

    commit_info: dict[str, Any] | None = None
    protocol: Protocol | None = None
    meta_data: MetaData | None = None
    add: Add | None = None
    remove: Remove | None = None


_DECODER = msgspec.json.Decoder(Action)


def encode(actions: Iterable[Action]) -> bytes:
    """A commit's file."""
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def decode(commit: bytes) -> list[Action]:
    """The actions of a commit's file. Raises LogError."""
    try:
        return [_DECODER.decode(line) for line in commit.splitlines() if line.strip()]
    except msgspec.MsgspecError as error:
        raise LogError(f"a commit cannot be read: {error}") from error


class State(msgspec.Struct):
    """A table after the commit `version`; -1 before the first. shown: the files by path."""

    version: int = -1
    meta_data: MetaData | None = None
    protocol: Protocol = Protocol()
    shown: dict[str, Add] = {}

    def apply(self, version: int, actions: Iterable[Action]) -> None:
        """Go on by a commit. Raises LogError."""
        for action in actions:
            if action.protocol is not None:
                self.protocol = action.protocol
            if action.meta_data is not None:
                self.meta_data = action.meta_data
            if action.remove is not None:
                self.shown.pop(action.remove.path, None)
            if action.add is not None:
                self.shown[action.add.path] = action.add
        self.version = version
        found = self.protocol
        if found.min_reader_version > READER or found.min_writer_version > WRITER:
            raise LogError(f"it needs Delta's protocol {found.min_reader_version}/{found.min_writer_version}")
        if self.meta_data is None:
            raise LogError("it has no schema")


def cover(
    files: Collection[LakeFile], shown: Collection[Path], lost: Collection[Path] = ()
) -> tuple[list[LakeFile], dict[int, LakeFile]]:
    """The files of one folder to show, and the other panes that have groups: pane -> the file to copy it from. O(panes).

    shown: these are preferred. lost: these cannot be read, so their panes are not shown, nor are older revisions of them.
    """
    highest: dict[int, Revision] = {}
    for file in files:
        for start, revision in file.panes.items():
            highest[start] = max(revision, highest.get(start, revision))
    held: dict[int, LakeFile] = {}
    clean = []
    for file in sorted(files, key=lambda each: (each.path not in shown, -len(each.panes), each.path.name)):
        if not file.is_empty and file.path not in lost:
            newest = [start for start, revision in file.panes.items() if revision == highest[start]]
            held |= {start: file for start in newest if start not in held}
            if len(newest) == len(file.panes):
                clean.append(file)
    chosen: list[LakeFile] = []
    rest = set(held)
    for file in clean:
        if rest >= file.panes.keys():
            chosen.append(file)
            rest -= file.panes.keys()
    return chosen, {start: held[start] for start in sorted(rest)}


def changes(
    before: Mapping[str, Add],
    kept: Collection[str],
    added: Iterable[Add],
    news: Collection[str],
    now_ms: int,
) -> list[Action]:
    """The actions that turn the shown files `before` into those `kept` and `added`; none if nothing changes.
    news: the folders of which readers see something else. added: those that are shown already are left out."""
    adds = [
        Action(add=msgspec.structs.replace(each, data_change=folder_of(each.path) in news))
        for each in added
        if each.path not in before
    ]
    removes = [
        Action(remove=Remove(path, now_ms, folder_of(path) in news, True, old.partition_values, old.size))
        for path, old in sorted(before.items())
        if path not in kept
    ]
    if not adds and not removes:
        return []
    operation = "WRITE" if news else "OPTIMIZE"
    return [
        Action(commit_info={"timestamp": now_ms, "operation": operation, "engineInfo": "elf"}),
        *removes,
        *adds,
    ]


def folder_of(path: str) -> str:
    """The day folder of a file, within its table."""
    return path.rpartition("/")[0]


def beginning(job: str, table: str, columns: Iterable[tuple[str, str]], now_ms: int) -> list[Action]:
    """What the first commit begins with. columns: (name, Spark's type). The id is that of any log of this table."""
    fields = [_field(name, kind) for name, text in columns if (kind := delta_type(text)) is not None]
    fields += [_field("version", "string"), _field("date", "date")]
    schema = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
    id = uuid.uuid5(uuid.NAMESPACE_URL, f"elf:{job}/{table}")
    meta_data = MetaData(str(id), job, schema, ("version", "date"), now_ms)
    return [Action(protocol=Protocol()), Action(meta_data=meta_data)]


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def delta_type(text: str) -> Any:
    """A Spark type as Delta's schema has it; None for `void`, which Delta tables cannot have."""
    text = text.strip()
    outer, _, rest = text.partition("<")
    if not rest:
        return _FLAT.get(text) or (text if text in _SAME or text.startswith("decimal(") else None)
    parts = split(rest[:-1])
    if outer == "array":
        return {"type": "array", "elementType": delta_type(parts[0]), "containsNull": True}
    if outer == "map":
        key, value = map(delta_type, parts)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    named = [part.partition(":") for part in parts]
    return {"type": "struct", "fields": [_field(name.strip(), delta_type(kind)) for name, _, kind in named]}


def split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def add_of(file: LakeFile, path: str, size: int, modified_ms: int, rows: int) -> Add:
    """The action that shows this file. path: within the table, as `layout` makes it; it needs no escapes."""
    version, date, _ = path.split("/")
    partition = {
        "version": version.removeprefix("version="),
        "date": None if date == NO_WINDOW else date.removeprefix("date="),
    }
    stats: dict[str, Any] = {"numRecords": rows}
    first, last = min(file.panes), max(file.panes)
    if file.pane_us and first % 1000 == last % 1000 == 0:  # statistics have milliseconds
        stats |= {"minValues": {"_pane_start": _iso(first)}, "maxValues": {"_pane_start": _iso(last)}}
        stats["nullCount"] = {"_pane_start": 0}
    return Add(path, partition, size, modified_ms, True, json.dumps(stats, separators=(",", ":")))


def _iso(time_us: int) -> str:
    at = datetime.fromtimestamp(time_us // 1_000_000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{time_us // 1000 % 1000:03}Z"
