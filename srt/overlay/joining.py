"""A node's attempts to join a mesh through its seeds.

    state     entered when                             next
    --------  ---------------------------------------  ----------------------------------------------------------------
    joined    no seeds; the leaf set has answered, or  `begin` with seeds: joining
              a probe period has passed
    joining   `begin` with seeds                       an attempt at each `retry_at`, with a wait that doubles up to
                                                       `JOIN_BACKOFF_MAX`; `answered`: settling, or joined
    settling  a seed's mesh has answered               `settled`, or a probe period has passed: joined

Times are lived µs (see `elf.srt.overlay.membership`). A node that settles may `begin` again with further seeds; then both
deadlines run.
"""

from __future__ import annotations

from collections.abc import Iterable

from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact

JOIN_BACKOFF_MAX = 16
"""The longest wait between attempts of a node whose joins are not answered, in multiples of `retry_us`: 8 s."""


class Joining:
    """retry_at: of the next attempt, while joining. settled_at: end of settling."""

    __slots__ = ("_retry_us", "_wait_us", "retry_at", "seeds", "settled_at")

    def __init__(self, retry_us: int) -> None:
        self._retry_us = self._wait_us = retry_us
        self.seeds: tuple[Contact, ...] = ()
        """In the order in which they are asked."""
        self.retry_at: int | None = None
        self.settled_at: int | None = None

    @property
    def is_joined(self) -> bool:
        """Whether the node is joined; also True while joining, once the longest wait is reached without an answer."""
        if self.retry_at is None:
            return self.settled_at is None
        return self._wait_us >= self._wait_us_max

    @property
    def _wait_us_max(self) -> int:
        return JOIN_BACKOFF_MAX * self._retry_us

    @property
    def due(self) -> int | None:
        """When an attempt is due, or settling ends."""
        if self.retry_at is None or self.settled_at is None:
            return self.settled_at if self.retry_at is None else self.retry_at
        return min(self.retry_at, self.settled_at)

    def begin(self, seeds: Iterable[Contact], me: NodeId) -> None:
        """Use these seeds from now on, without `me`."""
        self.seeds = tuple(seed for seed in seeds if seed.id != me)

    def attempt(self, lived: int) -> Contact:
        """The seed to ask now. Call it only while there are seeds."""
        seed = self.seeds[0]
        self.seeds = (*self.seeds[1:], seed)
        self.retry_at = lived + self._wait_us
        self._wait_us = min(2 * self._wait_us, self._wait_us_max)
        return seed

    def answered(self, settled_at: int | None) -> None:
        """A seed's mesh has answered. `settled_at`: end of settling; None: the leaf set that it named needs no answers."""
        if self.retry_at is not None:
            self.retry_at, self.settled_at, self._wait_us = None, settled_at, self._retry_us

    def settled(self) -> None:
        """The leaf set has answered, or had the time to."""
        self.settled_at = None

    def stop(self) -> None:
        """The mesh is known: no attempts, no settling."""
        self.retry_at = self.settled_at = None
