"""When a job that is finishing has come to its end: the log has its control line, and nothing before it can change any more.

Waiting has a bound, because an agent may be gone for good, or a sink: at `keep` past the time at which the last window should
have been final, its lines would be past retention anyway, so the job ends without them. A master counts that time from its first
look at the end, if that is after the control line: its clock may be ahead of the one that the operator's agent had.
"""

from __future__ import annotations

from collections.abc import Callable

from elf.jobmaster.delivery.outbox import Outbox
from elf.jobmaster.delivery.watchers import Watchers
from elf.jobmaster.directory.job_spec import END, JobSpec
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.jobmaster.master.publication import Publication
from elf.jobmaster.master.roster import Roster
from elf.srt.messages.parameters import Parameters


class Finish:
    """Looks for the end of the job every emit interval. has_come: it was found at the last look."""

    def __init__(
        self,
        state: JobState,
        roster: Roster,
        publication: Publication,
        outbox: Outbox,
        watchers: Watchers,
        has_ledgers: Callable[[], bool],
        parameters: Parameters,
    ) -> None:
        self.has_come = False
        self._state, self._roster, self._publication = state, roster, publication
        self._outbox, self._watchers, self._has_ledgers = outbox, watchers, has_ledgers
        self._period_us = parameters.emit_us
        self._at: int | None = None
        self._seen_us: int | None = None  # when this master first looked
        self._complete_since: int | None = None

    @property
    def is_finishing(self) -> bool:
        """Whether the schedule has the job's end."""
        schedule = self._state.schedule
        return bool(schedule) and schedule[-1].version == END

    @property
    def deadline(self) -> int | None:
        """When `tick` has work; 0: at once."""
        return (self._at or 0) if self.is_finishing else None

    def tick(self, spec: JobSpec, now: int) -> None:
        """Look, if it is time. spec: the job's newest."""
        self.has_come = False
        if not self.is_finishing:
            self._at = self._seen_us = None
        elif (
            self._at is None or now >= self._at or self._at > now + self._period_us
        ):  # the clock stepped back
            self._at = now + self._period_us
            self.has_come = spec.is_finishing and self._is_over(spec, now)

    def _is_over(self, spec: JobSpec, now: int) -> bool:
        line_us = self._state.schedule[-1].from_us
        seen_us = self._seen_us = min(now, self._seen_us if self._seen_us is not None else now)
        if now >= max(line_us, seen_us) + spec.lateness_us + spec.keep_us:
            return True
        if not self.is_complete(line_us):
            self._complete_since = None
            return False
        since = self._complete_since = min(now, self._complete_since or now)
        # A reader that does not read must not delay the end.
        return self._watchers.are_served or now - since >= self._watchers.expiry_us

    def is_complete(self, line_us: int) -> bool:
        """Rule Stop*: all agents have reported up to the line, every window is final, and every sink has acknowledged it."""
        return (
            self._roster.is_complete
            and self._publication.is_settled(line_us, with_open=len(self._watchers) > 0)
            and self._has_ledgers()
            and self._outbox.oldest_us == AFTER_ALL
        )
