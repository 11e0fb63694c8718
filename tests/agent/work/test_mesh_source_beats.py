"""The beats of a source: jobs whose `Read` is not due are read on for together."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from elf.agent.work.source_bounds import ABSENT_S
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.effects import Read
from tests.rigs.mesh_log_rig import SECOND, Job, Log, Server, check_exact, line_of, plan_of

PLAN = plan_of()
ONE = (line_of(PLAN, 1, 0),)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    (tmp_path / "log").mkdir()
    (tmp_path / "state").mkdir()
    return Server(tmp_path / "log", random.Random(7))


@pytest.fixture
def log(server: Server, tmp_path: Path) -> Iterator[Log]:
    log = Log(server, tmp_path / "state")
    yield log
    log.source.close()
    Log.made.remove(log)


def waiting(job: Job, due_us: int = AFTER_ALL) -> Read:
    return Read(job.id, job.request + 1, 1, dict(job.at), 0, due_us=due_us)


def test_rows_that_are_cut_count_no_more_for_the_next_cut(server: Server, log: Log) -> None:
    """Else a job that once had many groups would be cut at each beat from then on."""
    job = Job(log, ONE)
    server.write(300)
    job.read()
    (reading,) = log.source._readings.values()
    assert reading.rows.uncut_bytes == 0
    server.write(30)
    assert log.source.read_if_due(waiting(job), ONE, server.now_s * SECOND, log.now_s) is None


def test_the_jobs_of_a_beat_share_one_read_of_the_logs_and_none_of_them_expires(
    server: Server, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.rejects = 0.0
    jobs = [Job(log, ONE, name=name) for name in (b"a", b"b", b"c")]
    server.write(5)
    server.finish_line()
    for job in jobs:
        job.read()
    again_bytes = log.source.counters.again_bytes
    look = Mock(wraps=log.source._files.look)
    monkeypatch.setattr(log.source._files, "look", look)
    beats = int(3 * ABSENT_S)
    for _ in range(beats):
        log.now_s += 1.0
        server.write(1)
        server.finish_line()
        for job in jobs:
            assert log.beat(waiting(job), ONE) is None
    assert look.call_count == beats
    assert {each.job for each in log.source._readings.values()} == {job.id for job in jobs}
    assert log.source.counters.again_bytes == again_bytes
    for job in jobs:
        job.settle()
        check_exact(job, server.files)


def test_a_job_that_lacks_lines_reads_them_in_a_beat_in_which_others_have_read(
    server: Server, log: Log
) -> None:
    server.rejects = 0.0
    known, newcomer = (Job(log, ONE, name=name) for name in (b"a", b"b"))
    server.write(5)
    server.finish_line()
    known.read()
    log.now_s += 1.0
    for job in (known, newcomer):
        assert log.beat(waiting(job), ONE) is None
    assert log.source.counters.again_bytes == log.source.counters.front_bytes
    rows = {each.job: each.rows for each in log.source._readings.values()}
    assert rows[newcomer.id].uncut_bytes > rows[known.id].uncut_bytes == 0


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
