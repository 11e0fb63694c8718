"""Casts between types that are not text, on whole vectors. Values that do not fit the new type become NULL and are counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from elf.jobmaster.functions.decimal import fit, narrow, rescale
from elf.jobmaster.functions.frame import (
    LONG_DIGITS,
    Array,
    Build,
    Compile,
    Frame,
    Mask,
    Program,
    nulls,
    settle,
)
from elf.jobmaster.functions.number import multiply, to_long, within
from elf.jobmaster.plan.plan import Call
from elf.jobmaster.values.conversion import unscaled
from elf.jobmaster.values.sql_types import Kind, SqlType
from elf.jobmaster.values.vector import Vector

SECOND_US = 1_000_000
Cast = Callable[[Array, SqlType, SqlType], tuple[Array, "Mask | None", "Mask | None"]]
"""(values, old type, new type) -> (values, rows without a result, rows that do not fit)."""


def _boolean(values: Array, before: SqlType, after: SqlType) -> tuple[Array, Mask | None, Mask | None]:
    return np.asarray(values != 0, dtype=np.bool_), None, None


def _integer(values: Array, before: SqlType, after: SqlType) -> tuple[Array, Mask | None, Mask | None]:
    """Cast to INT or BIGINT: towards zero; a timestamp gives whole seconds, rounded down."""
    lost: Mask | None = None
    out = values
    if before.kind is Kind.DOUBLE:
        out, lost = to_long(np.trunc(values))
    elif before.kind is Kind.DECIMAL:
        unit = 10**before.scale
        out = np.where(values < 0, -(np.abs(values) // unit), np.abs(values) // unit)
        out, lost = narrow(out)
    elif before.kind is Kind.TIMESTAMP:
        out = values // SECOND_US
    elif before.kind is Kind.BOOLEAN:
        out = values.astype(np.int64)
    return out, None, _either(lost, within(out, after.kind))


def _double(values: Array, before: SqlType, after: SqlType) -> tuple[Array, Mask | None, Mask | None]:
    if before.kind is Kind.TIMESTAMP:
        return values / float(SECOND_US), None, None
    if before.kind is not Kind.DECIMAL:
        return values.astype(np.float64), None, None
    unit = 10**before.scale
    # One division of two exact doubles is correctly rounded; Python's int / int always is.
    if values.dtype != object and before.scale <= 22 and (before.precision <= 15 or _below(values, 2**53)):
        return values / float(unit), None, None
    return np.array([value / unit for value in values.tolist()], dtype=np.float64), None, None


def _below(values: Array, bound: int) -> bool:
    return len(values) == 0 or (int(values.max()) < bound and int(values.min()) > -bound)


def _decimal(values: Array, before: SqlType, after: SqlType) -> tuple[Array, Mask | None, Mask | None]:
    if before.kind is Kind.DOUBLE:
        return _decimal_of_double(values, after)
    if before.kind is Kind.BOOLEAN:
        values = values.astype(np.int64)
    scale = {Kind.DECIMAL: before.scale, Kind.TIMESTAMP: 6}.get(before.kind, 0)
    whole = (
        before.precision - before.scale
        if before.kind is Kind.DECIMAL
        else {Kind.INT: 10}.get(before.kind, 19)
    )
    sure = after.precision - after.scale >= whole + (scale > after.scale)
    out, lost = fit(rescale(values, scale, after.scale), after, sure=sure)
    return out, None, lost


def _decimal_of_double(values: Array, after: SqlType) -> tuple[Array, Mask | None, Mask | None]:
    """Cast of DOUBLE by its shortest decimal text, as in Spark; no result for NaN and infinities."""
    from decimal import Decimal

    finite = np.isfinite(values)
    found = [
        unscaled(Decimal(repr(value)), after) if ok else 0
        for value, ok in zip(values.tolist(), finite.tolist(), strict=True)
    ]
    lost = np.fromiter((value is None for value in found), dtype=np.bool_, count=len(found))
    out = np.zeros(len(found), dtype=np.int64 if after.precision <= LONG_DIGITS else np.object_)
    out[:] = [value or 0 for value in found]
    return out, None if finite.all() else ~finite, lost if lost.any() else None


def _timestamp(values: Array, before: SqlType, after: SqlType) -> tuple[Array, Mask | None, Mask | None]:
    """Numbers are seconds; a fraction below a microsecond is cut off."""
    if before.kind is Kind.BOOLEAN:
        return values.astype(np.int64), None, None
    if before.kind is Kind.DOUBLE:
        finite = np.isfinite(values)
        out, lost = to_long(np.trunc(np.where(finite, values * SECOND_US, 0.0)))
        return out, None if finite.all() else ~finite, lost
    if before.kind is Kind.DECIMAL:
        exact = values.astype(object) * SECOND_US
        unit = 10**before.scale
        out, lost = narrow(np.where(exact < 0, -(-exact // unit), exact // unit))
        return out, None, lost
    out, lost = multiply(values, np.array([SECOND_US], dtype=np.int64))
    return out, None, lost


TO: dict[Kind, Cast] = {
    Kind.BOOLEAN: _boolean,
    Kind.INT: _integer,
    Kind.BIGINT: _integer,
    Kind.DOUBLE: _double,
    Kind.DECIMAL: _decimal,
    Kind.TIMESTAMP: _timestamp,
}


def cast(call: Call, compile: Compile) -> Program:
    inner, before, after = compile(call.arguments[0]), call.arguments[0].type, call.type
    if before.kind is Kind.NULL:
        value = nulls(after)
        return lambda frame: value
    if before == after or (before.kind is Kind.INT and after.kind is Kind.BIGINT):
        return lambda frame: _renamed(inner(frame), after)
    convert, attempt = TO[after.kind], call.function == "try_cast"

    def run(frame: Frame) -> Vector:
        a = inner(frame)
        values, void, lost = convert(a.values, before, after)
        if attempt:  # a NULL of try_cast is no overflow, so it is not counted
            void, lost = _either(void, lost), None
            if before.kind is Kind.DOUBLE and after.is_integer:
                void = _either(void, np.isnan(a.values))
        return settle(frame, after, values, a.valid, void=void, lost=lost)

    return run


def _either(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else a | b


def _renamed(vector: Vector, type: SqlType) -> Vector:
    return vector if vector.type == type else Vector(type, vector.values, vector.valid, vector.strings)


BUILD: dict[str, Build] = {"cast": cast, "try_cast": cast}
