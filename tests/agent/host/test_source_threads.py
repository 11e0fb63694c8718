"""The sources of an agent's process, and what they know of an earlier life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elf.agent.config.config import load
from elf.agent.host.beats import Kept
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


NOW_US = 1_700_000_000_000_000


def a_host(cut: Callable[[Cut, int], tuple[()]], **parameters: int) -> Any:
    """The process around a node that has one job."""
    worker = SimpleNamespace(schedule=(line_of(plan_of(), 1, 0),), awaits=lambda request: True)
    seats = {b"job": SimpleNamespace(spec=SimpleNamespace(source="access"), worker=worker)}
    return SimpleNamespace(
        is_over=False,
        node=SimpleNamespace(seats=seats, cut=cut, parameters=SimpleNamespace(**parameters)),
        costs=JobCosts(),
        notices=print,
        perform=list,
        clock_us=lambda: NOW_US,
    )


@contextmanager
def opened_in(folder: Path, threads: SourceThreads) -> Iterator[Path]:
    """With its source over a log of one line."""
    log, path = folder / "access.log", folder / "elf.toml"
    log.write_bytes(LINE)
    path.write_text(
        '[agent]\nname = "web"\nstate_dir = "state"\nlisten = "127.0.0.1:0"\nsecurity = "none"\n'
        '[[source]]\nname = "access"\npath = "access.log"\nformat = "combined"\nstart = "beginning"\n'
    )
    (folder / "state").mkdir()
    with ExitStack() as opened:
        budget: Any = Budget(64 << 20, folder, lambda: 0, 0)
        opened.callback(budget.close)
        threads.open(load(path, environ={}), node_id(b"me"), budget, 5_000_000, opened, is_lost=False)
        yield log


def test_an_awaited_line_is_cut_when_it_is_written(tmp_path: Path) -> None:
    cuts = asyncio.Queue[Cut]()

    def cut(cut: Cut, now_us: int) -> tuple[()]:
        cuts.put_nowait(cut)
        return ()

    async def follow() -> list[int]:
        with opened_in(tmp_path, threads) as log:
            threads.read(Read(b"job", 1, 1, {}, 0))
            spans = (await cuts.get()).spans
            positions = {slot: Position(end) for slot, (_, end, _) in spans.items()}
            threads.read(Read(b"job", 2, 1, positions, 0, due_us=AFTER_ALL, at_line=True))
            with log.open("ab") as file:
                file.write(LINE)
            spans |= (await cuts.get()).spans
            assert not threads._listening
            return [end - start for start, end, _ in spans.values()]

    threads = SourceThreads(a_host(cut), None)
    assert asyncio.run(follow()) == [len(LINE)]


@pytest.mark.parametrize("awaits_file", [False, True])
def test_a_job_that_waits_for_a_file_is_answered_once_a_second(tmp_path: Path, awaits_file: bool) -> None:
    """The job does not catch up meanwhile, and so asks again at once. Others of the source are not delayed."""

    async def ask() -> list[float]:
        with opened_in(tmp_path, threads), pytest.MonkeyPatch.context() as patch:
            (source,) = threads.sources.values()
            patch.setattr(source, "awaits_file", lambda job: awaits_file and job == b"job")
            delays: list[float] = []
            patch.setattr(
                asyncio.get_running_loop(), "call_later", lambda delay, *about: delays.append(delay)
            )
            patch.setattr(threads, "_read_now", lambda read: delays.append(0.0))
            threads.read(Read(b"job", 1, 1, {}, 0))
            threads.read(Read(b"job", 2, 1, {}, 0, lane=1))
            threads.read(Read(b"other", 1, 1, {}, 0))
            return delays

    host = a_host(lambda cut, now_us: ())
    host.node.seats[b"other"] = host.node.seats[b"job"]
    threads = SourceThreads(host, None)
    assert asyncio.run(ask()) == [REST_S if awaits_file else 0.0, 0.0, 0.0]


def test_a_still_log_is_left_alone_until_it_changes(tmp_path: Path) -> None:
    async def follow() -> list[int]:
        with opened_in(tmp_path, threads) as log:
            (source,) = threads.sources.values()
            threads.read(Read(b"job", 1, 1, {}, 0, due_us=NOW_US + 10_000_000))
            while not threads._resting:
                await asyncio.sleep(0)
            rested = [source.totals.lines, threads._rest_us("access", NOW_US)]
            with log.open("ab") as file:
                file.write(LINE)
            while source.totals.lines < 2:
                await asyncio.sleep(0)
            return rested

    threads = SourceThreads(a_host(lambda cut, now: (), flush_us=200_000, idle_grace_us=5_000_000), None)
    assert asyncio.run(follow()) == [1, 800_000], "the beat after that is a second later"


@pytest.mark.parametrize(
    ("due_us", "rest_us"), [(-4_000_000, 800_000), (-4_500_000, 300_000), (-4_900_000, 0), (-9_000_000, 0)]
)
def test_a_still_log_is_looked_at_when_it_reaches_the_next_cut(
    tmp_path: Path, due_us: int, rest_us: int
) -> None:
    """Its watermark is the clock, less the grace of an idle log."""
    threads = SourceThreads(a_host(lambda cut, now: (), flush_us=200_000, idle_grace_us=5_000_000), None)

    async def rest() -> int:
        with opened_in(tmp_path, threads):
            threads.sources["access"].read(
                Read(b"job", 1, 1, {}, 0), (line_of(plan_of(), 1, 0),), NOW_US, 0.0
            )
            threads._waiting["access"] = {b"other": Read(b"other", 2, 1, {}, 0, due_us=NOW_US + due_us)}
            return threads._rest_us("access", NOW_US)

    assert asyncio.run(rest()) == rest_us


@pytest.mark.parametrize("worker", [None, SimpleNamespace(schedule=())])
def test_a_job_that_was_started_again_has_not_asked_to_read(worker: Any) -> None:
    """The `Read` is of the worker before; the new one has no schedule yet, under which lines could be counted."""
    seat = SimpleNamespace(worker=worker)
    host: Any = SimpleNamespace(is_over=False, node=SimpleNamespace(seats={b"job": seat}))
    threads = SourceThreads(host, None)
    threads.read(Read(b"job", 1, 0, {}, 0))  # a source would be asked, and there is none


def test_a_beat_is_left_out_after_a_read_of_a_job_that_is_watched(tmp_path: Path) -> None:
    """It has read for all jobs. But once a second one of these has its turn, and one that is due is always asked."""
    cuts, now_us, asked = asyncio.Queue[Cut](), [NOW_US], list[list[int]]()

    def cut(cut: Cut, now_us: int) -> tuple[()]:
        cuts.put_nowait(cut)
        return ()

    async def beat() -> None:
        """One beat, after the job's own read."""
        threads.read(Read(b"job", 1, 1, {}, 0))
        await cuts.get()
        threads._beat("access")
        await asyncio.sleep(0)
        now_us[0] += 200_000

    async def follow() -> list[list[int]]:
        with opened_in(tmp_path, threads):
            threads._waiting["access"] = {b"other": Read(b"other", 2, 1, {}, 0, due_us=NOW_US + 10_000_000)}
            for _ in range(11):
                await beat()
            threads._waiting["access"] = {b"other": Read(b"other", 3, 1, {}, 0, due_us=NOW_US)}
            await beat()
        return asked

    def keep(name: str, some: list[tuple[Read, Any]], since_us: int, beat_us: int) -> asyncio.Future[Any]:
        asked.append([read.request for read, _ in some])
        done = asyncio.Future[Any]()
        done.set_result(Kept([], 0, now_us[0], is_still=False))
        return done

    host = a_host(cut, flush_us=200_000, idle_grace_us=5_000_000)
    host.clock_us = lambda: now_us[0]
    host.node.seats[b"other"] = host.node.seats[b"job"]
    threads = SourceThreads(host, None)
    threads._keep = keep  # type: ignore[assignment, method-assign]
    threads._schedule_beat = lambda name, **about: None  # type: ignore[method-assign]  # each is called here
    assert asyncio.run(follow()) == [[2], [2], [2], [3]]
