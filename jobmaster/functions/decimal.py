"""DECIMAL arithmetic, exactly Spark's: the result's (p, s) is the call's type, rounding HALF_UP, overflow NULL and counted.

Up to 18 digits a decimal is an int64, above it an object array of Python ints. Most results above 18 digits still come from
int64 operands whose bounds prove that the result fits int64: it is computed in int64, then widened.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from elf.jobmaster.functions.frame import (
    LONG_DIGITS,
    Array,
    Build,
    Compile,
    Frame,
    Mask,
    Program,
    both,
    bounds,
    settle,
)
from elf.jobmaster.plan.plan import Call, Literal
from elf.jobmaster.values.sql_types import Kind, SqlType
from elf.jobmaster.values.vector import Vector

WORK_DIGITS = 39
"""Digits (of a product) and decimals (of a quotient) that Spark keeps before the result's own scale is applied."""


def _is_long(values: Array) -> bool:
    return values.dtype != object


def fit(values: Array, type: SqlType, *, sure: bool = False) -> tuple[Array, Mask | None]:
    """`values` (unscaled) in the representation of `type`, and a mask of those with too many digits.

    `sure`: the type is known to hold every value.
    """
    lost: Mask | None = None
    if not sure:
        low, high = bounds(values)
        most = 10**type.precision
        if low <= -most or high >= most:
            lost = np.asarray((values <= -most) | (values >= most), dtype=np.bool_)
            values = np.where(lost, 0, values)
    wanted = np.int64 if type.precision <= LONG_DIGITS else np.object_
    return values if values.dtype == wanted else values.astype(wanted), lost


def scale_up(values: Array, digits: int) -> Array:
    """Exact `values * 10**digits`, in int64 if the product fits it."""
    if digits == 0:
        return values
    power = 10**digits
    if _is_long(values):
        low, high = bounds(values)
        if max(-low, high) * power < 2**63 and power < 2**63:
            return values * np.int64(power)
        values = values.astype(object)
    return np.asarray(values * power)


def scale_down(values: Array, digits: int) -> Array:
    """`values / 10**digits`, HALF_UP (away from zero at the half)."""
    if digits == 0:
        return values
    power = 10**digits
    low, high = bounds(values)
    if _is_long(values) and max(-low, high) + power >= 2**63:
        values = values.astype(object)
    size = np.abs(values)
    size = (size + power // 2) // power
    return np.asarray(np.where(values < 0, -size, size))


def rescale(values: Array, before: int, after: int) -> Array:
    """Unscaled values at scale `before`, at scale `after`."""
    return scale_up(values, after - before) if after >= before else scale_down(values, before - after)


def _sum(call: Call, compile: Compile) -> Program:
    left, right = map(compile, call.arguments)
    scales = [argument.type.scale for argument in call.arguments]
    common = max(scales)
    minus = call.function == "-"
    p1, p2 = (argument.type.precision - argument.type.scale for argument in call.arguments)
    sure = call.type.scale == common and call.type.precision >= max(p1, p2) + common + 1

    def run(frame: Frame) -> Vector:
        x, y = left(frame), right(frame)
        a, b = scale_up(x.values, common - scales[0]), scale_up(y.values, common - scales[1])
        if _is_long(a) and _is_long(b) and not _sum_fits(a, b):
            a = a.astype(object)
        out = rescale(a - b if minus else a + b, common, call.type.scale)
        out, lost = fit(out, call.type, sure=sure)
        return settle(frame, call.type, out, both(x.valid, y.valid), lost=lost)

    return run


def _sum_fits(a: Array, b: Array) -> bool:
    (low_a, high_a), (low_b, high_b) = bounds(a), bounds(b)
    return max(-low_a, high_a) + max(-low_b, high_b) < 2**63


def _significant(value: int) -> int:
    """Rounded HALF_UP to 39 significant digits, as Spark's product is before it takes its scale."""
    extra = len(str(abs(value))) - WORK_DIGITS
    if extra <= 0:
        return value
    unit: int = 10**extra
    size = (abs(value) + unit // 2) // unit * unit
    return -size if value < 0 else size


def _product(call: Call, compile: Compile) -> Program:
    left, right = map(compile, call.arguments)
    one, two = (argument.type for argument in call.arguments)
    exact = one.scale + two.scale
    sure = call.type.scale == exact and call.type.precision >= one.precision + two.precision

    def run(frame: Frame) -> Vector:
        x, y = left(frame), right(frame)
        a, b = x.values, y.values
        if _is_long(a) and _is_long(b):
            (low_a, high_a), (low_b, high_b) = bounds(a), bounds(b)
            if max(-low_a, high_a) * max(-low_b, high_b) >= 2**63:
                a = a.astype(object)
        out = a * b
        if not sure and not _is_long(out):
            out = np.array([_significant(value) for value in out.tolist()], dtype=object)
        out, lost = fit(rescale(out, exact, call.type.scale), call.type, sure=sure)
        return settle(frame, call.type, out, both(x.valid, y.valid), lost=lost)

    return run


def _half_up(a: int, b: int) -> int:
    """a / b to the nearest integer, halves away from zero."""
    size = (2 * abs(a) + abs(b)) // (2 * abs(b))
    return -size if (a < 0) != (b < 0) else size


def _towards_zero(a: int, b: int) -> int:
    size = abs(a) // abs(b)
    return -size if (a < 0) != (b < 0) else size


def _quotient(call: Call) -> Callable[[int, int], int]:
    one, two = (argument.type for argument in call.arguments)
    if call.function == "/":
        # a/10^s1 over b/10^s2 at 39 decimals, then at the result's scale: rounded twice, as Spark does.
        up = 10 ** (WORK_DIGITS + two.scale - one.scale) if WORK_DIGITS + two.scale >= one.scale else 1
        down = 10 ** (WORK_DIGITS - call.type.scale)
        return lambda a, b: _half_up(_half_up(a * up, b), down)
    common = max(one.scale, two.scale)
    up_a, up_b = 10 ** (common - one.scale), 10 ** (common - two.scale)
    if call.function == "div":
        return lambda a, b: _towards_zero(a * up_a, b * up_b)
    shift = call.type.scale - common

    def remainder(a: int, b: int) -> int:
        a, b = a * up_a, b * up_b
        left = a - b * _towards_zero(a, b)
        return left * 10**shift if shift >= 0 else _half_up(left, 10**-shift)

    return remainder


def _long_quotient(call: Call, a: Array, b: Array) -> Array | None:
    """`/` in int64, if 2 * a * 10**shift fits it and rounding once equals rounding twice; else None. b has no zeros."""
    one, two = (argument.type for argument in call.arguments)
    shift = call.type.scale + two.scale - one.scale
    if call.function != "/" or shift < 0 or not (_is_long(a) and _is_long(b)):
        return None
    (low_a, high_a), (low_b, high_b) = bounds(a), bounds(b)
    size_a, size_b = max(-low_a, high_a), max(-low_b, high_b)
    # A quotient that is not a half is at least 1 / 2b away from one: more than the first rounding changes it.
    if 2 * max(size_a, 1) * 10**shift + size_b >= 2**63 or 2 * size_b >= 10 ** (
        WORK_DIGITS - call.type.scale
    ):
        return None
    size = np.abs(b)
    out = (np.abs(a) * np.int64(2 * 10**shift) + size) // (2 * size)
    return np.asarray(np.where((a < 0) != (b < 0), -out, out))


def _division(call: Call, compile: Compile) -> Program:
    left, right = map(compile, call.arguments)
    quotient = _quotient(call)

    def run(frame: Frame) -> Vector:
        x, y = left(frame), right(frame)
        zero: Mask = np.asarray(y.values == 0, dtype=np.bool_)
        divisor = np.where(zero, 1, y.values)
        out = _long_quotient(call, x.values, divisor)
        if out is None:
            a, b = np.broadcast_arrays(x.values, divisor)
            out = np.zeros(len(a), dtype=object)
            out[:] = [quotient(p, q) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
        values, lost = narrow(out) if call.type.kind is Kind.BIGINT else fit(out, call.type)
        return settle(
            frame, call.type, values, both(x.valid, y.valid), void=zero if zero.any() else None, lost=lost
        )

    return run


def narrow(values: Array) -> tuple[Array, Mask | None]:
    """Python ints as int64, and a mask of those that do not fit it."""
    if _is_long(values):
        return values, None
    lost: Mask = np.asarray((values < -(2**63)) | (values >= 2**63), dtype=np.bool_)
    return np.where(lost, 0, values).astype(np.int64), lost if lost.any() else None


def _unary(change: Callable[[Array, SqlType, SqlType], Array]) -> Build:
    """A function of one decimal: unscaled values in, unscaled values at the call's scale out."""

    def build(call: Call, compile: Compile) -> Program:
        inner = compile(call.arguments[0])
        before = call.arguments[0].type

        def run(frame: Frame) -> Vector:
            a = inner(frame)
            out, lost = fit(change(a.values, before, call.type), call.type)
            return settle(frame, call.type, out, a.valid, lost=lost)

        return run

    return build


def _floor(values: Array, before: SqlType, after: SqlType) -> Array:
    return np.asarray(values // 10**before.scale)


def _ceil(values: Array, before: SqlType, after: SqlType) -> Array:
    return np.asarray(-(-values // 10**before.scale))


def _round(call: Call, compile: Compile) -> Program:
    digits = call.arguments[1] if len(call.arguments) > 1 else None
    place = int(digits.value or 0) if isinstance(digits, Literal) else 0

    def change(values: Array, before: SqlType, after: SqlType) -> Array:
        if place < before.scale:
            values = scale_up(scale_down(values, before.scale - place), max(after.scale - place, 0))
            return values
        return rescale(values, before.scale, after.scale)

    return _unary(change)(call, compile)


DECIMAL_BUILD: dict[str, Build] = {
    **dict.fromkeys(("+", "-"), _sum),
    "*": _product,
    **dict.fromkeys(("/", "%", "div"), _division),
    "floor": _unary(_floor),
    "ceil": _unary(_ceil),
    "round": _round,
}
