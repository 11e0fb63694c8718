"""Cuts of real log files: their sum is one pass over all lines, wherever they fall and whatever happens."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from elf.agent.files.content import Content
from elf.agent.files.follow import Followed
from elf.agent.formats.batch import Batch
from elf.agent.work import log_files, rescan
from elf.agent.work.job_rows import Before, JobRows
from elf.agent.work.rescan import open_known
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.effects import Read
from elf.srt.messages.messages import Position
from tests.rigs.mesh_log_rig import (
    SECOND,
    START_S,
    Job,
    Log,
    Server,
    check_exact,
    counts_of,
    line_of,
    plan_of,
    time_of,
)

PLAN = plan_of()
ONE = (line_of(PLAN, 1, 0),)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    (tmp_path / "log").mkdir()
    (tmp_path / "state").mkdir()
    return Server(tmp_path / "log", random.Random(7))


@pytest.fixture
def log(server: Server, tmp_path: Path) -> Log:
    return Log(server, tmp_path / "state")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while Log.made:
        Log.made.pop().source.close()


def test_the_sum_of_all_cuts_is_one_pass(server: Server, log: Log) -> None:
    job = Job(log, ONE)
    for _ in range(20):
        server.write(30)
        job.read()
        log.now_s += 0.2
    job.settle()
    check_exact(job, server.files)


def test_an_awaited_line_is_answered_when_there_is_one(server: Server, log: Log) -> None:
    job = Job(log, ONE)
    server.write(30)
    server.finish_line()
    job.read()
    awaiting = Read(job.id, job.request + 1, 1, dict(job.at), 0, due_us=AFTER_ALL, at_line=True)
    assert log.beat(awaiting, ONE) is None
    server.write(1)
    server.finish_line()
    cut = log.beat(awaiting, ONE)
    assert cut is not None
    assert [end - start for start, end, _ in cut.spans.values()] == [len(server.files[0][-1]) + 1]


def test_three_jobs_cost_one_scan(server: Server, log: Log) -> None:
    server.rejects = 0.0  # a line that is too long ends a block
    jobs = [Job(log, ONE, name=name) for name in (b"a", b"b", b"c")]
    for job in jobs:
        job.read()
    for _ in range(10):
        server.write(30)
        for job in jobs:
            job.read()
        log.now_s += 0.2
    assert log.source.counters.scans == 10
    assert log.source.counters.again_bytes == 0
    for job in jobs:
        job.settle()
        check_exact(job, server.files)


def test_rows_that_are_cut_count_no_more_for_the_next_cut(server: Server, log: Log) -> None:
    """Else a job that once had many groups would be cut at each beat from then on."""
    job = Job(log, ONE)
    server.write(300)
    job.read()
    (reading,) = log.source._readings.values()
    assert reading.rows.uncut_bytes == 0
    server.write(30)
    assert log.source.read_if_due(waiting(job), ONE, server.now_s * SECOND, log.now_s) is None


def waiting(job: Job, due_us: int = AFTER_ALL) -> Read:
    return Read(job.id, job.request + 1, 1, dict(job.at), 0, due_us=due_us)


def test_few_lines_wait_while_no_job_is_due_and_are_not_lost_with_their_file(
    server: Server, log: Log
) -> None:
    server.rejects = 0.0
    jobs = [Job(log, ONE, name=name) for name in (b"a", b"b", b"c")]
    server.write(5)
    for job in jobs:
        job.read()
    scans = log.source.counters.scans
    for _ in range(4):
        server.write(5)
        for job in jobs:
            assert log.beat(waiting(job), ONE) is None
        log.now_s += 0.2
    assert log.source.counters.scans == scans
    server.finish_line()
    assert log.beat(waiting(jobs[0]), ONE) is None
    os.truncate(server.log, 0)  # without a copy
    server.files.append([])
    server.write(1)
    server.finish_line()
    for job in jobs:
        job.read()
    for job in jobs:
        job.settle()
        assert not job.gaps
        check_exact(job, server.files)


def test_lines_wait_for_a_second_or_until_a_job_is_due_or_awaits_one(server: Server, log: Log) -> None:
    job, other = Job(log, ONE, name=b"a"), Job(log, ONE, name=b"b")

    def more() -> int:
        server.write(3)
        server.finish_line()
        return log.source.counters.scans

    more()
    job.read()
    other.read()
    scans = more()
    for _ in range(6):
        assert log.beat(waiting(job), ONE) is None
        log.now_s += 0.2
    assert log.source.counters.scans == scans + 1
    scans = more()
    assert log.beat(waiting(job), ONE) is None
    assert log.source.counters.scans == scans
    assert (
        log.beat(waiting(other, due_us=(server.now_s + 3) * SECOND), ONE) is None
    )  # due; its watermark is behind
    assert log.source.counters.scans == scans + 1
    awaiting = Read(other.id, other.request + 1, 1, dict(other.at), 0, due_us=AFTER_ALL, at_line=True)
    assert log.beat(awaiting, ONE) is not None  # the line that was held before
    scans = more()
    assert log.beat(waiting(job), ONE) is None  # the other awaits a line
    assert log.source.counters.scans == scans + 1


def test_held_lines_count_as_not_read_yet(server: Server, log: Log) -> None:
    server.rejects = 0.0
    job = Job(log, ONE)
    server.write(2)
    server.finish_line()
    job.read()
    assert log.source._held.files == set()
    server.write(2)
    server.finish_line()
    assert log.beat(waiting(job), ONE) is None
    held = log.source._held.files
    assert held == log.source._files.behind()
    assert len(held) == 1


def test_a_lost_disk_changes_no_identity(server: Server, log: Log) -> None:
    server.rejects = 0.0
    job = Job(log, ONE)
    server.write(50)
    job.settle()
    server.rotate()
    server.write(20)
    job.settle()
    server.compress()
    server.write(20)
    log.restart(crash=True, wipe=True)
    job.settle()
    assert not job.gaps
    assert len(job.committed) == 2
    check_exact(job, server.files)


def test_what_is_gone_is_a_gap_after_a_while(server: Server, log: Log) -> None:
    job, other = Job(log, ONE, name=b"a"), Job(log, ONE, name=b"b")
    server.write(50)
    other.settle()
    server.rotate()
    server.write(20)
    other.settle()
    server.log.with_name("access.log.1").unlink()
    server.finish_line()
    job.settle()
    assert not other.gaps
    assert len(job.gaps) == 1
    assert job.committed[job.gaps[0]] == Position(0, True)
    server.files.pop(0)
    check_exact(job, server.files)


@pytest.mark.parametrize("count", [3, 7])
def test_a_file_that_lost_its_end_continues_as_another_part(server: Server, log: Log, count: int) -> None:
    server.rejects = 0.0
    job = Job(log, ONE)
    server.write(10)
    server.finish_line()
    job.settle()
    log.source.close()  # saved here
    size = server.log.stat().st_size
    server.write(5)
    server.finish_line()
    log.source = log._open()
    job.read()
    job.commit()
    os.truncate(server.log, size)  # what the file system lost with the power
    log.source = log._open()  # and what the agent saved last
    server.write(count)
    server.finish_line()
    job.settle()
    assert len(job.gaps) == 1
    # What took the place of lines that were counted before they were lost cannot be told from them.
    del server.files[0][15:]
    server.write(7)
    job.settle()
    assert len(job.gaps) == 1
    check_exact(job, server.files)


def test_rule_10_lines_after_the_reported_end_are_of_the_same_file(server: Server, log: Log) -> None:
    server.rejects = 0.0
    jobs = [Job(log, ONE, name=name) for name in (b"a", b"b")]
    server.write(30)
    server.finish_line()
    jobs[0].settle()
    server.rotate()
    server.write(5)
    jobs[0].settle()
    late = server._line()
    server.files[0].append(late)
    with server.log.with_name("access.log.1").open("ab") as old:
        old.write(late + b"\n")
    log.now_s += 10.0
    for job in jobs:
        job.settle()
        assert not job.gaps
        assert len(job.committed) == 2
        check_exact(job, server.files)


@pytest.mark.parametrize("more", [0, 40])
def test_rule_10_a_log_that_has_closed_a_file_begins_no_other_part(
    server: Server, log: Log, more: int
) -> None:
    """One log has closed it where a process that had no logs stood; another log is further."""
    server.rejects = 0.0
    early, late = Job(log, ONE, name=b"a"), Job(log, ONE, name=b"b")
    server.write(150)
    server.finish_line()
    for job in (early, late):
        job.settle()
    server.write(60)
    server.finish_line()
    late.settle()
    (slot,) = early.committed
    early.committed[slot] = early.at[slot] = Position(early.committed[slot].offset, closed=True)
    server.write(more)
    server.finish_line()
    log.restart()
    for job in (early, late):
        job.settle()
        assert not job.gaps
        assert list(job.committed) == [slot]
        check_exact(job, server.files)


def test_a_file_that_a_log_has_closed_behind_its_end_was_cut_short(server: Server, log: Log) -> None:
    server.rejects = 0.0
    job = Job(log, ONE)
    server.write(50)
    server.finish_line()
    job.settle()
    (slot,) = job.committed
    size = job.committed[slot].offset
    job.committed[slot] = job.at[slot] = Position(size + 5_000, closed=True)
    log.restart(wipe=True)
    job.settle()
    (part,) = job.committed.keys() - {slot}
    assert job.gaps == [part]
    server.write(200)
    server.finish_line()
    job.settle()
    assert job.committed[part] == Position(server.log.stat().st_size)
    check_exact(job, server.files)


def test_rows_begin_where_event_time_reached_what_is_asked_for(server: Server, tmp_path: Path) -> None:
    log = Log(server, tmp_path / "state", block_bytes=2048)
    first = Job(log, ONE, name=b"a")
    for _ in range(40):
        server.write(60)
        first.read()
        log.now_s += 0.2
    since_us = (server.now_s - 30) * SECOND
    log.restart()
    job = Job(log, ONE, since_us, name=b"b")
    cut = job.read()
    start = min(span[0] for span in cut.spans.values())
    assert start > server.log.stat().st_size // 2
    job.settle()
    check_exact(job, server.files)


@pytest.mark.parametrize("window", ["", "window(time, '10 seconds')"])
def test_earlier_lines_of_a_known_file_count_without_a_window(server: Server, log: Log, window: str) -> None:
    """After a restart too. Lines in files that the job's log does not know may have been counted and forgotten."""
    server.rejects = 0.0
    job = Job(log, (line_of(plan_of(window=window), 1, 0),))
    server.write(50)
    job.settle()
    server.finish_line()
    written = len(server.files[0])
    log.restart()
    job.since_us = (server.now_s + 3600) * SECOND  # all lines are older than what the job keeps
    server.write(30)
    server.finish_line()
    job.settle()
    server.rotate()
    server.write(20)
    job.settle()
    (version,) = job.rows()
    lines = sum(int(total[0]) for total in counts_of(job.rows()[version][1]).values())
    assert lines == (written if window else len(server.files[0]))


@pytest.mark.parametrize("alike", [1, 2])
def test_an_archive_that_is_renamed_while_it_is_recognised_stays_a_copy(
    server: Server, log: Log, monkeypatch: pytest.MonkeyPatch, alike: int
) -> None:
    """The agent held the log open and missed its first renaming; the next rotation renames the archive at the wrong moment."""
    server.rejects = 0.0
    ahead, behind = (Job(log, ONE, name=name) for name in (b"a", b"b"))
    server.write(50)
    if alike == 2:  # an earlier log with the same first line, so that content must decide
        server.finish_line()
        earlier = [server.files[0][0], server._line()]
        server.log.with_name("access.log.9").write_bytes(b"".join(line + b"\n" for line in earlier))
        server.files.insert(0, earlier)
    ahead.read()
    server.rotate()
    server.compress()
    archive = server.log.with_name("access.log.1.gz")
    opens: list[str] = []

    def opened(file: Followed) -> Content:
        opens.append(file.path)
        if opens.count(str(archive)) == alike and archive.exists():
            archive.rename(archive.with_name("access.log.2.gz"))
        return open_known(file)

    for module in (log_files, rescan):
        monkeypatch.setattr(module, "open_known", opened)
    server.write(20)
    ahead.settle()
    assert not archive.exists()
    behind.settle()
    assert not ahead.gaps + behind.gaps
    for job in (ahead, behind):
        check_exact(job, server.files)


def test_old_archives_are_not_read(server: Server, log: Log) -> None:
    server.rejects = 0.0
    server.write(2000)
    server.rotate()
    server.compress()
    old = server.log.with_name("access.log.1.gz")
    server.write(10)
    server.finish_line()
    for path in (old, server.log):
        os.utime(path, ((server.now_s - 1, server.now_s - 1) if path != old else (START_S, START_S)))
    late = Job(log, ONE, (START_S + 400) * SECOND, name=b"a")
    late.settle()
    assert log.source.counters.front_bytes < 5000
    assert len(late.committed) == 1
    early = Job(log, ONE, name=b"b")
    early.settle()
    late.settle()
    check_exact(early, server.files)
    check_exact(late, server.files[1:])


@pytest.mark.parametrize("seed", range(6))
def test_a_lane_gives_the_lines_before_its_ends(seed: int, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "state").mkdir()
    rng = random.Random(seed)
    server = Server(tmp_path / "log", rng)
    log = Log(server, tmp_path / "state", block_bytes=2048, cut_bytes=3000)
    job = Job(log, ONE)
    for _ in range(30):
        mishap(rng, server, log, [job])
        job.read()
    while not job.read().caught_up:
        log.now_s += 0.1
    job.commit()
    at_us = (server.now_s - 25) * SECOND
    files = [list(file) for file in server.files]
    ends = {(slot[0], slot[1], 2): at.offset for slot, at in job.committed.items()}
    other = plan_of("WHERE bytes > 5000")
    job.schedule = (*ONE, line_of(other, 2, at_us))
    lane = Job(log, job.schedule, at_us)
    for _ in range(1000):
        if rng.random() < 0.2:
            mishap(rng, server, log, [job])
        elif rng.random() < 0.2:
            lane.lose()
        elif rng.random() < 0.5:
            job.read()
        else:
            lane.read_lane(2, at_us, ends)
            lane.commit()
            if all(slot in lane.committed and lane.committed[slot].closed for slot in ends):
                break
        log.now_s += 0.1
    assert not lane.gaps
    assert {slot: at.offset for slot, at in lane.committed.items()} == ends
    check_exact(lane, files, {job.schedule[1].version: 5000})


def test_an_idle_source_promises_the_clock_before_its_end_was_read(server: Server, log: Log) -> None:
    server.rejects = 0.0
    job = Job(log, ONE)
    server.write(20)
    server.finish_line()
    latest = max(at for at in (int(time_of(line)) for line in server.files[0]))
    assert job.read().watermark_us == latest * SECOND
    log.now_s += 1.0
    assert job.read().watermark_us == latest * SECOND
    log.now_s += 5.0
    server.now_s += 100
    assert job.read().watermark_us == (server.now_s + 3 - 5) * SECOND


def test_memory_is_bounded_and_a_job_that_gives_way_reads_again(server: Server, tmp_path: Path) -> None:
    server.rejects = 0.0
    log = Log(server, tmp_path / "state", block_bytes=2048, memory=1 << 20)
    jobs = [Job(log, ONE, name=name) for name in (b"a", b"b", b"c")]
    for _ in range(6):
        server.write(100)
        for job in jobs:
            job.read()
            assert log.source.nbytes < 8 << 20
        log.now_s += 0.2
    for job in jobs:
        job.settle()
        check_exact(job, server.files)


def test_a_job_that_fails_does_not_touch_the_others(
    server: Server, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Job(log, ONE, name=b"a"), Job(log, (line_of(plan_of("WHERE bytes > 5000"), 1, 0),), name=b"b")
    server.write(30)
    good.read()
    bad.read()
    bad.commit()
    add = JobRows.add

    def fail(self: JobRows, batch: Batch, before: Before, too_long: int, is_known: bool) -> None:
        add(self, batch, before, too_long, is_known)
        if self.schedule == bad.schedule:
            raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(JobRows, "add", fail)
        server.write(30)
        good.read()
        with pytest.raises(ZeroDivisionError):
            bad.read()
        good.read()
    for job in (good, bad):
        job.settle()
        check_exact(job, server.files, {bad.schedule[0].version: 5000})


def mishap(rng: random.Random, server: Server, log: Log, jobs: list[Job], wipe: float = 0.0) -> None:
    job = rng.choice(jobs)
    match rng.randrange(12):
        case 0:
            server.rotate()
        case 1:
            for each in jobs:
                each.read()
            server.rotate(copy=True)
            # A copy that is emptied before it was looked at is another matter: see the tests of `Source`.
        case 2:
            server.compress()
        case 3:
            log.restart(crash=rng.random() < 0.5, wipe=rng.random() < wipe)
            for each in jobs:
                each.lose()
        case 4:
            job.lose()
        case 5:
            job.commit()
        case 6:
            job.commit(1)
        case 7:
            job.lose_master(job.since_us)
        case 8:
            log.now_s += rng.choice([0.1, 1.0, 5.0, 20.0])
        case _:
            server.write(rng.randrange(40))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(16), 102, 131, 170, 173, 176])
def test_random_histories_are_exact(seed: int, tmp_path: Path) -> None:
    history(seed, tmp_path, rejects=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_histories_with_lost_disks_are_exact(seed: int, tmp_path: Path) -> None:
    """Without rejected lines, of which many are alike: after all is lost, files are distinguished by their first lines."""
    history(seed, tmp_path, rejects=0.0, wipe=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(24), 1007])  # 1007: saved while lines were held
def test_random_histories_are_exact_while_lines_are_held(seed: int, tmp_path: Path) -> None:
    history(seed, tmp_path, rejects=0.1 * (seed % 2), wipe=0.0 if seed % 2 else 0.2, has_beats=True)


def history(seed: int, tmp_path: Path, rejects: float, wipe: float = 0.0, *, has_beats: bool = False) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "state").mkdir()
    rng = random.Random(seed)
    server = Server(tmp_path / "log", rng, rejects=rejects)
    log = Log(server, tmp_path / "state", block_bytes=2048, cut_bytes=rng.choice([1, 3000, 1 << 20]))
    log.has_beats = has_beats
    other = plan_of("WHERE bytes > 5000")
    two = (*ONE, line_of(other, 2, (START_S + 60) * SECOND))
    jobs = [
        Job(log, ONE, name=b"a"),
        Job(log, two, name=b"b", since_us=(START_S + 20) * SECOND),
        Job(log, ONE, name=b"c", since_us=(START_S + 47) * SECOND),
    ]
    for _ in range(60):
        mishap(rng, server, log, jobs, wipe)
        if rng.random() < (0.2 if has_beats else 0.7):
            rng.choice(jobs).read()
        log.now_s += rng.choice([0.0, 0.05, 0.3])
    server.finish_line()
    for job in jobs:
        job.settle()
        assert not job.gaps
        check_exact(job, server.files, {two[1].version: 5000})
