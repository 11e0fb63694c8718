"""What a master has proposed and the log does not have yet, and the answers that wait for it.

`ahead` is what positions, roster and schedule will be once all of it is in the log: bundles are judged against that, so that a
second one does not wait for the first. What is said to others waits behind the entries that were proposed before it (rule 6*).

Prior art: the commit rule is that of a log of a replicated state machine (Viewstamped Replication).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from elf.jobmaster.log.entries import Accept, AnyEntry
from elf.jobmaster.log.positions import Positions
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.jobmaster.windows.windows import starts_of
from elf.srt.messages.messages import Micros

ROOM_KEPT = 16
"""Entries that bundles, windows and workers leave to changes of the job and to retention."""

Answer = Callable[..., None]


class Proposals:
    """propose: puts an entry into the log and returns its index. room: how many more may be proposed now; without room bundles
    wait. index: of the last entry that the log has.

    Invariants (`check`): answers wait in the order of the log, and `nbytes` is what was weighed and is not committed.
    """

    def __init__(
        self,
        positions: Positions,
        index: int,
        bytes_max: int,
        propose: Callable[[AnyEntry], int],
        room: Callable[[], int],
    ) -> None:
        self.ahead = Positions.of(positions.snapshot())
        self.nbytes = 0
        self.room = room
        self._propose, self._bytes_max = propose, bytes_max
        self._proposed = self._committed = index
        self._answers: deque[tuple[int, Answer, tuple[Any, ...]]] = deque()
        self._weighed: deque[tuple[int, int, AnyEntry]] = deque()  # (index, bytes, what it is)

    @property
    def is_empty(self) -> bool:
        """Whether the log has all."""
        return self._committed == self._proposed

    @property
    def has_room(self) -> bool:
        """Whether the log takes more: replicas that are slow make bundles wait."""
        return self.room() > ROOM_KEPT and self.nbytes <= self._bytes_max

    def propose(self, entry: AnyEntry, nbytes: int = 0) -> int:
        """Propose an entry; returns its index."""
        self._proposed = self._propose(entry)
        self.ahead.apply(entry)
        if nbytes:
            self._weighed.append((self._proposed, nbytes, entry))
            self.nbytes += nbytes
        return self._proposed

    def first_start(self) -> Micros:
        """Where the first window begins that lines on their way into the log are in; of windows that are retained. O(rows)."""
        first = AFTER_ALL
        for _, _, entry in self._weighed:
            for version, part in entry.parts.items() if isinstance(entry, Accept) else ():
                shape = self.ahead.shapes.get(version)
                if shape is not None and shape.pane_us:
                    panes = part.rows[1].pane
                    panes = panes[panes + shape.pane_us > self.ahead.retained_us]
                    if len(panes):
                        first = min(first, *starts_of(int(panes[0]), shape.size_us, shape.slide_us))
        return first

    def when_committed(self, answer: Answer, *about: Any) -> None:
        """Rule 6*: nothing is acknowledged, multicast or published before all that is proposed by now is in the log."""
        if self._proposed <= self._committed:
            answer(*about)
        else:
            self._answers.append((self._proposed, answer, about))

    def committed(self, index: int) -> None:
        """The log has that entry, and it counts: what waited for it is said."""
        self._committed = index
        while self._weighed and self._weighed[0][0] <= index:
            self.nbytes -= self._weighed.popleft()[1]
        while self._answers and self._answers[0][0] <= index:
            _, answer, about = self._answers.popleft()
            answer(*about)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        self.ahead.check()
        assert self._committed <= self._proposed
        indices = [index for index, _, _ in self._answers]
        assert indices == sorted(indices)
        assert self.nbytes == sum(nbytes for _, nbytes, _ in self._weighed)
