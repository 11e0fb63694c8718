"""A replay against the same windows with all those written out that have no lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elf.jobmaster.alerts.alert import NO_DATA, Alert
from elf.jobmaster.alerts.book import Book, Hit, JudgedWindow, Transition
from elf.jobmaster.alerts.replay import Replay, next_end

S = 1_000_000
KEYS = [(("path", "/a"),), (("path", "/b"),)]


def window(end: int, step: int, keys: frozenset[int] = frozenset(), complete: bool = True) -> JudgedWindow:
    hits = {"errors": tuple(Hit(KEYS[key], f"{end}") for key in sorted(keys))}
    return JudgedWindow(end * S, step * S, complete, True, hits)


@given(
    st.sampled_from([(10, 10), (10, 5), (6, 2)]),
    st.sampled_from([0, 10, 20, 35]),
    st.dictionaries(
        st.integers(1, 40), st.tuples(st.frozensets(st.integers(0, 1)), st.booleans()), max_size=20
    ),
)
def test_time_without_windows_is_time_without_lines(
    shape: tuple[int, int], for_s: int, found: dict[int, tuple[frozenset[int], bool]]
) -> None:
    size, step = shape
    alert = Alert("errors", "n > 1", b"", for_s * S)
    replay, book = Replay([alert, Alert("quiet", NO_DATA, b"", 60 * S)]), Book()
    heard, expected = list[Transition](), list[Transition]()
    first, last = min(found, default=1), max(found, default=0)
    for n in range(first, last + 1):
        end = size + n * step
        each = window(end, step, *found[n]) if n in found else JudgedWindow(end * S, step * S, True, False)
        expected += [told.change for told in book.apply(book.judge(each, [alert]))]
        if n in found:
            heard += replay.take(each, size * S)
    assert heard == expected
    assert replay.book.firing() == book.firing()


def test_a_window_that_ends_no_later_than_one_that_was_judged_changes_nothing() -> None:
    replay = Replay([Alert("errors", "n > 1", b"")])
    assert [each.state for each in replay.take(window(20, 10, frozenset({0})), 10 * S)] == ["firing"]
    assert replay.take(window(20, 10), 10 * S) == replay.take(window(10, 10), 10 * S) == []
    assert [each.state for each in replay.take(window(30, 10), 10 * S)] == ["resolved"]


def test_the_next_end_is_past_the_time() -> None:
    assert [next_end(10, 5, at) for at in (0, 4, 5, 9, 10)] == [5, 5, 10, 10, 15]
    assert [next_end(10, 10, at) for at in (0, 9, 10)] == [10, 10, 20]
