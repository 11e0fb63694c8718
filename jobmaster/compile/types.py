"""Implicit conversions, as Spark does them with ANSI mode off. Each function returns the operands with casts inserted.

A parameter (`:t`) that no use has given a type yet is a literal of the type NULL, with the text that was given for it. The first
conversion gives it a type.

Sources: `TypeCoercion.scala`, `DecimalPrecisionTypeCoercion.scala` of Spark 4. Raises `Mismatch` where no conversion exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from math import isnan

from elf.jobmaster.plan import parameters, signatures
from elf.jobmaster.plan.plan import Call, Expression, Literal
from elf.jobmaster.values import conversion
from elf.jobmaster.values.sql_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    Kind,
    SqlType,
    decimal,
)

INT_DIGITS, BIGINT_DIGITS = decimal(10, 0), decimal(20, 0)
_RANGES = {Kind.INT: 2**31, Kind.BIGINT: 2**63}
_READERS: dict[Kind, Callable[[str, SqlType], bool | int | float | None]] = {
    Kind.BOOLEAN: conversion.to_boolean,
    Kind.INT: conversion.to_integer,
    Kind.BIGINT: conversion.to_integer,
    Kind.DOUBLE: conversion.to_double,
    Kind.TIMESTAMP: conversion.to_timestamp,
}


class Mismatch(Exception):  # noqa: N818 - a caller turns it into a QueryError with a place
    """The language refuses an expression. `reason`: why; `hint`: what to write instead. The caller adds the place in the text."""

    def __init__(self, reason: str, hint: str = "") -> None:
        self.reason, self.hint = reason, hint
        super().__init__(reason)


def call(function: str, *operands: Expression, target: SqlType | None = None) -> Call:
    """`Call` with the type of the result from the table of functions; the operands are converted already."""
    type = signatures.result_type(function, operands, target or BOOLEAN)
    if type is None:
        raise Mismatch(f"{function} does not take {', '.join(str(o.type) for o in operands)}")
    return Call(function, operands, type)


def typed(operand: Expression, type: SqlType | None = None) -> Expression:
    """A parameter without a type as one of `type`, by default that of its value; any other operand unchanged."""
    if not isinstance(operand, Literal) or not operand.parameter or operand.type != NULL:
        return operand
    text = str(operand.value)
    if type is not None and type.kind not in signatures.SCALARS:
        raise Mismatch(f"the parameter {operand.parameter} cannot be a {type}")
    try:
        return parameters.literal(operand.parameter, text, type or parameters.own_type(text))
    except ValueError as error:
        raise Mismatch(str(error), f"CAST(:{operand.parameter} AS type) gives it another type") from None


def _typed_number(operand: Expression) -> Expression:
    own = typed(operand)
    return own if own.type.is_numeric else typed(operand, DOUBLE)


def together(operands: Sequence[Expression]) -> Sequence[Expression]:
    """Parameters beside constants alone get the type of their value. Otherwise the common type of the operands is theirs."""
    is_known = any(o.type != NULL and (not isinstance(o, Literal) or o.parameter) for o in operands)
    return operands if is_known else [typed(operand) for operand in operands]


def cast(expression: Expression, target: SqlType) -> Expression:
    """`expression` as `target`: itself, a converted constant where the conversion loses nothing, or a cast."""
    expression = typed(expression, target)
    source = expression.type
    if source == target:
        return expression
    if isinstance(expression, Literal) and not expression.parameter:
        folded = _folded(expression, target)
        if folded is not None:
            return folded
    if isinstance(expression, Call) and _is_widening(expression, target):
        expression = expression.arguments[0]
    if not signatures.castable(source, target):
        raise Mismatch(f"{source} cannot become {target}", _cast_hint(source, target))
    return call("cast", expression, target=target)


def _is_widening(inner: Call, target: SqlType) -> bool:
    """Whether `inner` casts an integer to the DECIMAL that holds all its values, and the DECIMAL `target` holds them too."""
    exact = (
        inner.function == "cast"
        and inner.arguments[0].type.is_integer
        and inner.type in (INT_DIGITS, BIGINT_DIGITS)
    )
    return exact and target.kind is Kind.DECIMAL and target.precision - target.scale >= inner.type.precision


def _cast_hint(source: SqlType, target: SqlType) -> str:
    if source.kind is Kind.TIMESTAMP:
        return "a timestamp casts to BIGINT (whole seconds) or STRING"
    if target.kind is Kind.TIMESTAMP:
        return "only a STRING casts to TIMESTAMP"
    return ""


def _folded(literal: Literal, target: SqlType) -> Literal | None:
    """The constant converted without loss (to a wider type, or a text that the type can read), else None."""
    value, source = literal.value, literal.type
    if value is None:
        return Literal(None, target) if target.kind in signatures.SCALARS else None
    if isinstance(value, str):
        read = _READERS[target.kind](value, target) if target.kind in _READERS else None
        # NaN stays a cast: as a literal it would differ from itself, and so from the same text in GROUP BY.
        is_nan = isinstance(read, float) and isnan(read)
        return None if read is None or is_nan else Literal(read, target)
    if not source.is_numeric or isinstance(value, bool) or source.kind is Kind.DOUBLE:
        return None
    scale = source.scale if source.kind is Kind.DECIMAL else 0
    if target.kind is Kind.DOUBLE:
        return Literal(float(Decimal(value).scaleb(-scale)), DOUBLE)
    if target.is_integer and scale == 0 and -_RANGES[target.kind] <= value < _RANGES[target.kind]:
        return Literal(value, target)
    if target.kind is Kind.DECIMAL and target.scale >= scale:
        unscaled = int(value) * 10 ** (target.scale - scale)
        return Literal(unscaled, target) if abs(unscaled) < min(10**target.precision, 2**63) else None
    return None


def as_decimal(expression: Expression) -> Expression:
    """An INT or BIGINT as the DECIMAL that holds it; a constant as the narrowest one (`DecimalType.fromLiteral`)."""
    type = expression.type
    if type.kind is Kind.DECIMAL:
        return expression
    if isinstance(expression, Literal) and isinstance(expression.value, int) and not expression.parameter:
        return cast(expression, decimal(len(str(abs(expression.value))), 0))
    return cast(expression, INT_DIGITS if type == INT else BIGINT_DIGITS)


def arithmetic(function: str, left: Expression, right: Expression) -> Expression:
    """`left function right` for `+ - * / % div`. Raises Mismatch for operands that are no numbers."""
    left, right = _typed_number(left), _typed_number(right)
    for side in (left, right):
        if side.type.kind in (Kind.BOOLEAN, Kind.TIMESTAMP, Kind.WINDOW, Kind.ARRAY):
            hint = "unix_timestamp(x) makes a number of it" if side.type == TIMESTAMP else ""
            raise Mismatch(f"{function} does not take a {side.type}", hint)
    left, right = (cast(s, DOUBLE) if s.type == STRING else s for s in (left, right))
    if left.type.kind is Kind.NULL:
        left = cast(left, right.type if right.type.is_numeric else DOUBLE)
    if right.type.kind is Kind.NULL:
        right = cast(right, left.type)
    kinds = {left.type.kind, right.type.kind}
    if function == "div" and Kind.DOUBLE in kinds:
        raise Mismatch("div takes whole numbers and decimals", "use floor(a / b)")
    if Kind.DOUBLE in kinds or (function == "/" and Kind.DECIMAL not in kinds):
        return call(function, cast(left, DOUBLE), cast(right, DOUBLE))
    if Kind.DECIMAL in kinds:
        return _decimal_arithmetic(function, as_decimal(left), as_decimal(right))
    wide = BIGINT if function == "div" or kinds != {Kind.INT} else INT
    return call(function, cast(left, wide), cast(right, wide))


def _decimal_arithmetic(function: str, left: Expression, right: Expression) -> Expression:
    if function != "%":
        return call(function, left, right)
    wide = signatures.wider_decimal(left.type, right.type)
    result = signatures.decimal_result("%", left.type, right.type)
    return cast(call("%", cast(left, wide), cast(right, wide)), result)


def comparison(function: str, left: Expression, right: Expression) -> Expression:
    """`left function right` for `= <> < <= > >= <=>`, as BOOLEAN."""
    left, right = together((left, right))
    common = _compared(function, left, right)
    return call(function, cast(left, common), cast(right, common))


def _compared(function: str, left: Expression, right: Expression) -> SqlType:
    kinds = (left.type.kind, right.type.kind)
    if left.type == right.type:
        return BOOLEAN if left.type.kind is Kind.NULL else left.type
    if Kind.NULL in kinds:
        return right.type if left.type.kind is Kind.NULL else left.type
    if Kind.STRING in kinds:
        text, other = (left, right) if left.type == STRING else (right, left)
        _check_text(text, other.type)
        return DOUBLE if other.type.kind is Kind.DECIMAL else other.type
    if left.type.is_numeric and right.type.is_numeric:
        if Kind.DECIMAL in kinds and Kind.DOUBLE not in kinds:
            return signatures.wider_decimal(as_decimal(left).type, as_decimal(right).type)
        return _wider(left.type, right.type)
    if Kind.BOOLEAN in kinds and (left.type.is_numeric or right.type.is_numeric) and function in ("=", "<=>"):
        return right.type if left.type == BOOLEAN else left.type
    raise Mismatch(f"{left.type} and {right.type} cannot be compared", "cast one of them")


def _check_text(text: Expression, other: SqlType) -> None:
    """Refuse a constant that no value can equal: Spark would return no rows, without an error."""
    if not isinstance(text, Literal) or not isinstance(text.value, str) or text.parameter:
        return
    reads = _READERS[DOUBLE.kind if other.is_numeric else other.kind]
    if reads(text.value, DOUBLE if other.is_numeric else other) is None:
        hint = "write it like '2024-05-17 10:05:03'" if other == TIMESTAMP else ""
        raise Mismatch(f"{text.value!r} is not a valid {other}", hint)


def _wider(left: SqlType, right: SqlType) -> SqlType:
    """Spark's `findWiderTypeForTwo`: the common type of two types in CASE, IN and coalesce."""
    kinds = {left.kind, right.kind}
    if left == right or right.kind is Kind.NULL:
        return left
    if left.kind is Kind.NULL:
        return right
    if Kind.STRING in kinds and Kind.BOOLEAN not in kinds:
        return STRING
    if not (left.is_numeric and right.is_numeric):
        raise Mismatch(f"{left} and {right} have no common type", "cast one of them")
    if Kind.DOUBLE in kinds:
        return DOUBLE
    if Kind.DECIMAL in kinds:
        sides = [
            t if t.kind is Kind.DECIMAL else INT_DIGITS if t == INT else BIGINT_DIGITS for t in (left, right)
        ]
        return signatures.wider_decimal(sides[0], sides[1])
    return BIGINT


def unified(operands: Sequence[Expression]) -> list[Expression]:
    """All operands as their common type (BOOLEAN where all are NULL)."""
    operands = together(operands)
    for operand in operands:
        if operand.type.kind in (Kind.WINDOW, Kind.ARRAY):
            raise Mismatch(f"a {operand.type} cannot be used here", "use window.start or window.end")
    # Strings first, as Spark does, since promotion to STRING is not associative.
    types = sorted((o.type for o in operands), key=lambda t: t.kind is not Kind.STRING)
    common = types[0]
    for type in types[1:]:
        common = _wider(common, type)
    if common.kind is Kind.NULL:
        common = BOOLEAN
    return [cast(o, common) for o in operands]


def boolean(operand: Expression) -> Expression:
    """`operand` as a condition."""
    operand = typed(operand, BOOLEAN)
    if operand.type.kind is Kind.NULL:
        return Literal(None, BOOLEAN)
    if operand.type != BOOLEAN:
        raise Mismatch(f"a condition is expected here, not {_one(operand.type)}", "compare it with something")
    return operand


def string(operand: Expression) -> Expression:
    return cast(operand, STRING)


def number(operand: Expression) -> Expression:
    """`operand` as a number: strings become DOUBLE."""
    operand = _typed_number(operand)
    if operand.type == STRING or operand.type.kind is Kind.NULL:
        return cast(operand, DOUBLE)
    if not operand.type.is_numeric:
        raise Mismatch(f"a number is expected, not a {operand.type}")
    return operand


def timestamp(operand: Expression) -> Expression:
    if operand.type not in (STRING, TIMESTAMP) and operand.type.kind is not Kind.NULL:
        raise Mismatch(
            f"a timestamp is expected, not a {operand.type}", "use `time`, or CAST(x AS TIMESTAMP)"
        )
    if isinstance(operand, Literal) and isinstance(operand.value, str):
        _check_text(operand, TIMESTAMP)
    return cast(operand, TIMESTAMP)


def _one(type: SqlType) -> str:
    return f"{'an' if str(type)[0] in 'aeiou' else 'a'} {type}"
