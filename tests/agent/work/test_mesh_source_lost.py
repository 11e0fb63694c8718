"""An agent that was killed, and perhaps lost its state folder, while its log was rotated and compressed: every line once.

Rotation comes before the restart, after the first read, or between any two system calls of the reader, by seed. What cannot be
told is a gap, and never a wrong count.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import zstandard

from elf.agent.work.file_notes import identity_of
from elf.srt.messages.messages import Position
from tests.rigs.mesh_log_rig import GRACE_S, Job, Log, Server, check_exact, count, key_of, line_of, plan_of
from tests.rigs.mesh_log_rig import counts_of as rig_counts_of
from tests.rigs.source_rig import CALLS, REAL, bytes_of, put_in_parts

pytestmark = pytest.mark.slow

ONE = (line_of(plan_of(), 1, 0),)
KINDS = ("rename", "gz", "zst", "date", "date gz", "delayed gz", "copy", "copy gz", "tmp gz")
PATTERNS = ("access.log", "access.log*")
SEEDS = 2
"""Of each pattern, kind and state; the other pattern has others."""


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while Log.made:
        Log.made.pop().source.close()


class Rotation:
    """The server's rotation, step by step; the writer waits while it copies."""

    def __init__(self, server: Server, rng: Random, kind: str) -> None:
        self.server, self.rng, self.kind, self.count = server, rng, kind, 0
        self.log = server.log

    def _numbered(self, number: int) -> Path:
        return self.log.with_name(f"access.log.{number}")

    def steps(self) -> Iterator[str]:
        """One rotation."""
        self.server.finish_line()
        self.count += 1
        if self.kind.startswith("date"):
            rotated = self.log.with_name(f"access.log-202611{self.count:02d}")
        else:
            yield from self._shift()
            rotated = self._numbered(1)
        yield from self._copy(rotated) if self.kind.startswith("copy") else self._rename(rotated)
        if self.kind.startswith("delayed"):
            rotated = self._numbered(2)
        if rotated.exists() and self.kind.rsplit(maxsplit=1)[-1] in ("gz", "zst"):
            yield from self._compress(rotated)

    def _shift(self) -> Iterator[str]:
        for number in range(5, 0, -1):
            for ending in ("", ".gz", ".zst"):
                old = self.log.with_name(f"access.log.{number}{ending}")
                if os.path.lexists(old):
                    old.rename(self.log.with_name(f"access.log.{number + 1}{ending}"))
                    yield "shifted"

    def _rename(self, rotated: Path) -> Iterator[str]:
        self.log.rename(rotated)
        yield "renamed"
        self.log.touch()
        self.server.files.append([])
        yield "made anew"

    def _copy(self, rotated: Path) -> Iterator[str]:
        yield from put_in_parts(rotated, bytes_of(self.log), 1_000)
        os.truncate(self.log, 0)
        self.server.files.append([])
        yield "emptied"

    def _compress(self, rotated: Path) -> Iterator[str]:
        data, status = bytes_of(rotated), REAL["stat"](rotated)
        is_zst = self.kind.endswith("zst")
        packed = rotated.with_name(rotated.name + (".zst" if is_zst else ".gz"))
        out = packed.with_name(packed.name + ".tmp") if self.kind.startswith("tmp") else packed
        data = zstandard.compress(data) if is_zst else gzip.compress(data, 1)
        yield from put_in_parts(out, data, max(len(data) // 5, 3))
        os.utime(out, ns=(status.st_atime_ns, status.st_mtime_ns))
        if out != packed:
            rotated.unlink()
            yield "original gone"
            out.rename(packed)
        else:
            rotated.unlink()
        yield "compressed"

    def run(self) -> None:
        for _ in self.steps():
            pass


class World:
    """A server and an agent that has reported a part of its log, and then was killed."""

    def __init__(
        self, folder: Path, kind: str, seed: int, pattern: str = "access.log", start: str = "end"
    ) -> None:
        (folder / "log").mkdir(parents=True)
        (folder / "state").mkdir()
        self.rng = Random(seed)
        self.server = Server(folder / "log", self.rng, rejects=0.0)
        self.rotation = Rotation(self.server, self.rng, kind)
        self.log = Log(self.server, folder / "state", pattern=pattern, start=start)  # type: ignore[arg-type]
        self.jobs = [Job(self.log, ONE, name=name) for name in (b"a", b"b")]

    def write(self) -> None:
        self.server.write(self.rng.randrange(5, 40))

    def live(self) -> None:
        """Some rotations that the agent sees, and a position in the midst of the last file."""
        for _ in range(2):
            for _ in range(3):
                self.write()
                for job in self.jobs:
                    job.read()
                self.log.now_s += 0.3
            for job in self.jobs:
                job.settle()
            self.rotation.run()
        self.write()
        for job in self.jobs:
            job.settle()
        self.write()

    def restart(self, state: str) -> None:
        self.log.restart(crash=True, wipe=state == "lost")
        for job in self.jobs:
            job.lose()

    def settle(self) -> None:
        self.write()
        self.server.finish_line()
        self.log.now_s += GRACE_S
        for job in self.jobs:
            job.settle()

    def check(self) -> None:
        for job in self.jobs:
            assert not job.gaps, self.log.source.take_notices()
            check_exact(job, self.server.files)


@pytest.mark.long
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("start", ["end", "beginning"])
@pytest.mark.parametrize("state", ["kept", "lost"])
@pytest.mark.parametrize("kind", KINDS)
def test_rotated_before_the_restart(tmp_path: Path, kind: str, state: str, start: str, pattern: str) -> None:
    for seed, times in enumerate((1, 3)):
        world = World(tmp_path / str(seed), kind, seed, pattern, start)
        world.live()
        for _ in range(times):
            world.rotation.run()
            world.write()
        world.restart(state)
        world.settle()
        world.check()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("state", ["kept", "lost"])
@pytest.mark.parametrize("kind", KINDS)
def test_rotated_after_the_restart(tmp_path: Path, kind: str, state: str, pattern: str) -> None:
    for seed in range(2):
        world = World(tmp_path / str(seed), kind, seed, pattern)
        world.live()
        world.restart(state)
        if seed % 2:
            world.jobs[0].read()
        world.rotation.run()
        world.write()
        world.settle()
        world.check()


@pytest.mark.parametrize("state", ["older", "lost"])
@pytest.mark.parametrize("kind", ["rename", "gz", "zst", "date gz"])
def test_what_the_job_has_closed_and_the_agent_has_not_read_is_not_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, state: str
) -> None:
    world = World(tmp_path, kind, 5)
    for job in world.jobs:
        job.settle()
    world.write()
    for job in world.jobs:
        job.settle()
    positions = world.log.state / "source-access"
    world.log.restart()  # in good order: positions are on disk
    before = positions.read_bytes()
    world.write()
    for _ in range(3):
        world.rotation.run()
        world.write()
        for job in world.jobs:
            job.settle()
    assert sum(at.closed for at in world.jobs[0].committed.values()) == 3
    world.restart("lost" if state == "lost" else "kept")
    if state == "older":
        world.log.source._source.close()
        positions.write_bytes(before)
        world.log.source = world.log._open()
    # They are found; and before they are opened a rotation gives all of them other names.
    with monkeypatch.context() as patch:
        patch.setattr(world.log.source._source, "_read_once", lambda now: (None, False))
        for _ in range(8):
            for job in world.jobs:
                assert not job.read().caught_up
            world.log.now_s += GRACE_S
    world.settle()
    world.check()
    assert not world.log.source.problems


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("state", ["kept", "lost"])
@pytest.mark.parametrize("kind", KINDS)
def test_rotated_between_any_two_system_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, state: str, pattern: str
) -> None:
    first = SEEDS * PATTERNS.index(pattern)
    for seed in range(first, first + SEEDS):
        world = World(tmp_path / str(seed), kind, seed, pattern)
        world.live()
        steps = world.rotation.steps()
        for _ in range(world.rng.randrange(4)):
            next(steps, None)
        world.restart(state)
        rate, rng = world.rng.choice([0.02, 0.1, 0.3]), Random(seed)
        with monkeypatch.context() as patch:
            inside: list[bool] = []
            for name in CALLS:
                patch.setattr(os, name, interleaved(REAL[name], steps, rng, rate, inside))
            for _ in range(12):
                for job in world.jobs:
                    job.read()
                world.log.now_s += rng.choice([0.0, 0.05, 0.4])
        for _ in steps:
            pass
        world.settle()
        for job in world.jobs:
            assert not job.gaps, (seed, world.log.source.take_notices())
            check_exact(job, world.server.files)


def interleaved(
    real: Callable[..., object], steps: Iterator[str], rng: Random, rate: float, inside: list[bool]
) -> Callable[..., object]:
    """inside: calls of the rotating tool to itself are not interrupted."""

    def call(*about: object, **options: object) -> object:
        while not inside and rng.random() < rate:
            inside.append(True)
            is_over = next(steps, None) is None
            inside.clear()
            if is_over:
                break
        return real(*about, **options)

    return call


# What cannot be had is told: what happened, where, and what to do.


def killed(tmp_path: Path, pattern: str = "access.log") -> World:
    """An agent that has lost its state folder, in the midst of a file."""
    world = World(tmp_path, "rename", 1, pattern)
    world.write()
    for job in world.jobs:
        job.settle()
    world.write()
    world.server.finish_line()
    return world


def told(world: World, *, writes: bool = True) -> list[str]:
    """All notices until every job has settled; losses are in `problems` too."""
    world.restart("lost")
    said: list[str] = []
    if writes:
        world.write()
        world.server.finish_line()
    for _ in range(3):
        for job in world.jobs:
            job.settle()
        said += world.log.source.take_notices()
        world.log.now_s += GRACE_S
    return said


def lines_of(world: World) -> int:
    return sum(len(file) for file in world.server.files)


def counted(job: Job) -> int:
    rows = job.rows().values()
    return sum(int(lines.lanes[0].sum()) for _, lines, *_ in rows)


def test_a_deleted_log_is_named_with_what_to_do(tmp_path: Path) -> None:
    world = killed(tmp_path)
    world.rotation.run()
    world.log.server.log.with_name("access.log.1").unlink()
    offset = next(iter(world.jobs[0].committed.values())).offset
    said = told(world)
    (text,) = world.log.source.problems
    assert text in said
    assert text.startswith(
        f"access: a log file of this source, counted up to byte {offset}, is missing from its folders: it was deleted, emptied"
    )
    assert all(len(job.gaps) == 1 for job in world.jobs)


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_a_part_that_another_machine_with_copied_logs_began_lacks_nothing(tmp_path: Path, state: str) -> None:
    """A copy of the log was shorter than what is counted of it. Without its state an agent cannot know that its own never was."""
    world = killed(tmp_path)
    (slot,) = (slot for slot, at in world.jobs[0].committed.items() if not at.closed)
    offset = world.jobs[0].committed[slot].offset // 2
    note, _ = world.log.source._files.notes.by_identity[slot[1]]
    part = slot[0], identity_of(note.fingerprint, note.ordinal, offset), slot[2]
    for job in world.jobs:
        job.committed[part] = Position(offset)
    world.restart(state)
    for _ in range(3):
        world.settle()
    assert all(job.committed[part].closed for job in world.jobs)
    if state == "kept":
        world.check()
        assert world.log.source.problems == ()
    else:
        assert all(len(job.gaps) == 1 for job in world.jobs)
        assert "is missing from its folders" in world.log.source.problems[0]


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz"])
def test_an_archive_that_cannot_be_read_is_named(tmp_path: Path, ending: str) -> None:
    world = killed(tmp_path)
    world.rotation.run()
    plain = world.log.server.log.with_name("access.log.1")
    lead = {".gz": b"\x1f\x8b\x08", ".zst": b"\x28\xb5\x2f\xfd", ".xz": b"\xfd7zXZ\x00"}[ending]
    plain.with_name(plain.name + ending).write_bytes(lead + b"not what it seems" * 9)
    plain.unlink()
    said = told(world)
    (text,) = world.log.source.problems
    assert text in said
    assert f"these files may contain the rest of it ({plain}{ending}: " in text
    assert all(len(job.gaps) == 1 for job in world.jobs)


@pytest.mark.parametrize("keep", [0.3, 0.9])
@pytest.mark.parametrize("state", ["kept", "lost"])
def test_an_archive_that_ends_early_is_a_gap_and_reported(tmp_path: Path, state: str, keep: float) -> None:
    world = killed(tmp_path)
    world.rotation.run()
    plain = world.log.server.log.with_name("access.log.1")
    data = gzip.compress(plain.read_bytes())
    plain.with_name("access.log.1.gz").write_bytes(data[: int(len(data) * keep)])
    plain.unlink()
    if state == "kept":
        world.restart("kept")
        world.settle()
    else:
        told(world)
    assert any("access.log.1.gz" in text for text in world.log.source.problems), world.log.source.problems
    for job in world.jobs:
        assert job.gaps
        assert counted(job) < lines_of(world)


@pytest.mark.parametrize("is_refilled", [False, True])
def test_a_log_that_was_cut_short_is_reported_without_blame(tmp_path: Path, is_refilled: bool) -> None:
    world = killed(tmp_path)
    os.truncate(world.server.log, 300)
    if is_refilled:
        for _ in range(5):
            world.write()
    said = told(world, writes=is_refilled)
    (text,) = world.log.source.problems
    assert text in said
    assert f"{world.server.log}: " in text
    assert ("no line begins at that offset now" in text) is is_refilled
    assert "it was cut short, or a shorter one took its place" in text
    assert not any("another agent" in each for each in said)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("seed", range(4))
def test_logs_that_begin_alike_are_never_confused(
    tmp_path: Path, seed: int, ending: str, pattern: str
) -> None:
    """Equal first lines do not distinguish files: after the disk is lost that is a gap, not a count."""
    world = World(tmp_path, "gz" if ending else "rename", seed, pattern, "beginning")
    banner = world.server._line()

    def begin() -> None:
        world.server.files[-1].append(banner)
        with world.server.log.open("ab") as log:
            log.write(banner + b"\n")

    begin()
    for _ in range(2):
        world.write()
        for job in world.jobs:
            job.settle()
        world.rotation.run()
        begin()
    world.write()
    for job in world.jobs:
        job.settle()
    world.write()
    if seed % 2:
        world.rotation.run()
        begin()
    said = told(world)
    assert any("begin with the same line" in text for text in said)
    for job in world.jobs:
        assert job.gaps
        assert counted(job) <= lines_of(world)
        groups, _ = count(world.server.files, 0)
        have = {key: lanes for part in job.rows().values() for key, lanes in rig_counts_of(part[0]).items()}
        for (pane, path), (hits, size) in groups.items():
            mine = have.pop((pane, key_of(path.decode())), [0, 0, 0, 0])
            assert mine[0] <= hits
            assert mine[2] <= size
        assert not have


def test_what_was_given_up_and_comes_back_is_counted(tmp_path: Path) -> None:
    world = killed(tmp_path)
    world.rotation.run()
    rotated = world.server.log.with_name("access.log.1")
    away = tmp_path / "elsewhere"
    rotated.rename(away)
    told(world)
    assert all(job.gaps for job in world.jobs)
    away.rename(rotated)
    for job in world.jobs:
        job.settle()
        check_exact(job, world.server.files)


@pytest.mark.parametrize("is_refilled", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_log_that_lost_its_end_is_not_counted_again(
    tmp_path: Path, restarts: bool, is_refilled: bool
) -> None:
    """As after a power failure, when the positions are on disk and the last lines are not: reading resumes at its end."""
    world = killed(tmp_path)
    for job in world.jobs:
        job.settle()
    lines = world.server.files[0]
    kept = len(lines) // 2
    size = sum(len(each) + 1 for each in lines[:kept])
    assert size > 1024
    if restarts:
        world.log.source.close()
    os.truncate(world.server.log, size)
    if restarts:
        world.log.source = world.log._open()
    if not is_refilled:
        for job in world.jobs:
            job.settle()
    world.server.write(5)
    world.server.finish_line()
    for job in world.jobs:
        job.settle()
        assert counted(job) == lines_of(world) - (5 if is_refilled else 0)


@pytest.mark.parametrize("state", ["running", "kept", "compressed"])
@pytest.mark.parametrize("half", [0, 20])
def test_lines_between_a_copy_and_the_emptying_are_a_gap_of_jobs_that_had_not_counted_them(
    tmp_path: Path, state: str, half: int
) -> None:
    """copytruncate: the last lines were read, and are in no file. half: bytes of the first of them that the copy holds."""
    world = killed(tmp_path, "access.log*")
    ahead, behind = world.jobs
    for job in world.jobs:
        job.settle()
    assert world.server.log.stat().st_size > 1024
    rotated = world.server.log.with_name("access.log.1")
    copied = world.server.log.stat().st_size
    before = lines_of(world)
    world.server.write(5)
    world.server.finish_line()
    lost = lines_of(world) - before
    rotated.write_bytes(world.server.log.read_bytes()[: copied + half])
    for job in world.jobs:
        job.read()
    ahead.commit()
    os.truncate(world.server.log, 0)
    world.server.files.append([])
    if state == "kept":
        world.log.restart()
        ahead.lose()
    behind.lose()
    world.settle()
    if state == "compressed":
        world.server._archives = 1
        world.server.compress()
        behind.lose_master(0)
        behind.gaps.clear()
        world.settle()
    assert not ahead.gaps
    check_exact(ahead, world.server.files)
    (gap,) = behind.gaps
    assert behind.committed[gap] == Position(copied, closed=True)
    assert counted(behind) == lines_of(world) - lost
    world.settle()
    for job in world.jobs:
        job.read()
    assert behind.gaps == [gap]
    assert any(
        "access.log.1" in text and f"past byte {copied} " in text for text in world.log.source.problems
    )


@pytest.mark.parametrize("seen", ["packed", "plain"])
@pytest.mark.parametrize("damage", ["broken", "cut short"])
def test_an_archive_that_is_damaged_after_it_was_read_is_a_gap_of_jobs_that_had_not_counted_it(
    tmp_path: Path, damage: str, seen: str
) -> None:
    """A job that is behind waits for two graces, and continues. When the whole archive is back, its lines are counted after all.
    seen: how the agent had read it."""
    for folder in ("log", "state"):
        (tmp_path / folder).mkdir()
    server = Server(tmp_path / "log", Random(7))
    server.write(400)
    server.finish_line()
    rotated = server.log.with_name("access.log.1")
    if seen == "plain":
        log = Log(server, tmp_path / "state")
        ahead, behind = (Job(log, ONE, name=name) for name in (b"a", b"b"))
        ahead.settle()
    server.rotate()
    data = rotated.read_bytes()
    middle = data.index(b"\n", len(data) // 2) + 1
    first, second = gzip.compress(data[:middle]), gzip.compress(data[middle:])
    archive = server.log.with_name("access.log.1.gz")
    archive.write_bytes(first + second)
    rotated.unlink()
    if seen == "packed":
        log = Log(server, tmp_path / "state")
        ahead, behind = (Job(log, ONE, name=name) for name in (b"a", b"b"))
    server.write(20)
    server.finish_line()
    ahead.settle()
    check_exact(ahead, server.files)
    log.restart()
    status = archive.stat()
    archive.write_bytes(first + (b"rot" + second[3:] if damage == "broken" else second[: len(second) // 9]))
    os.utime(archive, ns=(status.st_atime_ns, status.st_mtime_ns))
    behind.settle()
    assert len(behind.gaps) == 1
    total, before = counted(ahead), counted(behind)
    assert data[:middle].count(b"\n") + 20 <= before < total
    (text,) = log.source.problems
    assert f"{archive}: damaged after byte " in text
    assert [each for each in log.source.take_notices() if "damaged" in each] == [text]
    behind.settle()
    assert counted(behind) == before
    archive.write_bytes(first + second)
    behind.settle()
    check_exact(behind, server.files)
