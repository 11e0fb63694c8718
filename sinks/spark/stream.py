"""`spark.readStream.format("elf")`: new windows and new revisions of windows, as the lake's writers commit them.

    offsets {"version": of the log, "log": when it was begun} -> commits in between -> changed panes -> the files that hold them

A commit that only rearranges files (compaction) changes nothing. Of one that changes data the panes count that its new files hold
and its old ones did not hold at that revision; so a file that is written again for the sake of one pane brings only that pane.

Batches are read by (pane, revision), not by file: where compaction has merged the files of an older commit, the same rows come
from the merged file. A revision for which there is a higher one by now is not read; the higher one comes with its own commit.
So each pane's newest revision arrives exactly once, after restarts too, and each revision at most once. A stream begins with the
days whose panes were merged into longer ones (`elf.sinks.lake.trees.coarsen`) as they are then; one that had not read all of a
day's panes before they were merged fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from elf.errors import ElfError, UsageError
from elf.jobmaster.windows.result import Revision
from elf.sinks.lake import delta, layout
from elf.sinks.spark.partitions import grouped, read
from elf.sinks.spark.tables import Options, Part, Snapshot, table_of

Pane = tuple[str, int]
"""A day folder within the table, and the pane's start."""
Offset = dict[str, int]


class Changes(msgspec.Struct):
    """What commits after a version changed. panes: at their last revision in these commits; None: they have no groups any more.
    files: the data files that they added."""

    panes: dict[Pane, Revision | None] = {}
    pane_us: dict[Pane, int] = {}
    files: int = 0

    def add(self, table: Path, actions: list[delta.Action]) -> None:
        """Go on by a commit."""
        before, after = dict[Pane, Revision](), dict[Pane, Revision]()
        for action in actions:
            entry, panes = (action.add, after) if action.add is not None else (action.remove, before)
            if entry is not None and entry.data_change and (file := layout.parse(table / entry.path)):
                folder = entry.path.rpartition("/")[0]
                panes |= {(folder, start): revision for start, revision in file.panes.items()}
                self.pane_us |= dict.fromkeys(((folder, start) for start in file.panes), file.pane_us)
                self.files += action.add is not None
        self.panes |= {pane: revision for pane, revision in after.items() if before.get(pane) != revision}
        self.panes |= dict.fromkeys(before.keys() - after.keys())


class LakeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of one table. Raises ElfError for an offset that the log cannot answer any more."""

    def __init__(self, asked: Options, schema: StructType) -> None:
        if asked.as_of is not None:
            raise UsageError("option as_of: a stream begins with what the lake holds, and has no other time")
        if asked.every_us is not None:
            raise UsageError(
                "option every: a stream gives the windows as they are stored; merge them where they arrive"
            )
        self.asked, self.schema = asked, schema
        self._last: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Before everything that the log still holds: its first commit, or all of its oldest checkpoint."""
        return {"version": -1, "log": self._snapshot().created}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.asked.files_max
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._newest()

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return self._newest()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The newest commit, or as many commits as have `limit` files, one at least."""
        last = self._last or self._newest()
        if not isinstance(limit, ReadMaxFiles):
            return last
        log, found = self._snapshot(), Changes()
        self._check(log, start)
        at = log.after(start["version"], last["version"])
        for version in range(at, last["version"] + 1):
            found.add(log.table, log.commit(version))
            if found.files > limit.max_files and version > at:
                return {**last, "version": version - 1}
        return last

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        log, found = self._snapshot(), Changes()
        self._check(log, start)
        self._check(log, end)
        at = log.after(start["version"], end["version"])
        if at > 0 and start["version"] < 0:  # the commits before the oldest checkpoint are gone
            shown = [delta.Action(add=add) for add in log.at(at - 1).shown.values()]
            news = [msgspec.structs.replace(each.add, data_change=True) for each in shown if each.add]
            found.add(log.table, [delta.Action(add=add) for add in news])
        for version in range(at, end["version"] + 1):
            found.add(log.table, log.commit(version))
        return grouped(log.parts(found, self.asked.since, self.asked.until))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(partition, self.schema)

    def commit(self, end: Offset) -> None:
        """Nothing is kept for a reader."""

    def stop(self) -> None:
        """Nothing is open."""

    def _newest(self) -> Offset:
        log = self._snapshot()
        return {"version": log.newest, "log": log.created}

    def _snapshot(self) -> _Log:
        return _Log(Snapshot(table_of(self.asked)))

    def _check(self, log: _Log, offset: Offset) -> None:
        if offset["log"] != log.created or offset["version"] > log.newest:
            raise ElfError(
                f"the stream stands at version {offset['version']} of a log of {log.table} that was made again since; begin "
                "anew, with another checkpointLocation"
            )
        if 0 <= offset["version"] < log.oldest - 1:
            raise ElfError(
                f"the stream stands at version {offset['version']} of {log.table}, whose log now begins at version {log.oldest}: "
                "what came between is not known any more; begin anew, with another checkpointLocation"
            )


class _Log:
    """The commits of a table that still exist."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.table, self.newest = snapshot.table, snapshot.state.version
        self._snapshot = snapshot
        assert snapshot.state.meta_data is not None
        self.created = snapshot.state.meta_data.created_time
        folder = self.table / "_delta_log"
        self._paths = {int(path.stem): path for path in folder.glob("*.json") if path.stem.isdigit()}
        self.oldest = min(self._paths, default=0)

    def after(self, version: int, end: int) -> int:
        """The first commit to read after `version`."""
        return min(end + 1, max(version + 1, self._whole_from() if version < 0 else 0))

    def _whole_from(self) -> int:
        """From where on commits, and before them a checkpoint, hold everything, and no pane that is in a longer one now."""
        whole = 0 if self.oldest == 0 else self.oldest + 1
        if not any(version.longer for version in self._snapshot.versions()):
            return whole
        merged = (version for version in sorted(self._paths, reverse=True) if self._merges(version))
        return max(whole, next(merged, -1) + 1)

    def _merges(self, version: int) -> bool:
        """Whether a commit shows longer panes in place of others."""
        lengths: dict[str, list[int]] = {}
        for action in self.commit(version):
            for number, entry in enumerate((action.remove, action.add)):
                if (
                    entry is not None
                    and not entry.data_change
                    and (file := layout.parse(self.table / entry.path))
                ):
                    known = lengths.setdefault(delta.folder_of(entry.path), [0, 0])
                    known[number] = max(known[number], file.pane_us)
        return any(0 < before < after for before, after in lengths.values())

    def commit(self, version: int) -> list[delta.Action]:
        return delta.decode(self._paths[version].read_bytes())

    def at(self, version: int) -> delta.State:
        return Snapshot(self.table, version).state

    def parts(self, changes: Changes, since: int | None, until: int | None) -> list[Part]:
        """Where the changed panes are now."""
        held = {
            (folder, start): (revision, file, add)
            for file, add in self._snapshot.files()
            for folder in [str(file.path.parent.relative_to(self.table))]
            for start, revision in file.panes.items()
        }
        lengths = {folder: file.pane_us for (folder, _), (_, file, _) in held.items()}
        by_file: dict[str, tuple[delta.Add, int, list[int]]] = {}
        gone: dict[str, list[int]] = {}
        for (folder, start), revision in changes.panes.items():
            if (since is not None and start < since) or (until is not None and start >= until):
                continue
            if lengths.get(folder, 0) > changes.pane_us[folder, start]:
                raise ElfError(
                    f"{self.table / folder} holds longer windows by now, which contain those that the stream had not read; begin "
                    "anew, with another checkpointLocation"
                )
            if revision is None:
                if (folder, start) not in held:
                    gone.setdefault(folder, []).append(start)
            elif (found := held.get((folder, start))) and found[0] == revision:
                _, file, add = found
                by_file.setdefault(str(file.path), (add, file.pane_us, []))[2].append(start)
        parts = [
            Part(
                path,
                str(add.partition_values["version"]),
                add.partition_values["date"],
                add.size,
                tuple(sorted(starts)) if us else None,
                False,
                us,
            )
            for path, (add, us, starts) in by_file.items()
        ]
        for folder, starts in sorted(gone.items()):
            version, _, day = folder.partition("/")
            us = changes.pane_us[folder, starts[0]]
            date = None if day == layout.NO_WINDOW else day.removeprefix("date=")
            parts.append(Part("", version.removeprefix("version="), date, 0, tuple(sorted(starts)), True, us))
        return parts
