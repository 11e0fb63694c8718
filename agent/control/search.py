"""How an agent finds the master of a job."""

from __future__ import annotations

from elf.agent.control.survey import WAIT_US
from elf.srt.messages.effects import Effect, Route
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Message, Micros, TreeReport, TreeRequest

MASTER_US_MAX = 5_000_000
"""Time within which a job whose master died has another one."""


class Search:
    """Looks for the master of a job: routes a request towards the job's id, repeatedly, until a serving master answers."""

    def __init__(self, job: JobId, number: int, now: Micros) -> None:
        self.found: NodeId | None = None
        self._ask, self._begun = TreeRequest(job, number), now
        self._due: int | None = None

    def step(self, source: NodeId, message: Message, now: Micros) -> None:
        if isinstance(message, TreeReport) and message.serving:
            self.found = source

    def tick(self, now: Micros) -> list[Effect]:
        if self._due is not None and now < self._due <= now + WAIT_US:
            return []
        self._due = now + WAIT_US
        return [Route(self._ask.job, self._ask)]

    @property
    def deadline(self) -> int | None:
        return self._due

    def is_over(self, now: Micros) -> bool:
        return not self._begun <= now < self._begun + MASTER_US_MAX
