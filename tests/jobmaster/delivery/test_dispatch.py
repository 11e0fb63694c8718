"""What a sink that delivers messages sends next: nothing is lost here, and what a broker retains never goes back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elf.jobmaster.delivery.dispatch import (
    AT_ONCE,
    PAUSE_US,
    PAUSE_US_MAX,
    WINDOWS_MAX,
    Delivery,
    Dispatch,
    Mark,
)

A, B = b"A" * 16, b"B" * 16


def window(start: int, n: int = 1, job: bytes = A, nbytes: int = 10, since: int = 0) -> Delivery:
    return Delivery(job, "v", start, (1, b"M", n), nbytes, None, since)


def test_the_oldest_go_first_and_few_at_once() -> None:
    dispatch = Dispatch()
    each = [window(start) for start in range(AT_ONCE + 4)]
    assert all(dispatch.offer(one) for one in reversed(each))
    assert not dispatch.offer(each[0]), "it waits already"
    assert dispatch.next() == each[:AT_ONCE]
    assert dispatch.next() == []
    dispatch.acknowledged(each[3])
    assert dispatch.next() == [each[AT_ONCE]]
    assert (len(dispatch), dispatch.delivered) == (AT_ONCE + 3, 1)
    dispatch.check()


def test_a_later_revision_waits_until_the_one_that_flies_is_over() -> None:
    dispatch = Dispatch()
    dispatch.offer(window(1, 1))
    (first,) = dispatch.next()
    assert dispatch.offer(window(1, 2))
    assert dispatch.offer(window(1, 3)), "takes the place of 2"
    assert not dispatch.offer(window(1, 2))
    assert (len(dispatch), dispatch.next()) == (2, [])
    dispatch.failed("refused")
    assert [each.revision[2] for each in dispatch.next()] == [3], "1 need not be sent any more"
    assert (len(dispatch), dispatch.nbytes, dispatch.problem) == (1, 10, "refused")
    assert first.revision[2] == 1


def test_memory_is_bounded_and_one_window_always_has_room() -> None:
    dispatch = Dispatch(bytes_max=100)
    assert dispatch.offer(window(1, nbytes=1_000))
    assert not dispatch.offer(window(2, nbytes=1))
    (large,) = dispatch.next()
    dispatch.acknowledged(large)
    assert dispatch.offer(window(2, nbytes=60))
    assert not dispatch.offer(window(3, nbytes=60))
    assert dispatch.nbytes == 60
    many = Dispatch()
    assert sum(many.offer(window(start)) for start in range(2 * WINDOWS_MAX)) == WINDOWS_MAX


def test_each_failure_in_a_row_doubles_the_pause_and_a_delivery_ends_the_row() -> None:
    dispatch = Dispatch()
    pauses = []
    for _ in range(9):
        dispatch.failed("down")
        pauses.append(dispatch.pause_us)
    assert pauses == [min(PAUSE_US << at, PAUSE_US_MAX) for at in range(9)]
    dispatch.offer(window(1, since=7))
    oldest = [dispatch.oldest]
    dispatch.acknowledged(*dispatch.next())
    assert [*oldest, dispatch.oldest] == [7, None]
    assert (dispatch.problem, dispatch.pause_us, dispatch.failures) == ("", PAUSE_US, 9)


def test_a_refused_window_holds_up_no_other() -> None:
    dispatch = Dispatch()
    dispatch.offer(window(1))
    dispatch.offer(window(1, job=B))
    first, second = dispatch.next()
    dispatch.refused(first, "not authorized")
    assert (len(dispatch), dispatch.refusals, dispatch.problem) == (1, 1, "not authorized")
    assert dispatch.offer(window(1)), "its master offers it again"
    dispatch.acknowledged(second)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "send", "ack", "ack", "fail", "kill"]), st.integers(0, 5), st.integers(1, 3)
    ),
    max_size=60,
)


@given(STEPS)
def test_a_broker_never_retains_an_older_window_and_in_the_end_it_retains_the_newest(
    steps: list[tuple[str, int, int]],
) -> None:
    """A killed agent begins anew with the marks of its disk; the master offers what the ledger lacks."""
    dispatch, ledger, disk = Dispatch(), dict[int, int](), dict[bytes, Mark]()
    published: dict[int, int] = {}
    flying: list[Delivery] = []
    retained: list[Mark] = []

    def send() -> None:
        begun = dispatch.next()
        dispatch.raise_marks(begun)
        disk.update(dispatch.marks)
        for each in begun:
            if dispatch.is_newest(each):
                retained.append(each.mark)
            flying.append(each)

    def acknowledge(at: int) -> None:
        each = flying.pop(at % len(flying))
        dispatch.acknowledged(each)
        ledger[each.start] = max(ledger.get(each.start, 0), each.revision[2])

    def offer_all() -> None:
        for start, n in published.items():
            if ledger.get(start, 0) < n:
                dispatch.offer(window(start, n))

    def do(step: str, start: int, n: int) -> None:
        nonlocal dispatch
        if step == "offer":
            published[start] = max(published.get(start, 0), n)
            offer_all()
        elif step == "send":
            send()
        elif step == "ack" and flying:
            acknowledge(start)
        elif step == "fail":
            dispatch.failed("down")
            flying.clear()
        elif step == "kill":
            dispatch = Dispatch()
            dispatch.marks.update(disk)
            flying.clear()
            offer_all()

    for each in steps:
        do(*each)
        dispatch.check()
    offer_all()
    while len(dispatch):
        send()
        while flying:
            acknowledge(0)
        offer_all()
    assert ledger == published
    assert retained == sorted(retained)
    if published:
        newest: Any = max(published)
        assert retained[-1] == (newest, (1, b"M", published[newest]))
