"""Arithmetic and rounding of numbers, exactly as Spark's with ANSI off, except that an overflow becomes NULL and is counted.

INT and BIGINT are computed in int64. Bounds of the operands, one pass each, prove almost every block free of overflow;
only a block that may overflow is checked row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from elf.jobmaster.functions.decimal import DECIMAL_BUILD
from elf.jobmaster.functions.frame import Array, Build, Compile, Frame, Mask, Program, both, bounds, settle
from elf.jobmaster.functions.logic import compare_values
from elf.jobmaster.plan.plan import Call, Literal
from elf.jobmaster.values.sql_types import Kind
from elf.jobmaster.values.vector import Vector

LIMITS = {Kind.INT: (-(2**31), 2**31 - 1), Kind.BIGINT: (-(2**63), 2**63 - 1)}
Checked = tuple[Array, Mask | None]
"""Values, and a mask of those that do not fit (None: all fit)."""


def within(values: Array, kind: Kind) -> Mask | None:
    """The rows of int64 `values` outside the range of INT; BIGINT holds all."""
    if kind is not Kind.INT:
        return None
    low, high = bounds(values)
    least, most = LIMITS[kind]
    if low >= least and high <= most:
        return None
    return (values < least) | (values > most)


def add(a: Array, b: Array) -> Checked:
    (low_a, high_a), (low_b, high_b) = bounds(a), bounds(b)
    out = a + b
    if low_a + low_b >= -(2**63) and high_a + high_b < 2**63:
        return out, None
    return out, ((a ^ out) & (b ^ out)) < 0


def subtract(a: Array, b: Array) -> Checked:
    (low_a, high_a), (low_b, high_b) = bounds(a), bounds(b)
    out = a - b
    if low_a - high_b >= -(2**63) and high_a - low_b < 2**63:
        return out, None
    return out, ((a ^ b) & (a ^ out)) < 0


def multiply(a: Array, b: Array) -> Checked:
    (low_a, high_a), (low_b, high_b) = bounds(a), bounds(b)
    out = a * b
    if max(-low_a, high_a) * max(-low_b, high_b) < 2**63:
        return out, None
    exact = a.astype(object) * b.astype(object)
    return out, np.asarray((exact < -(2**63)) | (exact >= 2**63), dtype=np.bool_)


INTEGER: dict[str, Callable[[Array, Array], Checked]] = {"+": add, "-": subtract, "*": multiply}
DOUBLE: dict[str, Callable[[Any, Any], Any]] = {"+": np.add, "-": np.subtract, "*": np.multiply}


def arithmetic(call: Call, compile: Compile) -> Program:
    kind = call.type.kind
    if kind is Kind.DECIMAL:
        return DECIMAL_BUILD[call.function](call, compile)
    left, right = map(compile, call.arguments)
    integer, double = INTEGER[call.function], DOUBLE[call.function]

    def run_double(frame: Frame) -> Vector:
        a, b = left(frame), right(frame)
        return settle(frame, call.type, double(a.values, b.values), both(a.valid, b.valid))

    def run(frame: Frame) -> Vector:
        a, b = left(frame), right(frame)
        if kind is Kind.INT:  # products of 32 bits fit 64
            out = double(a.values, b.values)
            lost = within(out, kind)
        else:
            out, lost = integer(a.values, b.values)
        return settle(frame, call.type, out, both(a.valid, b.valid), lost=lost)

    return run_double if kind is Kind.DOUBLE else run


def truncated(a: Array, b: Array) -> Array:
    """The quotient towards zero; b has no zeros. The caller handles the one overflow, least / -1."""
    return np.asarray((a - np.fmod(a, b)) // b)


def division(call: Call, compile: Compile) -> Program:
    """`/` of doubles, `%` and `div`: NULL by zero."""
    if call.arguments[0].type.kind is Kind.DECIMAL:
        return DECIMAL_BUILD[call.function](call, compile)
    left, right = map(compile, call.arguments)
    operators: dict[str, Callable[[Any, Any], Any]] = {"/": np.divide, "%": np.fmod, "div": truncated}
    operator = operators[call.function]

    def run(frame: Frame) -> Vector:
        a, b = left(frame), right(frame)
        zero: Mask | None = b.values == 0
        divisor, lost = b.values, None
        if zero is not None and zero.any():
            divisor = np.where(zero, b.values.dtype.type(1), b.values)
        else:
            zero = None
        if call.function == "div" and (divisor == -1).any():
            lost = (a.values == -(2**63)) & (divisor == -1)
            lost = lost if lost.any() else None
        return settle(
            frame, call.type, operator(a.values, divisor), both(a.valid, b.valid), void=zero, lost=lost
        )

    return run


def sign(call: Call, compile: Compile) -> Program:
    """`negate` and `abs`: only the least integer overflows."""
    inner = compile(call.arguments[0])
    operator: Callable[[Any], Any] = np.negative if call.function == "negate" else np.abs
    least = LIMITS.get(call.type.kind, (None, None))[0]

    def run(frame: Frame) -> Vector:
        a = inner(frame)
        lost: Mask | None = a.values == least if least is not None and bounds(a.values)[0] == least else None
        if lost is None:
            return Vector(call.type, operator(a.values), a.valid)
        return settle(frame, call.type, operator(a.values), a.valid, lost=lost)

    return run


def whole(call: Call, compile: Compile) -> Program:
    """`floor` and `ceil` of a DOUBLE to BIGINT (NaN is 0, as Java converts it)."""
    if call.arguments[0].type.kind is Kind.DECIMAL:
        return DECIMAL_BUILD[call.function](call, compile)
    inner = compile(call.arguments[0])
    operator: Callable[[Any], Any] = np.floor if call.function == "floor" else np.ceil

    def run(frame: Frame) -> Vector:
        a = inner(frame)
        out, lost = to_long(operator(a.values))
        return settle(frame, call.type, out, a.valid, lost=lost)

    return run


def to_long(values: Array) -> Checked:
    """float64 towards zero to int64; NaN is 0."""
    lost = (values >= 2.0**63) | (values < -(2.0**63))
    out = np.where(lost | np.isnan(values), 0.0, values).astype(np.int64)
    return out, lost if lost.any() else None


def round_half_up(value: float, digits: int) -> float:
    """HALF_UP over the shortest decimal text of the double, as Spark does."""
    from decimal import ROUND_HALF_UP, Context, Decimal

    # Beyond 400 places the result no longer changes; 1100 digits are enough for any double, so quantize never fails.
    digits = min(max(digits, -400), 400)
    context = Context(prec=1100, rounding=ROUND_HALF_UP)
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), context=context))


def round_doubles(values: Array, digits: int) -> Array:
    """HALF_UP to `digits` decimals. Rows near a half, or too big for exact scaling, take the slow exact way."""
    if not 0 <= digits <= 15:
        safe = np.zeros(len(values), dtype=np.bool_)
        out = values.copy()
    else:
        power = 10.0**digits
        scaled = np.abs(values) * power
        safe = (np.abs(scaled - np.floor(scaled) - 0.5) > 1e-3) & (scaled < 2.0**40)
        out = np.copysign(np.floor(scaled + 0.5) / power, values)
        # Spark rounds a BigDecimal, which has no negative zero.
        out = np.where(safe, out + 0.0, values)
    for row in np.flatnonzero(~safe & np.isfinite(values)).tolist():
        out[row] = round_half_up(float(values[row]), digits) + 0.0
    return out


def rounding(call: Call, compile: Compile) -> Program:
    inner = compile(call.arguments[0])
    digits_of = call.arguments[1] if len(call.arguments) > 1 else None
    digits = int(digits_of.value or 0) if isinstance(digits_of, Literal) else 0
    kind = call.type.kind
    if kind is Kind.DECIMAL:
        return DECIMAL_BUILD["round"](call, compile)

    def run_double(frame: Frame) -> Vector:
        a = inner(frame)
        return settle(frame, call.type, round_doubles(a.values, digits), a.valid)

    def run(frame: Frame) -> Vector:
        a = inner(frame)
        if digits >= 0:
            return a
        out, lost = round_integers(a.values, -digits, kind)
        return settle(frame, call.type, out, a.valid, lost=lost)

    return run_double if kind is Kind.DOUBLE else run


def round_integers(values: Array, zeros: int, kind: Kind) -> Checked:
    """HALF_UP to a multiple of 10**zeros."""
    if zeros > 19:
        return np.zeros(len(values), dtype=np.int64), None
    unit = 10**zeros
    exact = values.astype(object)
    out = np.where(exact < 0, -((-exact + unit // 2) // unit), (exact + unit // 2) // unit) * unit
    least, most = LIMITS[kind]
    lost = np.asarray((out < least) | (out > most), dtype=np.bool_)
    return np.where(lost, 0, out).astype(np.int64), lost if lost.any() else None


def width_bucket(call: Call, compile: Compile) -> Program:
    """The bucket of a value among n of equal width from `low` to `high`: 0 below, n + 1 above. `low` may be the larger."""
    parts = [compile(argument) for argument in call.arguments]

    def run(frame: Frame) -> Vector:
        vectors = [part(frame) for part in parts]
        value, first, last, count = (vector.values for vector in vectors)
        void = (count <= 0) | (count == 2**63 - 1) | np.isnan(value) | (first == last)
        void = void | ~np.isfinite(first) | ~np.isfinite(last)
        rising = first < last
        gone = np.where(rising, value - first, first - value)
        width = np.where(rising, last - first, first - last)
        share = np.clip(count.astype(np.float64) * gone / width, -(2.0**62), 2.0**62)
        inner = np.nan_to_num(share).astype(np.int64) + 1
        beyond = np.where(rising, value >= last, value <= last)
        out = np.where(gone < 0, 0, np.where(beyond, np.where(void, 0, count) + 1, inner))
        valid = reduce(both, (vector.valid for vector in vectors))
        return settle(frame, call.type, out, valid, void=void)

    return run


def extreme(call: Call, compile: Compile) -> Program:
    """least and greatest: of the values that are not NULL; of equal ones the first."""
    parts = [compile(argument) for argument in call.arguments]
    better, kind = "<" if call.function == "least" else ">", call.type.kind

    def run(frame: Frame) -> Vector:
        best, *rest = [part(frame) for part in parts]
        for other in rest:
            known, new = best.is_valid(), other.is_valid()
            wins = new & (~known | compare_values(better, kind, other.values, best.values))
            best = Vector(call.type, np.where(wins, other.values, best.values), known | new)
        return best

    return run


BUILD: dict[str, Build] = {
    "width_bucket": width_bucket,
    **dict.fromkeys(("least", "greatest"), extreme),
    **dict.fromkeys(("+", "-", "*"), arithmetic),
    **dict.fromkeys(("/", "%", "div"), division),
    **dict.fromkeys(("negate", "abs"), sign),
    **dict.fromkeys(("floor", "ceil"), whole),
    "round": rounding,
}
