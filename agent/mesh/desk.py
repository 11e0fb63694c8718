"""What an agent does for the commands on its host: looks things up in the directory, submits jobs, asks other agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from elf.agent.mesh import words as w
from elf.agent.mesh_node import MeshNode, Outer
from elf.errors import ElfError, PeerError, UsageError
from elf.jobmaster.directory import Directory
from elf.jobmaster.job_spec import AgentAdvert, JobSpec, ballot_of, decode_agent, decode_job
from elf.srt.ids import NodeId, job_id
from elf.srt.messages import Item

NAMES_TOLD_MAX = 1_000


class Host(Protocol):
    """What the desk needs of the process around a node."""

    @property
    def node(self) -> MeshNode: ...

    @property
    def is_signed(self) -> bool:
        """Whether the mesh has keys, so that a job must be signed by an operator."""

    def clock_us(self) -> int:
        """The node's clock."""

    def submit(self, item: Item) -> None:
        """Put an item into the directory, and perform what follows."""

    def perform(self, effects: Sequence[Outer]) -> None:
        """Perform what a call of the node gave."""


class Desk:
    """Answers requests, on the loop of its host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def serve(self, request: w.AnyRequest) -> AsyncGenerator[w.Answer, None]:
        """The answers of one request. Raises ElfError."""
        if isinstance(request, w.JobGet):
            yield self._job_held(request.name)
        elif isinstance(request, w.JobPut):
            yield self._put_job(request.item)
        elif isinstance(request, w.JobList):
            yield w.Jobs(tuple(self._lines()))
        else:
            yield w.Failed("this agent cannot do that")

    # Jobs.

    def _job_held(self, name: str) -> w.JobHeld:
        item = self._directory.get("job", job_id(name))
        adverts = [advert for _, advert in self.adverts()]
        return w.JobHeld(
            item,
            tuple(sorted(spec.name for spec in self.jobs() if not spec.stopped)[:NAMES_TOLD_MAX]),
            tuple(sorted({source for advert in adverts for source in advert.sources})),
            tuple(sorted({sink for advert in adverts for sink in sinks_of(advert)})),
            self._host.clock_us(),
            self._host.is_signed,
        )

    def _put_job(self, item: Item) -> w.Done:
        """Raises UsageError for what is no job, or is not signed as it must be; ElfError where a newer one came first."""
        try:
            spec = decode_job(item)
        except PeerError as error:
            raise UsageError(str(error)) from error
        self._host.submit(item)
        held = self._directory.get("job", spec.id)
        if held is not None and held.body == item.body:
            return w.Done()
        if held is not None and held.stamp >= item.stamp:
            raise ElfError(
                f"job {spec.name!r} was changed by somebody else at the same time; look with elf job list"
            )
        raise UsageError(
            f"the mesh does not take job {spec.name!r}: it must be signed with an operator's key that its authority has issued "
            "and not revoked; give the bundle with --keys FILE or ELF_KEYS"
        )

    def _lines(self) -> list[w.JobLine]:
        adverts = dict(self.adverts())
        lines = [self._line(spec, adverts) for spec in self.jobs()]
        return sorted(lines, key=lambda line: line.name)

    def _line(self, spec: JobSpec, adverts: dict[NodeId, AgentAdvert]) -> w.JobLine:
        ballot = self._directory.get("ballot", spec.id)
        master = ballot_of(ballot)[1] if ballot is not None else b""
        served_by = name_of(master, adverts.get(master)) if master else ""
        last = spec.versions[-1]
        return w.JobLine(
            spec.name,
            "stopped" if spec.stopped else "running",
            spec.number,
            spec.source,
            last.digest,
            last.text,
            spec.sinks,
            spec.lateness_us,
            spec.keep_us,
            spec.emit_us,
            spec.since_us,
            "" if spec.stopped else served_by,
            sum(spec.source in advert.sources and not advert.until_us for advert in adverts.values()),
        )

    # The directory.

    @property
    def _directory(self) -> Directory:
        return self._host.node.directory

    def jobs(self) -> list[JobSpec]:
        """All that there ever were. O(items)."""
        return [decode_job(item) for item in self._directory.items("job")]

    def adverts(self) -> list[tuple[NodeId, AgentAdvert]]:
        """What agents tell of themselves. O(items)."""
        return [(item.name, decode_agent(item)) for item in self._directory.items("agent")]


def sinks_of(advert: AgentAdvert) -> tuple[str, ...]:
    """Sinks that it serves, unless it has left."""
    return () if advert.until_us else advert.sinks


def name_of(node: NodeId, advert: AgentAdvert | None) -> str:
    """What people call an agent: by its id where nobody told its name."""
    return advert.name if advert is not None else node.hex()[:12]
