"""How often the worker of one job cuts its source: as its readers need.

While somebody reads open windows, a worker cuts at each multiple of flush_us, and at once when a line ends a pause. Otherwise
it leaves lines in its source until the watermark there closes a window, or for unsent_us_max; so a window costs one bundle a
hop. Interest comes down the tree with each `Path`, which is repeated as a sign of life: a lost one is repaired by the next, and
without news a worker cuts fast.

Cuts out of beat do not merge on their way to the root. So a pause is as many beats as there are workers: together they cut out of
beat no more often than there are beats, however large the tree is.
"""

from __future__ import annotations

from elf.srt.messages.messages import NO_BALLOT, Ballot
from elf.srt.messages.parameters import Parameters


class Cadence:
    """is_watched: whether somebody reads open windows. ballot: the highest that came down the tree. pause_us: see above."""

    __slots__ = ("_parameters", "ballot", "is_watched", "pause_us")

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.is_watched = True
        self.ballot: Ballot = NO_BALLOT
        self.pause_us = parameters.flush_us

    def hear(self, is_watched: bool, ballot: Ballot, workers: int) -> bool:
        """What the parent announced; workers: of the tree. Returns whether it is a reason to cut at once: somebody began to
        watch, or there is another master, which counts only bundles that were cut under its ballot."""
        is_news = (is_watched and not self.is_watched) or ballot > self.ballot
        self.is_watched, self.ballot = is_watched, max(self.ballot, ballot)
        self.pause_us = max(workers, 1) * self._parameters.flush_us
        return is_news

    def next_beat(self, now: int) -> int:
        """At multiples of the interval, so that the bundles of all workers reach the reducers together."""
        return (now // self._parameters.flush_us + 1) * self._parameters.flush_us
