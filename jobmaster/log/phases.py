"""The phases of a job's succession on one node, what others see of them, and how they end: it serves, or serves no more."""

from __future__ import annotations

from enum import Enum

import msgspec

from elf.jobmaster.log.job_log import State
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Ballot, node_of

PAUSE_DOUBLINGS = 5
"""To 32 `ask_us`: 6.4 s by default, the longest time that the loser of such a fight leaves a job without a master."""


class Role(Enum):
    """What a node is for a job's log."""

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
    """How long a node that has lost its ballot waits before it asks for another one: `ask_us`, and twice as long each time that
    it soon loses again. Otherwise two masters that cannot reach each other, but reach one sink, would fence each other off many
    times a second."""

    __slots__ = ("_lost_at", "_us", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._us = self._lost_at = 0

    def begin(self, now: int, ask_us: int) -> int:
        """The time in µs. Soon is within 8 of the pauses before."""
        is_soon = now - self._lost_at < 8 * self._us
        self._us = min(2 * self._us, ask_us << PAUSE_DOUBLINGS) if is_soon else ask_us
        self._lost_at = now
        return self._us


class Serve(msgspec.Struct, frozen=True):
    """This node serves from now on. `state` goes on to be applied to by the succession. fresh: nothing was found; rebuild.
    former: who served right before; b"" where there was nobody, or another one in between, whose log is lost. handed_on: and has
    published nothing that is not in this log."""

    ballot: Ballot
    state: State
    index: int
    fresh: bool
    former: NodeId = b""
    handed_on: bool = False

    @classmethod
    def after(cls, former: Ballot, ballot: Ballot, state: State, index: int, handed_on: bool) -> Serve:
        """former: of who served before, as the log of so many entries says. handed_on: what is known of that besides."""
        node = node_of(former)
        is_last = index > 0 and former[0] + 1 == ballot[0]
        return cls(ballot, state, index, index == 0, node if is_last else b"", handed_on and is_last)


class StepDown(msgspec.Struct, frozen=True):
    """It serves no more; what was proposed and not committed is not its business any more. handed_on: its successor has all."""

    ballot: Ballot
    handed_on: bool = False


Change = Serve | StepDown
