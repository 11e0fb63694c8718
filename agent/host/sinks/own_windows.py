"""The open windows of the jobs in an agent's own file, on its standard output: it watches these jobs itself, as `elf job watch`
does, so they are cut and published as fast as for any reader.

Their final windows come through the stream's ledger (`elf.agent.host.sinks.sink_host`), which keeps the next life from writing
them again; those of a job that the stream does not serve come from here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

from msgspec.structs import replace

from elf.agent.control import protocol as w
from elf.agent.host.own_jobs import LABEL
from elf.agent.node.mesh_node import MeshNode
from elf.errors import ElfError
from elf.jobmaster.delivery.shown import window_of
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.result import StreamClosed, Window
from elf.srt.codec import wire
from elf.srt.messages.ids import job_id
from elf.srt.messages.results import Put

LOOK_S = 0.1
"""How soon a job that was submitted is watched."""


class Host(Protocol):
    """What this needs of the process around a node."""

    @property
    def node(self) -> MeshNode: ...

    @property
    def service(self) -> Any: ...

    @property
    def sinks(self) -> Any: ...

    def end(self, error: Exception) -> None: ...


async def show_windows(host: Host, job: str, stream: str) -> None:
    """Write the windows of one job on that stream until this is cancelled, or the stream's reader has gone."""
    while True:
        try:
            if _spec(host, job) is not None:
                await _show(host, job, stream)
        except StreamClosed as error:
            host.end(error)
            return
        except ElfError:
            pass  # another one may have stopped the job meanwhile
        await asyncio.sleep(LOOK_S)


def _spec(host: Host, job: str) -> JobSpec | None:
    """Of the job if it runs, and is the one in the agent's file."""
    item = host.node.directory.get("job", job_id(job))
    spec = decode_job(item) if item is not None else None
    return spec if spec is not None and spec.label == LABEL and not spec.stopped else None


async def _show(host: Host, job: str, stream: str) -> None:
    async with aclosing(host.service.serve(w.JobWatch(job))) as answers:
        async for window in _windows(job, answers):
            spec = _spec(host, job)
            if window.status == "open" or (spec is not None and stream not in spec.sinks):
                await host.sinks.show(stream, window)


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
