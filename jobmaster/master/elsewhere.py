"""Which windows another master may have called final, unknown to the log: as far as workers have promised to it.

A master that is taken for dead may go on, with workers that still report to it. A window needs more than half of those who are
expected, there as here; so of the windows that both call final, somebody has promised to the one and then to the other, under a
higher ballot, never again under the lower one. Its first bundles for each master tell what it had promised to others by then
(`Bundle.elsewhere`), and who begins to serve calls nothing final that is not whole before more than half have reported.
"""

from __future__ import annotations

from collections.abc import Collection

from elf.jobmaster.log.schedule import BEFORE_ALL
from elf.srt.messages.messages import NO_BALLOT, Ballot, Bundle, Micros


class Elsewhere:
    """What the master of `ballot` has heard. slack_us: no worker's clock is further ahead."""

    def __init__(self, ballot: Ballot, slack_us: int) -> None:
        self.until_us: Micros = BEFORE_ALL
        """So far workers have promised to such masters."""
        self._ballot, self._slack_us = ballot, slack_us

    def heard(self, bundle: Bundle, whole: Collection[Ballot], is_new: bool, now: int) -> None:
        """Before anything that its workers promise here counts. whole: masters that said nothing which is not in the log. is_new:
        some may be in a life of which this master has not heard, and not know what a former one promised."""
        for ballot, mark in bundle.elsewhere:
            counts = is_new if ballot == NO_BALLOT else ballot not in whole
            if counts and ballot != self._ballot:
                self.until_us = max(self.until_us, min(mark, now + self._slack_us))

    def may_have(self, due_us: Micros) -> bool:
        """Rule Final*: whether a window that is due once that is promised may be final for readers of another master."""
        return due_us <= self.until_us
