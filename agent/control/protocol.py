"""The messages between a command and its agent over the control socket: typed, and bounded on both sides.

    frame = length(4, little-endian) body        body: MessagePack of one of the types below, tagged by its name

A command sends one `Request`; the agent answers with one `Answer`, or with several where it says so, the last of which is `Done`
or `Failed`.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from elf.jobmaster.directory.job_spec import Lost, Name
from elf.jobmaster.directory.known_schedule import KnownSchedule
from elf.srt.messages.messages import Item
from elf.srt.messages.patterns import PATTERNS_MAX

REQUEST_BYTES_MAX = 2 << 20
"""A job's item has 1 MiB at most."""
ANSWER_BYTES_MAX = 80 << 20
"""A window has 64 MiB at most."""
LENGTH = struct.Struct("<I")


class Request(msgspec.Struct, frozen=True, tag=True):
    """A request of a command."""


class JobGet(Request, frozen=True, tag=True):
    """One job as the directory has it, and the facts that a new job needs. Answer: `JobHeld`. exists: the job was started at
    some agent, so wait a moment until it is known here. columns: also those of all sources. agents: patterns of names."""

    name: Name
    exists: bool = False
    columns: bool = False
    agents: Annotated[tuple[Name, ...], Meta(max_length=PATTERNS_MAX)] = ()


class JobPut(Request, frozen=True, tag=True):
    """A job's new entry, signed if the mesh has keys. Answer: `Done`."""

    item: Item


class JobChange(Request, frozen=True, tag=True):
    """A job's new entry with another last version, for the job's master to judge. Answer: `Changed`, once that version is in
    force, or when it has waited for long; or `Refused`."""

    item: Item


class JobList(Request, frozen=True, tag=True):
    """All jobs. Answer: `Jobs`."""


class JobWatch(Request, frozen=True, tag=True):
    """A job's windows as they are published. Answers: `Versions`, `Published`, `NewVersion` and `Note`, until the command
    disconnects; of a trial: until it ends, then `Done`."""

    name: Name


class Revoke(Request, frozen=True, tag=True):
    """Certificates that the mesh's authority revoked: items of kind "revoked". Answer: `Done`."""

    items: tuple[Item, ...]


class MeshStatus(Request, frozen=True, tag=True):
    """Answer: `Status`."""


class MeshAudit(Request, frozen=True, tag=True):
    """All changes of jobs that agents list. Answer: `Audit`."""


class MeshLeave(Request, frozen=True, tag=True):
    """This agent leaves for good. Answer: `Done` once the mesh has all its lines; then the agent ends."""


class AlertList(Request, frozen=True, tag=True):
    """All alerts. Answer: `Alerts`."""


class AlertTestRequest(Request, frozen=True, tag=True):
    """Send a test notification of that alert to its sinks. job: "" for the only one that has it. Answer: `AlertTested`."""

    alert: Name
    job: str = ""


class MeshTree(Request, frozen=True, tag=True):
    """A job's tree from its master down. Answer: `Tree`."""

    job: Name


class JobEstimate(Request, frozen=True, tag=True):
    """What an encoded plan would cost agents that follow its source. Answer: `Estimates`."""

    plan: bytes


class Answer(msgspec.Struct, frozen=True, tag=True):
    """An answer of the agent."""


class Done(Answer, frozen=True, tag=True):
    """The request succeeded; the last answer."""

    text: str = ""


class Failed(Answer, frozen=True, tag=True):
    """The request failed; the last answer. usage: the command itself was wrong."""

    text: str
    usage: bool = False


class HeldColumn(msgspec.Struct, frozen=True):
    """A column of a source beyond the canonical ones. count: how many agents have it with this type; agents: some of them;
    lacking: some of the source's agents that do not have it with this type."""

    name: str
    type: str
    count: int
    agents: tuple[str, ...]
    lacking: tuple[str, ...] = ()


class HeldFeatures(msgspec.Struct, frozen=True):
    """Agents that know the same features of plans, as their adverts have these. agents: some of the `count`."""

    features: bytes
    count: int
    agents: tuple[str, ...]


class HeldSource(msgspec.Struct, frozen=True):
    """followers: how many agents have the source. A column may occur with several types. features: of all these agents.
    lateness_us: the longest of theirs; 0 if the agent that answers does not know."""

    followers: int
    columns: tuple[HeldColumn, ...] = ()
    features: tuple[HeldFeatures, ...] = ()
    lateness_us: int = 0


class JobHeld(Answer, frozen=True, tag=True):
    """item: None if there never was such a job. names: of running jobs. sources, sinks: what agents offer. now_us: the
    agent's clock. signed: whether the mesh takes signed jobs only. schemas: of the sources, if requested. schedule: the job's
    control lines, as a master announced them last; None if the job was never changed. next: the number of the job's next change,
    as far as the agent knows. lost: changes that another one outranked. left: agents of its source that have left for good or
    were revoked, and when, the last ones. named: source -> how many of the agents that follow it have a requested name. over: of
    a trial that has passed a limit: where, and which one. revoked: what becomes of the job if its operator's certificate was
    revoked; "" if it holds."""

    item: Item | None
    names: tuple[str, ...]
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    now_us: int
    signed: bool
    schemas: dict[str, HeldSource] = {}
    schedule: KnownSchedule | None = None
    next: int = 1
    lost: Lost | None = None
    left: tuple[tuple[str, int], ...] = ()
    named: dict[str, int] = {}
    over: str = ""
    revoked: str = ""


class Changed(Answer, frozen=True, tag=True):
    """The job's last version is in force from `from_us` on. took_us: from the request until this agent knew that all of the job's
    `agents` have confirmed it; or if not all have, that it is in force. missing: why some of the others have not, by name. waits:
    it is not in force yet, but only when lines have been read again for the change before; the other fields say nothing then."""

    from_us: int
    took_us: int
    agents: int = 0
    confirmed: int = 0
    missing: tuple[tuple[str, str], ...] = ()
    waits: bool = False


class Refused(Answer, frozen=True, tag=True):
    """The job's master has not taken a change, and nothing was changed. version: the one in force; next: the number that the next
    change must have. unread_us: if a restate needs lines that cannot be read again everywhere: the start of the oldest window
    that is not final; else 0."""

    version: str
    next: int
    unread_us: int = 0


class Failure(msgspec.Struct, frozen=True):
    """A job's failure at an agent. reason: of the last one. failures: in a row. again_s: until it restarts there; 0: it has."""

    agent: str
    reason: str
    failures: int
    again_s: float

    @property
    def text(self) -> str:
        """The failure as a clause: why, how often, and what happens next."""
        times = "" if self.failures == 1 else f", {self.failures} times by now"
        again = f"begins again in {self.again_s:.0f} s" if self.again_s else "runs again"
        return f"fails ({self.reason}){times}, and {again}"


class JobLine(msgspec.Struct, frozen=True):
    """A job. master: name of the agent that served it last, as far as known here; "" if none has. agents: how many follow its
    source. failing: agents where it fails, or did within the last minutes. untimed: rejected lines that are in none of its
    windows. label: of the folder of job files that started it."""

    name: str
    state: str  # "running", "failing", "finishing" or "stopped"
    number: int
    source: str
    version: str
    sql: str
    sinks: tuple[str, ...]
    lateness_us: int
    keep_us: int
    emit_us: int
    since_us: int
    master: str
    agents: int
    failing: tuple[Failure, ...] = ()
    untimed: int = 0
    label: str = ""


class Jobs(Answer, frozen=True, tag=True):
    """All jobs, by name."""

    jobs: tuple[JobLine, ...]


class Versions(Answer, frozen=True, tag=True):
    """Encoded plans by version, for the windows that follow."""

    plans: dict[str, bytes]


class NewVersion(Answer, frozen=True, tag=True):
    """The job changes to that version: it is in force from `from_us` on."""

    version: str
    from_us: int


class Note(Answer, frozen=True, tag=True):
    """What the job's watchers should know: who cannot run it; that it was stopped, or started again."""

    text: str


class Published(Answer, frozen=True, tag=True):
    """A window: an encoded `Put`. more: the next message has more of its rows."""

    put: bytes
    more: bool = False


class AlertLine(msgspec.Struct, frozen=True):
    """An instance of an alert; or an alert without one, which is "inactive". when: its condition. since_us: since when it holds;
    at_us: when it became what it is; 0: never."""

    job: str
    alert: str
    state: str
    when: str
    for_us: int
    sinks: tuple[str, ...]
    since_us: int = 0
    at_us: int = 0
    keys: dict[str, str] = {}
    labels: dict[str, str] = {}
    text: str = ""


class Alerts(Answer, frozen=True, tag=True):
    """left_out: job -> how many instances are not listed, or had no room."""

    alerts: tuple[AlertLine, ...]
    left_out: dict[str, int]


class AlertTested(Answer, frozen=True, tag=True):
    """problems: of each sink; "" if it has the notification."""

    job: str
    problems: dict[str, str]


class TreeNode(msgspec.Struct, frozen=True):
    """An agent in a job's tree. silent: it did not answer, so its children are unknown."""

    name: str
    id: str
    children: tuple[TreeNode, ...] = ()
    silent: bool = False


class Tree(Answer, frozen=True, tag=True):
    """root: the master."""

    root: TreeNode


class SinkLine(msgspec.Struct, frozen=True):
    """A sink at its agent: see `elf.srt.messages.reports.SinkState`."""

    name: str
    waiting: int
    oldest_us: int
    delivered: int
    refusals: int
    failures: int
    problem: str


class LagLine(msgspec.Struct, frozen=True):
    """What waits at a job's master for a sink: see `elf.srt.messages.reports.SinkLag`. job: its name."""

    job: str
    sink: str
    waiting: int
    oldest_us: int
    delivered: int
    lost: int


class Member(msgspec.Struct, frozen=True):
    """An agent. state: "alive"; "suspect": it does not answer, and may still be a member; "dead": it does not answer, and is no
    member as far as this agent knows; "ended": its neighbours know that its process ended, ended_s ago; "left".
    Figures are None if it did not answer. skew_us: its clock less the asking agent's, within half of round_trip_us. roles: role
    -> number of jobs. memory_bytes: of the process, beyond memory_bare, which does not count (`elf.agent.host.memory`); memory:
    owner -> bytes of these. delivering: its sinks. takes: which of these take jobs that do not name them, with patterns of the
    jobs' names. lags: of the sinks of jobs of which it is the master. gone: the latest time of lines that it read and cannot read
    again, since their files are gone, by source."""

    name: str
    id: str
    address: str
    state: str
    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    version: str | None = None
    roles: dict[str, int] | None = None
    lag_bytes: int | None = None
    skew_us: int | None = None
    round_trip_us: int | None = None
    memory_bytes: int | None = None
    memory_max: int | None = None
    memory_bare: int | None = None
    memory: dict[str, int] | None = None
    up_s: float | None = None
    ended_s: float | None = None
    delivering: tuple[SinkLine, ...] = ()
    lags: tuple[LagLine, ...] = ()
    takes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    gone: dict[str, int] | None = None


class TrialLine(msgspec.Struct, frozen=True):
    """A trial that runs: of which job, its version, and the version that it is compared with; patterns of the names of its
    agents, none: all; until when."""

    job: str
    version: str
    compared_with: str
    agents: tuple[str, ...]
    until_us: int


class Cost(msgspec.Struct, frozen=True):
    """What a job costs the fleet. cpu_ms: milliseconds of a processor in a second; sent_bytes: up its tree in a second, over all
    hops; held_bytes: of memory, with rows unpacked; each the sum over the agents. groups: the most in one pane of a cut, at any
    agent. agents: how many have reported."""

    job: str
    cpu_ms: float
    sent_bytes: int
    groups: int
    held_bytes: int
    agents: int


class Status(Answer, frozen=True, tag=True):
    """me: id of the agent that was asked. not_asked: members beyond the number that one status asks. problems: what is
    wrong and what to do, a line each. costs: of all jobs, the most expensive first. finishing: names of jobs that end when
    their windows are final."""

    me: str
    members: tuple[Member, ...]
    problems: tuple[str, ...]
    not_asked: int = 0
    trials: tuple[TrialLine, ...] = ()
    costs: tuple[Cost, ...] = ()
    finishing: tuple[str, ...] = ()


class AuditLine(msgspec.Struct, frozen=True):
    """A request to change a job, or a revocation. at_us: of the agent that took it, by its clock. operator, key: the name and
    serial of the certificate that signed it; "" if unknown. agent: "" if unknown. what: the command, or "unsigned" for requests
    without a valid signature, which are only counted. outcome: "taken", "refused", "unknown" or "lost". times: how often, in a
    row."""

    at_us: int
    operator: str
    key: str
    agent: str
    job: str
    what: str
    version: str
    outcome: str
    reason: str = ""
    times: int = 1


class Audit(Answer, frozen=True, tag=True):
    """Oldest first."""

    lines: tuple[AuditLine, ...]


class AgentEstimate(msgspec.Struct, frozen=True):
    """read_bytes, lines, span_us: of the sample of its log. groups: the most in a pane of it. sent_bytes: up the tree, in a
    second. problem: why there is no estimate."""

    agent: str
    read_bytes: int = 0
    lines: int = 0
    span_us: int = 0
    groups: int = 0
    sent_bytes: int = 0
    problem: str = ""


class Estimates(Answer, frozen=True, tag=True):
    """Of a sample of the agents; of: how many follow the source."""

    agents: tuple[AgentEstimate, ...]
    of: int


AnyRequest = (
    JobGet
    | JobPut
    | JobChange
    | JobList
    | JobWatch
    | Revoke
    | MeshStatus
    | MeshTree
    | MeshAudit
    | MeshLeave
    | JobEstimate
    | AlertList
    | AlertTestRequest
)
Reading = JobGet | JobList | JobWatch | AlertList | MeshStatus | MeshTree | MeshAudit
"""Requests that change nothing and cost little."""
AnyAnswer = (
    Done
    | Failed
    | JobHeld
    | Changed
    | Refused
    | Jobs
    | Versions
    | NewVersion
    | Note
    | Published
    | Tree
    | Status
    | Audit
    | Estimates
    | Alerts
    | AlertTested
)

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(AnyRequest)
_answers = msgspec.msgpack.Decoder(AnyAnswer)


def frame(message: Request | Answer) -> bytes:
    """The length of the encoded message, and the encoded message. O(bytes)."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def request_of(body: bytes) -> AnyRequest:
    """Raises msgspec.MsgspecError."""
    request: AnyRequest = _requests.decode(body)
    return request


def answer_of(body: bytes) -> AnyAnswer:
    """Raises msgspec.MsgspecError."""
    answer: AnyAnswer = _answers.decode(body)
    return answer
