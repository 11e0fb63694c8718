"""Answers requests of other agents for estimates: one at a time, in a thread of its own, beside the agent's jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Protocol

from elf.agent.config.config import Config
from elf.agent.node.mesh_node import MeshNode, Outer
from elf.agent.work.estimate import estimate
from elf.errors import ElfError
from elf.srt.messages.bounded import put_last
from elf.srt.messages.effects import Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.reports import PROBLEM_CHARS_MAX, EstimateReport, EstimateRequest

PAUSE_S = 0.2
"""Between two estimates: whoever asks, they take a tenth of a core at most."""
ANSWERS_MAX = 16
"""Answers that are kept for requests that are repeated."""


class Host(Protocol):
    """What `Estimates` needs of the process around a node."""

    node: MeshNode
    is_over: bool

    def clock_us(self) -> int: ...

    def perform(self, effects: Sequence[Outer]) -> None: ...


class Estimates:
    """On the loop of its host. While one estimate is made, other requests are dropped; they are repeated."""

    def __init__(self, host: Host, config: Config, flush_us: int, opened: ExitStack) -> None:
        self._host, self._flush_us, self._agent = host, flush_us, config.agent.name
        self._sources = {section.name: section for section in config.sources}
        self._thread = ThreadPoolExecutor(1, "elf-estimate")
        self._is_busy = False
        self._answers: dict[tuple[NodeId, int], EstimateReport] = {}
        opened.callback(self._thread.shutdown, wait=False, cancel_futures=True)

    def take(self, source: NodeId, request: EstimateRequest) -> None:
        """A request of that node."""
        loop, known = asyncio.get_running_loop(), self._answers.get((source, request.number))
        if known is not None:
            loop.call_soon(self._send, source, known)
        elif not self._is_busy:
            self._is_busy = True
            future = loop.run_in_executor(self._thread, self._made(request))
            future.add_done_callback(partial(self._done, source))

    def _made(self, request: EstimateRequest) -> Callable[[], EstimateReport]:
        section, number = self._sources.get(request.source), request.number
        now_us = self._host.clock_us()

        def make() -> EstimateReport:
            if section is None:
                return EstimateReport(number, problem=f"it has no source {request.source}")
            about = (section.paths, section.format, section.timezone, self._agent)
            try:
                return EstimateReport(number, *estimate(*about, request.plan, self._flush_us, now_us))
            except (ElfError, OSError) as error:
                return EstimateReport(number, problem=str(error)[:PROBLEM_CHARS_MAX])

        return make

    def _free(self) -> None:
        self._is_busy = False

    def _done(self, source: NodeId, done: asyncio.Future[EstimateReport]) -> None:
        asyncio.get_running_loop().call_later(PAUSE_S, self._free)
        if not done.cancelled() and not self._host.is_over:
            report = done.result()
            put_last(self._answers, (source, report.number), report, ANSWERS_MAX)
            self._send(source, report)

    def _send(self, to: NodeId, report: EstimateReport) -> None:
        if not self._host.is_over:
            self._host.perform(self._host.node.carry([Send(to, report)], self._host.clock_us()))
