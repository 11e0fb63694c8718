"""What a node keeps of a job whose seat failed: why, when it begins anew, and with which numbers.

In one sentence: failures go in; when the job is to be tried again, and what is said of it meanwhile, come out.

    phase    | is                                     | next
    ---------+----------------------------------------+-----------------------------------------------------------------------
    WAITING  | no seat; messages for it are dropped   | its time has come, and all that was written of it is durable: READING
    READING  | likewise; the disk is asked for what   | that came: SEATED, or it failed again: WAITING, twice as long
             | it holds of the job                    |
    SEATED   | a new seat works                       | it fails: WAITING, twice as long; `span_us_max` without: forgotten

Whoever sends messages at which the seat fails is refused after `STRIKES_MAX` of them, for as long as the job is known as failing:
of this job nothing is taken from it, and it hears so. What the process lacks, memory or room on a disk, is no fault of the job or
of who sent: it is told as that, and counts against nobody.

Memory: the empty seat, some 5 KB, and an entry for each neighbour that was told or has struck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import NO_BALLOT, Ballot, Failing

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
    """One job's. A core like others: it has a deadline. `spec`: as it was when the seat failed last."""

    def __init__(self, spec: JobSpec, span_us: int, span_us_max: int) -> None:
        self.spec = spec
        self.former: JobSeat | None = None
        """Empty; a new seat goes on with its numbers."""
        self.promise: Ballot = NO_BALLOT
        """The highest that was read back, where there was no seat that could have held it."""
        self.phase = Phase.WAITING
        self.reason = ""
        self.failures = 0
        self.deadline: int | None = None
        self.knows: set[NodeId] = set()
        """Neighbours that know this node to be away, on the links as they stand now."""
        self.refused: set[NodeId] = set()
        self._notified: set[NodeId] = set()  # neighbours that may know it
        self._strikes: Counter[NodeId] = Counter()
        self._span_us, self._span_us_max = span_us, span_us_max
        self._wait_us = 0

    @property
    def is_vacant(self) -> bool:
        return self.phase is not Phase.SEATED

    def failed(self, error: Exception, now: int, source: NodeId | None) -> bool:
        """Begin to wait. source: whose message it was, if one's. Whether the reason is another than the last time."""
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
        """Not yet: look again so soon."""
        self._wait(now, span_us)

    def hurry(self, spec: JobSpec, now: int) -> None:
        """The job is another one now, so what is known of it counts no more."""
        self.spec, self.failures, self.reason = spec, 0, ""
        if self.phase is Phase.WAITING:
            self._wait(now, 0)

    def read(self) -> None:
        """The disk is asked."""
        self.phase, self.deadline = Phase.READING, None

    def seated(self, now: int) -> list[NodeId]:
        """A new seat works: who is to hear it."""
        self.former, self.phase = None, Phase.SEATED
        self.deadline, self._wait_us = now + self._span_us_max, self._span_us_max
        return self._forget_notified(self._notified - self.refused)

    def notified(self, peers: Iterable[NodeId]) -> None:
        """These hear that this node is away."""
        self.knows.update(peers)
        self._notified.update(peers)

    def _forget_notified(self, peers: Collection[NodeId]) -> list[NodeId]:
        self.knows.difference_update(peers)
        self._notified.difference_update(peers)
        return sorted(peers)

    def forgive(self) -> list[NodeId]:
        """Nobody is refused any more: who is to hear that, if a seat works."""
        refused, self.refused = self.refused, set()
        self._strikes.clear()
        return self._forget_notified(refused & self._notified) if not self.is_vacant else []

    def again_us(self, now: int) -> int:
        """Until it is tried again; 0 where a seat works."""
        return max(1, (self.deadline or now) - now) if self.is_vacant else 0

    def report(self, now: int) -> Failing:
        """What others are told."""
        return Failing(self.spec.id, self.reason, self.failures, self.again_us(now))

    def clock_stepped(self, now: int) -> None:
        """The clock was set back."""
        if self.deadline is not None:
            self.deadline = min(self.deadline, now + self._wait_us)

    def tick(self, now: int) -> list[Effect]:
        """Whoever holds it looks at `phase`, and moves it on."""
        return []


def is_fault(error: Exception) -> bool:
    """Whether it is a bug: what the process or its disk lacks is nobody's."""
    return not isinstance(error, MemoryError | OSError)


def reason_of(error: Exception) -> str:
    """A failure on one line."""
    if isinstance(error, MemoryError):
        return "memory is short"
    if isinstance(error, ChildProcessError):
        return str(error.strerror or error)[:REASON_CHARS_MAX]
    if isinstance(error, OSError):
        return f"the disk: {error.strerror or error}"[:REASON_CHARS_MAX]
    lines = str(error).split("\n")
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")[:REASON_CHARS_MAX]
