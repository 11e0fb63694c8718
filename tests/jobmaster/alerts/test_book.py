"""The states of alerts against a model that looks at whole histories: maximal stretches in which an instance holds."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.jobmaster.alerts.alert import NO_DATA, Alert
from elf.jobmaster.alerts.book import (
    CHANGES_BYTES_MAX,
    FORGET_US,
    HISTORY_MAX,
    INSTANCES_MAX,
    MEMBERS_BYTES_MAX,
    MEMBERS_MAX,
    Book,
    BookState,
    Hit,
    JudgedWindow,
    Judgement,
    Transition,
    identifier,
    labels_of,
)

S = 1_000_000
STEP = 10 * S
KEYS = [(), (("path", "/a"),), (("path", "/b"),)]


def alert(name: str = "errors", for_us: int = 0, **more: object) -> Alert:
    return Alert(name, more.pop("when", "n > 1"), b"", for_us, **more)  # type: ignore[arg-type]


def window(n: int, *keys: int, complete: bool = True, lines: bool = True) -> JudgedWindow:
    hits = {"errors": tuple(Hit(KEYS[key], f"text {n}") for key in keys)}
    return JudgedWindow((n + 1) * STEP, STEP, complete, lines, hits)


def run(book: Book, alerts: list[Alert], windows: list[JudgedWindow]) -> list[Transition]:
    """All transitions, those that sinks do not hear of too."""
    found: list[Transition] = []
    for each in windows:
        judged = book.judge(each, alerts)
        book.apply(judged)
        book.check()
        found += judged.changes
    return found


def seen(changes: list[Transition]) -> list[tuple[str, int]]:
    return [(each.state, each.at_us // STEP) for each in changes]


# ---- the model ----


def expected(windows: list[JudgedWindow], for_us: int) -> set[tuple[object, ...]]:
    """Every firing and resolving, from the whole history: of each instance the stretches between complete windows in which it
    does not hold; a stretch fires at the first window in which it holds and its age is `for`; it is resolved by the window that
    ends it."""
    found: set[tuple[object, ...]] = set()
    for key in KEYS:
        marks = [
            (each.until_us, key in [hit.keys for hit in each.hits["errors"]], each.is_complete)
            for each in windows
        ]
        ends = [
            -1,
            *[i for i, (_, holds, complete) in enumerate(marks) if complete and not holds],
            len(marks),
        ]
        for low, high in pairwise(ends):
            held = [at for at, holds, _ in marks[low + 1 : high] if holds]
            fired = [at for at in held if at - (held[0] - STEP) >= for_us]
            if fired:
                found.add(("firing", key, fired[0], held[0] - STEP))
                if high < len(marks):
                    found.add(("resolved", key, marks[high][0], held[0] - STEP))
    return found


histories = st.lists(st.tuples(st.sets(st.sampled_from([0, 1, 2])), st.booleans()), max_size=30)


@given(histories, st.integers(0, 45))
def test_every_history_equals_the_model(history: list[tuple[set[int], bool]], for_s: int) -> None:
    windows = [window(n, *sorted(keys), complete=complete) for n, (keys, complete) in enumerate(history)]
    changes = run(Book(), [alert(for_us=for_s * S)], windows)
    told = [(each.state, each.keys, each.at_us, each.since_us) for each in changes if each.is_notified]
    assert set(told) == expected(windows, for_s * S)
    assert len(told) == len(set(told))


@given(histories, st.integers(0, 45), st.integers(0, 30))
def test_a_state_that_travels_goes_on_as_if_it_had_not(
    history: list[tuple[set[int], bool]], for_s: int, cut: int
) -> None:
    alerts = [alert(for_us=for_s * S)]
    windows = [window(n, *sorted(keys), complete=complete) for n, (keys, complete) in enumerate(history)]
    straight, first = Book(), Book()
    whole = run(straight, alerts, windows)
    before = run(first, alerts, windows[:cut])
    packed = msgspec.msgpack.encode(first.state())
    second = Book(msgspec.msgpack.decode(packed, type=BookState))
    assert [*before, *run(second, alerts, windows[cut:])] == whole
    assert second.state() == straight.state()


@given(histories, st.integers(0, 45))
def test_every_replica_has_the_state_of_the_entries(history: list[tuple[set[int], bool]], for_s: int) -> None:
    master, replica = Book(), Book()
    for n, (keys, complete) in enumerate(history):
        judged = master.judge(window(n, *sorted(keys), complete=complete), [alert(for_us=for_s * S)])
        assert master.apply(judged) == replica.apply(
            msgspec.msgpack.decode(msgspec.msgpack.encode(judged), type=Judgement)
        )
    assert master.state() == replica.state()


# ---- rules one by one ----


def test_a_window_alone_covers_a_for_of_its_step() -> None:
    assert seen(run(Book(), [alert(for_us=STEP)], [window(0, 1)])) == [("firing", 1)]
    assert seen(run(Book(), [alert(for_us=STEP + 1)], [window(0, 1), window(1, 1)])) == [
        ("pending", 1),
        ("firing", 2),
    ]


def test_pending_that_stops_holding_is_told_to_nobody() -> None:
    changes = run(Book(), [alert(for_us=3 * STEP)], [window(0, 1), window(1, 1), window(2)])
    assert seen(changes) == [("pending", 1), ("inactive", 3)]
    assert not any(each.is_notified for each in changes)


def test_an_incomplete_window_fires_and_never_resolves() -> None:
    book = Book()
    windows = [window(0, 1, complete=False), window(1, complete=False), window(2, complete=False), window(3)]
    assert seen(run(book, [alert()], windows)) == [("firing", 1), ("resolved", 4)]
    assert book.is_idle


def test_a_window_is_judged_once() -> None:
    book = Book()
    run(book, [alert()], [window(0, 1), window(1)])
    with pytest.raises(AssertionError):
        book.judge(window(1, 1), [alert()])


def test_an_alert_that_is_removed_is_resolved_even_by_an_incomplete_window() -> None:
    book = Book()
    run(book, [alert()], [window(0, 1)])
    assert seen(run(book, [], [window(1, 1, complete=False)])) == [("resolved", 2)]


def test_what_is_resolved_has_the_text_labels_and_sinks_with_which_it_fired() -> None:
    book = Book()
    rules = [alert(labels=(("severity", "page"),), sinks=("pager",))]
    book.apply(book.judge(window(0, 1), rules, ["lake"]))
    told = book.apply(book.judge(window(1), [], ["lake"]))
    assert [each.number for each in told] == [2]
    assert told[0].change == Transition(
        "errors", KEYS[1], "resolved", 2 * STEP, 0, "text 0", (("severity", "page"),), ("pager",)
    )
    assert labels_of(told[0].change, "web") == (
        ("alertname", "errors"), ("job", "web"), ("path", "/a"), ("severity", "page"),
    )  # fmt: skip


def test_an_id_repeats_and_tells_transitions_apart() -> None:
    one = Transition("errors", KEYS[1], "firing", STEP, 0, "text")
    same = Transition("errors", KEYS[1], "firing", STEP, 0, "another text")
    others = [
        Transition("errors", KEYS[1], "resolved", STEP, 0),
        Transition("errors", KEYS[2], "firing", STEP, 0),
        Transition("errors", KEYS[1], "firing", 2 * STEP, 0),
        Transition("slow", KEYS[1], "firing", STEP, 0),
    ]
    assert identifier(b"job", one) == identifier(b"job", same)
    assert len({identifier(b"job", each) for each in (one, *others)} | {identifier(b"other", one)}) == 6


# ---- no data ----

SILENT = alert("silent", 30 * S, when=NO_DATA, text="no lines")


def test_no_data_fires_by_the_clock_and_is_resolved_by_lines() -> None:
    book = Book()
    book.apply(book.judge(window(0), [SILENT]))
    assert book.silence([SILENT], 0, STEP + 30 * S + 4 * S, 5 * S) is None
    found = book.silence([SILENT], 0, STEP + 30 * S + 5 * S, 5 * S)
    assert found is not None
    assert seen(list(found.changes)) == [("firing", 4)]
    book.apply(found)
    assert book.silence([SILENT], 0, 1000 * S, 5 * S) is None, "it fires once"
    assert run(book, [SILENT], [window(4, lines=False)]) == []
    assert seen(run(book, [SILENT], [window(5, complete=False)])) == [("resolved", 6)]


def test_no_data_counts_from_the_jobs_beginning() -> None:
    book = Book()
    assert book.silence([SILENT], 0, 1000 * S, 0) is None, "a job that has no beginning yet"
    found = book.silence([SILENT], 50 * S, 80 * S, 0)
    assert found is not None
    assert found.changes[0].at_us == 80 * S


# ---- no data by ----

ABSENT = alert("errors", 20 * S, when="no data by path", text="{path} is silent")


def test_a_value_that_has_no_rows_any_more_fires_and_is_resolved_by_rows() -> None:
    book = Book()
    windows = [
        window(0, 1, 2),
        window(1, 1, complete=False),  # /b is absent: pending
        window(2, lines=False),  # no line at all says nothing
        window(3, 1),
        window(4, 1),
        window(5, 1, 2, complete=False),
    ]
    changes = run(book, [ABSENT], windows)
    assert [
        (dict(each.keys)["path"], each.state, each.at_us // STEP, each.since_us // STEP) for each in changes
    ] == [
        ("/b", "pending", 2, 1),
        ("/b", "firing", 4, 1),
        ("/b", "resolved", 6, 1),
    ]
    assert changes[1].text == "text 0", "as it was filled when the value was new"
    assert run(book, [ABSENT], [window(6, 1)])[0].state == "pending", "it is a member still"
    assert Book(book.state()).state() == book.state()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(book.state()), type=BookState) == book.state()


def test_a_value_is_forgotten_after_a_day_or_with_its_alert() -> None:
    book = Book()
    day = FORGET_US // STEP
    assert seen(run(book, [ABSENT], [window(0, 1, 2), window(1, 1), window(3, 1), window(day - 1, 1)])) == [
        ("pending", 2),
        ("firing", 4),
    ]
    assert seen(run(book, [ABSENT], [window(day, 1)])) == [("resolved", day + 1)]
    assert [keys for _, keys in book.members] == [KEYS[1]]
    assert run(book, [ABSENT], [window(day + 1, 1)]) == [], "nobody waits for it any more"
    run(book, [alert("others", when="no data by path")], [window(day + 2, 1)])
    assert book.members == {}


def test_the_members_are_bounded_and_the_rest_is_counted() -> None:
    book = Book()
    run(book, [ABSENT], [many(0, 0, MEMBERS_MAX + 5)])
    assert (len(book.members), book.left_out) == (MEMBERS_MAX, {"errors": 5})
    book = Book()
    run(book, [ABSENT], [many(0, 0, 60, "x" * 4000)])
    assert 0 < sum(each.nbytes for each in book.members.values()) <= MEMBERS_BYTES_MAX
    assert book.left_out == {"errors": 60 - len(book.members)}


# ---- bounds ----


def many(n: int, start: int, count: int, text: str = "t") -> JudgedWindow:
    hits = tuple(Hit((("client", f"c{i:06}"),), text) for i in range(start, start + count))
    return JudgedWindow((n + 1) * STEP, STEP, True, True, {"errors": hits})


def test_instances_are_bounded_and_the_rest_is_counted() -> None:
    book = Book()
    changes = run(book, [alert()], [many(0, 0, INSTANCES_MAX + 5)])
    assert len(changes) == len(book.instances) == INSTANCES_MAX
    assert book.left_out == {"errors": 5}
    run(book, [alert()], [many(1, INSTANCES_MAX, 5)])
    assert len(book.instances) == 5, "those that left made room"
    assert book.left_out == {"errors": 5}


def test_an_entry_and_the_history_are_bounded() -> None:
    book = Book()
    changes = run(book, [alert()], [many(0, 0, 60, "x" * 4000)])
    assert sum(each.nbytes for each in changes) <= CHANGES_BYTES_MAX
    assert book.left_out == {"errors": 60 - len(changes)}
    for n in range(1, 9):
        run(book, [alert()], [many(n, n * 1000, 90)])
    assert len(book.history) == HISTORY_MAX
    assert book.history[-1].number == book.number


def test_an_alert_that_flaps_tells_each_transition_once() -> None:
    book = Book()
    changes = run(book, [alert()], [window(n, *([1] if n % 2 == 0 else [])) for n in range(1_200)])
    assert len({identifier(b"job", each) for each in changes}) == len(changes) == 1_200
    assert len(book.history) == HISTORY_MAX
