"""The sources of an agent's process, and what they know of an earlier life."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elf.agent.config.config import load
from elf.agent.host.job_costs import JobCosts
from elf.agent.host.source_threads import REST_S, SourceThreads
from elf.cbt.budget import Budget
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.effects import Read
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import node_id
from elf.srt.messages.messages import Position
from tests.rigs.mesh_log_rig import line_of, plan_of

LINE = b'10.0.0.1 - - [14/Nov/2023:22:13:20 +0000] "GET / HTTP/1.1" 200 1 "-" "-"\n'


@pytest.mark.parametrize("is_lost", [False, True])
def test_files_of_an_agent_whose_records_were_deleted_are_not_from_before_it(
    tmp_path: Path, is_lost: bool
) -> None:
    (tmp_path / "access.log").write_text("x" * 100)
    path = tmp_path / "elf.toml"
    path.write_text(
        '[agent]\nname = "web"\nstate_dir = "state"\nlisten = "127.0.0.1:0"\nsecurity = "none"\n'
        '[[source]]\nname = "access"\npath = "access.log"\nformat = "combined"\n'
    )
    (tmp_path / "state").mkdir()
    config, host = load(path, environ={}), None
    threads = SourceThreads(host, None)  # type: ignore[arg-type]
    with ExitStack() as opened:
        budget: Any = Budget(64 << 20, tmp_path, lambda: 0, 0)
        opened.callback(budget.close)
        threads.open(config, node_id(b"me"), budget, 5_000_000, opened, is_lost=is_lost)
        (source,) = threads.sources.values()
        assert [first.size for first in source._files.notes.firsts] == [100] * (not is_lost)


def test_an_awaited_line_is_cut_when_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(LINE)
    path = tmp_path / "elf.toml"
    path.write_text(
        '[agent]\nname = "web"\nstate_dir = "state"\nlisten = "127.0.0.1:0"\nsecurity = "none"\n'
        '[[source]]\nname = "access"\npath = "access.log"\nformat = "combined"\nstart = "beginning"\n'
    )
    (tmp_path / "state").mkdir()
    me, cuts = node_id(b"me"), asyncio.Queue[Cut]()
    seat = SimpleNamespace(
        spec=SimpleNamespace(source="access"),
        worker=SimpleNamespace(schedule=(line_of(plan_of(), 1, 0),), awaits=lambda request: True),
    )

    def cut(cut: Cut, now_us: int) -> tuple[()]:
        cuts.put_nowait(cut)
        return ()

    async def follow() -> list[int]:
        with ExitStack() as opened:
            budget: Any = Budget(64 << 20, tmp_path, lambda: 0, 0)
            opened.callback(budget.close)
            threads.open(load(path, environ={}), me, budget, 5_000_000, opened, is_lost=False)
            threads.read(Read(b"job", 1, 1, {}, 0))
            spans = (await cuts.get()).spans
            positions = {slot: Position(end) for slot, (_, end, _) in spans.items()}
            threads.read(Read(b"job", 2, 1, positions, 0, due_us=AFTER_ALL, at_line=True))
            with log.open("ab") as file:
                file.write(LINE)
            spans |= (await cuts.get()).spans
            assert not threads._listening
            return [end - start for start, end, _ in spans.values()]

    host: Any = SimpleNamespace(
        is_over=False,
        node=SimpleNamespace(seats={b"job": seat}, cut=cut),
        costs=JobCosts(),
        notices=print,
        perform=list,
        clock_us=lambda: 1_700_000_000_000_000,
    )
    threads = SourceThreads(host, None)
    assert asyncio.run(follow()) == [len(LINE)]


def test_a_still_log_is_left_alone_and_a_new_line_is_read_soon(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(LINE)
    path = tmp_path / "elf.toml"
    path.write_text(
        '[agent]\nname = "web"\nstate_dir = "state"\nlisten = "127.0.0.1:0"\nsecurity = "none"\n'
        '[[source]]\nname = "access"\npath = "access.log"\nformat = "combined"\nstart = "beginning"\n'
    )
    (tmp_path / "state").mkdir()
    seat = SimpleNamespace(
        spec=SimpleNamespace(source="access"),
        worker=SimpleNamespace(schedule=(line_of(plan_of(), 1, 0),), awaits=lambda request: True),
    )
    now_us = 1_700_000_000_000_000
    host: Any = SimpleNamespace(
        is_over=False,
        node=SimpleNamespace(
            seats={b"job": seat},
            cut=lambda cut, now: (),
            parameters=SimpleNamespace(flush_us=1_000, idle_grace_us=1_000_000),
        ),
        costs=JobCosts(),
        notices=print,
        perform=list,
        clock_us=lambda: now_us,
    )
    threads = SourceThreads(host, None)

    async def follow() -> tuple[list[float], int]:
        loop = asyncio.get_running_loop()
        with ExitStack() as opened:
            budget: Any = Budget(64 << 20, tmp_path, lambda: 0, 0)
            opened.callback(budget.close)
            threads.open(load(path, environ={}), node_id(b"me"), budget, 1_000_000, opened, is_lost=False)
            (source,) = threads.sources.values()
            threads.read(Read(b"job", 1, 1, {}, 0, due_us=now_us + 10_000_000))
            while not threads._resting:
                await asyncio.sleep(0)
            rests = [threads._resting["access"].when() - loop.time()]
            with log.open("ab") as file:
                file.write(LINE)
            while source.totals.lines < 2:
                await asyncio.sleep(0)
            threads.read(Read(b"job", 2, 1, {}, 0, due_us=now_us + 100_000))
            while not threads._resting or source.totals.lines < 2:
                await asyncio.sleep(0)
            return rests, source.totals.lines

    (rest,), lines = asyncio.run(follow())
    assert 0.5 < rest <= REST_S
    assert lines == 2


@pytest.mark.parametrize("worker", [None, SimpleNamespace(schedule=())])
def test_a_job_that_was_started_again_has_not_asked_to_read(worker: Any) -> None:
    """The `Read` is of the worker before; the new one has no schedule yet, under which lines could be counted."""
    seat = SimpleNamespace(worker=worker)
    host: Any = SimpleNamespace(is_over=False, node=SimpleNamespace(seats={b"job": seat}))
    threads = SourceThreads(host, None)
    threads.read(Read(b"job", 1, 0, {}, 0))  # a source would be asked, and there is none
