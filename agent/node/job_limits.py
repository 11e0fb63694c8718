"""A job's limits at one agent: those of the job's settings, where its own are not lower."""

from __future__ import annotations

from msgspec.structs import replace

from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.limits import Limits
from elf.jobmaster.directory.settings import settings_at
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.messages import Micros, Schedule


class JobLimits:
    """spec: the newest that this agent knows. schedule: the newest that its worker got; () without one."""

    def __init__(self, spec: JobSpec, caps: Limits) -> None:
        self.spec, self._caps = spec, caps
        self.schedule: Schedule = ()

    @property
    def newest(self) -> Limits:
        """Those of lines to come."""
        return self.at("", AFTER_ALL)

    def at(self, version: str, pane: Micros) -> Limits:
        """Rule Settings*: of a limit that shapes results, the one in force when the pane begins, or when its version does.
        A limit past which the job fails is the newest: else a job that fails would do so however it is changed. O(lines)."""
        since = min((line.from_us for line in self.schedule if line.version == version), default=pane)
        base = self.spec.base if self.schedule else self.spec.settings
        own, newest = settings_at(self.schedule, max(pane, since), base).limits, self.spec.limits
        if not own.others:
            own = replace(newest, groups=0, others=False) if newest.others else newest
        return own.within(self._caps)

    @property
    def has_groups(self) -> bool:
        """Whether some pane may have a limit on groups."""
        return any(each.groups for each in self._every())

    @property
    def sample(self) -> int:
        """To how many groups of a pane bundles may be folded, whichever settings its lines have; 0: they must not be."""
        samples = [each.sample for each in self._every()]
        return 0 if 0 in samples else max(samples)

    def _every(self) -> list[Limits]:
        return [each.limits.within(self._caps) for each in self.spec.remembered]
