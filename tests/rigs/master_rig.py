"""A master with a log that commits on request, workers whose logs are lists of lines, and a sink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from elf.cbt.budget import Budget
from elf.jobmaster.delivery.ledger import Ledger
from elf.jobmaster.delivery.sink_queue import Target
from elf.jobmaster.delivery.watchers import Watchers
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.log.entries import AnyEntry
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import in_force, number_of, plan_of
from elf.jobmaster.master.master import Master
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.result import Lines, Window
from elf.srt.messages.effects import Effect, Post, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import (
    FIRST,
    NO_WATERMARK,
    Ballot,
    Bundle,
    Commit,
    Control,
    Elsewhere,
    Schedule,
    Slot,
    Span,
    Split,
    Welcome,
)
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.partial import Part
from elf.srt.messages.results import WITHDRAWN, Put
from tests.rigs.mesh_lines import SECOND, LogLine, part_of, version_of
from tests.rigs.mesh_lines import plan_of as query

A, B = b"A" * 16, b"B" * 16
T0 = 1_700_000_000 * SECOND
CHILD = b"C" * 16
SINK, LATE = b"S" * 16, b"L" * 16
SINKS = {SINK: "first", LATE: "second"}
"""The names of the sinks, each at a node of its own. Jobs go to the first one, unless they say otherwise."""
PARAMETERS = Parameters()
BALLOT: Ballot = (1, b"M" * 16)


def spec_of(plan: Plan, number: int = 1, **fields: Any) -> JobSpec:
    about: dict[str, Any] = {"line_us": T0, "lateness_us": 2 * SECOND, "keep_us": 600 * SECOND}
    given = about | {"sinks": ("first",)} | fields
    return JobSpec("hits", number, "access", (version_of(plan),), **given)


def targets(nodes: Iterable[NodeId]) -> list[Target]:
    return [Target(SINKS[node], node) for node in nodes]


def parts_of(schedule: Schedule, lines: Sequence[LogLine]) -> dict[str, Part]:
    """Each line under the version of its time."""
    by_version: dict[bytes, list[LogLine]] = {}
    versions = {line.plan: line.version for line in schedule}
    for line in lines:
        by_version.setdefault(in_force(schedule, line[0]).plan, []).append(line)
    return {versions[plan]: part_of(plan_of(plan), found) for plan, found in by_version.items()}


class ShownHere(Watchers):
    """Watchers with one more, who is not sent windows but sees them at once, while `is_watched`."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.is_watched = True
        self.puts: list[Put] = []

    def __len__(self) -> int:
        return super().__len__() + self.is_watched

    def publish(self, put: Put) -> list[Effect]:
        if self.is_watched and put.status != WITHDRAWN:
            self.puts.append(put)
        return super().publish(put)


class Rig:
    """One job's master. `delayed`: entries are committed by `commit`, else at once."""

    def __init__(
        self,
        spec: JobSpec | None = None,
        *,
        state: JobState | None = None,
        ballot: Ballot = BALLOT,
        sinks: Sequence[NodeId] = (),
        delayed: bool = False,
        now: int = T0,
        kind: type[Master] = Master,
        parameters: Parameters = PARAMETERS,
        ledgers: dict[NodeId, Ledger] | None = None,
        deaf: bool = False,
        handed_on: bool = False,
    ) -> None:
        self.spec = spec or spec_of(query())
        self.budget = Budget(1 << 28)
        self.state = state or JobState(self.spec.id, self.spec.name, self.budget)
        self.log: list[tuple[int, AnyEntry]] = []
        self.waiting: list[tuple[int, AnyEntry]] = []
        self.index = self.state.index
        self.delayed, self.now = delayed, now
        self.room, self.deaf = 1 << 20, deaf
        self.left = 0
        self.ledgers = {sink: Ledger(self.spec.id) for sink in sinks} if ledgers is None else ledgers
        self.effects: list[Effect] = []
        self.puts: list[Put] = []
        about = self.spec, self.state, ballot, parameters, self.propose, self.budget, targets(sinks)
        self.master = kind(*about, lambda: self.room, left=lambda: self.left, handed_on=handed_on)
        self.master.watchers = self.shown = ShownHere(
            self.master.job, ballot, parameters, self.master._reread, self.master.publication.newest_finals
        )
        self.do(self.master.begin(now))
        self.bundles = 0

    def propose(self, entry: AnyEntry) -> int:
        self.index += 1
        self.waiting.append((self.index, entry))
        return self.index

    def do(self, effects: list[Effect]) -> None:
        """Keep effects, let the sinks answer, and unless `delayed` commit what was proposed."""
        queue = list(effects)
        while queue or (self.waiting and not self.delayed):
            if not queue:
                queue += self._commit(len(self.waiting))
                continue
            effect = queue.pop(0)
            self.effects.append(effect)
            if isinstance(effect, Send) and effect.to in self.ledgers and not self.deaf:
                for answer in self.ledgers[effect.to].step(BALLOT[1], effect.message, self.now):
                    if isinstance(answer, Send):
                        queue += self.master.step(effect.to, answer.message, self.now)
        for part in (self.master.roster, self.master.amendments, self.master.outbox):
            part.check()

    def _commit(self, count: int) -> list[Effect]:
        entries, self.waiting = self.waiting[:count], self.waiting[count:]
        self.log += entries
        return self.master.committed(entries, self.now)

    def commit(self, count: int | None = None) -> None:
        self.do(self._commit(len(self.waiting) if count is None else count))

    def tick(self, later_us: int = 0) -> None:
        """Let time pass, and tick at its end."""
        self.now += later_us
        self.do(self.master.tick(self.now))

    def run(self, later_us: int) -> None:
        """Let time pass in emit intervals."""
        for _ in range(max(1, later_us // PARAMETERS.emit_us)):
            self.tick(PARAMETERS.emit_us)

    def bundle(
        self,
        contributions: dict[Slot, Span],
        lines: Sequence[LogLine] = (),
        *,
        watermark: int = T0,
        schedule: Schedule | None = None,
        lagging: dict[NodeId, int] | None = None,
        child: NodeId = CHILD,
        ballot: Ballot | None = None,
        again: bool = False,
        newest: int = NO_WATERMARK,
        elsewhere: Elsewhere = (),
    ) -> Bundle:
        """Give the master a bundle; returns it."""
        self.bundles += 1
        schedule = schedule or self.state.schedule
        made = Bundle(
            self.spec.id,
            (child, 1, self.bundles),
            number_of(schedule),
            contributions,
            watermark,
            lagging or {},
            parts_of(schedule, lines),
            ballot=self.master.ballot if ballot is None else ballot,
            again=again,
            newest=newest,
            elsewhere=elsewhere,
        )
        self.give(made, child)
        return made

    def give(self, bundle: Bundle, child: NodeId = CHILD) -> None:
        self.do(self.master.bundle(child, bundle, self.now))

    def take(self, kind: type[Any]) -> list[Any]:
        """Messages of a kind that left, in order, and forget all others."""
        found = [
            effect.message
            for effect in self.effects
            if isinstance(effect, Send | Post) and isinstance(effect.message, kind)
        ]
        if kind is Control:
            found = [message for message in self.master.take_multicast() if isinstance(message, Control)]
        self.effects.clear()
        return found

    def committed(self) -> list[Any]:
        """Bundles that were told to be committed."""
        return [each for message in self.take(Commit) for each in message.ids]

    def splits(self) -> list[Split]:
        """Those of bundles."""
        return [split for split in self.take(Split) if split.id[2]]

    def welcomes_splits_commits(self) -> tuple[list[Welcome], list[Split], list[Any]]:
        """All three, of the same time."""
        kept = list(self.effects)
        welcomes = self.take(Welcome)
        self.effects = list(kept)
        splits = self.splits()
        self.effects = kept
        return welcomes, splits, self.committed()

    def welcomes(self) -> list[Welcome]:
        return self.take(Welcome)

    def windows(self) -> list[Any]:
        """Windows that were published, in order, once each."""
        puts, self.shown.puts = self.shown.puts, []
        return [self._window(put) for put in puts]

    def _window(self, put: Put) -> Window:
        """The node of its revision is the id as a number."""
        epoch, node, n = put.revision
        start = put.start if put.end > put.start else None
        window = self.master.publication.contents.publisher(put.version).window(
            start, put.rows, Lines(*put.lines), put.status, (epoch, int.from_bytes(node), n)
        )
        return msgspec.structs.replace(
            window, agents_reporting=put.agents_reporting, agents_expected=put.agents_expected
        )


def file(worker: NodeId, number: int = 1, lane: int = 0) -> Slot:
    return worker, number, lane


def opened(**fields: bool) -> Rig:
    """A rig with files of A and B at 100."""
    rig = Rig(**fields)  # type: ignore[arg-type]
    rig.bundle({file(A): (0, 100, FIRST), file(B): (0, 100, FIRST)})
    while rig.waiting:
        rig.commit()
    rig.take(Commit)
    return rig
