"""Shared by tests of the mesh's sources: a web server that logs and rotates, a job as master and worker see it, and the count
of all lines that both are compared with."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import ClassVar

from elf.agent.formats.formats import column_types, resolve
from elf.agent.work.mesh_source import MeshSource
from elf.cbt._keys import encode_keys
from elf.cbt._strings import Strings
from elf.cbt.budget import Budget
from elf.cbt.rows import KeyColumn, Rows
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.jobmaster.plan import codec as plans
from elf.jobmaster.plan.plan import Plan
from elf.srt.messages.effects import Read
from elf.srt.messages.events import Cut
from elf.srt.messages.messages import CLOSED, FIRST, GAP, Line, Position, Schedule, Slot
from elf.srt.messages.partial import merge_parts
from tests.rigs.lines import COMBINED_TIME

ME = b"m" * 16
GRACE_S = 2.0
START_S = 1_700_000_000
SECOND = 1_000_000
PANE_S = 10
LOOKS_MAX = 1_000


def plan_of(where: str = "", window: str = f"window(time, '{PANE_S} seconds')") -> Plan:
    """window: "" for none."""
    chosen, keys = ("window, path", f"{window}, path") if window else ("path", "path")
    return compile_query(
        f"SELECT {chosen}, count(*) AS hits, sum(bytes) AS bytes FROM access {where} GROUP BY {keys}",
        {"access": column_types(resolve("combined"))},
    )


def line_of(plan: Plan, number: int, from_us: int) -> Line:
    return Line(number, plans.digest(plan), from_us, plans.encode(plan))


class Server:
    """A web server. `files`: every file there ever was, as the whole lines that were written to it, oldest first."""

    def __init__(self, folder: Path, rng: random.Random, *, rejects: float = 0.1) -> None:
        self.log, self._rng, self.rejects = folder / "access.log", rng, rejects
        self.files: list[list[bytes]] = [[]]
        self.now_s = START_S
        self._half, self._half_at = b"", 0
        self._archives = 0
        self.readers: list[Callable[[], object]] = []
        """Called before the logs change."""
        self.log.touch()

    def _line(self) -> bytes:
        rng = self._rng
        if rng.random() < self.rejects:
            return rng.choice([b"rubbish", b"", b"x" * 600, b'- - - [broken] "GET / HTTP/1.1" 200 1 "-" "-"'])
        second = self.now_s - (rng.randrange(40) if rng.random() < 0.1 else 0)
        stamp = datetime.fromtimestamp(second, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        path, size = rng.choice("abcdefgh"), rng.randrange(10_000)
        # What no other line has, as a real log's lines are hardly ever alike.
        return f'10.0.0.{rng.randrange(256)} - - [{stamp}] "GET /{path} HTTP/1.1" 200 {size} "-" "{rng.random()}"'.encode()

    def write(self, count: int) -> None:
        """Some lines; now and then only half of the last one, whose rest comes with the next."""
        self._let_read()
        data = b""
        for _ in range(count):
            self.now_s += self._rng.random() < 0.3
            line = self._half or self._line()
            data += line[len(self._half) and self._half_at :] + b"\n"
            self._half = b""
            self.files[-1].append(line)
        if not self._half and self._rng.random() < 0.2:
            self._half = self._line() or b"?"
            self._half_at = self._rng.randrange(len(self._half)) + 1
            data += self._half[: self._half_at]
        with self.log.open("ab") as log:
            log.write(data)

    def _let_read(self) -> None:
        for read in self.readers:
            read()

    def finish_line(self) -> None:
        if self._half:
            with self.log.open("ab") as log:
                log.write(self._half[self._half_at :] + b"\n")
            self.files[-1].append(self._half)
            self._half = b""

    def rotate(self, *, copy: bool = False) -> None:
        """By a new name, or (`copy`) by a copy."""
        self._let_read()
        self.finish_line()
        if not self.files[-1]:
            return
        for number in range(self._archives, 0, -1):
            for ending in ("", ".gz"):
                old = self.log.with_name(f"access.log.{number}{ending}")
                if old.exists():
                    old.rename(self.log.with_name(f"access.log.{number + 1}{ending}"))
        self._archives += 1
        if copy:
            shutil.copy2(self.log, self.log.with_name("access.log.1"))
            os.truncate(self.log, 0)
        else:
            self.log.rename(self.log.with_name("access.log.1"))
            self.log.touch()
        self.files.append([])

    def compress(self) -> None:
        """The oldest archive that is not compressed yet."""
        self._let_read()
        for number in range(self._archives, 0, -1):
            plain = self.log.with_name(f"access.log.{number}")
            if plain.exists():
                status = plain.stat()
                packed = plain.with_name(plain.name + ".gz")
                packed.write_bytes(gzip.compress(plain.read_bytes()))
                os.utime(packed, ns=(status.st_atime_ns, status.st_mtime_ns))
                plain.unlink()
                return


class Log:
    """A `MeshSource` of a server, with clocks of its own. `made`: all there are, to be closed at the end."""

    made: ClassVar[list[Log]] = []

    def __init__(
        self,
        server: Server,
        state: Path,
        memory: int = 64 << 20,
        pattern: str = "access.log*",
        **options: int,
    ) -> None:
        self.server, self.state, self.memory, self.options = server, state, memory, options
        self.pattern = str(server.log.with_name(pattern))
        self.now_s, self.has_beats = 1000.0, False
        self.source = self._open()
        self.made.append(self)
        server.readers.insert(0, self._pass)

    def _pass(self) -> None:
        """The logs change later than they were last read."""
        self.now_s += 0.001

    def _open(self) -> MeshSource:
        return MeshSource(
            "access",
            [self.pattern],
            "combined",
            "UTC",
            ME,
            Budget(self.memory),
            self.state,
            line_max=512,
            grace_s=GRACE_S,
            **self.options,  # type: ignore[arg-type]
        )

    def restart(self, *, crash: bool = False, wipe: bool = False) -> None:
        if crash:
            self.source._source.close()  # as the kernel does: nothing is saved
        else:
            self.source.close()
        if wipe:
            (self.state / "source-access").unlink(missing_ok=True)
        self.source = self._open()

    def beat(self, read: Read, schedule: Schedule) -> Cut | None:
        return self.source.read_if_due(read, schedule, (self.server.now_s + 3) * SECOND, self.now_s)

    def read(self, read: Read, schedule: Schedule) -> Cut:
        return self.source.read(read, schedule, (self.server.now_s + 3) * SECOND, self.now_s)


class Job:
    """A job's worker and master in one: accepted cuts move positions, others are read again."""

    def __init__(self, log: Log, schedule: Schedule, since_us: int = 0, name: bytes = b"j") -> None:
        self.log, self.schedule, self.since_us, self.id = log, schedule, since_us, name * 16
        self.committed: dict[Slot, Position] = {}
        self.accepted: list[Cut] = []
        self.gaps: list[Slot] = []
        self.at: dict[Slot, Position] = {}
        self.pending: list[Cut] = []
        self.request = 0
        self.watermark = 0
        self._beats = random.Random(len(log.server.readers))
        log.server.readers.append(self._beat)

    def _beat(self) -> None:
        """Now and then, let the source read on with a `Read` that is not due: lines may then wait to be parsed."""
        if self.log.has_beats and self._beats.random() < 0.5:
            positions = {slot: at for slot, at in self.at.items() if not slot[2]}
            read = Read(self.id, self.request + 1, 1, positions, self.since_us, due_us=AFTER_ALL)
            cut = self.log.beat(read, self.schedule)
            if cut is not None:
                self.request += 1
                self._take(cut)

    def read(self) -> Cut:
        self.request += 1
        positions = {slot: at for slot, at in self.at.items() if not slot[2]}
        cut = self.log.read(Read(self.id, self.request, 1, positions, self.since_us), self.schedule)
        assert (cut.job, cut.request) == (self.id, self.request)
        self._take(cut)
        return cut

    def read_lane(self, lane: int, from_us: int, ends: dict[Slot, int]) -> Cut:
        self.request += 1
        positions = {slot: at for slot, at in self.at.items() if slot[2] == lane}
        cut = self.log.read(Read(self.id, self.request, 1, positions, from_us, lane, ends), self.schedule)
        self._take(cut)
        return cut

    def _take(self, cut: Cut) -> None:
        for slot, (start, end, flags) in cut.spans.items():
            known = self.at.get(slot)
            assert start <= end
            assert (known is None) == bool(flags & FIRST)
            assert known is None or (start == known.offset and (end > start or not known.closed))
            assert (slot in cut.gaps) == bool(flags & GAP)
            self.at[slot] = Position(end, bool(flags & CLOSED))
        self.gaps += cut.gaps
        self.pending.append(cut)

    def commit(self, count: int = 1 << 30) -> None:
        taken, self.pending = self.pending[:count], self.pending[count:]
        for cut in taken:
            for slot, (start, end, flags) in cut.spans.items():
                assert self.committed.get(slot, Position(start)).offset == start
                self.committed[slot] = Position(end, bool(flags & CLOSED))
            self.accepted.append(cut)

    def lose(self) -> None:
        """Read again from the committed positions."""
        self.pending.clear()
        self.at = dict(self.committed)

    def lose_master(self, since_us: int) -> None:
        """Read all lines again from there."""
        self.pending.clear()
        self.accepted.clear()
        self.at, self.committed, self.since_us = {}, {}, since_us

    def settle(self) -> None:
        """Read until all is read and closed, and commit it."""
        for _ in range(12):
            self.log.now_s += GRACE_S / 4
            looks = 0
            while not self.read().caught_up:
                self.log.now_s += 0.1
                looks += 1
                assert looks < LOOKS_MAX, "it never catches up"
            self.commit()

    def rows(self) -> dict[str, tuple[Rows, ...]]:
        """All that was accepted."""
        parts = merge_parts([cut.parts for cut in self.accepted])
        return {version: part.rows for version, part in parts.items()}


Counted = dict[tuple[int, bytes], list[int]]
"""(pane, key bytes) -> numbers."""


def key_of(path: str) -> bytes:
    strings = Strings()
    codes = strings.intern_all([path])
    return encode_keys([KeyColumn("string", codes, None, strings)], 1)[0].tobytes()


def count(
    files: list[list[bytes]], low_us: int, stop_us: int = 1 << 62, above: int = -1
) -> tuple[Counted, Counted]:
    """Line counters of all lines of [low, stop), and groups of those with more than `above` bytes: by one regular
    expression, one line after the other."""
    groups: Counted = defaultdict(lambda: [0, 0])
    lines: Counted = defaultdict(lambda: [0, 0, 0, 0])
    for file in files:
        last: int | None = None
        for line in file:
            found = COMBINED_TIME.match(line.decode()) if len(line) <= 512 else None
            at = None
            if found:
                with suppress(ValueError):
                    at = int(_seconds(found["time"])) * SECOND
            if at is None:
                if last is not None and low_us <= last < stop_us:
                    rejected = lines[_pane(last), b""]
                    rejected[0] += 1
                    rejected[2] += 1
                continue
            last = at
            if low_us <= at < stop_us:
                lines[_pane(at), b""][0] += 1
                lines[_pane(at), b""][1] += 1
                if int(found["bytes"]) <= above:  # type: ignore[index]
                    continue
                group = groups[_pane(at), found["request"].split()[1].encode()]  # type: ignore[index]
                group[0] += 1
                group[1] += int(found["bytes"])  # type: ignore[index]
    return groups, lines


def time_of(line: bytes) -> float:
    """Of a line that parses, in seconds."""
    found = COMBINED_TIME.match(line.decode())
    assert found is not None
    return _seconds(found["time"])


@cache
def _seconds(text: str) -> float:
    return datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z").timestamp()


def _pane(at: int) -> int:
    return at - at % (PANE_S * SECOND)


def counts_of(rows: Rows) -> Counted:
    """The same of rows."""
    keys = [rows.key(i) for i in range(len(rows))]
    return {
        (pane, key): rows.lanes[:, i].tolist()
        for i, (pane, key) in enumerate(zip(rows.pane.tolist(), keys, strict=True))
    }


def check_exact(job: Job, files: list[list[bytes]], above: Mapping[str, int] = {}) -> None:
    """Check that the accepted rows equal the count of all lines."""
    rows = job.rows()
    stops = [*(line.from_us for line in job.schedule[1:]), 1 << 62]
    for line, stop in zip(job.schedule, stops, strict=True):
        groups, lines = count(files, max(line.from_us, job.since_us), stop, above.get(line.version, -1))
        expected = {
            (pane, key_of(path.decode())): [n, n, size, 0] for (pane, path), (n, size) in groups.items()
        }
        mine = rows.get(line.version)
        assert (counts_of(mine[1]) if mine else {}) == dict(lines)
        assert (counts_of(mine[0]) if mine else {}) == expected
