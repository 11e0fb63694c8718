"""Notices when a change of a job is in force: a master has announced its control line, and this agent knows it."""

from __future__ import annotations

import asyncio

from elf.errors import ElfError
from elf.jobmaster.directory.changes import rank_of
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.known_schedule import KnownLine
from elf.jobmaster.directory.versions import line_of
from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import Micros

IN_FORCE_S_MAX = 10.0
"""Twice the time within which a job whose master died has another one."""
LOOK_S = 0.005


async def in_force(directory: Directory, spec: JobSpec, wait_s: float = IN_FORCE_S_MAX) -> Micros:
    """The control line of the spec's last version. Raises ElfError if another change replaced it, or no master announced it."""
    held = JobItems(directory, spec.id)
    version, rank = spec.versions[-1].digest, rank_of(spec)
    for _ in range(round(wait_s / LOOK_S)):
        known = held.schedule()
        if (line_us := line_of(spec, known)) is not None:
            return line_us
        present = held.spec(spec)
        if present is None or rank_of(present) > rank:
            raise ElfError(
                f"job {spec.name}: version {version} was replaced by another change before it came into force; see elf job "
                f"history {spec.name}"
            )
        await asyncio.sleep(LOOK_S)
    if known is not None and known.lines[-1].version == version:
        return known.lines[-1].from_us  # the master knew both this change and the one before when it looked
    raise ElfError(
        f"job {spec.name} will change to version {version}, but no agent that serves the job has announced it within "
        f"{wait_s:.0f} s; see elf job history {spec.name}"
    )


class NewLines:
    """The control lines of a job that are announced from now on."""

    def __init__(self, directory: Directory, job: JobId) -> None:
        self._held = JobItems(directory, job)
        self._last = self._newest()

    def _newest(self) -> KnownLine | None:
        known = self._held.schedule()
        return known.lines[-1] if known is not None else None

    def take(self) -> KnownLine | None:
        """The newest control line, once; None if there is none since the last call. O(1)."""
        newest = self._newest()
        if newest == self._last:
            return None
        self._last = newest
        return newest
