"""Entries that a master has proposed and that are not committed yet, and the answers that wait for them.

`ahead` holds the positions, roster and schedule after all proposed entries. Bundles are compared with it, so that a second bundle
need not wait until the first is committed. Messages to other nodes wait for the entries that were proposed before (rule 6*).

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
"""The number of entries that are reserved for changes of the job and for retention."""

Answer = Callable[..., None]


class Proposals:
    """propose: appends an entry to the log and returns its index. room: the number of entries that may be proposed now; without
    room bundles wait. index: the index of the log's last entry.

    Invariants (`check`): answers wait in the order of the log, and `nbytes` is the size of the proposed bundles.
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
        self._weighed: deque[tuple[int, int, AnyEntry]] = deque()  # (index, bytes, entry)

    @property
    def is_empty(self) -> bool:
        """Whether all proposed entries are committed."""
        return self._committed == self._proposed

    @property
    def has_room(self) -> bool:
        """Whether bundles may be proposed; they wait while replicas are slow."""
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
        """The start of the first retained window that has proposed lines. O(rows)."""
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
        """Rule 6*: call `answer`, which acknowledges, multicasts or publishes, when all entries proposed by now are committed."""
        if self._proposed <= self._committed:
            answer(*about)
        else:
            self._answers.append((self._proposed, answer, about))

    def committed(self, index: int) -> None:
        """The entry `index` is committed: call the answers that waited for it."""
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
