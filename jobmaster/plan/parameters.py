"""Parameters of a query. `:threshold` is a literal of the plan that has a name and a type, so whatever evaluates or checks plans
sees a constant. The type belongs to the plan: another value of that type makes another version of the same plan.

Values are texts where people give them: `500`, `0.5`, `true`, `2024-05-17 10:05:03`, or any text for a STRING.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar, cast

import msgspec

from elf.jobmaster.plan import patterns, signatures
from elf.jobmaster.plan.check import VALUE_CHARS_MAX, problem
from elf.jobmaster.plan.plan import Call, Column, Expression, Literal, Plan, RowPlan
from elf.jobmaster.values.conversion import timestamp_text, to_timestamp
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, INT, MICROS, STRING, Kind, SqlType

T = TypeVar("T")
Value = bool | int | float | str | None
_WHOLE = re.compile(r"[+-]?[0-9]{1,400}")
_POINT = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})")
_NUMBER = re.compile(_POINT.pattern + r"(?:[eE][+-]?[0-9]{1,3})?")
_TRUTH = {"true": True, "false": False}


def parameters(plan: Plan | RowPlan) -> dict[str, Literal]:
    """The plan's parameters by name, sorted. O(nodes)."""
    return dict(sorted((each.parameter, each) for each in named(plan)))


def named(plan: Plan | RowPlan) -> Iterator[Literal]:
    """All literals of the plan that are parameters: that of LIMIT, then those of its clauses, in their order. O(nodes)."""
    if plan.limit_parameter:
        yield Literal(plan.limit, INT, plan.limit_parameter)
    for node in _nodes(plan):
        if isinstance(node, Literal) and node.parameter:
            yield node


def literal(name: str, text: str, type: SqlType) -> Literal:
    """The parameter `name` of that type with the value that `text` says. Raises ValueError that names it and says what is
    expected."""
    try:
        return Literal(_value(text, type), type, name)
    except ValueError as error:
        raise ValueError(f"the parameter {name}: {error}") from None


def own_type(text: str) -> SqlType:
    """The type of a value where no use decides: BOOLEAN, BIGINT, DECIMAL(18,6), DOUBLE, else STRING."""
    for type in (BOOLEAN, BIGINT, MICROS, DOUBLE):
        with suppress(ValueError):
            _value(text, type)
            return type
    return STRING


def own_value(text: str) -> bool | int | float | str | Decimal:
    """A value of its own type, for Spark."""
    type = own_type(text)
    return Decimal(text) if type == MICROS else _value(text, type)


def shown(parameter: Literal) -> str:
    """The value as the text that `literal` reads back."""
    value, kind = parameter.value, parameter.type.kind
    if kind is Kind.BOOLEAN:
        return str(value).lower()
    if kind is Kind.DECIMAL:
        return f"{Decimal(str(value)).scaleb(-parameter.type.scale).normalize():f}"
    return timestamp_text(int(value or 0)) if kind is Kind.TIMESTAMP else str(value)


def unknown(name: str, known: Mapping[str, object]) -> str:
    """The reason why a query does not take a value of that name."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    names = ", ".join(known)
    way = f"did you mean {near[0]}?" if near else f"it has {names}" if names else "it has none"
    return f"the query has no parameter {name[:64]!r}; {way}"


def with_values(plan: Plan, texts: Mapping[str, str]) -> Plan:
    """The plan with other values for some of its parameters. Raises ValueError that says what is wrong. O(nodes)."""
    known = parameters(plan)
    for name in texts:
        if name not in known:
            raise ValueError(unknown(name, known))
    values = {name: each.value for name, each in known.items()}
    values |= {name: literal(name, text, known[name].type).value for name, text in texts.items()}
    changed = filled(plan, values)
    reasons = (_refusal(node) for node in _nodes(changed) if isinstance(node, Call))
    if wrong := next(filter(None, reasons), "") or problem(changed):
        raise ValueError(wrong)
    return changed


def filled(plan: Plan, values: Mapping[str, Value]) -> Plan:
    """The plan with these values, unchecked, of all its parameters. Raises KeyError for one without a value. O(nodes)."""
    changed = _replaced(plan, values)
    if not plan.limit_parameter:
        return changed
    limit = values[plan.limit_parameter]
    return msgspec.structs.replace(changed, limit=limit if isinstance(limit, int) else None)


def _nodes(part: object) -> Iterator[Expression]:
    if isinstance(part, Literal | Column):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _nodes(each)
    elif isinstance(part, msgspec.Struct):
        if isinstance(part, Call):
            yield part
        for field in part.__struct_fields__:
            yield from _nodes(getattr(part, field))


def _replaced(part: T, values: Mapping[str, Value]) -> T:
    """`part` of a plan with these values."""
    if isinstance(part, Literal):
        return cast(T, Literal(values[part.parameter], part.type, part.parameter)) if part.parameter else part
    if isinstance(part, tuple):
        return cast(T, tuple(_replaced(each, values) for each in part))
    if not isinstance(part, msgspec.Struct) or isinstance(part, Column | SqlType):
        return part
    fields = {name: _replaced(getattr(part, name), values) for name in part.__struct_fields__}
    return cast(T, msgspec.structs.replace(part, **fields))


# Values.


def _value(text: str, type: SqlType) -> bool | int | float | str:
    """Raises ValueError: what is expected, and what was found."""
    if len(text) > VALUE_CHARS_MAX:
        raise ValueError(f"a value has at most {VALUE_CHARS_MAX:,} characters, not {len(text):,}")
    value: bool | int | float | str | None = None
    if type.kind is Kind.STRING:
        value = None if re.search("[\ud800-\udfff]", text) else text
    elif type.kind is Kind.BOOLEAN:
        value = _TRUTH.get(text.lower())
    elif type.kind is Kind.TIMESTAMP:
        value = to_timestamp(text, type)
    elif type.kind in signatures.SCALARS:
        value = _number(text, type)
    if value is None:
        raise ValueError(f"expected {_EXPECTED.get(type.kind, str(type).upper())}, found {_short(text)}")
    return value


_EXPECTED = {
    Kind.STRING: "a text in UTF-8",
    Kind.BOOLEAN: "true or false",
    Kind.TIMESTAMP: "a time like 2024-05-17 10:05:03",
    Kind.INT: "a whole number (INT)",
    Kind.BIGINT: "a whole number (BIGINT)",
    Kind.DOUBLE: "a number (DOUBLE)",
}


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")


def _number(text: str, type: SqlType) -> int | float | None:
    if type.kind is Kind.DOUBLE:
        value = float(text) if _NUMBER.fullmatch(text) else None
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"{_short(text)} is beyond the range of DOUBLE")
        return value
    if not (_WHOLE if type.is_integer else _POINT).fullmatch(text):
        return None
    unscaled = Fraction(Decimal(text)) * 10**type.scale
    limit = {Kind.INT: 2**31, Kind.DECIMAL: 10**type.precision}.get(type.kind, 2**63)
    if unscaled.denominator != 1:
        raise ValueError(
            f"expected at most {type.scale} decimals ({str(type).upper()}), found {_short(text)}"
        )
    if not -min(limit, 2**63) <= unscaled < min(limit, 2**63):
        raise ValueError(f"{_short(text)} is beyond the range of {str(type).upper()}")
    return int(unscaled)


# Calls that do not take every value of an operand's type.


def _refusal(call: Call) -> str:
    """Why a call does not take the value of a parameter, "" if it does."""
    operands = call.arguments
    given = [each for each in operands if isinstance(each, Literal) and each.parameter]
    if not given or signatures.result_type(call.function, operands, call.type) == call.type:
        return ""
    constants = [str(each.value) if isinstance(each, Literal) else "" for each in operands]
    wrong = _pattern_problem(call.function, constants)
    names = " and ".join(f"{each.parameter} = {_short(shown(each))}" for each in given)
    return f"{call.function} does not take {names}" + (f": {wrong}" if wrong else "")


def _pattern_problem(function: str, constants: list[str]) -> str | None:
    if function not in ("rlike", "regexp_extract", "regexp_replace", "like", "ilike"):
        return None
    pattern = constants[1]
    if len(pattern) > signatures.PATTERN_CHARS_MAX:
        return f"a pattern has at most {signatures.PATTERN_CHARS_MAX:,} characters"
    if function in ("like", "ilike"):
        return patterns.check_like(pattern, constants[2] if len(constants) > 2 else "\\")
    wrong = patterns.check(pattern)
    if wrong is None and function == "regexp_replace":
        return patterns.check_replacement(pattern, constants[2])
    return wrong
