"""Each sink of a job has an entry of its own in its master's outbox (rule Alone*): one that takes nothing delays no other."""

from __future__ import annotations

from msgspec.structs import replace

from elf.jobmaster.delivery.chunks import put_bytes
from elf.jobmaster.delivery.outbox import Outbox
from elf.jobmaster.delivery.sink_queue import BACKLOG_MAX, FLIGHT_BYTES_MAX, FLIGHT_MAX, IN_FLIGHT_MAX, Target
from elf.jobmaster.log.schedule import AFTER_ALL, BEFORE_ALL
from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import LedgerReport, LedgerRequest, PaneParts, Put, PutReply
from tests.rigs.mesh_lines import SECOND

JOB, ME, NODE, OTHER = b"J" * 16, b"M" * 16, b"N" * 16, b"O" * 16
BALLOT = (1, ME)
MOVING = Target("moving", NODE, True, moves=True)
LAKE, HOOK, FILES = Target("lake", NODE), Target("hook", NODE, True), Target("files", NODE, True)
MANY = 5 * IN_FLIGHT_MAX
BYTES_MAX = 20 << 10
ROWS = tuple((at, f"/page/{at}") for at in range(10))
PANES = (PaneParts(0, 1, (1, 1, 0, 0), ((b"state" * 50, False),)),)


def put(start: int, n: int = 1) -> Put:
    about = start, start + 1, (start, start + 1), "final", (1, ME, n), 7, 1, 1, (1, 1, 0, 0)
    return Put(JOB, BALLOT, "v", *about, ROWS, PANES)


class Box:
    """An outbox, and the windows that each of its sinks has got. dead: sinks that answer nothing."""

    def __init__(self, *targets: Target, dead: tuple[str, ...] = ()) -> None:
        parameters = Parameters(outbox_bytes_max=BYTES_MAX)
        self.outbox = Outbox(
            JOB, BALLOT, targets, parameters, lambda key, status: put(key[1]), with_open=False
        )
        self.dead, self.now = dead, 0
        self.got: dict[str, list[Put]] = {target.name: [] for target in targets}
        self.sent: list[Put] = []

    def run(self, seconds: int) -> None:
        for _ in range(seconds * 5):
            self.now += SECOND // 5
            self.answer(self.outbox.tick(self.now, 0))
            self.outbox.check()

    def answer(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Send)
            message = effect.message
            assert isinstance(message, LedgerRequest | Put)
            if isinstance(message, Put):
                self.sent.append(message)
            if message.sink in self.dead:
                continue
            if isinstance(message, LedgerRequest):
                report = LedgerReport(JOB, BALLOT, 0, (), message.sink)
                assert self.outbox.ledger_reported(effect.to, report) == ()
            else:
                self.got[message.sink].append(message)
                about = JOB, BALLOT, message.version, message.start, message.revision, message.sink
                self.outbox.acknowledged(effect.to, PutReply(*about))


def test_a_dead_sink_delays_no_other_of_its_node_and_its_memory_is_bounded() -> None:
    box = Box(HOOK, LAKE, FILES, dead=("hook",))
    for start in range(MANY):
        box.outbox.put(put(start), box.outbox.names)
        box.run(1)
    for name in ("lake", "files"):
        assert [each.start for each in box.got[name]] == list(range(MANY)), "each once, in order"
    assert box.outbox.waiting == MANY
    assert box.outbox.nbytes <= BYTES_MAX
    assert not any(each.sink == "hook" for each in box.sent), "it has not reported its ledger"
    box.dead = ()
    box.run(60)
    assert {each.start for each in box.got["hook"]} == set(range(MANY))
    assert box.outbox.waiting == 0


def test_a_sink_that_stops_answering_has_few_windows_in_flight() -> None:
    box = Box(HOOK, LAKE)
    box.run(1)
    box.dead = ("hook",)
    for start in range(MANY):
        box.outbox.put(put(start), ("hook", "lake"))
    box.run(30)
    assert len(box.got["lake"]) == MANY
    assert {each.start for each in box.sent if each.sink == "hook"} == set(range(IN_FLIGHT_MAX))


def test_a_sink_that_answers_gets_more_at_a_time_and_one_that_stops_gets_fewer_again() -> None:
    box = Box(HOOK)
    box.run(1)
    for start in range(8 * FLIGHT_MAX):
        box.outbox.put(replace(put(start), rows=()), ("hook",))
    at_a_time: list[int] = []
    while len(box.got["hook"]) < 3 * FLIGHT_MAX:
        sent = box.outbox.tick(box.now, 0)
        at_a_time.append(len(sent))
        box.answer(sent)
        box.outbox.check()
    assert at_a_time[:4] == [IN_FLIGHT_MAX << times for times in range(4)]
    assert max(at_a_time) == FLIGHT_MAX
    box.dead = ("hook",)
    before = len(box.sent)
    box.run(20)
    assert len(box.sent) - before > FLIGHT_MAX, "they are repeated"
    box.dead = ()
    box.run(30)
    assert {each.start for each in box.got["hook"]} == set(range(8 * FLIGHT_MAX))


def test_large_windows_fill_what_may_be_in_flight() -> None:
    box = Box(HOOK)
    box.run(1)
    rows = tuple((at, "x" * 1_000) for at in range(200))
    size = put_bytes(replace(put(0), rows=rows, panes=()))
    for start in range(500):
        box.outbox.put(replace(put(start), rows=rows), ("hook",))
    while len(box.got["hook"]) < 500:
        sent = box.outbox.tick(box.now, 0)
        assert len(sent) <= FLIGHT_BYTES_MAX // size + 1
        box.answer(sent)


def test_a_backlog_waits_for_sinks_that_take_windows_and_for_no_other() -> None:
    """Rule Backlog*."""
    box = Box(HOOK, LAKE, dead=("hook",))
    for start in range(100):
        box.outbox.put(replace(put(start), rows=(), panes=()), ("hook", "lake"))
    box.run(20)
    assert len(box.got["lake"]) == 100
    assert box.outbox.backlog == (0, BEFORE_ALL), "the hook may lack all that was published before"
    box.run(50)
    assert box.outbox.backlog == (BACKLOG_MAX, AFTER_ALL), "it does not begin to take windows"
    box.dead = ()
    box.run(1)
    assert len(box.got["hook"]) == 100
    box.dead = ("hook",)
    box.outbox.put(put(200), ("hook", "lake"))
    box.run(50)
    assert box.outbox.backlog == (BACKLOG_MAX - 1, 200)
    box.run(20)
    assert box.outbox.backlog == (BACKLOG_MAX, AFTER_ALL), "it has stopped"


def test_what_waits_is_seen_for_each_sink_with_its_age() -> None:
    box = Box(HOOK, LAKE, dead=("hook",))
    box.run(1)
    for start in range(3):
        box.outbox.put(put(start), ("hook", "lake"))
        box.run(10)
    box.outbox.put(put(0, 2), ("hook",))
    box.run(1)
    hook, lake = box.outbox.lags
    assert (hook.target, hook.waiting, hook.delivered, hook.lost) == (HOOK, 3, 0, 0)
    assert hook.since is not None
    assert box.now - hook.since == 31 * SECOND - SECOND // 5, "a later revision waits as long as the first"
    assert (lake.waiting, lake.since, lake.delivered) == (0, None, 3)


def test_each_gets_what_it_takes_and_only_windows_that_are_for_it() -> None:
    box = Box(HOOK, LAKE, FILES)
    box.outbox.put(put(1), ("hook", "lake"))
    box.outbox.put(put(2), ("files",))
    box.run(1)
    assert [(each.start, each.rows, each.panes) for each in box.got["hook"]] == [(1, ROWS, ())]
    assert [(each.start, each.rows, each.panes) for each in box.got["lake"]] == [(1, (), PANES)]
    assert [each.start for each in box.got["files"]] == [2]


def test_an_answer_counts_for_the_sink_that_gave_it() -> None:
    box = Box(HOOK, LAKE)
    box.run(1)
    box.outbox.put(put(1), ("hook", "lake"))
    reply = PutReply(JOB, BALLOT, "v", 1, (1, ME, 1), "lake")
    box.outbox.acknowledged(OTHER, reply)
    assert box.outbox.waiting == 2, "another node does not serve it"
    box.outbox.acknowledged(NODE, reply)
    assert box.outbox.waiting == 1
    box.outbox.acknowledged(NODE, PutReply(JOB, BALLOT, "v", 1, (1, ME, 1)))
    assert box.outbox.waiting == 1, "of two sinks at a node, one of before cannot say which"
    alone = Box(LAKE)
    alone.run(1)
    alone.outbox.put(put(1), ("lake",))
    alone.outbox.acknowledged(NODE, PutReply(JOB, BALLOT, "v", 1, (1, ME, 1)))
    assert alone.outbox.waiting == 0


def test_a_sink_that_moves_to_another_node_is_asked_again() -> None:
    box = Box(HOOK, LAKE)
    box.run(1)
    box.dead = ("hook",)
    box.outbox.put(put(1), ("hook", "lake"))
    box.run(1)
    moved = HOOK._replace(node=OTHER)
    box.outbox.serve([moved, LAKE])
    assert (box.outbox.is_late("hook"), box.outbox.is_late("lake")) == (True, False)
    (asked,) = box.outbox.tick(box.now, 0)
    assert asked == Send(OTHER, LedgerRequest(JOB, BALLOT, sink="hook"))


def test_a_sink_that_moves_takes_along_what_was_delivered() -> None:
    """Rule Moving: the new node is told what the one before holds; a lake, which stays where its folder is, is not."""
    asked: list[LedgerRequest] = []
    box = Box(MOVING, LAKE)
    box.outbox.put(put(3), box.outbox.names)
    box.outbox.put(put(9, 2), box.outbox.names)
    box.run(2)
    box.dead = ("moving",)
    box.outbox.put(put(12), ["moving"])
    box.run(1)
    for moving in (OTHER, NODE):
        box.outbox.serve([MOVING._replace(node=moving), LAKE._replace(node=moving)])
        sent = box.outbox.tick(box.now, 4)
        asked += [effect.message for effect in sent if isinstance(effect, Send) and effect.to == moving]  # type: ignore[misc]
    delivered = ((("v", 9), (1, ME, 2), 7),)
    first, lake, second, _ = asked
    assert (first.sink, first.known, lake.known) == ("moving", delivered, ())
    assert second.known == delivered, "the node in between did not answer"
    report = LedgerReport(JOB, BALLOT, 0, ((("v", 12), (1, ME, 5), 8),), "moving")
    box.outbox.ledger_reported(NODE, report)
    box.outbox.serve([MOVING._replace(node=OTHER)])
    (effect, *_) = box.outbox.tick(box.now, 4)
    assert isinstance(effect, Send)
    assert effect.message.known == (*delivered, (("v", 12), (1, ME, 5), 8))  # type: ignore[attr-defined]
