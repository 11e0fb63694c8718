"""Which fault hits which agent, when, and for how long: all drawn from the seed before a run begins."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.torture.options import Options

WARM_S = 4.0
APART_S = 3.0
"""Minimum time between two faults of one agent."""
AT_ONCE_MAX = 2
"""Agents that are hit at the same time, at most; of five, three are well, so windows continue."""


@dataclass(frozen=True)
class Kind:
    """weight: how often, relative to the others. span_s: how long, at least and at most. variants: one is drawn. is_late: only in
    long runs."""

    name: str
    weight: float
    span_s: tuple[float, float]
    variants: tuple[str, ...] = ("",)
    is_late: bool = False


KINDS = (
    Kind("kill", 8, (0.1, 15.0)),
    Kind("stop", 3, (0.5, 25.0)),
    Kind("restart", 3, (0.1, 3.0)),
    Kind("part", 4, (2.0, 25.0)),
    Kind("block", 3, (2.0, 20.0), ("one", "all")),
    Kind("wipe", 3, (0.1, 12.0), ("", "rotated", "rotated later")),
    Kind("twin", 3, (5.0, 35.0), ("empty", "cloned", "cloned with logs", "instead")),
    Kind("restore", 2, (0.1, 5.0), ("stopped", "running")),
    Kind("full", 3, (2.0, 30.0), ("disk", "lake")),
    Kind("clock", 3, (3.0, 25.0), ("-200", "-30", "-3", "+3", "+30", "+200")),
    Kind("reload", 1, (0.0, 0.0)),
    Kind("hog", 2, (3.0, 15.0)),
    Kind("renew", 1, (0.0, 0.0)),
    Kind("bug", 2, (8.0, 30.0), ("one", "all")),
    Kind("roll", 1, (0.0, 0.0), is_late=True),
    Kind("join", 1.5, (0.0, 0.0), is_late=True),
    Kind("leave", 1, (0.0, 0.0), is_late=True),
    Kind("revoke", 0.7, (0.0, 0.0), is_late=True),
)
OF_DISKS = {"wipe", "restore", "twin", "leave", "revoke"}
"""After these, an agent does not know what it had promised. A job's log is on three disks; when all are lost together, no agent
knows its content any more, so at most two are lost until they have had time to be filled again."""
FIRST_S = 45.0
"""A guest that has just joined keeps its disk for so long. An agent that lost its disk reads those files again that a job knows
of; one that had reported nothing yet cannot be told from one that is new, and its earlier lines are not counted, as it says."""
LOST_MAX = 2
FILLED_S = 20.0
RESTORE_S_MAX = 26.0
EVERYWHERE = {"roll"}
OF_GUESTS = {"join", "leave", "revoke"}
LATE_S = 120.0


@dataclass(frozen=True)
class Fault:
    """at_s: since the first visitors. host: the one it hits. other: another agent that it needs. share: a number in [0, 1)."""

    at_s: float
    kind: str
    host: str
    span_s: float
    variant: str
    other: str
    share: float

    def __str__(self) -> str:
        how = f" ({self.variant})" if self.variant else ""
        return f"{self.kind}{how} {self.host} for {self.span_s:.1f} s"


class Schedule:
    """`faults` and `rotations` in order. hosts: with agents from the start. guests: hosts that join, and may leave. clocked:
    those whose clocks can be stepped."""

    def __init__(
        self, options: Options, hosts: Sequence[str], guests: Sequence[str], clocked: Sequence[str]
    ) -> None:
        self._options, self._hosts, self._guests, self._clocked = options, hosts, guests, clocked
        self._draws = random.Random(options.seed)
        self._busy = dict.fromkeys([*hosts, *guests], 0.0)
        self._joined: dict[str, float] = {}
        self._filled_s: list[float] = []
        self._left_s: list[float] = []
        self.faults = self._draw_faults()
        self.rotations = self._draw_rotations(random.Random(options.seed ^ 0x0106))

    def _kinds(self) -> list[Kind]:
        wanted = self._options.faults or tuple(kind.name for kind in KINDS)
        is_long = self._options.seconds >= LATE_S
        return [
            kind
            for kind in KINDS
            if kind.name in wanted
            and kind.name not in self._options.without
            and (is_long or not kind.is_late)
        ]

    def _draw_faults(self) -> list[Fault]:
        kinds, at_s, faults = self._kinds(), WARM_S, []
        while at_s < self._options.seconds:
            kind = self._draws.choices(kinds, [each.weight for each in kinds])[0]
            fault = self._draw(kind, at_s)
            if fault is None:
                at_s += 0.5
                continue
            faults.append(fault)
            at_s += self._draws.expovariate(1 / self._options.gap_s)
        return faults

    def _draw(self, kind: Kind, at_s: float) -> Fault | None:
        """None if no agent can be hit by it now."""
        host = self._whom(kind, at_s)
        other = self._draws.choice(self._hosts)
        variant, share = self._draws.choice(kind.variants), self._draws.random()
        span_s = self._draws.uniform(*kind.span_s) if self._draws.random() < 0.7 else kind.span_s[0]
        span_s = min(span_s, self._options.seconds / 4)
        if not host:
            return None
        for each in self._busy if kind.name in EVERYWHERE else [host]:
            # A guest that has left for good stays away, even in faults of all agents.
            self._busy[each] = max(self._busy[each], at_s + span_s + APART_S)
        if kind.name in OF_DISKS:
            wait_s = RESTORE_S_MAX if kind.name == "restore" else 0.0
            self._filled_s.append(at_s + wait_s + span_s + FILLED_S)
        if kind.name == "join":
            self._joined[host] = at_s
        elif kind.name in OF_GUESTS:
            del self._joined[host]
            self._left_s.append(at_s + FILLED_S)
            self._busy[host] = self._options.seconds * 2
        return Fault(at_s, kind.name, host, span_s, variant, other, share)

    def _whom(self, kind: Kind, at_s: float) -> str:
        struck = [
            each for each, until_s in self._busy.items() if until_s > at_s and until_s < self._options.seconds
        ]
        free = [each for each in self._candidates(kind, at_s) if self._busy[each] <= at_s]
        left = sum(until_s > at_s for until_s in self._left_s)
        if len(struck) + left >= AT_ONCE_MAX or not free:
            return ""
        if kind.name in EVERYWHERE and struck:
            return ""
        if kind.name in OF_DISKS and sum(until_s > at_s for until_s in self._filled_s) >= LOST_MAX:
            return ""
        return self._draws.choice(free)

    def _candidates(self, kind: Kind, at_s: float) -> list[str]:
        if kind.name == "join":
            return [each for each in self._guests if each not in self._joined]
        if kind.name in OF_GUESTS:
            return list(self._joined)
        if kind.name == "clock":
            return list(self._clocked)
        since_s = at_s - FIRST_S if kind.name in OF_DISKS else at_s
        return [*self._hosts, *(guest for guest, joined_s in self._joined.items() if joined_s <= since_s)]

    def _draw_rotations(self, draws: random.Random) -> list[tuple[float, str]]:
        rotations = []
        for host in [*self._hosts, *self._guests]:
            at_s = draws.uniform(1.0, self._options.rotate_s)
            while at_s < self._options.seconds:
                rotations.append((at_s, host))
                at_s += draws.uniform(0.2, 1.8) * self._options.rotate_s
        return sorted(rotations)
