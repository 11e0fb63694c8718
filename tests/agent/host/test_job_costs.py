"""What jobs cost: processor time by the job that the thread works for, and means over the last looks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elf.agent.host import job_costs
from elf.agent.host.job_costs import LOOKS, JobCosts
from elf.agent.work.estimate import most_in_a_pane
from elf.agent.work.spent import Spent
from elf.jobmaster.directory.limits import Limits
from elf.srt.messages.reports import JobCost


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def test_time_belongs_to_the_innermost_job() -> None:
    clock = Clock()
    costs = JobCosts(clock)
    clock.ns = 5  # of no job
    before = costs.charge(b"a")
    clock.ns = 12
    inner = costs.charge(b"b")
    clock.ns = 15
    costs.charge(inner)
    clock.ns = 20
    costs.charge(before)
    clock.ns = 99
    costs.charge(b"a")
    assert costs.cpu_ns == {b"a": 12, b"b": 3}


def test_what_jobs_share_is_divided() -> None:
    clock = Clock()
    spent = Spent(clock)
    spent.begin()
    clock.ns = 100
    spent.charge([])  # nobody took the block: the next call charges it
    clock.ns = 300
    spent.charge([b"a", b"b"])
    clock.ns = 310
    spent.charge([b"b"])
    assert spent.take() == [(b"a", 150), (b"b", 150), (b"b", 10)]
    assert spent.take() == []


def test_costs_are_means_over_the_last_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_costs, "job_bytes", lambda seat: 7)
    costs, sent = JobCosts(), Counter({b"a": 1_000_000})
    seats: Any = [SimpleNamespace(job=job, is_stopped=job == b"c") for job in (b"a", b"b", b"c")]
    costs.spent([(b"a", 10**12)])  # long ago
    assert costs.of(seats) == ()
    for second in range(LOOKS + 1):
        costs.look(second, sent)
        costs.spent([(b"a", 3_000_000), (b"b", 5_000_000)])
        sent[b"a"] += 200
    assert costs.of(seats) == (JobCost(b"b", 5000, 0, 0, 7), JobCost(b"a", 3000, 200, 0, 7))


def test_groups_are_the_most_in_a_pane() -> None:
    costs = JobCosts()
    panes = np.array([0, 0, 10, 10, 10, 20])
    rows: Any = SimpleNamespace(pane=panes)
    costs.cut(b"a", SimpleNamespace(parts={"v": SimpleNamespace(rows=[rows])}))  # type: ignore[arg-type]
    assert most_in_a_pane(panes) == 3
    assert most_in_a_pane(panes[:2]) == 2
    assert most_in_a_pane(panes[:0]) == 0


def test_a_job_above_its_limits_is_named_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_costs, "job_bytes", lambda seat: 7)
    costs, sent = JobCosts(), Counter[bytes]()
    limits = {b"a": Limits(cpu_us=50_000), b"b": Limits(sent_bytes=100), b"c": Limits(cpu_us=10**6)}
    seats: Any = [
        SimpleNamespace(job=job, is_stopped=False, limits=SimpleNamespace(newest=each))
        for job, each in limits.items()
    ]
    found: list[list[tuple[bytes, str]]] = []
    for second in range(3 * LOOKS):
        costs.look(second, sent)
        found.append(costs.over(seats))
        costs.spent([(job, 60_000_000) for job in limits])
        sent[b"b"] += 2048
    reasons = {reason.partition(";")[0] for each in found for _, reason in each}
    assert reasons == {"60 core-ms in a second, of 50", "2 KiB sent up in a second, of 100 B"}
    assert [second for second, each in enumerate(found) if each] == [LOOKS, 2 * LOOKS]
    assert [job for job, _ in found[LOOKS]] == [b"a", b"b"]
