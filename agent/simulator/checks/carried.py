"""What may be unknown of windows that agents delivered to receivers elsewhere (rule Moving).

delivered, and a second later its master tells the agent that would take over
    the agent loses its disk before that      maybe no other knows that the receiver has the window
    by an agent on each side of a partition   the side whose master serves in the end does not know what the other delivered
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Ballot, Micros
from elf.srt.messages.results import Put

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Window = tuple[NodeId, JobId, str, Micros]
"""(sink, job, version, start)."""
UNSHARED_US = 2_000_000
"""A second until the message, and another in case that it is lost."""


class Carried:
    """receivers: the sinks to which agents deliver."""

    def __init__(self) -> None:
        self.receivers: set[NodeId] = set()
        self._unshared: set[Window] = set()

    def ledger_lost(self, counts: Mapping[Window, Sequence[tuple[int, int]]], now_us: int) -> None:
        """An agent that delivers has lost its disk. counts: (time, lines) of each publication."""
        mine: Iterable[Window] = (key for key in counts if key[0] in self.receivers)
        self._unshared |= {key for key in mine if counts[key][-1][0] > now_us - UNSHARED_US}

    def may_be_unknown(self, key: Window, put: Put, began: Ballot, line: Collection[Ballot]) -> bool:
        """Whether the master may not know that the receiver has that result. began: the ballot of the log's beginning. line: the
        masters that have served with it."""
        is_rival = put.revision[:2] >= began and put.revision[:2] not in line
        return key in self._unshared or (key[0] in self.receivers and is_rival)
