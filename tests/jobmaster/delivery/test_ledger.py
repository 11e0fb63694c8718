"""A sink's ledger against a dict, and the rules of its fence."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.jobmaster.delivery.ledger import ENTRIES_REPORTED_MAX, UNKNOWN_ROWS, Ledger
from elf.srt.messages.effects import Effect, Notice, Send, Write
from elf.srt.messages.messages import Ballot, Message
from elf.srt.messages.results import NO_ROWS, LedgerReport, LedgerRequest, Put, PutReply

JOB = bytes(16)
A, B = b"a" * 16, b"b" * 16
MASTER = b"m" * 16


def put(ballot: Ballot, start: int = 0, n: int = 1, digest: int = 7, version: str = "v1") -> Put:
    revision = (*ballot, n)
    return Put(
        JOB,
        ballot,
        version,
        start,
        start + 10,
        (start, start + 10),
        "final",
        revision,
        digest,
        1,
        1,
        (1, 1, 0, 0),
    )


def answer(effects: list[Effect]) -> Message:
    assert isinstance(effects[-1], Send)
    assert effects[-1].to == MASTER
    return effects[-1].message


def written(effects: list[Effect]) -> list[Write]:
    return [effect for effect in effects if isinstance(effect, Write)]


def test_a_lower_ballot_is_refused_with_the_fence_and_changes_nothing() -> None:
    ledger = Ledger(JOB)
    ledger.step(MASTER, LedgerRequest(JOB, (2, A), 1), 0)
    effects = ledger.step(MASTER, put((1, B)), 0)
    assert effects == [Send(MASTER, PutReply(JOB, (2, A), "v1", 0, (0, b"", 0)))]
    assert ledger.take_accepted() == []
    assert answer(ledger.step(MASTER, LedgerRequest(JOB, (1, B), 5), 0)) == LedgerReport(JOB, (2, A), 5, ())
    assert answer(ledger.step(MASTER, put((2, B)), 0)) == PutReply(JOB, (2, B), "v1", 0, (2, B, 1))
    assert ledger.fence == (2, B), "of two nodes with one epoch the higher id counts"


def test_what_another_node_delivered_counts_as_held_once_it_is_written() -> None:
    """Rule Moving."""
    ledger = Ledger(JOB)
    ledger.step(MASTER, put((1, A), 10), 0)
    ledger.take_accepted()
    known = ((("v1", 0), (1, A, 4), 9), (("v1", 10), (1, A, 1), 7), (("v1", 20), (1, A, 5), 8))
    effects = ledger.step(MASTER, LedgerRequest(JOB, (2, B), 5, known=known), 0)
    assert [each.record for each in written(effects)] == [
        ((2, B), ((("v1", 0), (1, A, 4), 9, False), (("v1", 20), (1, A, 5), 8, False)))
    ]
    assert answer(effects) == LedgerReport(JOB, (2, B), 5, known)
    assert ledger.take_accepted() == [], "nothing is delivered"
    assert not ledger.wants(msgspec.structs.replace(put((2, B), 20), revision=(1, A, 5)))
    assert ledger.status_of(put((2, B), 0)) == "revised"
    assert written(ledger.step(MASTER, LedgerRequest(JOB, (2, B), 6, known=known), 0)) == []
    refused = ledger.step(MASTER, LedgerRequest(JOB, (1, B), 7, known=((("v1", 30), (1, B, 1), 7),)), 0)
    assert written(refused) == []
    ledger.check()


def test_a_window_is_stored_and_written_before_it_is_acknowledged() -> None:
    ledger = Ledger(JOB)
    effects = ledger.step(MASTER, put((1, A)), 0)
    assert [type(effect) for effect in effects] == [Write, Send]
    assert ledger.take_accepted() == [put((1, A))]
    assert ledger.take_accepted() == []


def test_a_repeated_window_is_acknowledged_again_and_not_stored_again() -> None:
    ledger = Ledger(JOB)
    first = ledger.step(MASTER, put((1, A)), 0)
    ledger.take_accepted()
    again = ledger.step(MASTER, put((1, A)), 0)
    assert again == [first[-1]]
    assert ledger.take_accepted() == []


def test_a_lower_revision_is_answered_with_the_one_held() -> None:
    ledger = Ledger(JOB)
    ledger.step(MASTER, put((1, A), n=5), 0)
    ledger.take_accepted()
    assert answer(ledger.step(MASTER, put((1, A), n=4), 0)) == PutReply(JOB, (1, A), "v1", 0, (1, A, 5))
    assert ledger.take_accepted() == []


def test_a_later_epoch_is_above_any_count_of_an_earlier_one() -> None:
    ledger = Ledger(JOB)
    ledger.step(MASTER, put((1, B), n=900), 0)
    ledger.step(MASTER, put((2, A), n=1), 0)
    assert ledger.entries["v1", 0] == ((2, A, 1), 7)


def test_two_contents_of_one_revision_are_reported_and_the_first_is_kept() -> None:
    ledger = Ledger(JOB)
    ledger.step(MASTER, put((1, A), digest=7), 0)
    effects = ledger.step(MASTER, put((1, A), digest=8), 0)
    assert isinstance(effects[0], Notice)
    assert ledger.entries["v1", 0] == ((1, A, 1), 7)


def test_a_window_that_is_only_open_is_not_reported_after_a_restart_either() -> None:
    ledger = Ledger(JOB)
    effects = ledger.step(MASTER, msgspec.structs.replace(put((1, A)), status="open"), 0)
    again = Ledger(JOB)
    again.restore([write.record for write in written(effects)])
    for each in (ledger, again):
        assert answer(each.step(MASTER, LedgerRequest(JOB, (2, A)), 0)) == LedgerReport(JOB, (2, A), 0, ())
        each.step(MASTER, put((2, A)), 0)
        report = answer(each.step(MASTER, LedgerRequest(JOB, (2, A)), 0))
        assert report == LedgerReport(JOB, (2, A), 0, ((("v1", 0), (2, A, 1), 7),))


def test_a_ledger_that_was_lost_reports_what_the_lake_holds() -> None:
    """Also after the next restart: the first write has all entries. An open window gives way; a later revision stays."""
    ledger = Ledger(JOB)
    ledger.step(MASTER, msgspec.structs.replace(put((1, A)), status="open"), 0)
    ledger.step(MASTER, put((1, A), 10, n=2), 0)
    ledger.adopt(
        {("v1", 0): ((1, A, 1), False), ("v1", 10): ((1, A, 1), False), ("v1", 20): ((2, A, 1), True)}
    )
    effects = ledger.step(MASTER, put((3, A), 30), 0)
    again = Ledger(JOB)
    again.restore([write.record for write in written(effects)])
    for each in (ledger, again):
        each.check()
        report = answer(each.step(MASTER, LedgerRequest(JOB, (3, A)), 0))
        assert isinstance(report, LedgerReport)
        assert report.entries == (
            (("v1", 0), (1, A, 1), UNKNOWN_ROWS),
            (("v1", 10), (1, A, 2), 7),
            (("v1", 20), (2, A, 1), NO_ROWS),
            (("v1", 30), (3, A, 1), 7),
        )
    assert not any(isinstance(each, Notice) for each in ledger.step(MASTER, put((3, A)), 0))


def test_a_master_may_request_only_the_windows_it_retains() -> None:
    ledger = Ledger(JOB)
    for start in (0, 10, 20):
        ledger.step(MASTER, put((1, A), start), 0)
    report = answer(ledger.step(MASTER, LedgerRequest(JOB, (2, A), 3, since_us=10), 0))
    assert report == LedgerReport(JOB, (2, A), 3, ((("v1", 10), (1, A, 1), 7), (("v1", 20), (1, A, 1), 7)))


def test_the_newest_windows_are_reported_when_there_are_too_many() -> None:
    ledger = Ledger(JOB)
    for start in range(ENTRIES_REPORTED_MAX + 10):
        ledger.step(MASTER, put((1, A), start), 0)
    report = answer(ledger.step(MASTER, LedgerRequest(JOB, (1, A)), 0))
    assert isinstance(report, LedgerReport)
    assert [entry[0][1] for entry in report.entries] == list(range(10, ENTRIES_REPORTED_MAX + 10))


ballots = st.tuples(st.integers(1, 3), st.sampled_from([A, B]))
messages = st.one_of(
    st.builds(LedgerRequest, st.just(JOB), ballots, st.integers(0, 3)),
    st.builds(
        put, ballots, st.sampled_from([0, 10, 20]), st.integers(1, 3), st.just(7), st.sampled_from("vw")
    ),
)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.tuples(messages, st.booleans()), max_size=150))
def test_against_a_dict_with_restarts_between(steps: list[tuple[Any, bool]]) -> None:
    """Every answer, and the ledger after a restart, equal those of the plainest model."""
    ledger, records = Ledger(JOB), list[Any]()
    fence: Ballot = (0, b"")
    entries: dict[tuple[str, int], tuple[int, bytes, int]] = {}
    stored: dict[tuple[str, int], tuple[int, bytes, int]] = {}
    for message, restart in steps:
        effects = ledger.step(MASTER, message, 0)
        for accepted in ledger.take_accepted():
            window = (accepted.version, accepted.start)
            assert accepted.revision > stored.get(window, (0, b"", 0)), "never overwritten by a lower one"
            stored[window] = accepted.revision
        for write in written(effects):
            records = [write.record] if write.replace else [*records, write.record]
        refused = message.ballot < fence
        fence = max(fence, message.ballot)
        if isinstance(message, Put):
            window = (message.version, message.start)
            if not refused:
                entries[window] = max(entries.get(window, (0, b"", 0)), message.revision)
            held = entries.get(window, (0, b"", 0))
            assert answer(effects) == PutReply(JOB, fence, message.version, message.start, held)
        else:
            final = (
                ()
                if refused
                else tuple(
                    (window, entries[window], 7)
                    for window in sorted(entries, key=lambda window: (window[1], window[0]))
                )
            )
            assert answer(effects) == LedgerReport(JOB, fence, message.number, final)
        if restart:
            ledger = Ledger(JOB)
            ledger.restore(records)
        ledger.check()
        assert ledger.fence == fence
        assert {window: held[0] for window, held in ledger.entries.items()} == entries == stored


def test_the_record_of_many_revisions_stays_short() -> None:
    ledger = Ledger(JOB)
    kept = 0
    for n in range(1, 1_000):
        for write in written(ledger.step(MASTER, put((1, A), n=n), 0)):
            kept = 1 if write.replace else kept + 1
    assert kept <= 3 + 64
