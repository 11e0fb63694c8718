"""What sinks hear of alerts, and whether the states of alerts are those of one pass over all lines.

Checked when the mesh is at rest:
1. *exactly once in the log*: no two entries of a log have one change of a state, and what fires and is resolved in the serving
   master's log is what one pass finds, window by window;
2. *none lost*: every sink has heard each of these, under the same id, and no instance fires twice without being resolved between.

Sinks keep their cursors through everything but the loss of a disk; a sink that is away loses messages. The model assumes that no
window was final without an agent, so these scenarios have a `hold_us_max` longer than their faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from elf.agent.simulator.checks.oracle import Oracle, Violation
from elf.jobmaster.alerts.book import Notification, identifier
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.log.entries import Judged, Serve
from elf.jobmaster.log.job_state import JobState
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT, Ballot, Micros
from elf.srt.messages.results import AlertPut, AlertReply

if TYPE_CHECKING:
    from elf.agent.simulator.world.places import Actor

_decoder = msgspec.msgpack.Decoder(tuple[Notification, ...])
Change = tuple[str, str, Micros]
"""(key, state, time)."""


class AlertSinks:
    """heard: of each sink and job, the transitions by id, in the order of their first arrival. repeated: how many came again."""

    def __init__(self) -> None:
        self.heard: dict[tuple[NodeId, JobId], dict[str, Change]] = {}
        self.repeated = 0
        self._logged: dict[tuple[JobId, str], set[tuple[int, Ballot]]] = {}
        """By transition: the index of its entry, and the ballot under which that was written."""
        self._taken_over: dict[tuple[JobId, Ballot], tuple[Ballot, int]] = {}
        """By ballot: that of the master before, and the index of the entry with which the log was taken over."""
        self._cursors: dict[tuple[NodeId, str, JobId], tuple[Ballot, int]] = {}
        self.again: Callable[[Actor | None, AlertPut, int], None] = lambda by, put, number: None
        """Called with a transition that came again."""

    def check_entry(self, state: JobState, entry: Any) -> None:
        """A state is about to apply a committed entry. Raises Violation for a change that the log has at another index too. Two
        sides of a partition continue one log, each in its own way."""
        index = state.index + 1
        if isinstance(entry, Serve):
            self._taken_over[state.job, entry.ballot] = (state.served, index)
        if not isinstance(entry, Judged):
            return
        for change in entry.judgement.changes:
            logged = self._logged.setdefault((state.job, identifier(state.job, change)), set())
            for at, by in sorted(logged):
                if at != index and self._is_before(state, at, by, index):
                    raise Violation(
                        f"alerts of {state.name}: entries {at} and {index} of its log have the same change"
                    )
            logged.add((index, state.served))

    def _is_before(self, state: JobState, at: int, by: Ballot, index: int) -> bool:
        """Whether the entry at `at`, written under ballot `by`, is in the log that has that state, before `index`."""
        ballot, seen = state.served, set[Ballot]()
        while ballot not in seen:
            if ballot == by:
                return at < index
            seen.add(ballot)
            ballot, taken = self._taken_over.get((state.job, ballot), (ballot, index))
            index = min(index, taken)
        return False

    def take(self, sink: NodeId, put: AlertPut, by: Actor | None) -> AlertReply | None:
        """As a node that serves the sink does, or that agent, which has a cursor of its own."""
        cursor = (by.id if by is not None else sink, put.sink, put.job)
        log, number = self._cursors.get(cursor, (NO_BALLOT, 0))
        if put.log < log or put.is_firing:
            return None
        done = number if put.log == log else 0
        heard = self.heard.setdefault((sink, put.job), {})
        for each in _decoder.decode(put.payload):
            if each.number > done:
                name = identifier(put.job, each.change)
                if name in heard:
                    self.repeated += 1
                    self.again(by, put, each.number)
                heard.setdefault(name, _change(each))
        if put.number > done or put.log > log:
            self._cursors[cursor] = put.log, max(done, put.number)
        return AlertReply(put.job, put.sink, put.log, max(done, put.number))

    def forget(self, agent: NodeId) -> None:
        """The agent has lost its disk."""
        for cursor in [each for each in self._cursors if each[0] == agent]:
            del self._cursors[cursor]

    def problem(
        self, spec: JobSpec, state: JobState, oracle: Oracle, sinks: Sequence[NodeId], end_us: Micros
    ) -> str:
        """What is wrong with a job's alerts; "" if nothing."""
        known = [_change(each) for each in state.alerts.history]
        wanted = one_pass(spec, state, oracle, end_us)
        if sorted(known) != wanted:
            lacks, more = set(wanted) - set(known), [each for each in known if each not in wanted]
            return f"alerts of {spec.name}: the log lacks {sorted(lacks)[:3]}, and has beside one pass {more[:3]}"
        if len(set(known)) < len(known):
            return f"alerts of {spec.name}: the log has a change twice"
        for sink in sinks:
            heard = self.heard.get((sink, spec.id), {})
            missing = [each for each in state.alerts.history if identifier(spec.id, each.change) not in heard]
            if missing:
                return f"alerts of {spec.name}: a sink has not heard of {_change(missing[0])}"
        return ""


def _change(notification: Notification) -> Change:
    change = notification.change
    return (change.keys[0][1] if change.keys else "", change.state, change.at_us)


def one_pass(spec: JobSpec, state: JobState, oracle: Oracle, end_us: Micros) -> list[Change]:
    """What fires and is resolved, by all lines, for `hits_0 >= N`."""
    (alert,) = spec.alerts
    least = int(alert.when.rpartition(" ")[2])
    shape = state.shape(spec.versions[-1].digest)
    first = state.positions.since_us // shape.slide_us * shape.slide_us
    found: list[Change] = []
    for key, path in enumerate(oracle.keys):
        times = oracle.times_of(key)
        held_since: Micros | None = None
        is_firing = False
        for start in range(first, end_us, shape.slide_us):
            stop = start + shape.size_us
            hits = int(np.searchsorted(times, stop) - np.searchsorted(times, start))
            if hits < least:
                if is_firing:
                    found.append((path, "resolved", stop))
                held_since, is_firing = None, False
                continue
            held_since = stop - shape.slide_us if held_since is None else held_since
            if not is_firing and stop - held_since >= alert.for_us:
                is_firing = True
                found.append((path, "firing", stop))
    return sorted(found)
