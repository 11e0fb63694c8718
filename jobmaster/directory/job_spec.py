"""Job specs and agent adverts: the directory's items of jobs and agents, decoded from bytes that may come from any node.

Decoding accepts only values that are safe for the rest of the mesh: bounded lengths, known words, numbers in range. `Directory`
checks whether the signer may make the item (`verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from elf.errors import PeerError
from elf.jobmaster.alerts.alert import Alerts, needs_of
from elf.jobmaster.directory.audit import decode_audited
from elf.jobmaster.directory.known_schedule import BALLOT_PARTS, body_of, decode_schedule, stamp_of
from elf.jobmaster.directory.limits import NO_LIMITS, Limits, Over
from elf.jobmaster.directory.settings import Settings, Sinks
from elf.jobmaster.directory.shared_plans import is_plan, whole
from elf.jobmaster.plan.features import Features, known, lacking, needed
from elf.srt.messages.ids import NodeId, job_id, maker
from elf.srt.messages.messages import COUNT_MAX, Ballot, Instance, Item, Micros
from elf.srt.messages.patterns import PATTERNS_MAX, is_named
from elf.srt.messages.signers import job_in
from elf.srt.messages.typed import parse

BODY_BYTES_MAX = 1 << 20  # a plan is a few KiB; 16 versions of 64 KiB fit
VERSIONS_MAX = 64
"""Versions of a job that its spec remembers. 100 bytes for each that has only other values of parameters."""
NAME_MAX = 200  # a folder of the lake has the job's name: file systems take 255 bytes
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Number = Annotated[int, Meta(ge=0, lt=1 << 62)]
Mode = Literal["split", "restate", "next"]


class Version(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One version of a job: the digest of its plan, the encoded plan, and the query's text for display.

    Of versions that differ only in the values of parameters, a spec has the plan once, in the last of them; the others have
    values instead (`elf.jobmaster.directory.shared_plans`). `JobSpec.whole` has all plans.
    """

    digest: Annotated[str, Meta(min_length=1, max_length=64)]
    plan: Annotated[bytes, Meta(max_length=256 << 10)]
    text: Annotated[str, Meta(max_length=64 << 10)]


END = "end"
"""In place of a digest: the version, the last of a job, that takes no line (`elf.jobmaster.directory.ending`)."""
SIGNATURE_BYTES_MAX = 4 << 10

CHANGES_MAX = 64
"""Changes of a job that its spec remembers: 3 KiB."""


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A change of a job, for its history: the number of the spec that made it, the version that it brought, and how. asked_us:
    the time of the command. from_us: the control line, if the next change knew it; 0: unknown. former: the version that it
    changes; "" for a start. by: the name of the operator who signed it. settings: those before it and those that it
    brought; None: it changed none."""

    number: Number
    version: Annotated[str, Meta(min_length=1, max_length=64)]
    mode: Literal["start", "split", "restate", "next"]
    asked_us: Number
    from_us: Number = 0
    former: Annotated[str, Meta(max_length=64)] = ""
    by: Annotated[str, Meta(max_length=64)] = ""
    settings: tuple[Settings, Settings] | None = None


class Trial(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What makes a job a trial: it is compared with version `version` of the job `of`. agents: patterns of names, as a shell has
    them (`*`, `?`, `[…]`); only agents whose names match one take part; none: all do. until_us: then it ends by itself, by the
    clock of each agent."""

    of: Name
    version: Annotated[str, Meta(min_length=1, max_length=64)]
    agents: Annotated[tuple[Name, ...], Meta(max_length=PATTERNS_MAX)]
    until_us: Number


ALL_TIME: Micros = 1
"""`since_us` of a job that counts all lines that its agents have when it begins, also those that are older than what it retains:
its first log begins with them, and only one that is begun anew begins with the oldest retained pane."""


class JobSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job as the operator signed it.

    number: grows with each change, and contains the term of the master that took it (`next_spec_number`); of two specs with one
    number, nodes keep the one with the higher digest of the body. versions: oldest first; the last one comes into force. mode,
    line_us: when it does: "split": at `line_us`; "restate": at the start of the oldest window that is not final; "next": at the
    next boundary after that window. stopped: the job has ended; the item is kept, so that an older one cannot start the job
    again. lateness_us: how long after its time a line may arrive. The default is a minute: servers that log the time at which a
    request begins end it by default after a minute at most. keep_us: how long final panes are retained for revisions. The
    default is an hour: 360 panes of ten seconds, and longer than an upgrade of a host. since_us: older lines are not part of
    the job; see `ALL_TIME`. emit_us: the interval at which open windows are published; 0: the mesh's. label: of the folder of job
    files that started the job; "": a command did. trial: the job tries a change of another one. limits: of what it may cost each
    agent. end: of a job that is finishing, the operator's signature of the spec that ends it. unread_us: of a "restate": earlier
    lines cannot be read again everywhere, so the master refuses the change if a window that begins before is not final; 0: it
    takes it anyway. alerts: see `elf.jobmaster.alerts.alert`.
    """

    name: Name
    number: Number
    source: Name
    versions: Annotated[tuple[Version, ...], Meta(min_length=1, max_length=VERSIONS_MAX)]
    mode: Mode = "split"
    line_us: Number = 0
    lateness_us: Number = 60_000_000
    keep_us: Number = 3_600_000_000
    sinks: Sinks = ()
    stopped: bool = False
    since_us: Number = 0
    emit_us: Number = 0
    changes: Annotated[tuple[Change, ...], Meta(max_length=CHANGES_MAX)] = ()
    label: Annotated[str, Meta(max_length=64)] = ""
    trial: Trial | None = None
    limits: Limits = NO_LIMITS
    end: Annotated[bytes, Meta(max_length=SIGNATURE_BYTES_MAX)] = b""
    unread_us: Number = 0
    alerts: Alerts = ()

    @property
    def settings(self) -> Settings:
        """The newest ones; a master decides from when on they are in force."""
        return Settings(self.lateness_us, self.keep_us, self.emit_us, self.sinks, self.limits, self.alerts)

    @property
    def base(self) -> Settings:
        """The settings before the first change of them that the spec remembers."""
        return self.remembered[0]

    @property
    def remembered(self) -> list[Settings]:
        """All settings that the spec remembers, oldest first."""
        return [*(each.settings[0] for each in self.changes if each.settings is not None), self.settings]

    @property
    def is_finishing(self) -> bool:
        """Whether the job was asked to stop, and ends when its last windows are final."""
        return not self.stopped and self.versions[-1].digest == END

    @property
    def query(self) -> Version:
        """The version whose query the job has: the last one, or of a job that is finishing the one before its end."""
        return self.whole[-2] if self.is_finishing else self.versions[-1]

    @property
    def whole(self) -> tuple[Version, ...]:
        """`versions`, each with its plan and text. Raises PeerError. Cached."""
        return tuple(Version(*each) for each in whole(tuple(map(astuple, self.versions))))

    @property
    def needs(self) -> Features:
        """The features that an agent must know to take part: those of all versions, as lines and results of each may come, and of
        alerts, as the log may have entries about them. Cached."""
        alerts = tuple(dict.fromkeys(each for known in self.remembered for each in known.alerts))
        return _needs(self.versions, alerts) if alerts else _needs(self.versions)

    @property
    def id(self) -> bytes:
        """The job's id on the ring: the job's master is the node closest to it."""
        return job_id(self.name)

    def has_ended(self, now: Micros) -> bool:
        """Whether the job was stopped, or is a trial whose time is over."""
        return self.stopped or (self.trial is not None and now >= self.trial.until_us)

    def takes(self, agent: str, sources: Sequence[str]) -> bool:
        """Whether an agent of that name, with those sources, takes part. The same at all nodes, whether it is their own name or
        that of an advert. O(patterns)."""
        return self.source in sources and (self.trial is None or is_named(agent, self.trial.agents))

    def encode(self) -> bytes:
        """Without alerts, the bytes are those of versions that know none."""
        return _encoder.encode(self if self.alerts else astuple(self)[:-1])

    def item(self, signature: bytes = b"") -> Item:
        """The directory's entry of this job. Its key is the job's id."""
        return Item("job", self.id, (self.number,), self.encode(), signature)


@lru_cache(maxsize=256)
def _needs(versions: tuple[Version, ...], alerts: Alerts = ()) -> Features:
    return needs_of(alerts).union(*(needed(each.plan) for each in versions if is_plan(each.plan)))


COLUMNS_MAX, COLUMN_TYPES_MAX = 256, 16
"""Bounds for one source in an advert: column names of one type, and types."""


def is_another_trial(spec: JobSpec, known: JobSpec) -> bool:
    """Rule Trials*: the next trial under a name may be of other agents and times, so it gets a new seat and a new log, also at a
    node that has not heard of the end of the former one."""
    return spec.trial != known.trial


class SourceColumns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Columns that a source has beyond the canonical ones: each type, as text, and the names of the columns of that type.
    lateness_us: how long after their time its lines may come, by the formats of its logs; 0: not known."""

    source: Name
    types: Annotated[
        tuple[
            tuple[
                Annotated[str, Meta(min_length=1, max_length=32)],
                Annotated[tuple[Name, ...], Meta(max_length=COLUMNS_MAX)],
            ],
            ...,
        ],
        Meta(max_length=COLUMN_TYPES_MAX),
    ]
    lateness_us: Number = 0


FEATURES_BYTES_MAX = 4096
"""Ten times the features of this version of elf."""


Patterns = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=PATTERNS_MAX)]


class AgentAdvert(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An agent's announcement: the `sources` that it follows, in which life, and since when; the `sinks` that it serves; its
    `address`; those `columns` of its sources that others may not have. until_us: it has left for good, and none of its lines is
    at or past this time; 0: it has not left. instance: that of the process that made this advert. features: of plans that it
    knows (`elf.jobmaster.plan.features`); none: it is too old to say, and is taken to know all. streams: those of its sinks that
    take the rows of windows; the others take the states of panes. takes: those of its sinks that take jobs which do not name
    them, by patterns of the jobs' names. moving: those of its sinks that deliver to a receiver elsewhere, so that another agent
    with a sink of the same name may deliver in this one's place."""

    name: Name
    sources: Annotated[tuple[Name, ...], Meta(max_length=64)]
    incarnation: Number
    since_us: Micros = 0
    until_us: Micros = 0
    sinks: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    address: Annotated[str, Meta(max_length=255)] = ""
    columns: Annotated[tuple[SourceColumns, ...], Meta(max_length=64)] = ()
    instance: Instance = 0
    features: Annotated[bytes, Meta(max_length=FEATURES_BYTES_MAX)] = b""
    streams: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    takes: Annotated[tuple[tuple[Name, Patterns], ...], Meta(max_length=64)] = ()
    moving: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()

    def lacks(self, needs: Features) -> tuple[str, ...]:
        """The features among these that the agent does not know. Cached."""
        return lacking(self.features, needs) if self.features else ()

    def encode(self) -> bytes:
        """Without streams, patterns and sinks that move, the bytes are those of versions that know none."""
        values = list(astuple(self))
        for field in (self.moving, self.takes, self.streams):
            if field:
                break
            values.pop()
        return _encoder.encode(values)

    def item(self, node: NodeId, signature: bytes = b"") -> Item:
        """The directory's entry of this agent; a later one, in the same life or a later life, replaces it."""
        return Item("agent", node, (self.incarnation, self.since_us), self.encode(), signature)


_encoder = msgspec.msgpack.Encoder()


def is_readable(item: Item) -> bool:
    """Whether other nodes can decode the item. O(bytes)."""
    reader = _READERS.get(item.kind)
    try:
        if reader is not None:
            reader(item)
    except PeerError:
        return False
    return True


@lru_cache(maxsize=16)
def decode_job(item: Item) -> JobSpec:
    """The job of a "job" item. Raises PeerError if the bytes are no job, or a job with another key or stamp than the item's.

    Cached: a job's plans are KiB of bytes, and all nodes of one process that hold the same item share them.
    """
    spec = body_of(item, JobSpec, BODY_BYTES_MAX)
    if (spec.id, (spec.number,)) != (item.name, item.stamp):
        raise PeerError(
            f"directory: job {spec.name!r} has another key or stamp than its item; the item is ignored"
        )
    digests = [version.digest for version in spec.versions]
    if len(set(digests)) != len(digests):
        raise PeerError(f"directory: job {spec.name!r} names a version twice; the item is ignored")
    if END in digests and (len(digests) == 1 or not spec.is_finishing):
        raise PeerError(
            f"directory: job {spec.name!r} has an end that is not its last version; the item is ignored"
        )
    if spec.needs <= known():  # otherwise this agent takes no part, and only passes the item on
        whole(tuple(map(astuple, spec.versions)))
    return spec


HIDDEN = "~"
"""In the names of hidden jobs, after that of the job whose change they try. Users cannot give such names."""


def jobs_of(item: Item) -> tuple[str, ...]:
    """Names of the jobs that a "job" item is about: its signer must have the right to all of them. A trial is about the job whose
    change it tries. Raises PeerError."""
    spec = decode_job(item)
    name = spec.name.partition(HIDDEN)[0]
    return (name,) if spec.trial is None else (name, spec.trial.of)


def decode_agent(item: Item) -> AgentAdvert:
    """The advert of an "agent" item. Raises PeerError like `decode_job`."""
    advert = body_of(item, AgentAdvert, BODY_BYTES_MAX)
    if (advert.incarnation, advert.since_us) != item.stamp:
        raise PeerError(
            f"directory: agent {advert.name!r} has another stamp than its item; the item is ignored"
        )
    return advert


@lru_cache(maxsize=4096)
def features_of(body: bytes) -> bytes:
    """The features in the body of an "agent" item. Raises PeerError. Cached: a node looks at those of its neighbours often."""
    return parse(body, AgentAdvert).features


def ballot_item(job: bytes, ballot: Ballot) -> Item:
    """The item with the highest known ballot of a job, for nodes that will serve it later."""
    return Item("ballot", job, stamp_of(ballot), b"")


def ballot_of(item: Item) -> Ballot:
    """The ballot of a "ballot" item. Raises PeerError if the stamp is no ballot."""
    is_ballot = len(item.stamp) == BALLOT_PARTS and all(0 <= part < 1 << 64 for part in item.stamp)
    if not is_ballot or item.stamp[0] > COUNT_MAX:
        raise PeerError("directory: a ballot item without a ballot; it is ignored")
    epoch, high, low, instance = item.stamp
    return epoch, maker(high.to_bytes(8) + low.to_bytes(8), instance)


LOST_MAX = 16
"""Lost changes of a job that are remembered: 2 KiB."""
LOST_BYTES_MAX = 8 << 10


class Lost(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Changes that a master took and that the job does not have: a master of a later term, which lacked them, took others.
    revoked: the numbers of those that the job does not have because their signer's certificate was revoked."""

    changes: Annotated[tuple[Change, ...], Meta(min_length=1, max_length=LOST_MAX)]
    revoked: Annotated[tuple[Number, ...], Meta(max_length=LOST_MAX)] = ()


def lost_item(job: bytes, number: int, lost: Lost) -> Item:
    """The item about a job whose spec with that number outranked these changes. All nodes that see it make the same one."""
    return Item("lost", job, (number, lost.changes[-1].number), _encoder.encode(lost))


def decode_lost(item: Item) -> Lost:
    """The lost changes of a "lost" item. Raises PeerError."""
    return body_of(item, Lost, LOST_BYTES_MAX)


OVER_BYTES_MAX = 4 << 10


def over_item(spec: JobSpec, over: Over) -> Item:
    """The item that ends a trial. Its stamp is the spec's number: the next trial of that name is another one."""
    return Item("over", spec.id, (spec.number,), _encoder.encode(over))


def decode_over(item: Item) -> Over:
    """Raises PeerError."""
    return body_of(item, Over, OVER_BYTES_MAX)


_READERS: dict[str, Callable[[Item], object]] = {
    "job": decode_job,
    "former": lambda item: decode_job(job_in(item)),
    "agent": decode_agent,
    "ballot": ballot_of,
    "schedule": decode_schedule,
    "lost": decode_lost,
    "audit": decode_audited,
    "over": decode_over,
}
