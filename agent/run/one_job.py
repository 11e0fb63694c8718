"""An agent that lives for one job, in this process: what `elf run --follow` runs. Its node is a mesh of one, as that of `elf
agent run` without `listen` is. Its state is in a temporary folder, and nothing reads it again.

    files, or a pipe -> Spool -> files ─► MeshSource ─► node ─► SinkHost ─► standard output, lakes

At the end, what was read is committed and shown: open windows as open; after the end of a pipe, all windows are final.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO

from msgspec.structs import replace

from elf.agent.config.config import AgentSection, Config, JobSection, SourceSection
from elf.agent.config.specs import MeshSection, SinkSection, own_sink
from elf.agent.control import protocol as w
from elf.agent.files.blocks import Block
from elf.agent.host.host import Host
from elf.agent.host.only_job import OnlyJob
from elf.agent.host.own_jobs import LABEL
from elf.agent.run.engine import EMIT_US, Lost, RunOptions, Summary
from elf.agent.run.outlet import Outlet
from elf.agent.run.spool import Spool
from elf.agent.work.mesh_source import MeshSource
from elf.errors import ElfError, StateError
from elf.jobmaster.delivery.shown import columns_of
from elf.jobmaster.directory.ending import end_of, finishing
from elf.jobmaster.directory.job_spec import ALL_TIME, JobSpec, decode_job
from elf.jobmaster.directory.versions import changed, started, version_of
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.result import HeadedSink, Sink
from elf.sinks.spec import SinkSpec
from elf.srt.codec import wire
from elf.srt.messages.ids import job_id
from elf.srt.messages.messages import Micros
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import Put

KEEP_US = 3_600_000_000
LOOK_S, END_LOOK_S = 0.05, 0.2
STILL_S = 0.4
"""All that was read is shown when nothing has changed for so long: two beats of a watched job."""
SETTLE_S_MAX = 1.5
"""Whoever ends the command in the middle of an old log waits no longer."""
CONSOLE = "console"


async def _lived(life: asyncio.Task[object], folder: Path) -> None:
    """Wait for the end of the agent. Raises ElfError, also where it could not write to its folder."""
    try:
        await life
    except StateError as error:
        why = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
        raise ElfError(
            f"{folder.parent}: {why}; a live query keeps its state there: name another folder with TMPDIR"
        ) from error


class OneJob:
    """`run` it once. options: with a lateness. lines: those of a pipe, instead of files; lost: called with what it lacks."""

    def __init__(
        self,
        options: RunOptions,
        outlet: Outlet,
        plan: Plan,
        notices: Callable[[str], None],
        *,
        lines: Iterator[Block] | None = None,
        lost: Lost | None = None,
    ) -> None:
        self._options, self._outlet, self._plan, self._notices = options, outlet, plan, notices
        self._lines, self._lost = lines, lost or Lost(lambda _: None)
        self._began = time.monotonic()
        self._open: set[tuple[str, Micros]] = set()
        """Windows that are not final, by version and start, as a watcher sees them at the end."""
        self._shown = self._late = 0
        self._has_drawn = False

    def run(self, stop: Event) -> Summary:
        """Run until `stop` is set, the pipe is over, or --until is past. Raises StreamClosed."""
        with tempfile.TemporaryDirectory(prefix="elf-run-") as folder, asyncio.Runner() as runner:
            return runner.run(self._run(Path(folder), stop))

    async def _run(self, folder: Path, stop: Event) -> Summary:
        spool = None if self._lines is None else Spool(self._lines, folder / "input")
        notices = self._notices if spool is None else spool.named(self._notices)
        host = Host(self._config(folder, spool), None, None, notices, only=self._only())
        over = asyncio.Event()
        life = asyncio.create_task(host.run(over))
        asked = asyncio.create_task(asyncio.to_thread(stop.wait))
        ends = [asyncio.create_task(each) for each in self._ends(host, spool)]
        try:
            await asyncio.wait({life, asked, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not life.done() and host.is_serving:
                is_over = any(end.done() and end.exception() is None for end in ends)
                await self._settle(host, asked, is_over=is_over and not self._lost.what)
        finally:
            over.set()
            if not asked.done():
                stop.set()  # for the thread that waits for it
            for end in ends:
                end.cancel()
            if spool is not None:
                spool.close()
            await _lived(life, folder)
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
        self._draw_head()
        return self._summary(host)

    def _ends(self, host: Host, spool: Spool | None) -> Iterator[Coroutine[Any, Any, None]]:
        """What ends the run, beside a signal."""
        if spool is not None:
            yield self._is_read(host, spool)
        if self._options.until_us is not None:
            yield self._has_ended(host)

    # The agent.

    def _only(self) -> OnlyJob:
        options, now_us = self._options, time.time_ns() // 1_000
        assert options.lateness_us is not None
        sinks = tuple(each.name for each in self._sinks() if self._plan.window is not None)
        since_us = ALL_TIME if options.since_us is None else options.since_us
        spec = JobSpec(
            options.job,
            1,
            options.source,
            (version_of(self._plan, options.query),),
            lateness_us=options.lateness_us,
            keep_us=KEEP_US,
            sinks=sinks,
            line_us=since_us,
            since_us=since_us,
            emit_us=options.emit_us,
            label=LABEL,
        )
        spec = started(spec, now_us)
        if options.until_us is not None:
            spec = finishing(spec, options.until_us, None)
        return OnlyJob(spec, self._draw)

    def _sinks(self) -> list[SinkSection]:
        lakes = [own_sink(SinkSpec("parquet", folder)) for folder in self._outlet.lakes]
        if self._outlet.new is None:
            return lakes
        return [SinkSection(CONSOLE, console="auto", shows_open=self._outlet.is_open), *lakes]

    def _config(self, folder: Path, spool: Spool | None) -> Config:
        options = self._options
        paths = options.files if spool is None else (spool.pattern,)
        source = SourceSection(options.source, paths, options.format, options.timezone, "beginning")
        sinks = tuple(self._sinks())
        job = JobSection(
            options.job, options.query, None, options.emit_us, KEEP_US, tuple(each.name for each in sinks), ""
        )
        agent = AgentSection(os.uname().nodename or "agent", folder / "state", options.memory_max)
        mesh = MeshSection(None, None, (), "none", None, Parameters(), sinks=sinks)
        return Config(folder, agent, (source,), (job,), mesh)

    # The end.

    async def _is_read(self, host: Host, spool: Spool) -> None:
        """Wait until the pipe is over, and all of it was read."""
        while not host.is_serving:
            await asyncio.sleep(LOOK_S)
        counters = self._source(host).counters
        spool.begin(lambda: counters.parsed_bytes)
        await spool.is_read()

    async def _has_ended(self, host: Host) -> None:
        """Wait until the job has ended: all its windows are final, and the sinks have them."""
        while (spec := self._spec(host)) is None or not spec.stopped:
            await asyncio.sleep(END_LOOK_S)

    def _spec(self, host: Host) -> JobSpec | None:
        item = host.node.directory.get("job", job_id(self._options.job)) if host.is_serving else None
        return None if item is None else decode_job(item)

    async def _settle(self, host: Host, asked: asyncio.Task[bool], *, is_over: bool) -> None:
        """Have all that was read committed and shown. is_over: no further line will come, so all windows are final."""
        if is_over and self._plan.window is not None:
            finish = asyncio.create_task(self._finish(host))
            await asyncio.wait({asked, finish}, return_when=asyncio.FIRST_COMPLETED)
            finish.cancel()
            await asyncio.gather(finish, return_exceptions=True)
        elif self._outlet.is_open and self._options.emit_us > EMIT_US:
            await self._change(host, emit_us=EMIT_US)
        watch = asyncio.create_task(self._watch(host))
        until, still_s, last = time.monotonic() + SETTLE_S_MAX, time.monotonic(), None
        while (now_s := time.monotonic()) < until and now_s - still_s < STILL_S:
            if (present := self._present(host)) != last:
                last, still_s = present, now_s
            await asyncio.sleep(LOOK_S)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    def _present(self, host: Host) -> object:
        """What changes as long as anything is on its way."""
        seat = host.node.seats.get(job_id(self._options.job))
        source = self._source(host)
        if seat is not None and seat.master is not None:
            self._late = seat.master.state.late
        stored = (host.sinks.stored, host.sinks.queued_bytes) if host.sinks is not None else None
        return source.counters.parsed_bytes, self._shown, stored

    async def _finish(self, host: Host) -> None:
        """End the job after its last line, without lateness."""
        source = self._source(host)
        source.idle_grace_us = 0
        if source.latest_us is not None:
            await self._change(host, source.latest_us + 1, lateness_us=0)
            await self._has_ended(host)

    async def _change(self, host: Host, end_us: Micros | None = None, **settings: int) -> None:
        """Change the job's settings, and perhaps have it end at that time; not if it ends anyway."""
        number = 0
        while (spec := self._spec(host)) is not None and not (spec.is_finishing or spec.stopped):
            held = await self._ask(host, w.JobGet(spec.name))
            assert isinstance(held, w.JobHeld)
            last, at = spec.versions[-1], end_us if end_us is not None else held.now_us
            version, new = (last if end_us is None else end_of(last)), replace(spec.settings, **settings)
            number = max(number, held.next)
            item = changed(spec, version, "split", at, held.schedule, number, settings=new).item()
            answer = await self._ask(host, w.JobChange(item))
            if not isinstance(answer, w.Refused):
                return
            number = answer.next  # the master is of a later term: its lake knew a higher one
            await asyncio.sleep(LOOK_S)

    async def _ask(self, host: Host, request: w.JobGet | w.JobChange) -> w.Answer:
        async with aclosing(host.service.serve(request)) as answers:
            return await anext(answers)

    async def _watch(self, host: Host) -> None:
        """Note which windows are not final."""
        async with aclosing(host.service.serve(w.JobWatch(self._options.job))) as answers:
            async for answer in answers:
                if not isinstance(answer, w.Published):
                    continue
                put = wire.decode(answer.put)
                assert isinstance(put, Put)
                self._shown += 1
                if put.status == "open":
                    self._open.add((put.version, put.start))
                else:
                    self._open.discard((put.version, put.start))

    # What is left to say.

    def _draw(self, stream: BinaryIO | None) -> Sink:
        assert self._outlet.new is not None
        self._has_drawn = True
        return self._outlet.new(stream)

    def _draw_head(self) -> None:
        """Without any window, at least the names of the columns."""
        if self._has_drawn or self._outlet.new is None:
            return
        sink = self._outlet.new(None)
        if isinstance(sink, HeadedSink):
            sink.begin(columns_of(self._plan))
        sink.close()

    def _source(self, host: Host) -> MeshSource:
        return host.sources[self._options.source]

    def _summary(self, host: Host) -> Summary:
        if not host.is_serving:
            return Summary(columns=columns_of(self._plan))
        source, seconds = self._source(host), time.monotonic() - self._began
        totals = source.totals
        return Summary(
            files=len(source.formats.chosen) if self._lines is None else 1,
            lines=totals.lines,
            parsed=totals.parsed,
            rejected=totals.rejected,
            late=self._late,
            spilled_bytes=host.budget.spilled_total,
            not_converted=dict(totals.lost),
            invalid_utf8=totals.invalid_utf8,
            seconds=seconds,
            reading_s=seconds,
            rejects=dict(totals.rejects),
            samples=tuple(totals.samples),
            rejected_in=totals.rejected_in,
            formats=source.formats.chosen,
            columns=columns_of(self._plan),
            lost=tuple(self._lost.what),
            open=len(self._open),
        )
