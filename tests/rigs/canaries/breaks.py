"""How the rules of the commit protocol are broken: methods in the place of others (`tests.rigs.canaries.rules`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from elf.agent.node.linked_node import Outer
from elf.agent.node.seats import SeatedNode
from elf.agent.node.vacancy import Vacancy
from elf.agent.node.worker.delta_worker import DeltaWorker
from elf.agent.node.worker.reading_places import ReadingPlaces
from elf.agent.simulator.world.sources import LINE_BYTES, VirtualFile, VirtualSource
from elf.jobmaster.directory import changes
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.known_schedule import KnownSchedule
from elf.jobmaster.log.entries import Begin
from elf.jobmaster.log.job_log import Promise
from elf.jobmaster.log.phases import Phase
from elf.jobmaster.log.positions import Fit, Place, Positions
from elf.jobmaster.log.replica import Replica
from elf.jobmaster.log.succession import Succession
from elf.jobmaster.master.amendments import Amendments
from elf.jobmaster.master.intake import Intake
from elf.jobmaster.master.master import Master
from elf.jobmaster.master.parking import Parked, Parking
from elf.jobmaster.master.proposals import Proposals
from elf.jobmaster.master.publication import Publication
from elf.jobmaster.master.ready import Ready
from elf.jobmaster.master.window_rule import Progress
from elf.srt.link.link import Link
from elf.srt.messages.effects import Effect, Read, Write
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import (
    FIRST,
    NO_BALLOT,
    NO_WATERMARK,
    Ballot,
    Bundle,
    Control,
    Item,
    Message,
    Micros,
    Position,
    Slot,
    Span,
)

_drop = SeatedNode._failed
_tick = Succession.tick


def raised(node: SeatedNode, spec: JobSpec, error: Exception, *about: Any) -> None:
    raise error


def performed(node: SeatedNode, spec: JobSpec, error: Any, now: int, out: list[Outer], *about: Any) -> None:
    _drop(node, spec, error, now, out, *about)
    node._do(getattr(error, "effects", ()), now, out, spec.id)


def hung_up(node: SeatedNode, vacancy: Vacancy, now: int, out: list[Outer]) -> None:
    for peer in list(node.links):
        node._hang_up(peer, now, out)


def always(value: Any) -> Any:
    return lambda *_, **__: value


def nothing(*_: object, **__: object) -> None:
    """Replaces a rule that acts."""


# Files.

_read = VirtualSource.read


def another_part(self: VirtualSource, read: Read, now: int, *about: Any) -> Cut:
    for file in () if read.lane else self.files:
        at = read.positions.get((self.worker, file.identity, 0))
        if at is not None and at.closed and self.has_more(file, at, now):
            number, lines = self.files.index(file), at.offset // LINE_BYTES
            head = msgspec.structs.replace(_lines(file, slice(lines)), closed_us=now)
            rest = msgspec.structs.replace(_lines(file, slice(lines, None)), identity=file.identity ^ lines)
            self.files[number : number + 1] = [head, rest]
            break
    return _read(self, read, now, *about)


def _lines(file: VirtualFile, some: slice) -> VirtualFile:
    columns = ("written_us", "event_us", "highest_us", "key", "bytes")  # nothing is rejected here
    return msgspec.structs.replace(file, **{name: getattr(file, name)[some] for name in columns})


# Upwards.


def only_what_was_read(self: ReadingPlaces, spans: dict[Slot, Span]) -> dict[Slot, Span]:
    told = {slot: span for slot, span in spans.items() if span[1] > span[0] or span[2]}
    return told or {(self._me, 0, 0): (0, 0, FIRST)}


_judge = Intake._judge


def watermarks_of_all(self: Intake, child: NodeId, bundle: Bundle, now: int) -> bool:
    marks = self.state.watermarks
    for worker, _, _ in bundle.contributions:
        mark = bundle.lagging.get(worker, bundle.watermark)
        if mark < NO_WATERMARK:
            marks[worker] = max(mark, marks.get(worker, mark))
    return _judge(self, child, bundle, now)


def as_it_comes(self: Link, sequence: int, message: Message, size: int) -> list[Message]:
    """Deliver each message once, but in any order."""
    if sequence <= self._acknowledged or sequence in self._held:
        return []
    self._held[sequence] = (message, size)
    self._held_bytes += size
    while self._acknowledged + 1 in self._held:
        self._acknowledged += 1
        self._held_bytes -= self._held.pop(self._acknowledged)[1]
    return [message]


_classify = Positions._classify


def mixed_is(instead: Fit) -> Callable[[Positions, Mapping[Slot, Span]], Fit]:
    def classify(self: Positions, contributions: Mapping[Slot, Span]) -> Fit:
        fit = _classify(self, contributions)
        return instead if fit is Fit.MIXED else fit

    return classify


def wait_on(self: Parking, now: int) -> list[Parked]:
    for key, parked in self._parked.items():
        self._parked[key] = parked._replace(since=now)
    return []


def go_on(self: DeltaWorker, bundle: Bundle, positions: dict[Slot, Position], now: int) -> list[Effect]:
    self._forget()
    self._follow(now)
    return self._read(0, now)


_keep = DeltaWorker._keep


def as_if_read(self: DeltaWorker, cut: Cut, lane: int, now: int) -> None:
    _keep(self, msgspec.structs.replace(cut, is_blind=False, unparsed=None), lane, now)


def with_the_promise(self: DeltaWorker, cut: Cut, lane: int, now: int) -> None:
    _keep(self, msgspec.structs.replace(cut, unparsed=None), lane, now)


# The log.


def at_once(self: Proposals, answer: Callable[..., None], *about: Any) -> None:
    answer(*about)


def by_epoch(one: Ballot, other: Ballot) -> bool:
    return one[0] > other[0]


def bidding(self: Succession, now: int) -> list[Effect]:
    return self._promise(now) if self.phase is Phase.SERVE else _tick(self, now)


def from_memory(self: Replica, ballot: Ballot) -> Write:
    self.highest = max(self.highest, ballot)
    return Write(("ballot", self.job), Promise(NO_BALLOT), replace=True)


def from_the_last_final(
    spec: JobSpec, ballot: Ballot, now: Micros, earlier: KnownSchedule | None = None
) -> Begin:
    entry = changes.first_entry(spec, ballot, now, earlier)
    since = now - spec.lateness_us
    return msgspec.structs.replace(entry, since_us=max(entry.since_us, since - since % 1_000_000))


# Windows.


_log_final = Master.log_final


def publish_and_log(self: Master, ready: Ready) -> None:
    self._publish(ready)
    _log_final(self, ready)


def count_only(self: Publication, key: tuple[str, Micros]) -> tuple[int, NodeId, int]:
    n = self._counts[key] = self._counts.get(key, 0) + 1
    return (1, self.ballot[1], n)


# Changes.


def whole_ones(self: Progress, start: Micros, end: Micros) -> bool:
    return 2 * self.of_final(start, end).passed > self.of_final(start, end).expected


def announce_first(self: Amendments) -> None:
    ahead = self._log.ahead
    from_us = ahead.lane.from_us if ahead.lane else 0
    self._controls.append(Control(self._state.job, self.ballot, ahead.schedule, from_us))


_place = Positions.place


def lanes_again(self: Positions, slot: Slot, span: Span) -> Place:
    found = _place(self, slot, span)
    return Place.FITS if slot[2] and found is Place.BEHIND else found


def by_stamp(self: Directory, item: Item, held: Item) -> bool:
    return item.stamp > held.stamp
