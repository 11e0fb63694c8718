"""The messages between nodes, typed; those that carry results are in `srt/messages/results.py`. `srt/codec/wire.py` encodes and
decodes them; the simulator passes them as they are.

There are two kinds of transport. Datagrams (`Ping` … , and all that is routed) may be lost, repeated or overtaken; a sender that
needs an answer repeats its datagram until the answer comes. Messages on a link (`Adopt` … ) arrive once and in order, between one
life of each of two nodes.

The types declare bounds. Decoding enforces them on all that comes from a peer; nothing else checks them.
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
"""A number that a process draws when it starts. It distinguishes two processes with one key, which a life cannot: the disk that
counts lives may have been copied. 0: unknown."""
Digest = Annotated[int, Meta(ge=0)]
"""64 bits."""
ShortText = Annotated[str, Meta(max_length=64)]
MaybeId = Annotated[bytes, Meta(max_length=ID_BYTES)]
"""A node's id, or b"": decoding rejects other lengths."""
Maker = Annotated[bytes, Meta(max_length=MAKER_BYTES)]
"""The maker of a ballot: a node's id, followed by the instance of its process if that is known; or b"". Decoding rejects other
lengths."""
Ballot = tuple[Count, Maker]
"""(epoch, maker), compared in order: the master with the highest ballot counts. A ballot names the process, so that two processes
with one key never write the same ballot, and never mistake the other's for their own."""
NO_BALLOT: Ballot = (0, b"")
Revision = tuple[Count, Maker, Count]
"""(epoch, maker, n) of a window's publication, compared in order."""
MASTERS_MAX = 8
Elsewhere = Annotated[tuple[tuple[Ballot, Micros], ...], Meta(max_length=MASTERS_MAX)]
"""Watermarks promised to other masters: (ballot, watermark), of the highest ballots, in order. `NO_BALLOT`: an unknown master."""
BundleId = tuple[NodeId, Life, Count]
"""(sender, its incarnation, count)."""
Slot = tuple[NodeId, Digest, Count]
"""A file of a worker in one lane: (worker, file, lane). `file` is the hash64 of its identity. Lane 0 is the live one; other lanes
have the number of their CONTROL. File 0 represents a source that has no file: its offset is always 0."""
Span = tuple[Count, Count, Annotated[int, Meta(ge=0, le=7)]]
"""(from, to, flags): the bytes of a file that a contribution covers."""
Period = tuple[Micros, Micros]
"""(from, until), event times."""
NO_WATERMARK: Micros = (1 << 63) - 1
"""Watermark of a bundle whose workers are all listed in `lagging`."""
FIRST = 1
"""Span flag: nothing before `from` belongs to the job. Only such a span may open a file that the master does not know."""
CLOSED = 2
"""Span flag: `to` is the file's final length."""
GAP = 4
"""Span flag: lines before `to` are lost (the file was shorter than its position, or gone). Windows up to the worker's watermark
count the worker as incomplete."""


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a file is committed; `closed`: up to its end."""

    offset: Count
    closed: bool = False


SETTINGS_BYTES_MAX = 64 << 10
"""Four times the longest: the names of 16 sinks."""


class Line(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A control line: from event time `from_us` on, version `version` of the job is in force. `plan`: the encoded plan. settings:
    those that come into force with it, encoded; b"": those of the line before go on."""

    number: Count
    version: ShortText
    from_us: Micros
    plan: bytes
    settings: Annotated[bytes, Meta(max_length=SETTINGS_BYTES_MAX)] = b""


Schedule = tuple[Line, ...]
"""Ordered by number and by `from_us`. Its number is that of its last line."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages."""


# Overlay: failure detection (SWIM), leaf sets, routing, join. Datagrams.


def under(ballot: Ballot, revision: Revision) -> Revision:
    """The same revision, with the objects of that ballot if it is of that: 100 bytes less for each that is kept for long."""
    return (*ballot, revision[2]) if revision[:2] == ballot else revision


def node_of(ballot: Ballot) -> NodeId:
    """The node that made the ballot; b"" for `NO_BALLOT`."""
    return ballot[1][:ID_BYTES]


class Contact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One life of a node; `address` is where the transport reaches it.

    incarnation: higher after each restart. refuted: how often this life has contradicted a report of its death. Of two claims
    about a node, the one with the higher (incarnation, refuted) is newer. instance: the process of that life.
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
    """`about`: the target of an indirect probe; otherwise the sender."""

    sender: Contact
    number: Count
    about: NodeId
    news: tuple[News, ...] = ()
    leaves_digest: Digest = 0


class ProbeFor(Message, frozen=True, array_like=True, gc=False):
    """Ping `target`, and forward its Pong to me."""

    sender: Contact
    number: Count
    target: Contact


class LeavesRequest(Message, frozen=True, array_like=True, gc=False):
    """Send me your leaf set and, if `row` >= 0, that row of your routing table."""

    sender: Contact
    row: int = -1


class LeavesReport(Message, frozen=True, array_like=True, gc=False):
    sender: Contact
    leaves: tuple[Contact, ...]
    row: tuple[Contact, ...] = ()


class JoinMesh(Message, frozen=True, array_like=True, gc=False):
    """Routed towards the joiner's own id. Each hop adds its contact and those of its routing table that the joiner can use."""

    joiner: Contact
    known: tuple[Contact, ...] = ()


class JoinReply(Message, frozen=True, array_like=True, gc=False):
    """From the closest node to the joiner: the contacts it starts with."""

    sender: Contact
    known: tuple[Contact, ...]


class Routed(Message, frozen=True, array_like=True, gc=False):
    """A datagram in transit to the node closest to `key`. `hops` bounds its way."""

    key: NodeId
    origin: NodeId
    message: Message
    hops: Count = 0


# The directory, by anti-entropy. Datagrams.


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of the directory. kind: one of `elf.jobmaster.directory.directory.KINDS`. Of two with one key, the one with the
    higher (stamp, digest of body) stays."""

    kind: ShortText
    name: bytes
    stamp: tuple[Digest, ...]
    body: bytes
    signature: bytes = b""


class GossipDigest(Message, frozen=True, array_like=True, gc=False):
    """`root`: digest of all items I hold. `buckets`, if given: the digest of each bucket. `want`: send me the items of these
    buckets."""

    root: Digest
    buckets: tuple[Digest, ...] = ()
    want: tuple[Count, ...] = ()


class GossipItems(Message, frozen=True, array_like=True, gc=False):
    """Items of one bucket; `reply`: send me your items of it too. `agents`: a digest of the nodes whose adverts I hold."""

    bucket: Count
    items: tuple[Item, ...]
    reply: bool = False
    agents: Digest = 0


# A job's master and its workers, outside the tree: routed to the job's id, answered directly. Datagrams.


class Hello(Message, frozen=True, array_like=True, gc=False):
    """A worker without positions requests them from the master, and repeats this until a Welcome comes."""

    job: JobId
    worker: NodeId
    incarnation: Life


class Welcome(Message, frozen=True, array_like=True, gc=False):
    """`positions`: of each file of the worker that the master knows, in all lanes; other files begin at `since_us`. `lanes`: the
    number of each CONTROL that waits for this worker's lane, and its first event time. `ends`: each unfinished file of those
    lanes, and up to where to read it again (its span is FIRST where the lane has no position yet)."""

    job: JobId
    ballot: Ballot
    incarnation: Life
    schedule: Schedule
    since_us: Micros
    positions: tuple[tuple[Slot, Position], ...]
    lanes: tuple[tuple[Count, Micros], ...] = ()
    ends: tuple[tuple[Slot, Count], ...] = ()


class Goodbye(Message, frozen=True, array_like=True, gc=False):
    """The worker leaves for good; the master with that ballot has committed its last line. `until_us`: the worker will send no
    line at or past it. unread: none of its last lines could be read."""

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


# The tree. TreeJoin is routed or sent as a datagram; all others go over links.


class TreeJoin(Message, frozen=True, array_like=True, gc=False):
    """`child` searches for a parent in the job's tree. `size`, `height`: of its subtree. `attempt`: answers repeat it."""

    job: JobId
    child: NodeId
    incarnation: Life
    attempt: Count
    size: Count
    height: Count


class Adopt(Message, frozen=True, array_like=True, gc=False):
    """`path`: the parent, its parent, … as far as known. `ballot`: the master's, as far as the parent knows. `rooted`: the path
    ends in the root (otherwise in a node that searches for a parent itself). `total`: nodes in the whole tree, as the root
    counts. watched: somebody reads the job's open windows, as far as the parent knows."""

    job: JobId
    attempt: Count
    path: tuple[NodeId, ...]
    ballot: Ballot = NO_BALLOT
    rooted: bool = True
    total: Count = 0
    watched: bool = True


class Path(Message, frozen=True, array_like=True, gc=False):
    """To children, after each change and once per life_us as a sign of life. Fields as in `Adopt`."""

    job: JobId
    path: tuple[NodeId, ...]
    ballot: Ballot = NO_BALLOT
    rooted: bool = True
    total: Count = 0
    watched: bool = True


class Refuse(Message, frozen=True, array_like=True, gc=False):
    """You are not my child (any more). `instead`: the node to ask next."""

    job: JobId
    attempt: Count
    instead: MaybeId = b""


class Size(Message, frozen=True, array_like=True, gc=False):
    """To the parent, after a change: the number of nodes in my subtree, me included, and the number of its levels."""

    job: JobId
    size: Count
    height: Count


class Leave(Message, frozen=True, array_like=True, gc=False):
    """To the parent: I am no longer your child. To a child: I am no longer your parent; search for another."""

    job: JobId


class Away(Message, frozen=True, array_like=True, gc=False):
    """To a neighbour, about this one job. True: my seat failed, or takes no more messages from you. Messages in transit between
    us are lost, and I am no parent, child or replica of yours until I send False; then we begin anew."""

    job: JobId
    away: bool


class Bundle(Message, frozen=True, array_like=True):
    """Rows that a subtree adds to a job.

    contributions: each slot at most once. watermark: the lowest of its workers', except those in `lagging`, listed one by one (a
    joiner must not hold the others back). schedule: number of the schedule of the rows. again: the bundle was sent before;
    forward it, never merge it. ballot: of the master that its workers knew when they cut it (the lowest of these): the
    watermarks promise nothing to another master, which may lack files that this one had committed to their ends. since_us:
    earlier lines are left out (the highest of its workers'); a master that retains more cannot accept it. untimed: rejected
    lines in no window, by worker, counted beside the windows. elsewhere: watermarks that its workers promised to other masters,
    until this one has committed a bundle that was cut for it. newest: no line is later; NO_WATERMARK: unknown. unparsed: for each
    worker that could parse no line of some time, that time. It comes with the lines that were rejected, so no log has these
    lines without it, and again, with GAP, which masters of earlier versions know, when the watermark passes that time.
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
    newest: Micros = NO_WATERMARK
    unparsed: dict[NodeId, Period] = {}


class Commit(Message, frozen=True, array_like=True, gc=False):
    """Down the tree, hop by hop: these bundles are in the log. Forget them."""

    job: JobId
    ballot: Ballot
    ids: tuple[BundleId, ...]


class Split(Message, frozen=True, array_like=True, gc=False):
    """Down the tree, hop by hop: that bundle cannot be accepted whole. A reducer resends its parts one by one; a worker reads
    again.

    positions: the committed ones of the slots that did not fit (a slot without one: the master does not know the file). since_us:
    lines before it are left out, as in `Welcome`.
    """

    job: JobId
    ballot: Ballot
    id: BundleId
    schedule: Schedule
    positions: tuple[tuple[Slot, Position], ...]
    since_us: Micros = 0


class Resend(Message, frozen=True, array_like=True, gc=False):
    """To a child: send these bundles again, each as it was, marked `again`; (): all that you keep."""

    job: JobId
    ids: tuple[BundleId, ...]


class Hold(Message, frozen=True, array_like=True, gc=False):
    """To a child. True: I keep too many uncommitted bytes of this job; send no more bundles of it until I send False. (A closed
    window on the link would delay the commits of other jobs, and two nodes could wait for each other.)"""

    job: JobId
    hold: bool


class Control(Message, frozen=True, array_like=True, gc=False):
    """Multicast: the schedule as logged, and the lane that its last line opened: read rows at or past `lane_us` again, of each
    file up to its committed position (which `Welcome` and `Split` name)."""

    job: JobId
    ballot: Ballot
    schedule: Schedule
    lane_us: Micros = 0


class Stop(Message, frozen=True, array_like=True, gc=False):
    """Multicast: the job has ended. number: of the spec that ended it."""

    job: JobId
    ballot: Ballot
    number: Count = 0


# The master's log, on links to replicas; takeovers, by datagrams.


class Append(Message, frozen=True, array_like=True):
    """Entries `first`, `first` + 1, … of the log under `ballot`; `committed`: index up to which all replicas hold it.

    previous: the log before `first` is also that of this ballot; a replica that holds exactly that log needs no `Install`.
    """

    job: JobId
    ballot: Ballot
    first: Count
    entries: tuple[Any, ...]
    committed: Count
    previous: Ballot = NO_BALLOT


class Install(Message, frozen=True, array_like=True):
    """The whole state after entry `index`, which replaces all that the replica holds; `previous`: the ballot of that entry.

    tail: the entries after `index`, which the state lacks because they are not known to be committed. proven, left: the log's,
    as in `StateReport`. A large state comes without its rows: the replica requests them with `PieceRequest`.
    """

    job: JobId
    ballot: Ballot
    index: int
    state: Any
    previous: Ballot = NO_BALLOT
    tail: tuple[Any, ...] = ()
    proven: Ballot = NO_BALLOT
    left: Count = 0

    @property
    def majority(self) -> tuple[Ballot, Count]:
        """Of two logs, the one with the later majority goes on."""
        return self.proven, self.left


class PieceRequest(Message, frozen=True, array_like=True, gc=False):
    """To the node that sent an `Install` with that ballot and index: send piece `at` of its state's rows, in order from 0 on."""

    job: JobId
    ballot: Ballot
    index: Count
    at: Count


class StatePiece(Message, frozen=True, array_like=True, gc=False):
    """A piece of those rows: a frame of one tree of a version. last: no piece follows."""

    job: JobId
    ballot: Ballot
    index: Count
    at: Count
    last: bool
    version: ShortText
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
    """A node that wants to serve requests the state of others (datagram, repeated until answered). An answer to NO_BALLOT
    promises nothing."""

    job: JobId
    ballot: Ballot


class StateReport(Message, frozen=True, array_like=True, gc=False):
    """I hold entries up to `index` under `held`. `highest`: the highest ballot that I have promised. `serving`: I am the master.
    `proven`: the last ballot under which more than half of the agents had reported to the master of this log; `left`: how many
    replicas had left before they did."""

    job: JobId
    asked: Ballot
    highest: Ballot
    held: Ballot
    index: int
    serving: bool = False
    proven: Ballot = NO_BALLOT
    left: Count = 0

    @property
    def majority(self) -> tuple[Ballot, Count]:
        """Of two logs, the one with the later majority goes on."""
        return self.proven, self.left


class Fetch(Message, frozen=True, array_like=True, gc=False):
    """Datagram, repeated until answered by `Install`: send me the log that you hold; I am about to serve under `ballot`."""

    job: JobId
    ballot: Ballot


class Handover(Message, frozen=True, array_like=True, gc=False):
    """On the link, after the last Append: the log is yours; I no longer serve."""

    job: JobId
    ballot: Ballot
    index: int


# Requests of an operator. Datagrams, repeated until answered.


class TreeRequest(Message, frozen=True, array_like=True, gc=False):
    """Requests a node's place in the job's tree. Routed to the job's id, then sent from node to node."""

    job: JobId
    number: Count


class TreeReport(Message, frozen=True, array_like=True, gc=False):
    """serving: this node is the job's master. parent: b"" for none."""

    job: JobId
    number: Count
    serving: bool
    parent: MaybeId
    children: tuple[NodeId, ...]


# Links.


class Frame(Message, frozen=True, array_like=True, gc=False):
    """A link's datagram. session: (sender's incarnation, receiver's as known, or 0). sequence: of `message`, from 1;
    0: no message, only an acknowledgement. acknowledged: highest received in order. credit: bytes that the sender of this
    frame accepts before it acknowledges."""

    session: tuple[Count, Count]
    sequence: Count
    acknowledged: Count
    credit: Count
    message: Message | None = None


class Piece(Message, frozen=True, array_like=True, gc=False):
    """A stretch of a link's stream of encoded messages (`srt/codec/pieces.py`): a small message, or a part of a large one."""

    payload: bytes
