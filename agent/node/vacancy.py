"""A job whose seat failed at this node: the reason, when to start it again, and with which numbers.

In one sentence: failures go in; the time of the next start, and the report about the job until then, come out.

    phase    | meaning                                | next
    ---------+----------------------------------------+-----------------------------------------------------------------------
    WAITING  | no seat; messages for it are dropped   | the wait is over, and all writes of the job are durable: READING
    READING  | likewise; the job's records are read   | they are read: SEATED; or it failed again: WAITING, twice as long
             | from the disk                          |
    SEATED   | a new seat works                       | it fails: WAITING, twice as long; no failure for `span_us_max`: forgotten

A neighbour is refused after `STRIKES_MAX` messages that made the seat fail, as long as the job counts as failing: this node
accepts no message of this job from it, and notifies it. A lack of memory or disk space is no fault of the job or of a sender: it
is reported as such, and counts against no neighbour.

Memory: the empty seat, some 5 KB, and an entry for each neighbour that was notified or sent such a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from elf.jobmaster.directory.limits import LimitPassed
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId, short
from elf.srt.messages.messages import NO_BALLOT, Ballot
from elf.srt.messages.reports import Failing

if TYPE_CHECKING:
    from elf.agent.node.job_seat import JobSeat
    from elf.jobmaster.directory.job_spec import JobSpec

STRIKES_MAX = 3
REASON_CHARS_MAX = 300


class Phase(Enum):
    WAITING = "waiting"
    READING = "reading"
    SEATED = "seated"


class Vacancy:
    """The vacancy of one job. It has a deadline, as cores have. `spec`: as of the last failure."""

    def __init__(self, spec: JobSpec, span_us: int, span_us_max: int) -> None:
        self.spec = spec
        self.former: JobSeat | None = None
        """The former seat, emptied; a new seat continues its numbers."""
        self.promise: Ballot = NO_BALLOT
        """The highest promised ballot in the records, if the job failed before a seat could hold it."""
        self.phase = Phase.WAITING
        self.reason = ""
        self.failures = 0
        self.deadline: int | None = None
        self.knows: set[NodeId] = set()
        """Neighbours that were notified over their present link that this node is away."""
        self.refused: set[NodeId] = set()
        self._notified: set[NodeId] = set()  # neighbours that may know it, also over earlier links
        self._strikes: Counter[NodeId] = Counter()
        self._span_us, self._span_us_max = span_us, span_us_max
        self._wait_us = 0

    @property
    def is_vacant(self) -> bool:
        return self.phase is not Phase.SEATED

    def failed(self, error: Exception, now: int, source: NodeId | None) -> bool:
        """Begin to wait. source: the sender, if a message made the seat fail. Returns whether the reason differs from the last
        one."""
        reason = reason_of(error)
        is_news, self.reason = reason != self.reason, reason
        self.failures += 1
        if source is not None and is_fault(error):
            self._strikes[source] += 1
            if self._strikes[source] >= STRIKES_MAX:
                self.refused.add(source)
        self._wait(now, min(self._span_us << min(self.failures - 1, 40), self._span_us_max))
        return is_news

    def _wait(self, now: int, span_us: int) -> None:
        self.phase, self.deadline, self._wait_us = Phase.WAITING, now + span_us, span_us

    def put_off(self, now: int, span_us: int) -> None:
        """The job cannot start yet: try again after that span."""
        self._wait(now, span_us)

    def hurry(self, spec: JobSpec, now: int) -> None:
        """The job has changed: reset its failures, and try it at once."""
        self.spec, self.failures, self.reason = spec, 0, ""
        if self.phase is Phase.WAITING:
            self._wait(now, 0)

    def read(self) -> None:
        """The job's records are being read."""
        self.phase, self.deadline = Phase.READING, None

    def seated(self, now: int) -> list[NodeId]:
        """A new seat has started. Returns the neighbours to notify."""
        self.former, self.phase = None, Phase.SEATED
        self.deadline, self._wait_us = now + self._span_us_max, self._span_us_max
        return self._forget_notified(self._notified - self.refused)

    def notified(self, peers: Iterable[NodeId]) -> None:
        """These neighbours are notified that this node is away."""
        self.knows.update(peers)
        self._notified.update(peers)

    def _forget_notified(self, peers: Collection[NodeId]) -> list[NodeId]:
        self.knows.difference_update(peers)
        self._notified.difference_update(peers)
        return sorted(peers)

    def forgive(self) -> list[NodeId]:
        """Refuse no neighbour any more. Returns the former refused ones to notify; none while the job is vacant."""
        refused, self.refused = self.refused, set()
        self._strikes.clear()
        return self._forget_notified(refused & self._notified) if not self.is_vacant else []

    def again_us(self, now: int) -> int:
        """Microseconds until the job is tried again; 0 if a seat works."""
        return max(1, (self.deadline or now) - now) if self.is_vacant else 0

    def described(self, error: Exception, now: int) -> str:
        """The failure, its cause, and when the job starts again, for people."""
        if isinstance(error, LimitPassed):
            blame = "over a limit"
        elif is_fault(error):
            blame = "a bug of elf: please report it with the traceback"
        else:
            blame = "not a fault of the job"
        refused = ", ".join(short(node) for node in sorted(self.refused))
        text = (
            f"job {self.spec.name} failed here ({self.reason}), {blame}; other jobs continue, and this one starts again in "
            f"{self.again_us(now) / 1e6:.0f} s, at this agent, from its records on disk"
        )
        return f"{text}; its messages from {refused} are no longer accepted" if refused else text

    def report(self, now: int) -> Failing:
        """The report about this job for a status."""
        return Failing(self.spec.id, self.reason, self.failures, self.again_us(now))

    def clock_stepped(self, now: int) -> None:
        """The clock was set back."""
        if self.deadline is not None:
            self.deadline = min(self.deadline, now + self._wait_us)

    def tick(self, now: int) -> list[Effect]:
        """Nothing to do: the owner checks `phase` when the deadline has come."""
        return []


def is_fault(error: Exception) -> bool:
    """Whether the error is a bug, and not a lack of memory or disk space, or a limit of the job."""
    return not isinstance(error, MemoryError | OSError | LimitPassed)


def reason_of(error: Exception) -> str:
    """The reason of a failure, on one line."""
    if isinstance(error, MemoryError):
        return "memory is short"
    if isinstance(error, LimitPassed):
        return str(error)[:REASON_CHARS_MAX]
    if isinstance(error, ChildProcessError):
        return str(error.strerror or error)[:REASON_CHARS_MAX]
    if isinstance(error, OSError):
        return f"the disk: {error.strerror or error}"[:REASON_CHARS_MAX]
    lines = str(error).split("\n")
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")[:REASON_CHARS_MAX]
