"""The bundles that reach a master at one beat.

Workers of a job that is watched cut at the same beat, and their bundles reach the root within some milliseconds of each other.
The master takes them together: so a beat costs one entry of the log and one publication, however many children the root has.
Until then they wait as if they were still on their way, so it makes no difference to what is accepted. As in a reducer, the
watermark of the entry is the lowest of them; so an open window may count fewer agents as passed, and a final one counts all.

    arrives                                | then
    ---------------------------------------+----------------------------------------------------------------------------
    from the last steady sender due        | the round is over
    from another, none of them is due      | the round is over at once: after a pause, a line does not wait
    from another                           | it waits for those that are due, until half a beat after the beat at most
    more than `bytes_max` in all           | the round is over

A sender is steady if its last two bundles came a beat apart; it is due if the last one came between half a beat and one and a
half before the round began.
"""

from __future__ import annotations

from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Bundle, Micros
from elf.srt.messages.sizes import bundle_bytes


class Round:
    """Bundles that have arrived and were not taken. beat_us: between two cuts of a worker that is watched."""

    def __init__(self, beat_us: Micros, bytes_max: int) -> None:
        self._beat_us, self._bytes_max = beat_us, bytes_max
        self._bundles: list[tuple[NodeId, Bundle]] = []
        self._nbytes = 0
        self._began_us = self._until_us = 0
        self._due: set[NodeId] = set()
        self._last_us: dict[NodeId, Micros] = {}
        self._steady: set[NodeId] = set()

    def add(self, child: NodeId, bundle: Bundle, now: int) -> None:
        """A bundle has arrived. O(senders) for the first one of a round."""
        if not self._bundles:
            self._begin(now)
        self._bundles.append((child, bundle))
        self._nbytes += bundle_bytes(bundle)
        self._due.discard(child)
        is_steady = self._is_recent(self._last_us.get(child, 0), now)
        (self._steady.add if is_steady else self._steady.discard)(child)
        self._last_us[child] = now

    def _is_recent(self, at: Micros, now: int) -> bool:
        return 0 <= now - at <= self._beat_us * 3 // 2

    def _begin(self, now: int) -> None:
        self._began_us, self._until_us = now, now // self._beat_us * self._beat_us + self._beat_us // 2
        self._last_us = {child: at for child, at in self._last_us.items() if self._is_recent(at, now)}
        self._steady &= self._last_us.keys()
        self._due = {child for child in self._steady if self._last_us[child] <= now - self._beat_us // 2}

    def is_over(self, now: int) -> bool:
        """Whether the bundles are to be taken now."""
        if not self._bundles:
            return False
        has_all = not self._due or self._nbytes > self._bytes_max
        return has_all or not self._began_us <= now < self._until_us

    @property
    def is_joined(self) -> bool:
        """Whether more than one bundle waits."""
        return len(self._bundles) > 1

    def take(self) -> list[tuple[NodeId, Bundle]]:
        """(sender, bundle) in the order of arrival; the round is over."""
        taken, self._bundles, self._nbytes = self._bundles, [], 0
        return taken

    @property
    def deadline(self) -> Micros | None:
        """When the round is over at the latest; None: there is none."""
        return max(self._began_us, self._until_us) if self._bundles else None
