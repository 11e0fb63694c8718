"""The phases of a job's succession on one node, the role that others see, and what its caller takes."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import Any

import msgspec

from elf.jobmaster.log.job_log import State
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Ballot, node_of

PAUSE_DOUBLINGS = 5
"""The longest pause is 32 `ask_us`, 6.4 s by default: for at most so long a node that lost its ballot leaves a job without a
master."""


class Role(Enum):
    """A node's role for a job's log."""

    IDLE = "idle"
    REPLICA = "replica"
    ASKING = "asking"
    SERVING = "serving"
    HANDING_OVER = "handing over"


class Phase(Enum):
    """See the table of `elf.jobmaster.log.succession`."""

    REST = "rest"
    QUERY = "query"
    WAIT = "wait"
    PROMISE = "promise"
    FETCH = "fetch"
    INSTALL = "install"
    SERVE = "serve"
    DRAIN = "drain"

    @property
    def is_under_own_ballot(self) -> bool:
        return self not in (Phase.REST, Phase.QUERY, Phase.WAIT)

    @property
    def is_replicating(self) -> bool:
        return self in (Phase.INSTALL, Phase.SERVE, Phase.DRAIN)


class Pause:
    """How long a node that has lost its ballot waits before it takes another one: `ask_us`, and twice as long each time that it
    soon loses again. Otherwise two masters that cannot reach each other, but reach the same sink, would fence each other off
    many times a second."""

    __slots__ = ("_lost_at", "_us", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._us = self._lost_at = 0

    def begin(self, now: int, ask_us: int) -> int:
        """Returns the pause in µs. "Soon" is within eight times the pause before."""
        is_soon = now - self._lost_at < 8 * self._us
        self._us = min(2 * self._us, ask_us << PAUSE_DOUBLINGS) if is_soon else ask_us
        self._lost_at = now
        return self._us


class Serve(msgspec.Struct, frozen=True):
    """This node serves from now on. The succession keeps applying entries to `state`. fresh: no log was found, so the master
    rebuilds. former: the node that served right before; b"" if there was none, or if a node whose log is lost served in between.
    handed_on: the former node has published nothing that is not in this log."""

    ballot: Ballot
    state: State
    index: int
    fresh: bool
    former: NodeId = b""
    handed_on: bool = False

    @classmethod
    def after(cls, former: Ballot, ballot: Ballot, state: State, index: int, handed_on: bool) -> Serve:
        """former: the ballot that served before, according to the log of `index` entries. handed_on: whether that master is known
        to have published nothing that this log lacks."""
        node = node_of(former)
        is_last = index > 0 and former[0] + 1 == ballot[0]
        return cls(ballot, state, index, index == 0, node if is_last else b"", handed_on and is_last)


class StepDown(msgspec.Struct, frozen=True):
    """This node no longer serves, and its uncommitted proposals are dropped. handed_on: its successor has the whole log."""

    ballot: Ballot
    handed_on: bool = False


Change = Serve | StepDown


class News:
    """What the caller of a succession takes after each call. In each, Serve and StepDown alternate."""

    __slots__ = ("changes", "committed")

    def __init__(self) -> None:
        self.committed: list[tuple[int, Any]] = []
        """Newly committed entries that were proposed here, in order; the state already includes them."""
        self.changes: list[Change] = []

    def __bool__(self) -> bool:
        return bool(self.committed or self.changes)

    def take_committed(self) -> list[tuple[int, Any]]:
        done, self.committed = self.committed, []
        return done

    def take_changes(self) -> list[Change]:
        done, self.changes = self.changes, []
        return done

    def check(self) -> None:
        assert all(type(one) is not type(other) for one, other in pairwise(self.changes))
