"""The audit list: any order of gossip ends in one list, no signer can fill it, and it survives a restart."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elf.errors import PeerError
from elf.jobmaster.directory.audit import (
    BYTES_MAX,
    REASON_MAX,
    SLOTS,
    TIME_US_MAX,
    Audited,
    agent_of,
    audit_item,
    decode_audited,
)
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import is_readable
from elf.srt.messages.effects import Write
from elf.srt.messages.messages import Item
from elf.srt.messages.parameters import Parameters

AGENTS = [bytes([number]) * 16 for number in range(3)]
ME, OTHER = AGENTS[0], AGENTS[1]


def directory(seed: int = 0) -> Directory:
    return Directory(Parameters(buckets=4), is_readable, Random(seed))


def taken(number: int, operator: str = "ann") -> Audited:
    return Audited("update", "visits", number, f"v{number}", "taken", operator=operator, serial=b"s" * 16)


def refused(reason: str, operator: str = "ann", number: int = 1) -> Audited:
    return replace(taken(number, operator), version="v", outcome="refused", reason=reason)


def enter(one: Directory, audited: Audited, now: int, me: bytes = ME) -> Item:
    item = audit_item(one, me, audited, now)
    assert one.put(item, now)
    return item


def listed(one: Directory, me: bytes = ME) -> list[Audited]:
    """Oldest first."""
    mine = [item for item in one.items("audit") if agent_of(item) == me]
    return [decode_audited(item) for item in sorted(mine, key=lambda item: item.stamp)]


def test_requests_are_listed_with_their_times() -> None:
    one = directory()
    first, second = enter(one, taken(1), 7), enter(one, refused("no"), 9)
    assert (first.stamp, second.stamp) == ((7,), (9,))
    assert listed(one) == [taken(1), refused("no")]
    assert listed(one, OTHER) == []


def test_the_same_refusal_is_counted_and_other_verdicts_are_not() -> None:
    one = directory()
    for now, number in ((1, 1), (2, 1), (5, 3)):
        enter(one, refused("the job has version v2", number=number), now)
    assert listed(one) == [replace(refused("the job has version v2", number=3), times=3)]
    enter(one, refused("the job has version v2", "bob"), 6)
    for now in (7, 8):
        enter(one, taken(now), now)
    assert [each.times for each in listed(one)] == [3, 1, 1, 1]


def test_a_clock_that_steps_back_hides_no_request() -> None:
    one = directory()
    enter(one, refused("no"), 100)
    assert enter(one, refused("no"), 50).stamp == (101,)
    assert enter(one, taken(2), -5).stamp == (0,)
    assert enter(one, taken(3), 1 << 62).stamp == (TIME_US_MAX - 1,)


@given(st.lists(st.tuples(st.sampled_from(["ann", "bob", "eve"]), st.integers(1, 40)), max_size=12))
@settings(max_examples=25, derandomize=True, deadline=None)
def test_no_operator_pushes_out_what_others_did(runs: list[tuple[str, int]]) -> None:
    """Each operator keeps its newest requests, as many as an equal share, whatever the others do."""
    one, asked, number = directory(), dict[str, list[int]](), 0
    for operator, count in runs:
        for _ in range(count):
            number += 1
            enter(one, taken(number, operator), number)
            asked.setdefault(operator, []).append(number)
    held: dict[str, list[int]] = {}
    for each in listed(one):
        held.setdefault(each.operator, []).append(each.number)
    assert sum(map(len, held.values())) == min(SLOTS, number)
    for operator, numbers in asked.items():
        share = min(len(numbers), SLOTS // len(asked))
        assert held[operator][-share:] == numbers[-share:]


def test_unsigned_requests_take_one_slot_for_each_reason() -> None:
    one = directory()
    for now in range(1_000):
        reason = ("forged", "expired", "garbled")[now % 3]
        enter(one, Audited("unsigned", "", 0, "", "refused", reason), now)
    assert {each.reason: each.times for each in listed(one)} == {
        "forged": 334,
        "expired": 333,
        "garbled": 333,
    }


def test_it_survives_a_restart_and_goes_on() -> None:
    one = directory()
    for number in range(SLOTS + 5):
        enter(one, taken(number), number)
    (written,) = [effect for effect in one.tick(99, ()) if isinstance(effect, Write)]
    again = directory()
    again.restore([written.record])
    assert listed(again) == listed(one) == [taken(number) for number in range(5, SLOTS + 5)]
    enter(again, taken(1_000), 1_000)
    assert listed(again) == [taken(number) for number in range(6, SLOTS + 5)] + [taken(1_000)]


ITEMS = st.builds(
    lambda agent, slot, at, number: Item(
        "audit", agent + bytes([slot]), (at,), audit_item(directory(), agent, taken(number), at).body
    ),
    st.sampled_from(AGENTS),
    st.sampled_from([0, 1, SLOTS - 1, SLOTS, 255]),
    st.integers(0, 5),
    st.integers(0, 3),
)


@given(st.lists(ITEMS, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_lists_merge_in_any_order_to_one_bounded_list(items: list[Item], rng: Random) -> None:
    """Commutative, idempotent and bounded, also for items that no honest agent makes."""
    directories = []
    for _ in range(3):
        one, order = directory(), [*items, *items]
        rng.shuffle(order)
        for item in order:
            one.put(item, 0)
        one.check()
        directories.append(one)
    assert len({one.digest for one in directories}) == 1
    for agent in AGENTS:
        assert len(listed(directories[0], agent)) <= SLOTS
    assert all(item.name[-1] < SLOTS for item in directories[0].items("audit"))


def test_the_largest_request_fits() -> None:
    one = directory()
    longest = Audited(
        "rollback", "ü" * 200, (1 << 62) - 1, "ü" * 64, "refused", "ü" * REASON_MAX, "n" * 64, b"s" * 16
    )
    item = enter(one, longest, 1)
    assert len(item.body) <= BYTES_MAX
    assert listed(one) == [longest]


@pytest.mark.parametrize(
    "change",
    [
        {"name": ME},
        {"name": ME + bytes([SLOTS])},
        {"name": ME + b"\x00\x00"},
        {"stamp": (TIME_US_MAX,)},
        {"stamp": (1, 2)},
        {"body": b"\xc1"},
        {"body": bytes(BYTES_MAX + 1)},
    ],
    ids=["no slot", "high slot", "two slots", "late", "two times", "garbled", "large"],
)
def test_other_items_are_refused(change: dict[str, object]) -> None:
    item = audit_item(directory(), ME, taken(1), 1)
    assert decode_audited(item) == taken(1)
    bad = replace(item, **change)
    with pytest.raises(PeerError, match=r"is ignored|are allowed"):
        decode_audited(bad)
    assert not directory().put(bad, 1)
