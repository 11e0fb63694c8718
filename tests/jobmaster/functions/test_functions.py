"""How expressions are evaluated: once per distinct value, over growing dictionaries, with overflows counted."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt._strings import Strings
from elf.errors import InternalError
from elf.jobmaster.functions import text as functions_text
from elf.jobmaster.functions.expressions import Cache, evaluate
from elf.jobmaster.functions.frame import from_list
from elf.jobmaster.plan.plan import Column, Expression, Literal
from elf.jobmaster.plan.signatures import check_registered
from elf.jobmaster.values.conversion import date_of, days_of, double_text, to_double
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, INT, MICROS, STRING, decimal
from elf.jobmaster.values.vector import Vector
from tests.jobmaster.functions.cases import call, long, number, text

PATH, METHOD, STATUS, BYTES = (
    Column("path", STRING),
    Column("method", STRING),
    Column("status", INT),
    Column("bytes", BIGINT),
)
MOST = settings(derandomize=True, max_examples=60, deadline=None)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100) | st.none()


def strings(values: list[str | None], into: Strings | None = None) -> Vector:
    into = Strings() if into is None else into
    return Vector(STRING, into.intern_all(values), None, into)


def run(expression: Expression, cache: Cache | None = None, **columns: Vector) -> list[Any]:
    rows = max(map(len, columns.values()), default=1)
    out = evaluate(expression, columns, rows, Cache() if cache is None else cache)
    assert out.type == expression.type
    assert out.valid is None or not np.any(out.values[~out.valid])
    return out.to_python()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The values that `lower` was computed for."""
    seen: list[str] = []

    def lower() -> Any:
        def run(value: str) -> str:
            seen.append(value)
            return value.lower()

        return run

    monkeypatch.setitem(functions_text.WITH_LITERALS, "lower", lower)
    return seen


def test_text_runs_once_per_distinct_value(counted: list[str]) -> None:
    cache, dictionary = Cache(), Strings()
    nested = call("like", BOOLEAN, call("lower", STRING, PATH), text("/api/%"))
    block = strings(["/API/a", "/b", "/API/a", None], dictionary)
    assert run(nested, cache, path=block) == [True, False, True, None]
    assert run(nested, cache, path=block) == [True, False, True, None]
    assert counted == ["/API/a", "/b"]
    more = strings(["/b", "/Api/c"], dictionary)
    assert run(nested, cache, path=more) == [False, True]
    assert counted == ["/API/a", "/b", "/Api/c"]


def test_equal_subtrees_share_their_results(counted: list[str]) -> None:
    cache, block = Cache(), strings(["A"])
    for _ in range(3):
        assert run(call("lower", STRING, PATH), cache, path=block) == ["a"]
    assert counted == ["A"]


def test_a_cleared_dictionary_is_evaluated_again(counted: list[str]) -> None:
    cache, dictionary = Cache(), Strings()
    lower = call("lower", STRING, PATH)
    assert run(lower, cache, path=strings(["A", "B"], dictionary)) == ["a", "b"]
    dictionary.clear()
    assert run(lower, cache, path=strings(["C"], dictionary)) == ["c"]
    assert counted == ["A", "B", "C"]


def test_derived_codes_are_stable_until_clear() -> None:
    cache, dictionary = Cache(), Strings()
    lower = call("lower", STRING, PATH)
    first = evaluate(lower, {"path": strings(["A", "b"], dictionary)}, 2, cache)
    second = evaluate(lower, {"path": strings(["C", "B", "a"], dictionary)}, 3, cache)
    assert second.strings is first.strings
    assert second.values.tolist() == [2, first.values[1], first.values[0]]
    before, size = cache.generation, cache.nbytes
    cache.clear()
    assert (cache.generation, first.strings is not None and len(first.strings)) == (before + 1, 0)
    assert cache.nbytes < size
    again = evaluate(lower, {"path": strings(["B"], dictionary)}, 1, cache)
    assert (again.to_python(), again.values.tolist()) == (["b"], [1])


def test_memory_of_results_is_reported() -> None:
    cache = Cache()
    run(call("lower", STRING, PATH), cache, path=strings([f"/PATH/{n}" for n in range(10_000)]))
    assert cache.nbytes > 10_000 * (4 + len("/path/1234"))


def test_several_text_columns_run_once_per_combination(counted: list[str]) -> None:
    both = call("concat", STRING, METHOD, text(" "), call("lower", STRING, PATH))
    method, path = strings(["GET", "GET", "PUT", None, "GET"]), strings(["/A", "/A", "/A", "/B", "/C"])
    assert run(both, method=method, path=path) == ["GET /a", "GET /a", "PUT /a", None, "GET /c"]
    assert counted == ["/A", "/B", "/C"]


def test_constants_stay_one_value() -> None:
    out = evaluate(call("+", INT, number(1), number(2)), {}, 1000, Cache())
    assert (len(out), out.to_python()) == (1, [3])
    out = evaluate(call("concat", STRING, text("a"), text("b")), {}, 1000, Cache())
    assert (len(out), out.to_python()) == (1, ["ab"])


def test_overflows_are_counted_by_row() -> None:
    cache = Cache()
    total = call("*", BIGINT, BYTES, long(2**62))
    assert run(total, cache, bytes=from_list(BIGINT, [1, 2, 3, None, 4])) == [2**62, None, None, None, None]
    assert cache.overflows == 3


def test_overflows_within_text_are_counted_by_row_not_by_value() -> None:
    cache = Cache()
    product = call("*", INT, call("length", INT, PATH), number(2**30))
    block = strings(["abc", "a", "abc", None])
    assert run(product, cache, path=block) == [None, 2**30, None, None]
    assert run(product, cache, path=block) == [None, 2**30, None, None]
    assert cache.overflows == 4


def test_overflows_of_branches_not_taken_do_not_count() -> None:
    cache = Cache()
    grown = call("+", BIGINT, BYTES, long(1))
    safe = call("case", BIGINT, call("<", BOOLEAN, BYTES, long(2**63 - 1)), grown, BYTES)
    assert run(safe, cache, bytes=from_list(BIGINT, [1, 2**63 - 1])) == [2, 2**63 - 1]
    assert cache.overflows == 0


def test_try_cast_does_not_count() -> None:
    cache = Cache()
    block = from_list(BIGINT, [1, 2**40])
    assert run(call("try_cast", INT, BYTES), cache, bytes=block) == [1, None]
    assert cache.overflows == 0
    assert run(call("cast", INT, BYTES), cache, bytes=block) == [1, None]
    assert cache.overflows == 1


def test_the_result_type_of_chosen_text_follows_every_branch() -> None:
    cache, dictionary = Cache(), Strings()
    chosen = call("case", STRING, call(">=", BOOLEAN, STATUS, number(400)), text("bad"), PATH)
    status = from_list(INT, [200, 500, None])
    first = evaluate(chosen, {"status": status, "path": strings(["/a", "/b", None], dictionary)}, 3, cache)
    assert first.to_python() == ["/a", "bad", None]
    cache.clear()
    second = evaluate(chosen, {"status": status, "path": strings(["/b", "/b", "/c"], dictionary)}, 3, cache)
    assert second.to_python() == ["/b", "bad", "/c"]


def test_a_column_that_is_not_there_is_our_bug() -> None:
    with pytest.raises(InternalError, match="no column 'path'"):
        evaluate(call("length", INT, PATH), {}, 1, Cache())
    with pytest.raises(InternalError, match="no function 'nope'"):
        evaluate(call("nope", INT, number(1)), {}, 1, Cache())


def test_empty_blocks() -> None:
    empty: dict[str, Vector] = {"path": strings([]), "status": from_list(INT, [])}
    for expression in (
        call("lower", STRING, PATH),
        call("concat", STRING, PATH, call("cast", STRING, STATUS)),
        call("+", INT, STATUS, number(1)),
        call("round", INT, STATUS, number(-1)),
    ):
        assert len(evaluate(expression, empty, 0, Cache())) == 0


# ---- properties -----------------------------------------------------------------------------------------------------


def fitting(value: int | None, bits: int) -> int | None:
    return value if value is not None and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


@MOST
@given(st.lists(st.tuples(LONGS, LONGS), min_size=1, max_size=40), st.sampled_from("+-*"))
def test_integers_against_python(pairs: list[tuple[int | None, int | None]], function: str) -> None:
    a, b = (from_list(BIGINT, [pair[side] for pair in pairs]) for side in (0, 1))
    got = run(call(function, BIGINT, Column("a", BIGINT), Column("b", BIGINT)), a=a, b=b)
    operator = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[function]
    assert got == [None if x is None or y is None else fitting(operator(x, y), 64) for x, y in pairs]


@MOST
@given(st.lists(st.tuples(LONGS, LONGS), min_size=1, max_size=40))
def test_division_against_python(pairs: list[tuple[int | None, int | None]]) -> None:
    a, b = (from_list(BIGINT, [pair[side] for pair in pairs]) for side in (0, 1))
    got = run(call("div", BIGINT, Column("a", BIGINT), Column("b", BIGINT)), a=a, b=b)
    rest = run(call("%", BIGINT, Column("a", BIGINT), Column("b", BIGINT)), a=a, b=b)
    for (x, y), quotient, left in zip(pairs, got, rest, strict=True):
        if x is None or not y:
            assert (quotient, left) == (None, None)
        elif quotient is not None:
            assert quotient * y + left == x
            assert abs(left) < abs(y)
            assert left == 0 or (left < 0) == (x < 0)
        else:
            assert (x, y, left) == (-(2**63), -1, 0)


DECIMALS = st.sampled_from([(5, 2), (18, 6), (18, 0), (18, 18), (20, 0), (38, 10), (38, 38)])


@MOST
@given(DECIMALS, DECIMALS, st.data())
def test_decimal_casts_against_the_decimal_module(
    before: tuple[int, int], after: tuple[int, int], data: st.DataObject
) -> None:
    most = 10 ** before[0] - 1
    values = data.draw(st.lists(st.integers(-most, most) | st.integers(-9999, 9999), min_size=1, max_size=20))
    one, two = decimal(*before), decimal(*after)
    got = run(call("cast", two, Column("d", one)), d=from_list(one, values))
    wide = Context(prec=100, rounding=ROUND_HALF_UP)
    for value, out in zip(values, got, strict=True):
        exact = Decimal(value).scaleb(-before[1], wide).quantize(Decimal(1).scaleb(-after[1]), context=wide)
        fits = exact.copy_abs() < Decimal(10) ** (after[0] - after[1])  # abs() would round to 28 digits
        assert out == (exact if fits else None)


@MOST
@given(st.lists(st.integers(-(10**18) + 1, 10**18 - 1), min_size=1, max_size=20))
def test_decimal_to_double_is_rounded_right(values: list[int]) -> None:
    got = run(call("cast", DOUBLE, Column("d", MICROS)), d=from_list(MICROS, values))
    assert got == [float(Decimal(value).scaleb(-6)) for value in values]


@MOST
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20), st.integers(-5, 16)
)
def test_doubles_round_half_up_by_their_text(values: list[float], digits: int) -> None:
    got = run(call("round", DOUBLE, Column("x", DOUBLE), number(digits)), x=from_list(DOUBLE, values))
    wide = Context(prec=1000, rounding=ROUND_HALF_UP)
    assert got == [float(Decimal(repr(v)).quantize(Decimal(1).scaleb(-digits), context=wide)) for v in values]


@MOST
@given(st.floats())
def test_double_text_reads_back(value: float) -> None:
    back = to_double(double_text(value), DOUBLE)
    assert back is not None
    assert repr(back) == repr(value)


@MOST
@given(st.integers(-800_000, 3_000_000))
def test_dates_there_and_back(days: int) -> None:
    from datetime import date

    assert days_of(*date_of(days)) == days
    if -719162 <= days <= 2932896:
        shown = date.fromordinal(days + 719163)
        assert date_of(days) == (shown.year, shown.month, shown.day)


@MOST
@given(
    st.lists(st.lists(st.sampled_from([True, False, None]), min_size=3, max_size=3), min_size=1, max_size=12)
)
def test_logic_has_three_values(rows: list[list[bool | None]]) -> None:
    columns = {name: from_list(BOOLEAN, [row[at] for row in rows]) for at, name in enumerate("abc")}
    parts = [Column(name, BOOLEAN) for name in columns]
    every, some = (
        evaluate(call(name, BOOLEAN, *parts), columns, len(rows), Cache()).to_python()
        for name in ("and", "or")
    )
    for row, conjunction, disjunction in zip(rows, every, some, strict=True):
        assert conjunction is (False if False in row else None if None in row else True)
        assert disjunction is (True if True in row else None if None in row else False)


def test_a_function_without_a_kernel_or_a_kernel_without_a_function_is_named() -> None:
    check_registered(["a", "b"], ["b", "a"], "kernels")
    for names in (["a"], ["a", "b", "c"]):
        with pytest.raises(InternalError, match=r"kernels and jobmaster/plan/signatures.py differ in: [bc]$"):
            check_registered(["a", "b"], names, "kernels")


@MOST
@given(
    st.lists(st.integers(-(10**18) + 1, 10**18 - 1) | st.integers(-(10**9), 10**9), min_size=1, max_size=20),
    st.integers(-(10**6) + 1, 10**6 - 1).filter(bool),
)
def test_decimal_division_rounds_half_up(values: list[int], divisor: int) -> None:
    """DECIMAL(18,6) / DECIMAL(6,1) is DECIMAL(27,13); small and big dividends take the two ways there are."""
    by = decimal(6, 1)
    quotient = call("/", decimal(27, 13), Column("d", MICROS), Literal(divisor, by))
    wide = Context(prec=120, rounding=ROUND_HALF_UP)
    for part in ([value for value in values if abs(value) <= 10**9], values):
        if part:
            got = run(quotient, d=from_list(MICROS, part))
            exact = [wide.divide(Decimal(value), Decimal(divisor)).scaleb(-5, wide) for value in part]
            assert got == [value.quantize(Decimal(1).scaleb(-13), context=wide) for value in exact]
