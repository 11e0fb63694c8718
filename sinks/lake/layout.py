"""The lake's layout on disk: the folder and the file of a pane, what a file name contains, and which files to compact.

    DIR/JOB/columns-SET/version=vDIGEST/date=2026-10-27/FIRST-PANE-GROUPS-DIGEST.parquet

JOB is the job's name, percent-encoded. `columns-SET` is a table: SET is the digest of the columns' names and types, so its files
have one schema; it has no `=`, since Polars takes the folders above a table for its partitions. The letter before DIGEST keeps
readers from taking `12e678` for a number. A pane is in the
folder of the day of its start (UTC); the one pane of a query without a window is in `date=__HIVE_DEFAULT_PARTITION__`, Hive's
name for NULL. The file name is the ledger: FIRST is the first pane's start and PANE the panes' length, in microseconds; GROUPS
lists the file's panes, counted from FIRST, with their revisions (`0x60.75r0.0.1_61r0.0.2`: panes 0 to 59 and 75 at revision
(0, 0, 1), pane 61 at (0, 0, 2), the node in hex); DIGEST is that of the content. So a file is never overwritten with other
content, a retry writes the same name, and a listing shows the highest revision of every pane. Panes without groups, which are
empty or withdrawn, are in files of their own, whose names end in `-empty.parquet`.

Readers take, per pane, the highest (revision, digest): overlapping files are harmless. Of panes of several lengths in one day
folder only the longest count: they hold the others, merged (`elf.sinks.lake.trees.coarsen`). Names that begin with a dot are
files being written; readers skip them, and the next writer in the folder removes those of writers that died.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from elf.errors import UsageError
from elf.jobmaster.windows.result import Revision, StateColumn

LAYOUT = 2
"""The version of folders, names, columns and metadata; it is in each file's metadata."""
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
NO_WINDOW = "date=__HIVE_DEFAULT_PARTITION__"
EMPTY = "-empty"
MARK = ".expired"
"""The file in a job's folder that says until when its days have expired."""
GROUPS_MAX = 160
"""Most characters of GROUPS: with the longest FIRST, PANE and DIGEST a name stays below the 255 bytes of file systems."""

_RUN = r"\d+(?:x\d+)?"
_GROUP = rf"{_RUN}(?:\.{_RUN})*r\d+\.[0-9a-f]+\.\d+"
_NAME = re.compile(rf"(-?\d+)-(\d+)-({_GROUP}(?:_{_GROUP})*)-([0-9a-f]{{16}})({EMPTY})?\.parquet")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.toordinal()


class Pane(msgspec.Struct, frozen=True, order=True):
    """A pane's entry in the lake. Of two entries of one (start, end), the greater one counts."""

    start: int
    end: int
    revision: Revision
    digest: str


class LakeFile(msgspec.Struct, frozen=True):
    """The content of a file's name: its panes by start (microseconds UTC), the revision of each, and whether none has groups."""

    path: Path
    pane_us: int
    panes: dict[int, Revision]
    is_empty: bool = False

    @property
    def until(self) -> int:
        """The end of the last pane."""
        return max(self.panes) + self.pane_us


def job_folder(directory: Path, job: str) -> Path:
    """The folder of a job, its name percent-encoded: any text is one path component, and none that readers take for hidden."""
    name = quote(job, safe="")
    return directory / (f"%{ord(name[0]):02X}{name[1:]}" if name[:1] in ("_", ".") else name)


def table_folder(directory: Path, job: str, columns: Iterable[StateColumn]) -> Path:
    """The folder of the job's table with these columns."""
    content = msgspec.msgpack.encode([(column.name, column.type, column.role) for column in columns])
    return job_folder(directory, job) / f"columns-{hashlib.blake2b(content, digest_size=6).hexdigest()}"


def pane_folder(table: Path, version: str, start: int, end: int) -> Path:
    """The folder of the pane [start, end), microseconds UTC, within its table."""
    folder = table / f"version=v{version}"
    if end == start:
        return folder / NO_WINDOW
    return folder / f"date={_EPOCH + timedelta(days=start // DAY_US):%Y-%m-%d}"


def pane_folders(directory: Path, job: str, version: str, start: int, end: int) -> list[Path]:
    """The folders of that pane that exist; nearly always one, since a version has one set of columns."""
    found = (pane_folder(table, version, start, end) for table in tables(directory, job))
    return [folder for folder in found if folder.is_dir()]


def tables(directory: Path | str, job: str) -> list[Path]:
    """The folders of the job's tables."""
    return sorted(job_folder(Path(directory), job).glob("columns-*"))


def existing_tables(directory: Path, job: str | None = None) -> list[Path]:
    """The folders of the tables of all jobs, or of one. Raises UsageError, which says what there is, if there are none."""
    names = jobs(directory)
    if not names:
        raise UsageError(f"there is no lake at {directory}; a job writes one with --sink parquet:{directory}")
    if job is not None and job not in names:
        raise UsageError(f"the lake {directory} has no job {job}; it has {', '.join(names)}")
    return [table for name in names if job in (None, name) for table in tables(directory, name)]


def job_of(table: Path) -> str:
    """The job of a table's folder."""
    return unquote(table.parent.name)


def version_of(folder: Path) -> str:
    """The version whose panes are in this day folder."""
    return folder.parent.name.removeprefix("version=v")


def file_digest(job: str, version: str, panes: Iterable[Pane]) -> str:
    """16 hex digits over the panes and their contents, in any order of `panes`."""
    content = msgspec.msgpack.encode(
        [job, version, [(p.start, p.end, _revision_text(p.revision), p.digest) for p in sorted(panes)]]
    )
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def files_of(
    job: str, version: str, panes: Iterable[Pane], is_empty: bool = False
) -> Iterator[tuple[str, list[Pane]]]:
    """Split the panes of one folder into files: pairs (name, its panes by start). Deterministic; nearly always one file.
    is_empty: none of these panes has groups.

    Panes of different length or phase, and lists too long for a name, go into files of their own.
    """
    grids: dict[tuple[int, int], list[Pane]] = {}
    for pane in sorted(panes):
        length = pane.end - pane.start
        grids.setdefault((length, pane.start % length if length else 0), []).append(pane)
    for (length, _), grid in sorted(grids.items()):
        for part in _fitting(grid, length):
            digest = file_digest(job, version, part)
            end = EMPTY if is_empty else ""
            yield f"{part[0].start}-{length}-{_groups(part, length)}-{digest}{end}.parquet", part


def whole_name(job: str, version: str, panes: Sequence[Pane], is_empty: bool = False) -> str:
    """The name of one file for all these panes, in order, of one length and revision. If their list is too long, the name has all
    panes between the first and the last one; then only the file's metadata says which of them it holds."""
    first, length = panes[0].start, panes[0].end - panes[0].start
    groups = _groups(panes, length)
    if len(groups) > GROUPS_MAX:
        groups = f"0x{(panes[-1].start - first) // length + 1}{_revision_text(panes[0].revision)}"
    return f"{first}-{length}-{groups}-{file_digest(job, version, panes)}{EMPTY if is_empty else ''}.parquet"


def _fitting(panes: list[Pane], length: int) -> Iterator[list[Pane]]:
    if len(_groups(panes, length)) <= GROUPS_MAX:
        yield panes
        return
    middle = len(panes) // 2
    yield from _fitting(panes[:middle], length)
    yield from _fitting(panes[middle:], length)


def _groups(panes: Sequence[Pane], length: int) -> str:
    by_revision: dict[Revision, list[int]] = {}
    for pane in panes:
        index = (pane.start - panes[0].start) // (length or 1)
        by_revision.setdefault(pane.revision, []).append(index)
    return "_".join(_runs(found) + _revision_text(rev) for rev, found in sorted(by_revision.items()))


def _revision_text(revision: Revision) -> str:
    epoch, node, n = revision
    return f"r{epoch}.{node:x}.{n}"


def _runs(indices: Sequence[int]) -> str:
    """`[0, 1, 2, 7]` as `0x3.7`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([index, 1])
    return ".".join(f"{first}x{count}" if count > 1 else str(first) for first, count in runs)


def parse(path: Path) -> LakeFile | None:
    """The content of a file's name, or None for a name that is not the lake's."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    first, length, panes = int(found[1]), int(found[2]), {}
    for group in found[3].split("_"):
        runs, _, revision = group.partition("r")
        epoch, node, n = revision.split(".")
        for run in runs.split("."):
            index, _, count = run.partition("x")
            for pane in range(int(index), int(index) + int(count or 1)):
                panes[first + pane * length] = (int(epoch), int(node, 16), int(n))
    return LakeFile(path, length, panes, found[5] is not None)


def all_files(folder: Path) -> list[LakeFile]:
    """The lake's files in one day folder, by name, also those whose panes are merged in longer ones; empty where there is no such
    folder, and where it has expired."""
    try:
        names = [] if is_expired(folder) else sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [found for name in names if (found := parse(folder / name))]


def files(folder: Path) -> list[LakeFile]:
    """The files in one day folder that count: of panes of several lengths those with the longest."""
    return counting(all_files(folder))


def counting(found: Sequence[LakeFile]) -> list[LakeFile]:
    """Those of a day's files whose panes count."""
    longest = longest_us(found)
    return [file for file in found if file.pane_us == longest]


def longest_us(found: Iterable[LakeFile]) -> int:
    """The length of the panes of a day that count: the longest that have groups, else the longest. Longer ones without groups are
    those of a merging that has not written its groups yet."""
    of_all = [(not file.is_empty, file.pane_us) for file in found]
    return max(of_all, default=(False, 0))[1]


def mark(job: Path) -> int:
    """Until when the days of a job's folder have expired, microseconds UTC: the begin of a day; before all times if none have."""
    try:
        return int((job / MARK).read_text())
    except FileNotFoundError:
        return -(2**63)
    except ValueError as error:
        reason = "not the time until when the job's days have expired; remove it"
        raise OSError(errno.EINVAL, reason, str(job / MARK)) from error


def set_mark(job: Path, at: int) -> int:
    """Let the mark grow to `at`, durably, if it is not there yet. Returns the mark. Raises OSError."""
    fd = os.open(job, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        if (known := mark(job)) >= at:
            return known
        unfinished = job / f"{MARK}.tmp"
        with unfinished.open("w") as file:
            file.write(f"{at}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, job / MARK)
        os.fsync(fd)
        return at
    finally:
        os.close(fd)


def is_expired(folder: Path) -> bool:
    """Whether a day folder is of a day that the job's mark has passed. Panes without a time never expire."""
    if folder.name == NO_WINDOW:
        return False
    try:
        day = date.fromisoformat(folder.name.removeprefix("date=")).toordinal() - _EPOCH_DAY
    except ValueError:
        return False
    return (day + 1) * DAY_US <= mark(folder.parents[2])


def folder_ledger(folder: Path) -> dict[int, Revision]:
    """The highest revision of each pane in one day folder, by its start."""
    highest: dict[int, Revision] = {}
    for file in files(folder):
        for start, revision in file.panes.items():
            highest[start] = max(revision, highest.get(start, revision))
    return highest


def ledger(directory: Path | str, job: str) -> dict[tuple[str, int], Revision]:
    """{(version, pane start): highest revision} of a job, from file names alone. O(files); no file is opened.

    The results of a new run over the same windows count only if their revisions are above those found here.
    """
    highest: dict[tuple[str, int], Revision] = {}
    for table in tables(directory, job):
        for folder in day_folders(table):
            for start, revision in folder_ledger(folder).items():
                pane = version_of(folder), start
                highest[pane] = max(revision, highest.get(pane, revision))
    return highest


def day_folders(table: Path) -> list[Path]:
    """The folders of all versions and days of a table."""
    return sorted(table.glob("version=v*/date=*"))


def jobs(directory: Path | str) -> list[str]:
    """The names of the jobs that the lake holds."""
    return sorted({unquote(table.parent.name) for table in Path(directory).glob("*/columns-*")})


def ripe(found: Iterable[LakeFile], older_than: int, days_before: int) -> list[list[LakeFile]]:
    """The files of one day folder in the sets that compaction merges: a day that ended before `days_before` (microseconds UTC),
    else each hour that ended before `older_than`. Leaves out panes without a time, and files of several hours of such a day."""
    hours: dict[int, list[LakeFile]] = {}
    day: list[LakeFile] = []
    for file in found:
        first, last = min(file.panes), max(file.panes)
        if file.pane_us and (first // DAY_US + 1) * DAY_US <= days_before:
            day.append(file)
        elif (
            file.pane_us
            and first // HOUR_US == last // HOUR_US
            and (first // HOUR_US + 1) * HOUR_US <= older_than
        ):
            hours.setdefault(first // HOUR_US, []).append(file)
    return [part for part in (day, *(hours[hour] for hour in sorted(hours))) if part]


def remove_abandoned(folder: Path) -> None:
    """Remove the unfinished files of writers that died: a writer that lives holds a lock on its file."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)
