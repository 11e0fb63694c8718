"""Which windows another master may have published as final although the log lacks them: those due by the watermarks that workers
promised to that master.

A master that is suspected to be dead may continue with workers that still report to it. Both masters need more than half of the
expected workers for a window. So if both publish it as final, some worker has promised to one master and then, under a higher
ballot, to the other, and never again under the lower ballot. A worker's first bundles for each master report what it had promised
to others by then (`Bundle.elsewhere`), and a new master publishes no partial window as final before more than half have reported.
"""

from __future__ import annotations

from collections.abc import Collection

from elf.jobmaster.log.schedule import BEFORE_ALL
from elf.srt.messages.messages import NO_BALLOT, Ballot, Bundle, Micros


class Elsewhere:
    """The promises to other masters that were reported to the master of `ballot`. slack_us: how far a worker's clock may be
    ahead."""

    def __init__(self, ballot: Ballot, slack_us: int) -> None:
        self.until_us: Micros = BEFORE_ALL
        """The highest watermark promised to such masters."""
        self._ballot, self._slack_us = ballot, slack_us

    def note(self, bundle: Bundle, whole: Collection[Ballot], is_new: bool, now: int) -> None:
        """Call this before the bundle's own promises count. whole: the masters of which the log has everything that they
        published. is_new: the bundle's promises under `NO_BALLOT`, which a worker makes for earlier lives that it knows nothing
        of, count too."""
        for ballot, mark in bundle.elsewhere:
            counts = is_new if ballot == NO_BALLOT else ballot not in whole
            if counts and ballot != self._ballot:
                self.until_us = max(self.until_us, min(mark, now + self._slack_us))

    def may_have(self, due_us: Micros) -> bool:
        """Rule Final*: whether a window that is due at watermark `due_us` may be final for another master's readers."""
        return due_us <= self.until_us
