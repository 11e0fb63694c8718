"""What one node's directory holds about one job."""

from __future__ import annotations

from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.ending import ended
from elf.jobmaster.directory.job_spec import (
    LOST_MAX,
    AgentAdvert,
    JobSpec,
    Lost,
    ballot_of,
    decode_agent,
    decode_job,
    decode_lost,
    decode_over,
    lost_item,
)
from elf.jobmaster.directory.known_schedule import KnownSchedule, decode_schedule
from elf.jobmaster.directory.limits import Over
from elf.jobmaster.directory.versions import lost_changes
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT, Ballot, Item, Micros


class JobItems:
    """A view of the items in `directory` that concern `job`. O(1), but for `agents`."""

    __slots__ = ("_directory", "_job")

    def __init__(self, directory: Directory, job: JobId) -> None:
        self._directory, self._job = directory, job

    def item(self) -> Item | None:
        """The job's present item."""
        return self._directory.get("job", self._job)

    def accepts(self, item: Item) -> bool:
        """Whether the item is one of this job, of a signer who may make it, and who has also signed the job's end if the
        item asks for it. Up to 300 µs."""
        if (item.kind, item.name) != ("job", self._job) or not self._directory.accepts(item):
            return False
        spec = decode_job(item)
        return not spec.is_finishing or self._directory.accepts(ended(spec))

    def spec(self, known: JobSpec) -> JobSpec | None:
        """The job's present spec, `known` itself if it has not changed; None if all its signers were revoked."""
        item = self._directory.get("job", self._job)
        if item is None:
            return None
        return known if item.body == known.encode() else decode_job(item)

    def signer(self) -> bytes:
        """The serial of the certificate under which the job's present item was signed."""
        item = self._directory.get("job", self._job)
        return self._directory.signers.serial(item) if item is not None else b""

    def is_void(self, signer: bytes, now: Micros) -> bool:
        """Whether specs that were signed under that certificate count no more."""
        return self._directory.signers.is_void(signer, now)

    def ballot(self) -> Ballot:
        """The highest ballot under which a master of the job announced that it serves."""
        item = self._directory.get("ballot", self._job)
        return NO_BALLOT if item is None else ballot_of(item)

    def schedule(self) -> KnownSchedule | None:
        """The schedule that a master of the job announced last."""
        item = self._directory.get("schedule", self._job)
        return None if item is None else decode_schedule(item)

    def lost(self) -> Lost | None:
        """Changes that masters took and that the job does not have, oldest first."""
        item = self._directory.get("lost", self._job)
        return None if item is None else decode_lost(item)

    def over(self, spec: JobSpec) -> Over | None:
        """Rule Trials*: where and why that trial passed a limit; None if it has not, and for a job that is no trial."""
        item = self._directory.get("over", self._job) if spec.trial is not None else None
        return decode_over(item) if item is not None and item.stamp == (spec.number,) else None

    def has_ended(self, spec: JobSpec, now: Micros) -> bool:
        """Whether that job was stopped, or is a trial that has ended."""
        return spec.has_ended(now) or self.over(spec) is not None

    def newly_lost(self, former: JobSpec, spec: JobSpec) -> list[Item]:
        """A spec comes in place of another one: the item to spread, if the job has lost changes by it that `lost` lacks."""
        before = self.lost()
        held = {(each.number, each.version): each for each in (before.changes if before is not None else ())}
        lost = {(each.number, each.version): each for each in lost_changes(former, spec, self.schedule())}
        if lost.keys() <= held.keys():
            return []
        changes = sorted((lost | held).values(), key=lambda each: each.number)[-LOST_MAX:]
        revoked = {number for number, _ in lost} if spec.number < former.number else set()
        revoked |= set(before.revoked) if before is not None else set()
        numbers = tuple(each.number for each in changes if each.number in revoked)
        return [lost_item(self._job, max(spec.number, former.number), Lost(tuple(changes), numbers))]

    def agents(self, spec: JobSpec) -> list[tuple[NodeId, AgentAdvert]]:
        """Rule Trials*: agents that take part in the job, or did until they left. O(agents of the mesh)."""
        adverts = ((item.name, decode_agent(item)) for item in self._directory.items("agent"))
        return [(node, advert) for node, advert in adverts if spec.takes(advert.name, advert.sources)]
