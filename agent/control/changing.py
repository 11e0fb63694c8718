"""How an agent brings an operator's change to the job's master, and notices when it is in force: the master has announced its
control line, and this agent knows it."""

from __future__ import annotations

import asyncio

from elf.errors import ElfError
from elf.jobmaster.directory.changes import rank_of
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import Change, JobSpec, decode_job
from elf.jobmaster.directory.known_schedule import KnownLine
from elf.jobmaster.directory.versions import has_change, is_signed_again, line_of, line_of_change
from elf.srt.messages.changes import ChangeReport, ChangeRequest
from elf.srt.messages.effects import Effect, Route
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Item, Message, Micros

ANSWERS_US = 10_000_000
"""Twice the time within which a job whose master died has another one."""
REPEAT_US = 100_000
"""A master that cannot judge a change yet does not answer; most changes before it are in the log after this."""
IN_FORCE_S_MAX = 10.0
"""As `ANSWERS_US`."""
LOOK_S = 0.005
OUT_OF_DATE = "signed for an earlier term of the job's master; a command signs such a change again"
CONFIRMS_US = 1_000_000
"""An agent that is not busy confirms a change within this and two of its flush intervals."""


class Submission:
    """Sends a change towards the job's master, repeatedly, until a master has judged it, and then until all agents have confirmed
    it. report: the last answer."""

    def __init__(self, job: JobId, number: int, item: Item, now: Micros) -> None:
        self.report: ChangeReport | None = None
        self._request, self._begun = ChangeRequest(job, number, item), now
        self._version = decode_job(item).versions[-1].digest
        self._due: Micros | None = None

    def step(self, source: NodeId, message: Message, now: Micros) -> None:
        """Take an answer."""
        if isinstance(message, ChangeReport) and message.number == self._request.number:
            self.report = message

    def confirm(self) -> None:
        """Send the request again, of which the verdict is known: the answer says who has confirmed the change."""
        self.report, self._due = None, None

    @property
    def is_confirmed(self) -> bool:
        """Whether all agents have confirmed the change, or it is in force no more."""
        if self.report is None:
            return False
        is_past = self.report.version != self._version
        return is_past or 0 < self.report.agents == self.report.confirmed

    def tick(self, now: Micros) -> list[Effect]:
        """Send the request, if that is due."""
        if self._due is not None and now < self._due <= now + REPEAT_US:
            return []
        self._due = now + REPEAT_US
        return [Route(self._request.job, self._request)]

    @property
    def deadline(self) -> Micros | None:
        return self._due

    def is_over(self, now: Micros) -> bool:
        """Whether no master has answered in time."""
        return not self._begun <= now < self._begun + ANSWERS_US


async def in_force(directory: Directory, spec: JobSpec, wait_s: float = IN_FORCE_S_MAX) -> Micros | None:
    """The control line of the spec's last version, which a master has taken; None if no master announced it in that time. Raises
    ElfError if another change took its place before it was in force."""
    held = JobItems(directory, spec.id)
    version, change = spec.versions[-1].digest, spec.changes[-1]
    if is_signed_again(change):  # it is in force already
        return line_of_change(held.spec(spec) or spec, held.schedule(), change.number) or spec.since_us
    for _ in range(round(wait_s / LOOK_S)):
        known = held.schedule()
        if (line_us := line_of(spec, known)) is not None:
            return line_us
        present = held.spec(spec) or spec
        if rank_of(present) > rank_of(spec):
            if not has_change(present, change):
                raise ElfError(
                    f"job {spec.name}: version {version} was lost before it came into force: a master of a later term took "
                    f"another change; see elf job history {spec.name}"
                )
            if (line_us := line_of_change(present, known, change.number)) is not None:
                return line_us  # the next change is in force already
            if known is not None and known.number > change.number:
                break
        await asyncio.sleep(LOOK_S)
    if known is not None and known.lines[-1].version == version:
        return known.lines[-1].from_us  # the master knew both this change and the one before when it looked
    present = held.spec(spec) or spec
    if rank_of(present) > rank_of(spec):
        raise superseded(present, change)
    return None


def superseded(present: JobSpec, change: Change) -> ElfError:
    """The answer to a change that was taken, waited for lines to be read again, and was changed meanwhile. present: the newer
    spec."""
    newest = present.versions[-1].digest
    return ElfError(
        f"job {present.name}: version {change.version} never comes into force: it waited until lines had been read again for the "
        f"change before, and a newer change, to version {newest}, took its place; see elf job history {present.name}"
    )


def unannounced(spec: JobSpec) -> ElfError:
    """The answer to a change that was taken, and of which nothing was heard since."""
    return ElfError(
        f"job {spec.name} will change to version {spec.versions[-1].digest}, but no agent that serves the job has announced it "
        f"within {IN_FORCE_S_MAX:.0f} s; see elf job history {spec.name}"
    )


def refusal(spec: JobSpec, report: ChangeReport) -> str:
    """Why the master refused that change, for the audit."""
    if report.unread_us:
        return "windows that are not final need lines that cannot be read again; a command may force it"
    if any(change.former == report.version for change in spec.changes[-1:]):
        return OUT_OF_DATE
    return f"another change came first: the job has version {report.version}"


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
