"""A job's log on one node: a state that covers the first entries, and the tail of entries after it.

The state includes all entries up to the last that is known to be committed; the tail holds the rest. Both belong to one ballot,
`held`: within a ballot only one node appends, so of two logs of one ballot one is a prefix of the other. `last` is the last
ballot under which a node *served* with this log. It differs from `held` while a node is about to serve: that node has raised
the log to its ballot on the replicas, and has appended nothing. `proven` is the last majority: the last ballot under which more
than half of the agents had reported, and how many replicas had left before these reports, according to the log's own entries.
Logs with equal (last, index) are equal. Of two different logs the higher by (proven, last, index) has all committed entries of
the lower, or supersedes it. Entries and states are opaque here.

Why `proven` comes first: a few nodes that find no log, or only the copy of a former replica, continue without the others, and
their ballot may be higher than that of the log with which all others continue. Replicas that left are counted because the copy
of a former replica may have the ballot's first majority too.

Why `proven` never ranks a rightful successor's log lower: a majority m counts in a log only where its `Proven` entry is known
to be committed, that is if the log has it twice or was served under a ballot after m's. Suppose that it does not count in a log
with last ballot c, but counts in another log whose last ballot is below c. Then m's ballot is below c, and its entry was
committed before the master of c served. If that master began with all committed entries, its log has the entry and was served
under c, so m counts there, against the assumption. So that log began without committed entries: it is another side's, or is
new.

On disk, under the key ("log", job), the log is one `Base` (which replaces all earlier records) and the `More` records after it;
under ("ballot", job) is the highest `Promise`. Methods return the record that makes a change durable. A large state is written in
pieces while the log continues: a `Base` with a number, its `Rows` before or after that, and other records among them. `Whole`
makes it valid, in place of all records before the `Base` (`elf.jobmaster.log.log_order`); until then the earlier records are
valid.

Bound: the tail holds at most the uncommitted proposals (`Replication.room`); the disk holds `snapshot_entries` more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from elf.srt.messages.messages import NO_BALLOT, Ballot

Majority = tuple[Ballot, int]
"""A ballot under which more than half of the agents had reported, and how many replicas had left under it before they did."""
NO_MAJORITY: Majority = (NO_BALLOT, 0)
Majorities = tuple[Majority, Majority]
"""The last majority whose `Proven` entry the log has twice, and that of the last `Proven` entry."""
Rank = tuple[Majority, Ballot, int]
"""(proven, last, index) of a log; see `rank`."""


class State(Protocol):
    """The result of applying a log's entries."""

    def apply(self, index: int, entry: Any) -> None:
        """Apply entry `index`; deterministic, called once for each index in order."""

    def snapshot(self) -> Any:
        """The state as a value that later `apply`s do not change."""

    def parted(self, piece_bytes: int) -> tuple[Any, Any] | None:
        """A large state as a value that is `in_pieces`, and the rows whose pieces `Reading` reads; None for a small state."""

    def add(self, piece: Any) -> None:
        """Add a piece of the value from which this state was made. Raises PeerError for a piece of another state."""

    def majorities(self, tail: Sequence[Any]) -> Majorities:
        """The majorities recorded by the state's entries and those of `tail` after them."""


NewState = Callable[[Any | None], State]
"""Makes a state from a snapshot; from None the state before the first entry."""


class Base(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Replaces the log: the state after entry `index`, and the entries after it. number: the state's rows are in `Rows` of that
    number; 0: the state includes its rows."""

    ballot: Ballot
    last: Ballot
    index: int
    state: Any
    tail: tuple[Any, ...] = ()
    number: int = 0


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Piece `at`, from 0, of a state's rows."""

    number: int
    at: int
    piece: Any


class Whole(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All `count` pieces and the `Base` are written: they are valid from now on."""

    number: int
    count: int


class More(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Appends entries from index `first` on, and raises the log to `ballot`; without entries it only raises the log. committed:
    the index of the last entry that was known to be committed: a node that restores the log applies the entries up to it."""

    ballot: Ballot
    last: Ballot
    first: int
    entries: tuple[Any, ...] = ()
    committed: int = 0


class Promise(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The node no longer follows lower ballots than this."""

    ballot: Ballot


LogRecord = Base | Rows | Whole | More | Promise


class JobLog:
    """See the module. Memory: the state and the tail; none for a node that holds no log."""

    __slots__ = ("_image", "applied", "held", "last", "new_state", "piece_bytes", "recorded", "state", "tail")

    def __init__(self, new_state: NewState, piece_bytes: int) -> None:
        self.new_state, self.piece_bytes = new_state, piece_bytes
        self.held: Ballot = NO_BALLOT
        self.last: Ballot = NO_BALLOT
        self.state: State | None = None
        self.applied = 0
        self.tail: list[Any] = []
        self.recorded = 0  # entries on disk after the last Base
        self._image: tuple[int, Any, Any] | None = None  # (index, snapshot, rows or None)

    @property
    def index(self) -> int:
        """The index of the last entry held; 0 before the first."""
        return self.applied + len(self.tail)

    @property
    def proven(self) -> Majority:
        """The last majority. O(tail)."""
        majorities = (NO_MAJORITY, NO_MAJORITY) if self.state is None else self.state.majorities(self.tail)
        return committed_proven(majorities, self.last)

    @property
    def rank(self) -> Rank:
        return rank(self.proven, self.last, self.index)

    def begin(self, ballot: Ballot) -> Base:
        """An empty log."""
        return self.install(ballot, NO_BALLOT, 0, None, ())

    def install(
        self, ballot: Ballot, last: Ballot, index: int, snapshot: Any | None, tail: Sequence[Any]
    ) -> Base:
        """Replace the log that was held. O(state)."""
        self._place(ballot, last, index, snapshot, tail)
        return Base(ballot, last, index, self.image() if snapshot is None else snapshot, tuple(tail))

    def _place(
        self, ballot: Ballot, last: Ballot, index: int, snapshot: Any | None, tail: Sequence[Any]
    ) -> None:
        self.place(ballot, last, index, self.new_state(snapshot), tail)

    def place(self, ballot: Ballot, last: Ballot, index: int, state: State, tail: Sequence[Any]) -> None:
        """Replace the log that was held, with a state that was made from all its pieces."""
        self.held, self.last, self.applied, self.tail = ballot, last, index, list(tail)
        self.state = state
        self.recorded = len(self.tail)
        self._image = None

    def raised(self, ballot: Ballot) -> More:
        """Raise the same log to a higher ballot, under which no node serves yet."""
        return self.extend(ballot, self.last, self.index + 1, ())

    def extend(self, ballot: Ballot, last: Ballot, first: int, entries: Sequence[Any]) -> More:
        """Append entries of this ballot, from index `first` on, and raise the log to it. Skips entries that are already held."""
        fresh = tuple(entries[max(0, self.index + 1 - first) :])
        record = More(ballot, last, self.index + 1, fresh, self.applied)
        self.held, self.last = ballot, last
        self.tail += fresh
        self.recorded += len(fresh)
        return record

    def commit(self, index: int) -> list[tuple[int, Any]]:
        """Apply the entries up to `index`, as far as they are held, and return the newly applied ones."""
        count = min(index, self.index) - self.applied
        if count <= 0:
            return []
        assert self.state is not None
        done = list(enumerate(self.tail[:count], self.applied + 1))
        for at, entry in done:
            self.state.apply(at, entry)
        del self.tail[:count]
        self.applied += count
        self._image = None
        return done

    def after(self, index: int) -> tuple[Any, ...]:
        """The entries after `index`, which must not be before the state's last."""
        assert self.applied <= index <= self.index
        return tuple(self.tail[index - self.applied :])

    def image(self) -> Any:
        """The state's snapshot, for a large state without its rows; made at most once between two commits."""
        return self._images()[1]

    def rows(self) -> Any | None:
        """The rows of a large `image`, from which its pieces are read; None for a small one."""
        return self._images()[2]

    def _images(self) -> tuple[int, Any, Any]:
        assert self.state is not None
        if self._image is None:
            snapshot, rows = self.state.parted(self.piece_bytes) or (self.state.snapshot(), None)
            self._image = (self.applied, snapshot, rows)
        return self._image

    def base(self, number: int = 0) -> Base:
        """The whole log as one record; if `number` is not 0, without the state's rows."""
        self.recorded = len(self.tail)
        return Base(self.held, self.last, self.applied, self.image(), tuple(self.tail), number)

    def restore(self, record: Base | More | Rows | Whole) -> None:
        """Apply a record that was read back, in the order of `elf.jobmaster.log.log_order`. Raises PeerError for rows of another
        state."""
        if isinstance(record, Base):
            self._place(record.ballot, record.last, record.index, record.state, record.tail)
        elif isinstance(record, More):
            self.extend(record.ballot, record.last, record.first, record.entries)
            self.commit(record.committed)
        elif isinstance(record, Rows):
            assert self.state is not None
            self.state.add(record.piece)

    def check(self) -> None:
        assert (self.state is None) == (self.held == NO_BALLOT)
        assert self.applied >= 0
        assert self.last <= self.held
        assert self.state is not None or self.index == 0
        assert self._image is None or self._image[0] == self.applied


def proved(before: Majorities, majority: Majority) -> Majorities:
    """The majorities after one more `Proven` entry."""
    _, claimed = before
    return (claimed, majority) if majority >= claimed else before


def committed_proven(majorities: Majorities, last: Ballot) -> Majority:
    """Rule 7*: a log's `Proven` entry counts where it is known to be committed."""
    proven, claimed = majorities
    return claimed if claimed[0] < last else proven


def rank(proven: Majority, last: Ballot, index: int) -> Rank:
    """Orders logs by their last majority, then by their last serving ballot and length. A log without entries ranks lowest,
    whatever its ballot: it has committed nothing."""
    return (proven, last, index) if index else (NO_MAJORITY, NO_BALLOT, 0)
