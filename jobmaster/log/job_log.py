"""A job's log as one node holds it: a state that covers the first entries, and the tail behind it.

The state is applied up to the last entry that is known to be committed; the tail are the entries after that. Both belong to
one ballot, `held`: within a ballot one node decides, so two logs of one ballot are prefixes of one another. `last` is the last
ballot under which a node *served* with this log: a log on its way to the replicas of a node that is about to serve has been
raised to its ballot already, but proves nothing yet. `proven` is the last ballot under which more than half of the agents had
reported, as the log's own entries say. Logs with equal (last, index) are equal, and of two different ones the higher by
(proven, last, index) has what the lower has committed, or has won over it. Entries and states are opaque here.

Why `proven` comes first: a few nodes that meet without the log begin a new one, under a ballot higher than that of the log which
all others go on with. Why it takes nothing from a log that is rightly the successor's: `Proven(b)` counts in a log only where it
is known to be committed, that is when it is there twice or the log was served under a ballot after b. Say that it does
not count in a log with last ballot c, but in another one whose last ballot is below c. Then b < c, and `Proven(b)` was committed
before c served; so whoever began under c with all that was committed holds it too, and served under c > b: it counts there as
well. A log that lacks it began without what was committed: it is of another side, or begun anew.

On disk, under the key ("log", job), the same log is one `Base` (which replaces what was before) and the `More` records behind it;
under ("ballot", job) lies the highest `Promise`. Methods return the record that makes a change durable. A large state is written
in pieces while the log goes on: a `Base` with a number, its `Rows` before or behind that, and other records among them. It counts
once `Whole` says that all is there, in place of everything before the `Base` (`elf.jobmaster.log.log_order`); until then, what
was before counts.

Bound: the tail grows by what is proposed and not yet committed (`Replication.room`), on disk by `snapshot_entries` more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from elf.srt.messages.messages import NO_BALLOT, Ballot

Standing = tuple[Ballot, Ballot]
"""The last ballot that a log calls proven twice, and the last one that it calls so at all."""
Rank = tuple[Ballot, Ballot, int]
"""(proven, last, index) of a log; see `rank`."""


class State(Protocol):
    """What a log's entries add up to."""

    def apply(self, index: int, entry: Any) -> None:
        """Take in entry `index`; deterministic, called once for each index in order."""

    def snapshot(self) -> Any:
        """All of it as a value that later `apply`s do not change."""

    def parted(self, piece_bytes: int) -> tuple[Any, Any] | None:
        """A large one as a value that is `in_pieces`, and what `Reading` reads its pieces from; None of a small one."""

    def add(self, piece: Any) -> None:
        """One of the pieces of the value that it was made from. Raises PeerError for one that is none of them."""

    def standing(self, tail: Sequence[Any]) -> Standing:
        """What its entries say, and those of `tail` behind them."""


NewState = Callable[[Any | None], State]
"""Makes a state from a snapshot; from None the one before the first entry."""


class Base(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The log begins anew: the state after entry `index`, and the entries behind it. number: the state's rows are in `Rows` of
    that number; 0: it has all."""

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
    """All `count` pieces are there, and the `Base`: it counts from now on."""

    number: int
    count: int


class More(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Entries `first`, … follow, and the log is one of `ballot` from now on. Without entries it is only that. committed: the last
    entry that was known to be: whoever reads the log back applies so many, and need not hold them."""

    ballot: Ballot
    last: Ballot
    first: int
    entries: tuple[Any, ...] = ()
    committed: int = 0


class Promise(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """No lower ballot than this is followed any more."""

    ballot: Ballot


LogRecord = Base | Rows | Whole | More | Promise


class JobLog:
    """See the module. Memory: the state and the tail; nothing for a node that holds no log."""

    __slots__ = ("_image", "applied", "held", "last", "new_state", "piece_bytes", "recorded", "state", "tail")

    def __init__(self, new_state: NewState, piece_bytes: int) -> None:
        self.new_state, self.piece_bytes = new_state, piece_bytes
        self.held: Ballot = NO_BALLOT
        self.last: Ballot = NO_BALLOT
        self.state: State | None = None
        self.applied = 0
        self.tail: list[Any] = []
        self.recorded = 0  # entries on disk behind the last Base
        self._image: tuple[int, Any, Any] | None = None  # the last one: whether it has rows besides

    @property
    def index(self) -> int:
        """Of the last entry held; 0 before the first."""
        return self.applied + len(self.tail)

    @property
    def proven(self) -> Ballot:
        """The last ballot under which more than half had reported. O(tail)."""
        return NO_BALLOT if self.state is None else counts(self.state.standing(self.tail), self.last)

    @property
    def rank(self) -> Rank:
        return rank(self.proven, self.last, self.index)

    def begin(self, ballot: Ballot) -> Base:
        """An empty log."""
        return self.install(ballot, NO_BALLOT, 0, None, ())

    def install(
        self, ballot: Ballot, last: Ballot, index: int, snapshot: Any | None, tail: Sequence[Any]
    ) -> Base:
        """In place of whatever was held. O(state)."""
        self._place(ballot, last, index, snapshot, tail)
        return Base(ballot, last, index, self.image() if snapshot is None else snapshot, tuple(tail))

    def _place(
        self, ballot: Ballot, last: Ballot, index: int, snapshot: Any | None, tail: Sequence[Any]
    ) -> None:
        self.place(ballot, last, index, self.new_state(snapshot), tail)

    def place(self, ballot: Ballot, last: Ballot, index: int, state: State, tail: Sequence[Any]) -> None:
        """In place of whatever was held: a state that was made of all its pieces."""
        self.held, self.last, self.applied, self.tail = ballot, last, index, list(tail)
        self.state = state
        self.recorded = len(self.tail)
        self._image = None

    def raised(self, ballot: Ballot) -> More:
        """The same log for a higher ballot, under which nobody serves yet."""
        return self.extend(ballot, self.last, self.index + 1, ())

    def extend(self, ballot: Ballot, last: Ballot, first: int, entries: Sequence[Any]) -> More:
        """Entries `first`, … of this ballot; those already held are skipped. The whole log becomes one of `ballot`."""
        fresh = tuple(entries[max(0, self.index + 1 - first) :])
        record = More(ballot, last, self.index + 1, fresh, self.applied)
        self.held, self.last = ballot, last
        self.tail += fresh
        self.recorded += len(fresh)
        return record

    def commit(self, index: int) -> list[tuple[int, Any]]:
        """Apply up to entry `index`, or what is held of it, and return what was applied."""
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
        """The entries behind `index`, which the state must not be past."""
        assert self.applied <= index <= self.index
        return tuple(self.tail[index - self.applied :])

    def image(self) -> Any:
        """The state's snapshot, of a large one without its rows; made once between two commits, however many ask."""
        return self._images()[1]

    def rows(self) -> Any | None:
        """What the pieces of a large `image` are read from."""
        return self._images()[2]

    def _images(self) -> tuple[int, Any, Any]:
        assert self.state is not None
        if self._image is None:
            snapshot, rows = self.state.parted(self.piece_bytes) or (self.state.snapshot(), None)
            self._image = (self.applied, snapshot, rows)
        return self._image

    def base(self, number: int = 0) -> Base:
        """All that is held as one record, or all but rows."""
        self.recorded = len(self.tail)
        return Base(self.held, self.last, self.applied, self.image(), tuple(self.tail), number)

    def restore(self, record: Base | More | Rows | Whole) -> None:
        """Take in a record as read back, in the order of `elf.jobmaster.log.log_order`. Raises PeerError: rows of another
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


def proved(standing: Standing, ballot: Ballot) -> Standing:
    """After one more entry that says so of `ballot`. Who served under a later ballot had committed what was said before."""
    _, claimed = standing
    return (min(claimed, ballot), max(claimed, ballot)) if ballot >= claimed else standing


def counts(standing: Standing, last: Ballot) -> Ballot:
    """Rule 7*: what a log says of its standing counts where it is known to be committed."""
    proven, claimed = standing
    return claimed if claimed < last else proven


def rank(proven: Ballot, last: Ballot, index: int) -> Rank:
    """Orders logs: by who stood behind them, then by how much they hold. A log without an entry has committed nothing, whatever
    its ballot: it ranks lowest."""
    return (proven, last, index) if index else (NO_BALLOT, NO_BALLOT, 0)
