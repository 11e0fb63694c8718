"""What one node's directory holds about one job."""

from __future__ import annotations

from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.ending import ended
from elf.jobmaster.directory.job_spec import (
    LOST_MAX,
    AgentAdvert,
    Change,
    JobSpec,
    Lost,
    ballot_of,
    decode_agent,
    decode_job,
    decode_lost,
    lost_item,
)
from elf.jobmaster.directory.known_schedule import KnownSchedule, decode_schedule
from elf.jobmaster.directory.versions import lost_changes
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT, Ballot, Item


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
        """The job's present spec, `known` itself if it has not changed; None if its signer was revoked."""
        item = self._directory.get("job", self._job)
        if item is None:
            return None
        return known if item.body == known.encode() else decode_job(item)

    def ballot(self) -> Ballot:
        """The highest ballot under which a master of the job announced that it serves."""
        item = self._directory.get("ballot", self._job)
        return NO_BALLOT if item is None else ballot_of(item)

    def schedule(self) -> KnownSchedule | None:
        """The schedule that a master of the job announced last."""
        item = self._directory.get("schedule", self._job)
        return None if item is None else decode_schedule(item)

    def lost(self) -> tuple[Change, ...]:
        """Changes that masters took and that the job does not have, oldest first."""
        item = self._directory.get("lost", self._job)
        return () if item is None else decode_lost(item).changes

    def newly_lost(self, former: JobSpec, spec: JobSpec) -> list[Item]:
        """A spec outranks another one: the item to spread, if the job has lost changes by it that `lost` does not have."""
        held = {(each.number, each.version): each for each in self.lost()}
        lost = {(each.number, each.version): each for each in lost_changes(former, spec, self.schedule())}
        if lost.keys() <= held.keys():
            return []
        changes = sorted((lost | held).values(), key=lambda each: each.number)[-LOST_MAX:]
        return [lost_item(self._job, spec.number, Lost(tuple(changes)))]

    def agents(self, spec: JobSpec) -> list[tuple[NodeId, AgentAdvert]]:
        """Rule Trials*: agents that take part in the job, or did until they left. O(agents of the mesh)."""
        adverts = ((item.name, decode_agent(item)) for item in self._directory.items("agent"))
        return [(node, advert) for node, advert in adverts if spec.takes(advert.name, advert.sources)]
