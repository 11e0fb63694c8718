"""What a sink that moves has delivered is shared with the node that would take it over (rule Moving)."""

from __future__ import annotations

from elf.jobmaster.delivery.known import HELD_MIN, NOTHING_SINCE, SHARE_US, SHARED_MAX, Known
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Ballot, Revision
from elf.srt.messages.results import LedgerReport, LedgerRequest

JOB, B, C = b"J" * 16, b"B" * 16, b"C" * 16
BALLOT: Ballot = (3, b"M" * 16)
ABOUT = JOB, BALLOT, "hook"


def revision(n: int) -> Revision:
    return (*BALLOT, n)


class Rig:
    def __init__(self) -> None:
        self.known, self.now, self.since_us = Known(), 100 * SHARE_US, 0

    def note(self, *starts: int, n: int = 1) -> None:
        for start in starts:
            self.known.note(("v", start), revision(n), 7)
        self.known.check()

    def tick(self, later_us: int = 0) -> LedgerRequest | None:
        self.now += later_us
        sent = self.known.tick(self.now, self.since_us)
        if not sent:
            return None
        (send,) = sent
        assert isinstance(send.message, LedgerRequest)
        self.to = send.to
        return send.message

    def sent(self, later_us: int) -> LedgerRequest:
        message = self.tick(later_us)
        assert message is not None
        return message

    def shared(self) -> LedgerRequest:
        """The next message."""
        assert self.tick() is None
        return self.sent(SHARE_US)

    def rests(self) -> bool:
        return self.known.deadline is None

    def confirm(self, message: LedgerRequest, by: NodeId = B, fence: Ballot = BALLOT) -> None:
        self.known.confirmed(by, LedgerReport(JOB, fence, message.number, (), message.sink))
        self.known.check()


def starts_of(message: LedgerRequest) -> list[int]:
    return [start for (_, start), _, _ in message.known]


def test_the_node_that_would_take_over_hears_of_all_that_was_delivered_once() -> None:
    rig = Rig()
    rig.note(1, 2)
    assert not rig.tick(60 * SHARE_US), "there is no such node"
    assert rig.rests()
    rig.known.share_with(B, ABOUT)
    assert not rig.rests()
    first = rig.shared()
    assert (starts_of(first), first.since_us, rig.to) == ([1, 2], NOTHING_SINCE, B)
    rig.confirm(first)
    assert not rig.tick(60 * SHARE_US)
    rig.note(3)
    assert starts_of(rig.shared()) == [3]


def test_what_is_not_confirmed_comes_again_ever_later() -> None:
    rig = Rig()
    rig.known.share_with(B, ABOUT)
    rig.note(1)
    first = again = rig.shared()
    rig.note(2)
    for wait in (2, 4, 8, 16, 32, 60, 60):
        assert rig.tick(wait * SHARE_US - 1) is None
        again = rig.sent(1)
        assert starts_of(again) == [1, 2]
    rig.confirm(first)  # an answer to an earlier message
    rig.confirm(again, by=C)
    rig.confirm(again, fence=(4, b"M" * 16))
    assert not rig.rests()
    rig.note(1, n=2)  # revised meanwhile
    rig.confirm(again)
    assert rig.shared().known == ((("v", 1), revision(2), 7),)


def test_another_node_that_would_take_over_hears_of_everything_and_much_in_parts() -> None:
    rig = Rig()
    rig.known.share_with(B, ABOUT)
    rig.note(*range(SHARED_MAX + 1))
    rig.confirm(rig.shared())
    rig.confirm(rig.shared())
    rig.known.share_with(C, ABOUT)
    sizes = []
    for _ in range(2):
        message = rig.shared()
        sizes.append(len(message.known))
        rig.confirm(message, by=rig.to)
    assert (sizes, rig.to, rig.rests()) == ([SHARED_MAX, 1], C, True)
    rig.known.share_with(None, ABOUT)
    rig.note(9_999)
    assert rig.rests()


def test_a_clock_that_steps_back_delays_nothing() -> None:
    rig = Rig()
    rig.known.share_with(B, ABOUT)
    rig.note(1)
    rig.tick()
    rig.now -= 90 * SHARE_US
    assert starts_of(rig.shared()) == [1]


def test_windows_that_the_master_retains_no_more_are_forgotten() -> None:
    rig = Rig()
    for start in range(1, 20 * HELD_MIN):
        rig.since_us = max(0, start - HELD_MIN // 2)
        assert not rig.tick()
        rig.note(start)
        assert len(rig.known.entries(0)) <= HELD_MIN + 2
    assert [start for (_, start), *_ in rig.known.entries(0)][-HELD_MIN // 2 :] == list(
        range(20 * HELD_MIN - HELD_MIN // 2, 20 * HELD_MIN)
    )
