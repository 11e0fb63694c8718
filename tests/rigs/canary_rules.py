"""Each rule of the commit protocol that the design marks with a star, and how it is broken: another method in place of its own.

A rule that guards two things is broken in two ways. `mesh` and `seeds` say in which simulations that is seen: at least one of
them must fail, and every one must be exact with the rule in force. One seed is enough, that in which it is seen soonest; where
a change of the protocol hides it there, look for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from elf.agent.node.delta_worker import DeltaWorker
from elf.agent.node.linked_node import Outer
from elf.agent.node.reading_places import ReadingPlaces
from elf.agent.node.seats import SeatedNode
from elf.agent.node.term import Term
from elf.agent.node.vacancy import Vacancy
from elf.agent.simulator.scenario.scenario import Scenario
from elf.agent.simulator.world.sources import LINE_BYTES, VirtualFile, VirtualSource
from elf.jobmaster.delivery.ledger import Ledger
from elf.jobmaster.delivery.outbox import Outbox
from elf.jobmaster.directory import changes
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec, decode_agent
from elf.jobmaster.directory.known_schedule import KnownSchedule
from elf.jobmaster.log.answers import Answers
from elf.jobmaster.log.entries import Begin
from elf.jobmaster.log.job_log import Promise
from elf.jobmaster.log.job_state import JobState, Published
from elf.jobmaster.log.phases import Phase
from elf.jobmaster.log.positions import Fit, Place, Positions
from elf.jobmaster.log.replica import Replica
from elf.jobmaster.log.replication import Replication
from elf.jobmaster.log.succession import Succession
from elf.jobmaster.master import master as master_module
from elf.jobmaster.master import window_rule
from elf.jobmaster.master.amendments import Amendments
from elf.jobmaster.master.elsewhere import Elsewhere
from elf.jobmaster.master.intake import Intake
from elf.jobmaster.master.master import Master
from elf.jobmaster.master.parking import Parked, Parking
from elf.jobmaster.master.proposals import Proposals
from elf.jobmaster.master.publication import Publication
from elf.jobmaster.master.ready import Ready
from elf.jobmaster.master.roster import Roster
from elf.jobmaster.master.window_rule import Progress
from elf.srt.link.link import Link
from elf.srt.messages.bundles import OpenBundle
from elf.srt.messages.effects import Effect, Read, Write
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import (
    FIRST,
    NO_BALLOT,
    NO_WATERMARK,
    Ballot,
    Bundle,
    Commit,
    Control,
    Item,
    Message,
    Micros,
    Position,
    Resend,
    Slot,
    Span,
)
from elf.srt.tree.reduce import Reducer
from tests.rigs import canary_meshes as meshes

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


class Canary(NamedTuple):
    """rule: as in the design. broken: what happens instead. owner, method: the rule's place."""

    rule: str
    broken: str
    owner: Any
    method: str
    instead: Any
    mesh: Callable[[int], Scenario]
    seeds: range


@contextmanager
def without(canary: Canary) -> Iterator[None]:
    """Switch the rule off in this context."""
    with patch.object(canary.owner, canary.method, canary.instead):
        yield


def always(value: Any) -> Any:
    return lambda *_, **__: value


def nothing(*_: object, **__: object) -> None:
    """Replaces a rule that acts."""


# Trials.


def of_all_names(self: JobItems, spec: JobSpec) -> list[tuple[NodeId, AgentAdvert]]:
    adverts = ((item.name, decode_agent(item)) for item in self._directory.items("agent"))
    return [(node, advert) for node, advert in adverts if spec.source in advert.sources]


def endless(self: Term, until_us: int) -> None:
    self.until_us, self.deadline = until_us, None


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


_mark_gap = DeltaWorker._mark_gap


def as_if_read(self: DeltaWorker, cut: Cut, covered: dict[Slot, Span], now: int) -> None:
    _mark_gap(self, msgspec.structs.replace(cut, is_blind=False), covered, now)


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


CANARIES = (
    Canary(
        "2: spans of a file join only where they meet",
        "they join with a hole, or twice",
        *(OpenBundle, "meets", always(True)),
        *(meshes.stopped, range(2, 3)),
    ),
    Canary(
        "2: watermarks count only in contributions, empty ones included",
        "files without new lines are not named",
        *(ReadingPlaces, "covered", only_what_was_read),
        *(meshes.rebuilt, range(1, 2)),
    ),
    Canary(
        "2: watermarks count only inside accepted contributions",
        "those of bundles that were not accepted count, too",
        *(Intake, "_judge", watermarks_of_all),
        *(meshes.takeovers, range(3, 4)),
    ),
    Canary(
        "2: a promise for times in which no line was parsed is a gap",
        "it is an ordinary promise",
        *(DeltaWorker, "_mark_gap", as_if_read),
        *(meshes.unread, range(1)),
    ),
    Canary(
        "3: a link is strictly FIFO",
        "messages are delivered as they arrive, each once",
        *(Link, "_deliverable", as_it_comes),
        *(meshes.in_pieces, range(54, 55)),
    ),
    Canary(
        "4: a mixed bundle is split",
        "it is accepted",
        *(Positions, "_classify", mixed_is(Fit.FITS)),
        *(meshes.takeovers, range(1)),
    ),
    Canary(
        "4: a mixed bundle is split",
        "it is dropped, and reported as committed",
        *(Positions, "_classify", mixed_is(Fit.BEHIND)),
        *(meshes.takeovers, range(1)),
    ),
    Canary(
        "4: the sender of a bundle is asked to split it",
        "no Split is sent",
        *(Intake, "_send_split", nothing),
        *(meshes.brisk, range(1, 2)),
    ),
    Canary(
        "4: a split has the children resend what they fed",
        "it is reported to them as committed",
        *(Reducer, "_verdict", always(Commit)),
        *(meshes.rough, range(1, 2)),
    ),
    Canary(
        "4: a split continues below, recursively",
        "children send the bundle again unsplit",
        *(Reducer, "_verdict", always(Resend)),
        *(meshes.brisk, range(13, 14)),
    ),
    Canary(
        "4: a lone worker re-reads",
        "it continues at its position",
        *(DeltaWorker, "_rewind", go_on),
        *(meshes.takeovers, range(10, 11)),
    ),
    Canary(
        "4: a file that is not known is ahead, unless it begins",
        "it may begin anywhere",
        *(Positions, "may_open", always(True)),
        *(meshes.takeovers, range(15, 16)),
    ),
    Canary(
        "6: a replica acknowledges only prefixes",
        "it accepts entries after a gap",
        *(Replica, "continues", always(True)),
        *(meshes.takeovers, range(1, 2)),
    ),
    Canary(
        "6: an entry is committed when all replicas hold it",
        "the own disk is enough",
        *(Replication, "everywhere", lambda self: self.durable),
        *(meshes.takeovers, range(1)),
    ),
    Canary(
        "6: nothing is acknowledged before",
        "answers do not wait for the log",
        *(Proposals, "when_committed", at_once),
        *(meshes.takeovers, range(1)),
    ),
    Canary(
        "7: ballots are compared in order",
        "by epoch only",
        *(Replica, "outranks", staticmethod(by_epoch)),
        *(meshes.takeovers, range(35, 36)),
    ),
    Canary(
        "7: the highest ballot seen is kept on disk",
        "in memory only",
        *(Replica, "promise", from_memory),
        *(meshes.restarts, range(1)),
    ),
    Canary(
        "7: every refusal carries the refuser's ballot",
        "the refused node does not get it",
        *(Replica, "refuse", always([])),
        *(meshes.deposed, range(14, 15)),
    ),
    Canary(
        "7: the highest (ballot, index) is taken",
        "the closest node takes its own",
        *(Answers, "best", lambda self, own: self._me),
        *(meshes.bare, range(1, 2)),
    ),
    Canary(
        "8: a rebuild resumes at the oldest retained pane",
        "at the last final one",
        *(master_module, "first_entry", from_the_last_final),
        *(meshes.rebuilt, range(2)),
    ),
    Canary(
        "8: a window that was final is published again only if all replayed it",
        "also by fewer, when no more agents will come",
        *(Outbox, "is_worse", always(False)),
        *(meshes.rebuilt_with_less, range(1)),
    ),
    Canary(
        "8: agents that may still come are waited for, for windows that were final before a rebuild",
        "only as long as for other windows",
        *(Progress, "is_settled", always(True)),
        *(meshes.late_comers, range(19, 20)),
    ),
    Canary(
        "Roster: a node accepts a new job only from a node that holds adverts of the same agents",
        "from any node",
        *(Directory, "_acceptable", lambda self, message: message.items),
        *(meshes.unknown_sender, range(20, 21)),
    ),
    Canary(
        "10: a closed file continues where it was closed",
        "it never does",
        *(Positions, "may_reopen", always(False)),
        *(meshes.twins, range(3, 4)),
    ),
    Canary(
        "10: a closed file continues where it was closed",
        "also from earlier positions",
        *(Positions, "may_reopen", lambda self, start, length: start <= length),
        *(meshes.twins, range(1)),
    ),
    Canary(
        "10: no log begins another part of a file",
        "lines past the position where one closed it are another file, for all logs",
        *(VirtualSource, "read", another_part),
        *(meshes.one_behind, range(10, 11)),
    ),
    Canary(
        "Windows: the roster starts from the directory",
        "from the agents that report",
        *(Roster, "adverts", nothing),
        *(meshes.silent, range(1)),
    ),
    Canary(
        "Windows: with agents missing only by a master to which more than half have reported",
        "by any master",
        *(Roster, "has_majority", always(True)),
        *(meshes.divided, range(1)),
    ),
    Canary(
        "Windows: FINAL is replicated before it is published",
        "published at once",
        *(Master, "log_final", publish_and_log),
        *(meshes.sinks, range(1, 2)),
    ),
    Canary(
        "Windows: revisions are compared in order",
        "they count without the ballot",
        *(Publication, "next_revision", count_only),
        *(meshes.takeovers, range(4, 5)),
    ),
    Canary(
        "Windows: revisions are compared in order",
        "a sink takes the last one to arrive",
        *(Ledger, "_is_newer", always(True)),
        *(meshes.rough, range(1)),
    ),
    Canary(
        "Changing: CONTROL is replicated before it is multicast",
        "multicast at once",
        *(Amendments, "announce", announce_first),
        *(meshes.changes, range(1)),
    ),
    Canary(
        "Changing: a row's version is the schedule's for its time",
        "any version is taken",
        *(Positions, "rows_belong", always(True)),
        *(meshes.changes, range(2, 3)),
    ),
    Canary(
        "Changing: CONTROL discards rows that lanes will bring again",
        "rows stay",
        *(JobState, "_drop_lane_rows", nothing),
        *(meshes.hurried, range(1, 2)),
    ),
    Canary(
        "Changing: lanes are accepted once",
        "each time they come",
        *(Positions, "place", lanes_again),
        *(meshes.changes, range(2, 3)),
    ),
    Canary(
        "Changing: lanes are cut again if the schedule changes again",
        "the earlier one is forgotten",
        *(Amendments, "reread_from", lambda self, line_us: line_us),
        *(meshes.hurried, range(1)),
    ),
    Canary(
        "Changing: no pane is final while a lane is open",
        "as soon as all watermarks have passed",
        *(window_rule, "lanes_open", always([])),
        *(meshes.hasty, range(1, 2)),
    ),
    Canary(
        "Changing: of two specs with one number the digest decides",
        "the one that was there first stays",
        *(Directory, "_is_newer", by_stamp),
        *(meshes.rivals, range(1, 2)),
    ),
    Canary(
        "8: a log that retains more accepts no state without its lines",
        "it accepts that",
        *(Intake, "has_all_rows", always(True)),
        *(meshes.retention, range(26, 27)),
    ),
    Canary(
        "6: a state in pieces is taken when all of them are there",
        "with the first one",
        *(Replica, "is_whole", always(True)),
        *(meshes.in_pieces, range(1)),
    ),
    Canary(
        "Sinks: the ledger refuses lower ballots",
        "it takes them",
        *(Ledger, "_is_fenced_off", always(False)),
        *(meshes.deaf, range(1, 2)),
    ),
    Canary(
        "Sinks: a new master logs a new FINAL where the ledger differs",
        "windows that are final in the log are not published again",
        *(Publication, "ledger_differs", always(False)),
        *(meshes.sinks, range(1, 2)),
    ),
    Canary(
        "Final: a revision has one status at all masters",
        "a window that is sent again is sent as final",
        *(Published, "status", property(always("final"))),
        *(meshes.watched, range(1)),
    ),
    Canary(
        "Final: a window that readers may have as final is revised",
        "each log starts with final windows",
        *(Publication, "_first_status", always("final")),
        *(meshes.moved, range(1, 2)),
    ),
    Canary(
        "Final: a window that another master may have published as final is revised",
        "workers' promises to other masters do not count",
        *(Elsewhere, "may_have", always(False)),
        *(meshes.moved, range(1, 2)),
    ),
    Canary(
        "7: a ballot is raised to take over, once",
        "by a serving master, repeatedly",
        *(Succession, "tick", bidding),
        *(meshes.bare, range(1)),
    ),
    Canary(
        "Seats: a job's failure affects that job only",
        "the exception propagates",
        *(SeatedNode, "_failed", raised),
        *(meshes.bugs, range(1)),
    ),
    Canary(
        "Seats: neighbours learn of it by a message of that job",
        "the links are reset",
        *(SeatedNode, "_announce_away", hung_up),
        *(meshes.bugs, range(1, 2)),
    ),
    Canary(
        "Seats: nothing of a call that raised is performed",
        "all of it is performed",
        *(SeatedNode, "_failed", performed),
        *(meshes.bugs, range(4, 5)),
    ),
    Canary(
        "Seats: a new seat starts with all records of the former one",
        "with those durable by then",
        *(SeatedNode, "_is_written", always(True)),
        *(meshes.bugs_of_slow_disks, range(23, 24)),
    ),
    Canary(
        "Trials: those who work are those who are expected",
        "all agents with the source are expected",
        *(JobItems, "agents", of_all_names),
        *(meshes.tried, range(1)),
    ),
    Canary(
        "Trials: each node ends a trial at its time",
        "no node does",
        *(Term, "__init__", endless),
        *(meshes.tried, range(1)),
    ),
)
