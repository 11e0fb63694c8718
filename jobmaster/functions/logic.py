"""Comparison, three-valued logic and choice, over vectors that are not text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from elf.jobmaster.functions.frame import Array, Build, Compile, Frame, Mask, Program, both, dtype_of, settle
from elf.jobmaster.plan.plan import Call, Literal
from elf.jobmaster.values.sql_types import BOOLEAN, Kind, SqlType
from elf.jobmaster.values.vector import Vector

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def _double(function: str, a: Array, b: Array) -> Mask:
    """Spark's order of doubles: NaN equals NaN and is greater than all else; -0.0 equals 0.0 as in IEEE."""
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    out: Mask = COMPARE[function](a, b)
    if not (nan_a.any() or nan_b.any()):
        return out
    if function == "<>":
        return out & ~(nan_a & nan_b)
    if function == "=":
        return out | (nan_a & nan_b)
    greater, other = (nan_a, nan_b) if function in (">", ">=") else (nan_b, nan_a)
    return out | (greater if function in (">=", "<=") else greater & ~other)


def compare_values(function: str, kind: Kind, a: Array, b: Array) -> Mask:
    if kind is Kind.DOUBLE:
        return _double(function, a, b)
    out: Mask = COMPARE[function](a, b)
    return out if out.dtype == np.bool_ else out.astype(np.bool_)


def compare(call: Call, compile: Compile) -> Program:
    left, right = map(compile, call.arguments)
    function, kind = call.function, call.arguments[0].type.kind
    plain = None if kind in (Kind.DOUBLE, Kind.DECIMAL) else COMPARE[function]

    def run(frame: Frame) -> Vector:
        a, b = left(frame), right(frame)
        out = plain(a.values, b.values) if plain else compare_values(function, kind, a.values, b.values)
        valid = both(a.valid, b.valid)
        return Vector(BOOLEAN, out) if valid is None else settle(frame, BOOLEAN, out, valid)

    return run


def same(call: Call, compile: Compile) -> Program:
    """`<=>`: equal, or both NULL; never NULL."""
    left, right = map(compile, call.arguments)
    kind = call.arguments[0].type.kind

    def run(frame: Frame) -> Vector:
        a, b = left(frame), right(frame)
        out = compare_values("=", kind, a.values, b.values)
        if a.valid is not None or b.valid is not None:
            in_a, in_b = a.is_valid(), b.is_valid()
            out = (out & in_a & in_b) | (~in_a & ~in_b)
        return Vector(BOOLEAN, out)

    return run


def _full(values: Array, length: int) -> Array:
    return values if len(values) == length else np.broadcast_to(values, length)


def every(call: Call, compile: Compile) -> Program:
    """`and`: `values` holds False for NULL, so the conjunction is True only where all operands are."""
    parts = [compile(argument) for argument in call.arguments]

    def run(frame: Frame) -> Vector:
        first, *rest = [part(frame) for part in parts]
        out, definite = first.values, None if first.valid is None else first.valid & ~first.values
        unsure = first.valid is not None
        for other in rest:
            out = out & other.values
            unsure = unsure or other.valid is not None
        if not unsure:
            return Vector(BOOLEAN, out)
        for other in (first, *rest):
            false = ~other.values if other.valid is None else other.valid & ~other.values
            definite = false if definite is None else definite | false
        valid = out | definite
        return Vector(BOOLEAN, _full(out, len(valid)), valid)

    return run


def some(call: Call, compile: Compile) -> Program:
    """`or`: True where any is; NULL where none is True and one is NULL."""
    parts = [compile(argument) for argument in call.arguments]

    def run(frame: Frame) -> Vector:
        first, *rest = [part(frame) for part in parts]
        out, known = first.values, first.valid
        for other in rest:
            out, known = out | other.values, both(known, other.valid)
        if known is None:
            return Vector(BOOLEAN, out)
        valid = out | known
        return Vector(BOOLEAN, _full(out, len(valid)), valid)

    return run


def negation(call: Call, compile: Compile) -> Program:
    inner = compile(call.arguments[0])

    def run(frame: Frame) -> Vector:
        a = inner(frame)
        return Vector(BOOLEAN, ~a.values if a.valid is None else ~a.values & a.valid, a.valid)

    return run


def is_null(call: Call, compile: Compile) -> Program:
    inner = compile(call.arguments[0])

    def run(frame: Frame) -> Vector:
        return Vector(BOOLEAN, ~inner(frame).is_valid())

    return run


def member(call: Call, compile: Compile) -> Program:
    """`in`: by one sorted search where the items are literals, else as a chain of `=` and `or`."""
    value, *items = call.arguments
    if value.type.kind is Kind.DOUBLE or not all(isinstance(item, Literal) for item in items):
        tests = tuple(Call("=", (value, item), BOOLEAN) for item in items)
        return some(Call("or", tests, BOOLEAN), compile)
    known = [item.value for item in items if isinstance(item, Literal) and item.value is not None]
    table = np.array(known, dtype=dtype_of(value.type))
    has_null = len(known) < len(items)
    inner = compile(value)

    def run(frame: Frame) -> Vector:
        a = inner(frame)
        out: Mask = a.values == table[0] if len(table) == 1 else np.isin(a.values, table)
        valid = a.valid if not has_null else both(a.valid, out)
        return Vector(BOOLEAN, out) if valid is None else settle(frame, BOOLEAN, out, valid)

    return run


def choose(type: SqlType, whens: Sequence[Mask], thens: Sequence[Vector]) -> Vector:
    """The first of `thens` whose `when` is True, else the last of them: one more value than conditions."""
    out, valid = thens[-1].values, thens[-1].valid
    for when, then in zip(reversed(whens), reversed(thens[:-1]), strict=True):
        out = np.where(when, then.values, out)
        if valid is not None or then.valid is not None:
            valid = np.where(when, then.is_valid(), True if valid is None else valid)
    return Vector(type, out, valid)


def branches(
    frame: Frame, conditions: Sequence[Program], results: Sequence[Program]
) -> tuple[list[Mask], list[Vector]]:
    """Evaluate a CASE: every branch over all rows, but overflows count only in rows that take the branch."""
    outer, open_rows = frame.live, np.ones(1, dtype=np.bool_) if frame.live is None else frame.live
    whens: list[Mask] = []
    thens: list[Vector] = []
    for condition, result in zip(conditions, results[:-1], strict=True):
        frame.live = open_rows
        when = condition(frame).values
        frame.live = when & open_rows
        thens.append(result(frame))
        whens.append(when)
        open_rows = open_rows & ~when
    frame.live = open_rows
    thens.append(results[-1](frame))
    frame.live = outer
    return whens, thens


def case(call: Call, compile: Compile) -> Program:
    programs = [compile(argument) for argument in call.arguments]
    conditions, results = programs[:-1:2], [*programs[1::2], programs[-1]]

    def run(frame: Frame) -> Vector:
        return choose(call.type, *branches(frame, conditions, results))

    return run


def coalesce(call: Call, compile: Compile) -> Program:
    parts = [compile(argument) for argument in call.arguments]

    def run(frame: Frame) -> Vector:
        thens = [part(frame) for part in parts]
        return choose(call.type, [then.is_valid() for then in thens[:-1]], thens)

    return run


BUILD: dict[str, Build] = {
    **dict.fromkeys(COMPARE, compare),
    "<=>": same,
    "and": every,
    "or": some,
    "not": negation,
    "is_null": is_null,
    "in": member,
    "case": case,
    "coalesce": coalesce,
}
