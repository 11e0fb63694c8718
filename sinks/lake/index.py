"""A table's `_delta_log`: kept in step with the files by the lake's writer process, and made anew from them.

Each commit is worked out from a listing of the folders, not from what this process has just written, so the next commit to a
folder also shows what a writer that crashed, or another host, has left there. A commit is a file that appears whole, and only if
no other has its name. Whoever comes second reads the other's commit and lists again. The log's version is read before the
folders, so nobody commits an older listing after a newer one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from elf.jobmaster.windows.result import Revision
from elf.sinks.lake import delta, layout
from elf.sinks.lake.cells.tables import PANE_COLUMNS
from elf.sinks.lake.files import DamagedError, make_folder, read_about, read_panes, sync_folder
from elf.sinks.lake.merge import merge

CHECKPOINT_EVERY = 64
"""Commits until the whole state is written as one file, from which readers start."""
KEPT_MS = 7 * 24 * 3_600_000
"""Commits older than that are removed if a checkpoint that old replaces them."""
TRIES_MAX = 100

_TEXTS = pa.map_(pa.string(), pa.string())
_ADD = {
    "path": pa.string(),
    "partitionValues": _TEXTS,
    "size": pa.int64(),
    "modificationTime": pa.int64(),
    "dataChange": pa.bool_(),
    "stats": pa.string(),
}
_META_DATA = {
    "id": pa.string(),
    "name": pa.string(),
    "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
    "schemaString": pa.string(),
    "partitionColumns": pa.list_(pa.string()),
    "createdTime": pa.int64(),
    "configuration": _TEXTS,
}
_PROTOCOL = {"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}
_REMOVE = {"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}
_CHECKPOINT = pa.schema(
    [(name, pa.struct(fields)) for name, fields in
     (("add", _ADD), ("remove", _REMOVE), ("metaData", _META_DATA), ("protocol", _PROTOCOL))]
)  # fmt: skip


class Index:
    """The log of one table. Raises LogError for a log that is damaged or another's, OSError."""

    def __init__(self, table: Path) -> None:
        self.table, self.folder = table, table / "_delta_log"
        self.state = delta.State()
        self._lost: set[Path] = set()

    def update(self, folders: Iterable[Path], without: Collection[Path] = ()) -> bool:
        """Show what the files of these day folders say, of all folders in the first commit. without: files that are as if they
        were removed. Returns whether there was something to commit."""
        asked = set(folders)
        for _ in range(TRIES_MAX):
            self.refresh()
            chosen = asked if self.state.version >= 0 else asked | set(layout.day_folders(self.table))
            try:
                actions = self._actions(chosen, without)
                if actions:
                    self._commit(actions)
            except (FileExistsError, FileNotFoundError):  # another commit; a file that compaction removed
                continue
            return bool(actions)
        raise delta.LogError("others commit without end")

    def lost_folders(self) -> set[Path]:
        """The day folders that the log shows and that do not exist, or whose days have expired. Raises LogError."""
        self.refresh()
        shown = {(self.table / path).parent for path in self.state.shown}
        return {folder for folder in shown if layout.is_expired(folder) or not folder.is_dir()}

    def problems(self, folders: Iterable[Path]) -> list[str]:
        """How the log differs from the files of all its day folders. Writes nothing."""
        self.refresh()
        shown = {self.table / path for path in self.state.shown}
        wanted: set[Path] = set()
        missing = 0
        for folder in folders:
            files = layout.files(folder)
            self._lost |= {file.path for file in files if not file.is_empty and not _is_readable(file.path)}
            chosen, rest = delta.cover(files, shown, self._lost)
            wanted |= {file.path for file in chosen}
            missing += len(rest)
        found = [f"{path.name} cannot be read; its panes are left out" for path in sorted(self._lost)]
        gone = {path for path in shown - wanted if not path.exists()}
        texts = {"names {} that do not exist": gone, "shows {} that are superseded": shown - wanted - gone}
        texts["lacks {}"] = wanted - shown
        found += [f"the log {text.format(_files(len(each)))}" for text, each in texts.items() if each]
        return found + ([f"panes to be written again: {missing}"] if missing else [])

    def refresh(self, until: int | None = None) -> None:
        """Read the commits that are not known yet, up to that version."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        commits = sorted(int(name[:20]) for name in names if _is_commit(name))
        points = [int(name[:20]) for name in names if name.endswith(".checkpoint.parquet")]
        if until is not None:
            commits, points = ([at for at in each if at <= until] for each in (commits, points))
        if self.state.version < 0 and points:
            self._read_checkpoint(max(points))
        for version in commits:
            if version > self.state.version:
                if version != self.state.version + 1:
                    raise delta.LogError(f"its commit {self.state.version + 1} is missing")
                self.state.apply(version, delta.decode(_commit_path(self.folder, version).read_bytes()))

    def _actions(self, folders: Collection[Path], without: Collection[Path]) -> list[delta.Action]:
        now_ms = time.time_ns() // 1_000_000
        names = {str(folder.relative_to(self.table)) for folder in folders}
        before = {path: add for path, add in self.state.shown.items() if path.rpartition("/")[0] in names}
        after: list[layout.LakeFile] = []
        for folder in sorted(folders):
            after += self._chosen(folder, {self.table / path for path in before}, without)
        new = [self._add(file) for file in after if self._name(file) not in before]
        old = (layout.parse(self.table / path) for path in before)
        news = _news(filter(None, old), after, self.table)
        actions = delta.changes(before, {self._name(file) for file in after}, new, news, now_ms)
        if actions and self.state.version < 0:
            return self._beginning(after[0].path, now_ms) + actions
        return actions

    def _chosen(
        self, folder: Path, shown: Collection[Path], without: Collection[Path]
    ) -> list[layout.LakeFile]:
        """The files of a folder to show, after those are written that it lacks."""
        while True:
            files = [file for file in layout.files(folder) if file.path not in without]
            chosen, rest = delta.cover(files, shown, self._lost)
            used = {file.path for file in rest.values()} | {f.path for f in chosen if f.path not in shown}
            if unreadable := {path for path in used if not _is_readable(path)}:
                self._lost |= unreadable
                continue
            panes = {path: {pane.start: pane for pane in read_panes(path)} for path in used}
            # By hour, so that no file waits for the compaction of its day.
            hours: dict[int, dict[layout.Pane, Path]] = {}
            for start, file in rest.items():
                hours.setdefault(start // layout.HOUR_US, {})[panes[file.path][start]] = file.path
            written = [path for kept in hours.values() for path in merge(folder, kept, False)]
            return chosen + list(filter(None, map(layout.parse, written)))

    def _name(self, file: layout.LakeFile) -> str:
        return str(file.path.relative_to(self.table))

    def _add(self, file: layout.LakeFile) -> delta.Add:
        about, rows = file.path.stat(), pq.read_metadata(file.path).num_rows
        return delta.add_of(file, self._name(file), about.st_size, about.st_mtime_ns // 1_000_000, rows)

    def _beginning(self, file: Path, now_ms: int) -> list[delta.Action]:
        columns = [(name, kind) for name, kind, _ in PANE_COLUMNS] + [("_empty", "boolean")]
        columns += [(column["stored"], column["type"]) for column in read_about(file)["columns"]]
        return delta.beginning(layout.job_of(self.table), self.table.name, columns, now_ms)

    def _commit(self, actions: list[delta.Action]) -> None:
        """Raises FileExistsError if another process was first."""
        version = self.state.version + 1
        make_folder(self.folder)
        layout.remove_abandoned(self.folder)
        _create(_commit_path(self.folder, version), delta.encode(actions))
        self.state.apply(version, actions)
        if version % CHECKPOINT_EVERY == 0 and version:
            self._checkpoint()

    def _checkpoint(self) -> None:
        state = self.state
        rows: list[dict[str, Any]] = [{"protocol": msgspec.to_builtins(state.protocol)}]
        rows.append({"metaData": msgspec.to_builtins(state.meta_data)})
        rows += [{"add": msgspec.to_builtins(add) | {"dataChange": False}} for add in state.shown.values()]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, _CHECKPOINT), sink, store_schema=False)
        with suppress(FileExistsError):
            _create(_checkpoint_path(self.folder, state.version), sink.getvalue().to_pybytes())
        last = {"version": state.version, "size": len(rows)}
        _create(self.folder / "_last_checkpoint", msgspec.json.encode(last), replace=True)
        self._forget_old()

    def _forget_old(self) -> None:
        """Remove the commits and checkpoints before the newest checkpoint that is older than `KEPT_MS`."""
        oldest_s = time.time() - KEPT_MS / 1000
        points = sorted(self.folder.glob("*.checkpoint.parquet"))
        old = [path for path in points if path.stat().st_mtime < oldest_s]
        for path in self.folder.glob("[0-9]*") if old else ():
            if path.name[:20] < old[-1].name[:20]:
                path.unlink(missing_ok=True)

    def _read_checkpoint(self, version: int) -> None:
        try:
            rows = pq.read_table(_checkpoint_path(self.folder, version)).to_pylist(maps_as_pydicts="strict")
            actions = [msgspec.convert({k: v for k, v in row.items() if v}, delta.Action) for row in rows]
        except (pa.ArrowException, msgspec.MsgspecError) as error:
            raise delta.LogError(f"its checkpoint {version} is damaged: {error}") from error
        self.state.apply(version, actions)


def _files(count: int) -> str:
    return f"{count} file{'s' if count != 1 else ''}"


def _news(before: Iterable[layout.LakeFile], after: Iterable[layout.LakeFile], table: Path) -> set[str]:
    """The day folders, within the table, in which other panes or revisions are shown than before: not those whose panes are only
    merged in longer ones now."""
    panes: list[dict[str, set[tuple[int, Revision]]]] = [{}, {}]
    lengths: list[dict[str, int]] = [{}, {}]
    for number, files in enumerate((before, after)):
        for file in files:
            folder = str(file.path.parent.relative_to(table))
            panes[number].setdefault(folder, set()).update(file.panes.items())
            lengths[number][folder] = file.pane_us
    return {
        folder
        for folder in panes[0].keys() | panes[1].keys()
        if panes[0].get(folder) != panes[1].get(folder)
        and not 0 < lengths[0].get(folder, 0) < lengths[1].get(folder, 0)
    }


def _is_readable(path: Path) -> bool:
    try:
        read_about(path)["columns"]
    except FileNotFoundError:
        raise
    except (OSError, DamagedError, KeyError):
        return False
    return True


def _is_commit(name: str) -> bool:
    return len(name) == 25 and name.endswith(".json") and name[:20].isdigit()


def _commit_path(folder: Path, version: int) -> Path:
    return folder / f"{version:020}.json"


def _checkpoint_path(folder: Path, version: int) -> Path:
    return folder / f"{version:020}.checkpoint.parquet"


def _create(path: Path, content: bytes, replace: bool = False) -> None:
    """Make a file appear whole and durable. Raises FileExistsError if there is one, unless it may be replaced."""
    unfinished = path.with_name(f".{os.urandom(8).hex()}.tmp")
    with unfinished.open("xb") as file:
        try:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            (os.replace if replace else os.link)(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)
