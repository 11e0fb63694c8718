"""Cuts of real log files: their sum is one pass over all lines, wherever they fall and whatever happens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.mesh_log_rig import SECOND, START_S, Job, Log, Server, check_exact, line_of, plan_of

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


def test_the_sum_of_all_cuts_is_one_pass(server: Server, log: Log) -> None:
    job = Job(log, ONE)
    for _ in range(20):
        server.write(30)
        job.read()
        log.now_s += 0.2
    job.settle()
    check_exact(job, server.files)


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


def mishap(rng: random.Random, server: Server, log: Log, jobs: list[Job]) -> None:
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
            log.restart(crash=rng.random() < 0.5)
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


@pytest.mark.parametrize("seed", range(30))
def test_random_histories_are_exact(seed: int, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "state").mkdir()
    rng = random.Random(seed)
    server = Server(tmp_path / "log", rng)
    log = Log(server, tmp_path / "state", block_bytes=2048, cut_bytes=rng.choice([1, 3000, 1 << 20]))
    other = plan_of("WHERE bytes > 5000")
    two = (*ONE, line_of(other, 2, (START_S + 60) * SECOND))
    jobs = [
        Job(log, ONE, name=b"a"),
        Job(log, two, name=b"b", since_us=(START_S + 20) * SECOND),
        Job(log, ONE, name=b"c", since_us=(START_S + 47) * SECOND),
    ]
    for _ in range(60):
        mishap(rng, server, log, jobs)
        if rng.random() < 0.7:
            rng.choice(jobs).read()
        log.now_s += rng.choice([0.0, 0.05, 0.3])
    server.finish_line()
    for job in jobs:
        job.settle()
        assert not job.gaps
        check_exact(job, server.files, {two[1].version: 5000})
