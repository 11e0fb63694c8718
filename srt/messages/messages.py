"""The messages between nodes, typed; those that carry results are in `srt/messages/results.py`. `srt/codec/wire.py` turns them
into bytes and back; the simulator passes them as they are.

By what carries them: datagrams (`Ping` … `Tell`, and what is routed), which may be lost, repeated or overtaken; and messages on
a link (`Adopt` … ), which arrive once and in order between two lives of two nodes. Whoever sends a datagram that matters
sends it again until it is answered.

The types say the bounds that whatever comes from a peer is held to when it is decoded; nothing checks them otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from elf.srt.messages.ids import ID_BYTES, MAKER_BYTES, JobId, NodeId
from elf.srt.messages.partial import Part

Micros = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Microseconds: event times since 1970 UTC, or spans."""
COUNT_MAX = (1 << 63) - 1
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
LIFE_MAX = (1 << 46) - 1
Life = Annotated[int, Meta(ge=0, le=LIFE_MAX)]
"""An incarnation, small enough that a link's session number, 65,536 times it, stays below 63 bits."""
Instance = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
"""A number that a process draws when it starts: it tells two processes with one key apart, which a life cannot, for the disk that
it is counted on may have been copied. 0: not known."""
Digest = Annotated[int, Meta(ge=0)]
"""64 bits."""
Word = Annotated[str, Meta(max_length=64)]
MaybeId = Annotated[bytes, Meta(max_length=ID_BYTES)]
"""A node's id, or b"": decoding takes no other lengths."""
Maker = Annotated[bytes, Meta(max_length=MAKER_BYTES)]
"""Of a ballot: a node's id, and behind it the instance of its process, if known; or b"": decoding takes no other lengths."""
Ballot = tuple[Count, Maker]
"""(epoch, maker), compared in order: which master's word counts. It names the process, so that two processes with one key never
write the same ballot, nor take the other one's for their own."""
NO_BALLOT: Ballot = (0, b"")
Revision = tuple[Count, Maker, Count]
"""(epoch, maker, n) of a window's publication, compared in order."""
MASTERS_MAX = 8
Elsewhere = Annotated[tuple[tuple[Ballot, Micros], ...], Meta(max_length=MASTERS_MAX)]
"""What was promised to other masters: (ballot, watermark), the highest ballots, in order. `NO_BALLOT`: to whom is not known."""
BundleId = tuple[NodeId, Life, Count]
"""(sender, its incarnation, count)."""
Slot = tuple[NodeId, Digest, Count]
"""A file of a worker in one lane: (worker, file, lane). `file` is the hash64 of its identity; lane 0 is the live one, others are
numbers of CONTROL. File 0 stands for a source without any file: its offset is always 0."""
Span = tuple[Count, Count, Annotated[int, Meta(ge=0, le=7)]]
"""(from, to, flags): the bytes of a file that a contribution covers."""
NO_WATERMARK: Micros = (1 << 63) - 1
"""Watermark of a bundle whose workers are all told apart, in `lagging`."""
FIRST = 1
"""Span flag: nothing before `from` belongs to the job. Only such a span may open a file that the master does not know."""
CLOSED = 2
"""Span flag: `to` is the file's length, and no more will come."""
GAP = 4
"""Span flag: lines before `to` are lost (the file was shorter than its place, or gone). Windows up to the worker's watermark do
not count it as complete."""


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a file is committed; `closed`: to its end."""

    offset: Count
    closed: bool = False


class Line(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A control line: from event time `from_us` on, version `version` of the job is in force. `plan`: the encoded plan."""

    number: Count
    version: Word
    from_us: Micros
    plan: bytes


Schedule = tuple[Line, ...]
"""Ordered by number and by `from_us`. Its number is that of its last line."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all."""


# Overlay: failure detection (SWIM), leaf sets, routing, join. Datagrams.


def node_of(ballot: Ballot) -> NodeId:
    """Whose ballot it is; b"" of `NO_BALLOT`."""
    return ballot[1][:ID_BYTES]


class Contact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node and which life of it; `address` is where the transport finds it.

    incarnation: higher after each restart. refuted: how often this life has contradicted a report of its death; of two claims
    about a node the one with the higher (incarnation, refuted) is the newer. instance: which process that life is.
    """

    id: NodeId
    incarnation: Life
    address: Annotated[str, Meta(max_length=255)] = ""
    refuted: Count = 0
    instance: Instance = 0


class News(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A claim about a member, spread on pings: status "alive", "suspect", "dead" or "left", of that incarnation."""

    contact: Contact
    status: Annotated[str, Meta(pattern=r"^(alive|suspect|dead|left)\Z")]


class Ping(Message, frozen=True, array_like=True, gc=False):
    sender: Contact
    number: Count
    news: tuple[News, ...] = ()
    leaves_digest: Digest = 0


class Pong(Message, frozen=True, array_like=True, gc=False):
    """`about`: whom an indirect probe asked for; the sender itself otherwise."""

    sender: Contact
    number: Count
    about: NodeId
    news: tuple[News, ...] = ()
    leaves_digest: Digest = 0


class ProbeFor(Message, frozen=True, array_like=True, gc=False):
    """Please ping `target`, and send me its Pong."""

    sender: Contact
    number: Count
    target: Contact


class LeavesRequest(Message, frozen=True, array_like=True, gc=False):
    """Your leaf set, and if `row` >= 0 that row of your routing table."""

    sender: Contact
    row: int = -1


class LeavesReport(Message, frozen=True, array_like=True, gc=False):
    sender: Contact
    leaves: tuple[Contact, ...]
    row: tuple[Contact, ...] = ()


class JoinMesh(Message, frozen=True, array_like=True, gc=False):
    """Routed towards the joiner's own id; each hop adds its contact and what of its routing table serves the joiner."""

    joiner: Contact
    known: tuple[Contact, ...] = ()


class JoinReply(Message, frozen=True, array_like=True, gc=False):
    """From the closest node to the joiner: everyone it needs to begin with."""

    sender: Contact
    known: tuple[Contact, ...]


class Routed(Message, frozen=True, array_like=True, gc=False):
    """A datagram on its way to the node closest to `key`. `hops` bounds it."""

    key: NodeId
    origin: NodeId
    message: Message
    hops: Count = 0


# The directory, by anti-entropy. Datagrams.


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of the directory. kind: "job", "agent", "ballot", "schedule", "revoked"; of two with one key the higher
    (stamp, digest of body) stays."""

    kind: Word
    name: bytes
    stamp: tuple[Digest, ...]
    body: bytes
    signature: bytes = b""


class GossipDigest(Message, frozen=True, array_like=True, gc=False):
    """`root`: digest of all I hold. When `buckets` is given, it is each bucket's; `want`: send me these buckets' items."""

    root: Digest
    buckets: tuple[Digest, ...] = ()
    want: tuple[Count, ...] = ()


class GossipItems(Message, frozen=True, array_like=True, gc=False):
    """Items of one bucket; `reply`: send me yours of it too."""

    bucket: Count
    items: tuple[Item, ...]
    reply: bool = False


# A job's master and its workers, outside the tree: routed to the job's id, answered directly. Datagrams.


class Hello(Message, frozen=True, array_like=True, gc=False):
    """A worker that does not know where to go on asks for its positions; again until a Welcome comes."""

    job: JobId
    worker: NodeId
    incarnation: Life


class Welcome(Message, frozen=True, array_like=True, gc=False):
    """`positions`: of each file of the worker that is known, in all lanes; others begin at `since_us`. `lanes`: number of each
    CONTROL that waits for this worker's lane, and from which event time. `ends`: every file of those lanes that is not done,
    and up to where it is to be read again (its span is FIRST where the lane has no position yet)."""

    job: JobId
    ballot: Ballot
    incarnation: Life
    schedule: Schedule
    since_us: Micros
    positions: tuple[tuple[Slot, Position], ...]
    lanes: tuple[tuple[Count, Micros], ...] = ()
    ends: tuple[tuple[Slot, Count], ...] = ()


class Goodbye(Message, frozen=True, array_like=True, gc=False):
    """The worker leaves for good, its last line committed by the master with that ballot; `until_us`: no line at or past
    this will come from it. unread: none of its last lines could be read."""

    job: JobId
    worker: NodeId
    until_us: Micros
    incarnation: Life = 0
    ballot: Ballot = NO_BALLOT
    unread: bool = False


class Farewell(Message, frozen=True, array_like=True, gc=False):
    """The master's answer: LEAVE is in the log."""

    job: JobId
    worker: NodeId


# The tree. TreeJoin is routed or sent, the rest is posted on links.


class TreeJoin(Message, frozen=True, array_like=True, gc=False):
    """`child` looks for a parent in the job's tree. `size`, `height`: of its subtree. `attempt` tells answers apart."""

    job: JobId
    child: NodeId
    incarnation: Life
    attempt: Count
    size: Count
    height: Count


class Adopt(Message, frozen=True, array_like=True, gc=False):
    """`path`: the parent, its parent, … as far as known. `ballot`: of the master as far as the parent knows. `rooted`: the path
    ends in the root (else in a node that looks for a parent itself). `total`: nodes in the whole tree as the root counts them."""

    job: JobId
    attempt: Count
    path: tuple[NodeId, ...]
    ballot: Ballot = NO_BALLOT
    rooted: bool = True
    total: Count = 0


class Path(Message, frozen=True, array_like=True, gc=False):
    """To children, when it has changed, and now and then as a sign of life. Fields as in `Adopt`."""

    job: JobId
    path: tuple[NodeId, ...]
    ballot: Ballot = NO_BALLOT
    rooted: bool = True
    total: Count = 0


class Refuse(Message, frozen=True, array_like=True, gc=False):
    """Not my child (any more). `instead`: ask there."""

    job: JobId
    attempt: Count
    instead: MaybeId = b""


class Size(Message, frozen=True, array_like=True, gc=False):
    """To the parent, when it has changed enough to matter: nodes below and including me, and levels."""

    job: JobId
    size: Count
    height: Count


class Leave(Message, frozen=True, array_like=True, gc=False):
    """To the parent: I have another one now. To a child: look for another."""

    job: JobId


class Away(Message, frozen=True, array_like=True, gc=False):
    """To a neighbour, of this one job: my seat failed, or takes nothing from you any more. What was under way between us is lost,
    and I am nobody's parent, child or replica, until I say that I am away no more; then we begin anew."""

    job: JobId
    away: bool


class Bundle(Message, frozen=True, array_like=True):
    """What a subtree adds.

    contributions: no slot twice. watermark: the lowest of the workers in it, except those in `lagging`, which are told one by
    one (a joiner's backlog must not hold the others). schedule: number of the schedule that cut the rows. again: it was
    sent once before; forward it, never merge it. ballot: of the master that its workers had heard of when it was cut
    (the lowest of them): to another master the watermarks promise nothing, since it may lack files that this one had
    committed to their ends. since_us: lines before it were left out (the highest of its workers'): a master that retains more
    cannot take it. untimed: rejected lines that are in no window, by worker; they are counted beside the windows. elsewhere:
    promised by its workers to other masters, until this one has committed a bundle that was cut for it.
    """

    job: JobId
    id: BundleId
    schedule: Count
    contributions: dict[Slot, Span]
    watermark: Micros
    lagging: dict[NodeId, Micros]
    parts: dict[str, Part]
    again: bool = False
    ballot: Ballot = NO_BALLOT
    since_us: Micros = 0
    untimed: dict[NodeId, Count] = {}
    elsewhere: Elsewhere = ()


class Commit(Message, frozen=True, array_like=True, gc=False):
    """Down, hop by hop: these bundles are in the log, or were there already. Forget them."""

    job: JobId
    ballot: Ballot
    ids: tuple[BundleId, ...]


class Split(Message, frozen=True, array_like=True, gc=False):
    """Down, hop by hop: that bundle cannot be accepted as one. Resend what went into it apart; a lone worker reads again.

    positions: the committed ones of the slots that did not fit (absent: the master knows no such file). since_us: lines before
    it are left out, as in `Welcome`.
    """

    job: JobId
    ballot: Ballot
    id: BundleId
    schedule: Schedule
    positions: tuple[tuple[Slot, Position], ...]
    since_us: Micros = 0


class Resend(Message, frozen=True, array_like=True, gc=False):
    """To a child: send these bundles again, each as it was, marked `again`; () is all that are kept."""

    job: JobId
    ids: tuple[BundleId, ...]


class Hold(Message, frozen=True, array_like=True, gc=False):
    """To a child: I keep too much of this job that is not committed; send nothing more of it until told otherwise. (A closed
    window on the link would hold up the commits of other jobs, and two nodes could wait for each other.)"""

    job: JobId
    hold: bool


class Control(Message, frozen=True, array_like=True, gc=False):
    """Multicast: the schedule as logged, and the lane that its last line opened: rows at or past `lane_us` again, for each file
    up to where it was committed (`Welcome` and `Split` name the places). `ends` is empty for workers without any."""

    job: JobId
    ballot: Ballot
    schedule: Schedule
    lane_us: Micros = 0


class Stop(Message, frozen=True, array_like=True, gc=False):
    """Multicast: the job has ended."""

    job: JobId
    ballot: Ballot


# The master's log, on links to replicas; and taking over, by datagrams.


class Append(Message, frozen=True, array_like=True):
    """Entries `first`, `first` + 1, … of the log under `ballot`; `committed`: index up to which all replicas hold it.

    previous: the log before `first` is also that of this ballot; whoever holds exactly that goes on without an `Install`.
    """

    job: JobId
    ballot: Ballot
    first: Count
    entries: tuple[Any, ...]
    committed: Count
    previous: Ballot = NO_BALLOT


class Install(Message, frozen=True, array_like=True):
    """The whole state after entry `index`, in place of whatever the replica holds; `previous`: under which ballot it was.

    tail: the entries behind it, which are not in the state because they are not known to be committed. proven: the log's, as in
    `StateReport`. Of a large state the rows are not in it: they are asked for with `PieceRequest`.
    """

    job: JobId
    ballot: Ballot
    index: int
    state: Any
    previous: Ballot = NO_BALLOT
    tail: tuple[Any, ...] = ()
    proven: Ballot = NO_BALLOT


class PieceRequest(Message, frozen=True, array_like=True, gc=False):
    """To who sent an `Install` under that ballot with that index: piece `at` of its state's rows, in order from 0 on."""

    job: JobId
    ballot: Ballot
    index: Count
    at: Count


class StatePiece(Message, frozen=True, array_like=True, gc=False):
    """Some of those rows: a frame of one tree of a version. last: there are no more."""

    job: JobId
    ballot: Ballot
    index: Count
    at: Count
    last: bool
    version: Word
    tree: Count
    frame: bytes


class Held(Message, frozen=True, array_like=True, gc=False):
    """I hold, durably, every entry of this ballot up to `index` (or a snapshot and the rest); -1: nothing of this ballot.

    refused: `ballot` is the higher one that I have promised.
    """

    job: JobId
    ballot: Ballot
    index: int
    refused: bool = False


class StateRequest(Message, frozen=True, array_like=True, gc=False):
    """Who wants to serve asks around (datagram, again until answered). Under NO_BALLOT nobody promises anything by its answer."""

    job: JobId
    ballot: Ballot


class StateReport(Message, frozen=True, array_like=True, gc=False):
    """What I hold: entries up to `index` under `held`; `highest`: ballot I have promised; `serving`: I am the master; `proven`:
    the last ballot under which more than half of the agents had reported to the master of this log."""

    job: JobId
    asked: Ballot
    highest: Ballot
    held: Ballot
    index: int
    serving: bool = False
    proven: Ballot = NO_BALLOT


class Fetch(Message, frozen=True, array_like=True, gc=False):
    """Datagram, again until answered by `Install`: give me what you hold, I am about to serve under `ballot`."""

    job: JobId
    ballot: Ballot


class Handover(Message, frozen=True, array_like=True, gc=False):
    """On the link, behind the last Append: the log is yours, I serve no more."""

    job: JobId
    ballot: Ballot
    index: int


# Questions of an operator. Datagrams, again until answered.


class TreeRequest(Message, frozen=True, array_like=True, gc=False):
    """Who is below you in the job's tree? Routed to the job's id, then sent from node to node."""

    job: JobId
    number: Count


class TreeReport(Message, frozen=True, array_like=True, gc=False):
    """serving: this node is the job's master. parent: b"" for none."""

    job: JobId
    number: Count
    serving: bool
    parent: MaybeId
    children: tuple[NodeId, ...]


class StatusRequest(Message, frozen=True, array_like=True, gc=False):
    """How are you?"""

    number: Count


class Failing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job that fails at some agent. reason: of the last failure. failures: in a row. again_us: until it begins anew there, 0
    where it has."""

    job: JobId
    reason: Annotated[str, Meta(max_length=300)]
    failures: Count
    again_us: Count


ENDED_MAX = 64
"""Neighbours that are known to have ended; all in one rack."""


FILES_MAX = 32
"""Files that an agent names when it is asked how it is; 10 KB."""
FileMark = tuple[Digest, Annotated[str, Meta(max_length=200)], Annotated[str, Meta(max_length=300)]]
"""(what tells a file of one host from any other, source, path)."""


class StatusReport(Message, frozen=True, array_like=True, gc=False):
    """clock_us: when it was answered. memory_bytes: of the process, beyond the `memory_bare` that it had before it read its
    journal; memory: of these, by owner. masters … workers: jobs with that role. problems: what is wrong, a line each. failing:
    jobs whose seat there fails. files: that it follows. ended: neighbours whose processes are known to be gone, and microseconds
    since then. untimed: rejected lines in no window, of jobs that it is the master of."""

    number: Count
    clock_us: Micros
    version: Word = ""
    up_s: Count = 0
    memory_bytes: Count = 0
    memory_max: Count = 0
    lag_bytes: Count = 0
    masters: Count = 0
    replicas: Count = 0
    reducers: Count = 0
    workers: Count = 0
    problems: tuple[Annotated[str, Meta(max_length=500)], ...] = ()
    memory_bare: Count = 0
    memory: dict[Word, Count] = {}
    failing: tuple[Failing, ...] = ()
    files: tuple[FileMark, ...] = ()
    ended: dict[NodeId, Count] = {}
    untimed: dict[JobId, Count] = {}


# Links.


class Frame(Message, frozen=True, array_like=True, gc=False):
    """A link's datagram. session: (sender's incarnation, receiver's as known, or 0). sequence: of `message`, from 1;
    0 is none, only an acknowledgement. acknowledged: highest in order; credit: bytes the sender of this may still take."""

    session: tuple[Count, Count]
    sequence: Count
    acknowledged: Count
    credit: Count
    message: Message | None = None


class Piece(Message, frozen=True, array_like=True, gc=False):
    """Some of the bytes of a link's encoded messages, one after the other (`srt/codec/pieces.py`): small ones whole, large ones
    cut."""

    payload: bytes
