"""The open windows of the jobs in an agent's own file, on its standard output: it watches these jobs itself, as `elf job watch`
does, so they are cut and published as fast as for any reader; but only while their log has lines, so a quiet log costs nothing.

Their final windows come through the stream's ledger (`elf.agent.host.sinks.sink_host`), which keeps the next life from writing
them again; those of a job that the stream does not serve come from here too.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from msgspec.structs import replace

from elf.agent.control import protocol as w
from elf.agent.host.own_jobs import LABEL
from elf.agent.node.mesh_node import MeshNode
from elf.agent.work.mesh_source import MeshSource
from elf.errors import ElfError
from elf.jobmaster.delivery.shown import window_of
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.result import StreamClosed, Window
from elf.srt.codec import wire
from elf.srt.messages.ids import job_id
from elf.srt.messages.results import Put

LOOK_S = 0.2
"""How soon a job is watched that was submitted, or whose log has lines again."""
QUIET_S = 10.0
"""How long a job is watched after its log's last line, and its last window: longer than any line is on its way."""


class Host(Protocol):
    """What this needs of the process around a node."""

    @property
    def node(self) -> MeshNode: ...

    @property
    def service(self) -> Any: ...

    @property
    def sinks(self) -> Any: ...

    @property
    def sources(self) -> Mapping[str, MeshSource]: ...

    def end(self, error: Exception) -> None: ...


class OwnWindows:
    """Those of one job on one stream."""

    def __init__(self, host: Host, job: str, stream: str) -> None:
        self._host, self._job, self._stream = host, job, stream
        self._shown = 0  # windows that came

    async def run(self) -> None:
        """Write the windows until this is cancelled, or the stream's reader has gone."""
        seen: object = None
        while True:
            if (present := self._present()) != seen:
                seen = await self._watch_until_quiet() if present is not None else None
            await asyncio.sleep(LOOK_S)

    def _present(self) -> object:
        """The job's spec, and how much of its log was read; None if the job of the agent's file does not run."""
        spec = self._spec()
        source = self._host.sources.get(spec.source) if spec is not None else None
        return (spec.number, source.counters.scans) if spec is not None and source is not None else None

    def _spec(self) -> JobSpec | None:
        item = self._host.node.directory.get("job", job_id(self._job))
        spec = decode_job(item) if item is not None else None
        return spec if spec is not None and spec.label == LABEL and not spec.stopped else None

    async def _watch_until_quiet(self) -> object:
        """Returns what was `_present` at the end."""
        loop = asyncio.get_running_loop()
        watch = asyncio.create_task(self._watch())
        last, since = (self._present(), self._shown), loop.time()
        try:
            while not watch.done() and loop.time() - since < QUIET_S:
                await asyncio.wait([watch], timeout=LOOK_S)
                if (now := (self._present(), self._shown)) != last:
                    last, since = now, loop.time()
        finally:
            watch.cancel()
            (error,) = await asyncio.gather(watch, return_exceptions=True)
        if isinstance(error, StreamClosed):
            self._host.end(error)
        elif isinstance(error, Exception) and not isinstance(error, ElfError):
            traceback.print_exception(
                error
            )  # a bug of ours: other jobs go on, and this one with its next lines
        return None if isinstance(error, ElfError) else last[0]

    async def _watch(self) -> None:
        """Raises StreamClosed; ElfError if the job has too many watchers, or was stopped meanwhile."""
        async with aclosing(self._host.service.serve(w.JobWatch(self._job))) as answers:
            async for window in _windows(self._job, answers):
                self._shown += 1
                spec = self._spec()
                if window.status == "open" or (spec is not None and self._stream not in spec.sinks):
                    await self._host.sinks.show(self._stream, window)


async def _windows(job: str, answers: AsyncIterator[w.Answer]) -> AsyncIterator[Window]:
    plans: dict[str, Plan] = {}
    first: Put | None = None  # the first part of a window: its fields hold for all parts
    rows: list[tuple[Any, ...]] = []
    async for answer in answers:
        if isinstance(answer, w.Versions):
            plans.update((version, plan_of(plan)) for version, plan in answer.plans.items())
        elif isinstance(answer, w.Published):
            put = wire.decode(answer.put)
            assert isinstance(put, Put), "the service sends windows only"
            first = first or put
            rows += put.rows
            if not answer.more:
                yield window_of(job, replace(first, rows=rows), plans[first.version])
                first, rows = None, []
