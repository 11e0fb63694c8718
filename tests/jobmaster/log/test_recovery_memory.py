"""The memory of a start with a journal many times the memory cap: one record at a time, and trees that spill."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from elf.agent.disk.store import Store
from elf.agent.simulator.world.rows import Paths, RowMaker
from elf.cbt.budget import Budget
from elf.jobmaster.directory.changes import first_entry
from elf.jobmaster.log.entries import Accept, AnyEntry
from elf.jobmaster.log.job_log import JobLog
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.succession import Succession
from elf.srt.messages.effects import Write
from elf.srt.messages.messages import FIRST
from elf.srt.messages.parameters import Parameters
from tests.rigs.master_rig import BALLOT, T0, A, spec_of
from tests.rigs.mesh_lines import plan_of, version_of

MIB = 1 << 20
JOB = b"J" * 16
PLAN = plan_of("1 minute")
VERSION = version_of(PLAN).digest
CAP = 16 * MIB
RECORDS, ROWS = 40, 12_000
"""Together 50 MiB of rows."""
PASSING = 4 * MIB
"""Of the current record: as bytes, unpacked, and as an entry."""


def entry(number: int) -> Accept:
    """Rows of one pane, of paths that no other entry has."""
    rng = Random(number)
    maker = RowMaker(PLAN, Paths([f"/{rng.getrandbits(128):x}" for _ in range(ROWS)]))
    times = np.full(ROWS, T0, dtype=np.int64)
    part = maker(times, np.arange(ROWS), np.full(ROWS, 100, dtype=np.int64))
    spans = {(A, 1, 0): (number * ROWS, (number + 1) * ROWS, 0 if number else FIRST)}
    return Accept(1, spans, T0, {}, {VERSION: part})


def new_log(folder: Path) -> tuple[JobLog, Budget]:
    budget = Budget(CAP, folder)
    return JobLog(lambda image: state_of(image, budget), Parameters().piece_bytes), budget


def state_of(image: Any, budget: Budget) -> JobState:
    state = JobState(JOB, "hits", budget)
    if image is not None:
        state.restore(image)
    return state


async def fill(folder: Path) -> None:
    """The journal of a master that wrote one entry at a time, each before the previous one was committed."""
    store, records = Store.open(folder, print)
    records.close()
    log, budget = new_log(folder)
    store.write(Write(("log", JOB), log.begin(BALLOT), replace=True), lambda: None)
    for number in range(-1, RECORDS):
        more: AnyEntry = first_entry(spec_of(PLAN), BALLOT, T0, None) if number < 0 else entry(number)
        store.write(Write(("log", JOB), log.extend(BALLOT, BALLOT, log.index + 1, (more,))), lambda: None)
        log.commit(log.index - 1)
        await store.drain(10)
    store.close()
    log.state.close()  # type: ignore[union-attr]
    budget.close()


@pytest.mark.slow
def test_a_start_takes_the_cap_and_a_record_however_long_the_journal(tmp_path: Path) -> None:
    """Rows of one pane, as from a client that invents URLs."""
    asyncio.run(fill(tmp_path))
    budget = Budget(CAP, tmp_path)
    tracemalloc.start()
    try:
        store, records = Store.open(tmp_path, print)
        succession = Succession(JOB, A, Parameters(), lambda image: state_of(image, budget))
        for kind in ("ballot", "log"):
            succession.restore(records.get((kind, JOB), ()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    records.close()
    store.close()
    state = succession.replica.log.state
    assert isinstance(state, JobState)
    assert succession.replica.log.index == RECORDS + 1
    known = RECORDS - 2  # later entries are not known to be committed
    assert state.panes[VERSION].lines().lanes[0].tolist() == [known * ROWS]
    state.close()
    budget.close()
    assert peak <= CAP + PASSING, peak / MIB
