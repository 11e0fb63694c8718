"""What a master tells sinks of alerts, and when it repeats it."""

from __future__ import annotations

import msgspec

from elf.jobmaster.alerts.alert import Alert
from elf.jobmaster.alerts.book import Book, Hit, JudgedWindow, Notification
from elf.jobmaster.delivery.alert_outbox import ASK_US, CHUNK_BYTES, REPEAT_US, SHARE_US, AlertOutbox
from elf.srt.messages.effects import Effect, Notice, Send
from elf.srt.messages.results import AlertPut, AlertReply

JOB, NODE, OTHER = b"J" * 16, b"N" * 16, b"O" * 16
LOG, BALLOT = (1, b"L" * 16), (3, b"M" * 16)
RULES = [Alert("many", "n > 1", b"", sinks=("pager",))]
S = 1_000_000


class Rig:
    def __init__(self, book: Book | None = None) -> None:
        self.book, self.now = book or Book(), 100 * S
        self.nodes: tuple[bytes, ...] = (NODE,)
        self.outbox = AlertOutbox(JOB, "hits", BALLOT, lambda name: self.nodes if name == "pager" else ())
        self.outbox.changed(self.book)

    def judge(self, *keys: str, text: str = "t") -> None:
        hits = tuple(Hit((("path", key),), text) for key in keys)
        window = JudgedWindow(self.book.until_us + S, S, True, True, {"many": hits})
        self.book.apply(self.book.judge(window, RULES))
        self.outbox.changed(self.book)

    def tick(self, later_us: int = 0) -> list[Effect]:
        self.now += later_us
        return self.outbox.tick(self.book, LOG, self.now)

    def answer(self, number: int, node: bytes = NODE, *, repeats: bool = False) -> None:
        self.outbox.acknowledged(node, AlertReply(JOB, "pager", LOG, number, repeats), LOG)
        self.outbox.check()


def puts(effects: list[Effect]) -> list[AlertPut]:
    return [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, AlertPut)]


def told(put: AlertPut) -> list[tuple[int, str]]:
    return [
        (each.number, each.change.state)
        for each in msgspec.msgpack.decode(put.payload, type=tuple[Notification, ...])
    ]


def test_a_sink_is_asked_for_its_cursor_and_then_told_what_it_lacks() -> None:
    rig = Rig()
    assert rig.tick() == []
    assert rig.outbox.deadline is None, "a job without alerts costs nothing"
    rig.judge("/a")
    rig.judge()
    (asked,) = puts(rig.tick())
    assert (asked.number, told(asked), asked.ballot, asked.log) == (0, [], BALLOT, LOG)
    rig.answer(1)
    (sent,) = puts(rig.tick())
    assert (sent.number, told(sent)) == (2, [(2, "resolved")])
    rig.answer(2)
    assert rig.tick(3600 * S) == []


def test_what_is_not_acknowledged_is_sent_again_ever_later() -> None:
    rig = Rig()
    rig.judge("/a")
    rig.tick()
    rig.answer(0)
    assert len(puts(rig.tick())) == 1
    assert rig.tick(ASK_US - 1) == []
    assert len(puts(rig.tick(1))) == 1
    assert rig.tick(2 * ASK_US - 1) == []
    assert len(puts(rig.tick(1))) == 1


def test_an_answer_to_a_part_of_a_message_sends_nothing_again() -> None:
    rig = Rig()
    rig.judge("/a", "/b", "/c")
    rig.tick()
    rig.answer(0)
    (sent,) = puts(rig.tick())
    assert len(told(sent)) == 3
    rig.answer(1)
    assert (rig.tick(), rig.outbox.cursor("pager")) == ([], 1)
    (again,) = puts(rig.tick(ASK_US))
    assert told(again) == [(2, "firing"), (3, "firing")], "the answer to the rest was lost"
    rig.answer(3)
    rig.judge("/b", "/c")
    (sent,) = puts(rig.tick())
    assert told(sent) == [(4, "resolved")], "the next message goes at once"


def test_another_node_that_serves_the_sink_is_asked_anew_and_no_other_answer_counts() -> None:
    rig = Rig()
    rig.judge("/a")
    rig.tick()
    rig.answer(1)
    rig.nodes = (OTHER,)
    rig.judge("/a", "/b")
    (asked,) = puts(rig.tick())
    assert (told(asked), asked.number) == ([], 1), "so far the node before has delivered"
    rig.answer(2, NODE)
    assert rig.tick() == []
    rig.nodes = (NODE,)  # before the other one has answered
    rig.outbox.moved()
    (asked,) = puts(rig.tick())
    assert asked.number == 1
    rig.nodes = (OTHER,)
    rig.outbox.moved()
    rig.tick()
    rig.answer(0, OTHER)
    (sent,) = puts(rig.tick())
    assert told(sent) == [(1, "firing"), (2, "firing")], "a node of before takes nothing over"


def test_the_node_that_would_take_over_hears_of_the_cursor() -> None:
    """Rule Moving: it records it as if it took over, and no answer of it counts for the one that delivers."""
    rig = Rig()
    rig.nodes = (NODE, OTHER)
    rig.judge("/a", "/b")
    rig.tick()
    rig.answer(2)
    assert rig.tick() == []
    assert rig.tick(SHARE_US - 1) == []
    (send,) = rig.tick(1)
    assert isinstance(send, Send)
    (shared,) = puts([send])
    assert (send.to, shared.number, told(shared)) == (OTHER, 2, [])
    assert rig.tick(2 * SHARE_US - 1) == []
    assert len(puts(rig.tick(1))) == 1, "nothing was answered"
    rig.answer(2, OTHER)
    assert (rig.tick(3600 * S), rig.outbox.cursor("pager")) == ([], 2)
    rig.judge("/b")
    rig.tick()
    rig.answer(3, OTHER)
    assert rig.outbox.cursor("pager") == 2, "only the node that delivers says so"


def test_an_alertmanager_hears_every_minute_of_what_fires() -> None:
    rig = Rig()
    rig.judge("/a", "/b")
    rig.tick()
    rig.answer(2, repeats=True)
    (first,) = puts(rig.tick())
    assert (first.is_firing, told(first)) == (True, [(0, "firing"), (0, "firing")])
    assert rig.tick(REPEAT_US - 1) == []
    assert len(puts(rig.tick(1))) == 1
    rig.judge("/b")
    both = puts(rig.tick())
    assert [told(each) for each in both if not each.is_firing] == [[(3, "resolved")]]


def test_many_changes_go_in_parts() -> None:
    rig = Rig()
    rig.judge(*(f"/{n}" for n in range(60)), text="x" * 1000)
    rig.tick()
    rig.answer(0)
    found: list[tuple[int, str]] = []
    for put in iter(lambda: next(iter(puts(rig.tick())), None), None):
        assert len(put.payload) < CHUNK_BYTES + 4096
        found += told(put)
        rig.answer(put.number)
    assert found == [(n, "firing") for n in range(1, 61)]


def test_a_sink_that_was_away_for_too_long_is_said() -> None:
    rig = Rig()
    rig.judge("/a")
    rig.book.history = rig.book.history[1:]
    rig.judge("/a", "/b")
    rig.tick()
    rig.answer(0)
    effects = rig.tick()
    notices = [each.text for each in effects if isinstance(each, Notice)]
    assert notices == [
        "job hits: the sink pager was away for too long: up to 1 changes of alerts are not sent to it"
    ]
