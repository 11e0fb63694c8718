"""Plan expressions as Spark SQL text: how readers of the lake re-apply HAVING, ORDER BY and SELECT with plain Spark.

The text means the same in Spark (ANSI mode off, UTC) as the expression in `functions`: an overflow is NULL, so integer
arithmetic and conversions between numbers use the `try_` forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from elf.jobmaster.plan.plan import Call, Column, Expression, Literal
from elf.jobmaster.values.sql_types import Kind, SqlType

_INFIX = {"=", "<>", "<", "<=", ">", ">=", "<=>", "/", "%", "div", "and", "or", "rlike"}
_CHECKED = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
_RENAMED = {"ceil": "ceiling", "parse_url": "try_parse_url", "length": "char_length"}
_RENAMED |= {"url_decode": "try_url_decode"}
_TRIMS = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}


def spark_sql(expression: Expression, names: Mapping[str, str]) -> str:
    """The expression as text. `names`: the SQL text of each column. Raises KeyError for a column without one."""
    if isinstance(expression, Literal):
        return literal(expression)
    if isinstance(expression, Column):
        return names[expression.name]
    parts = [spark_sql(argument, names) for argument in expression.arguments]
    function = expression.function
    if function in _INFIX:
        return "(" + f" {function.upper()} ".join(parts) + ")"
    if function in _CHECKED:
        return _arithmetic(expression, parts)
    if function in _SPECIAL:
        return _SPECIAL[function](expression, parts)
    return f"{_RENAMED.get(function, function)}({', '.join(parts)})"


def quoted(text: str) -> str:
    """A string constant."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def identifier(name: str) -> str:
    """A column's name, quoted, so that it may contain any character."""
    return "`" + name.replace("`", "``") + "`"


def let(name: str, value: str, body: str) -> str:
    """`body` with `name` for `value`, which is computed once. SQL has no `let`: `transform` of one item serves as one."""
    return f"element_at(transform(array({value}), {name} -> {body}), 1)"


def literal(constant: Literal) -> str:
    """A constant of exactly its type."""
    value, kind = constant.value, constant.type.kind
    if value is None:
        return "NULL" if kind is Kind.NULL else f"CAST(NULL AS {constant.type})"
    if kind is Kind.STRING:
        return quoted(str(value))
    if kind is Kind.BOOLEAN:
        return "true" if value else "false"
    if kind is Kind.TIMESTAMP:
        return f"timestamp_micros({value})"
    if kind is Kind.DECIMAL:
        return f"CAST('{value}E-{constant.type.scale}' AS {constant.type})"
    if kind is Kind.DOUBLE:
        number = float(value)
        text = repr(number) if math.isfinite(number) else str(number).replace("inf", "Infinity")
        return f"CAST('{text}' AS double)"
    return f"CAST('{value}' AS {constant.type})"


def _arithmetic(call: Call, parts: list[str]) -> str:
    """Decimals and doubles by the operator, whose overflow is NULL or infinity; integers by the `try_` function."""
    if call.type.is_integer:
        return f"{_CHECKED[call.function]}({', '.join(parts)})"
    return f"({f' {call.function} '.join(parts)})"


def _negate(call: Call, parts: list[str]) -> str:
    if call.type.is_integer:
        return f"try_subtract(CAST(0 AS {call.type}), {parts[0]})"
    return f"(- {parts[0]})"


def _cast(call: Call, parts: list[str]) -> str:
    """TRY_CAST, except for casts from text: there TRY_CAST is stricter with numbers than the language."""
    from_text = call.arguments[0].type.kind is Kind.STRING and call.function == "cast"
    return f"{'CAST' if from_text else 'TRY_CAST'}({parts[0]} AS {call.type})"


def _case(_: Call, parts: list[str]) -> str:
    pairs = zip(parts[:-1:2], parts[1::2], strict=True)
    branches = " ".join(f"WHEN {when} THEN {then}" for when, then in pairs)
    return f"CASE {branches} ELSE {parts[-1]} END"


def _like(call: Call, parts: list[str]) -> str:
    escape = f" ESCAPE {parts[2]}" if len(parts) > 2 else ""
    return f"({parts[0]} {call.function.upper()} {parts[1]}{escape})"


def _trim(call: Call, parts: list[str]) -> str:
    characters = parts[1] if len(parts) > 1 else "' '"
    return f"trim({_TRIMS[call.function]} {characters} FROM {parts[0]})"


def _round(call: Call, parts: list[str]) -> str:
    """Spark's `round` has the same type, but takes its digits only as a plain constant."""
    digits = call.arguments[1] if len(call.arguments) > 1 else None
    return f"round({parts[0]}, {digits.value})" if isinstance(digits, Literal) else f"round({parts[0]})"


def _of_unit(call: Call, parts: list[str]) -> str:
    """The unit is a bare word."""
    return f"{call.function}({parts[0].strip(chr(39))}, {', '.join(parts[1:])})"


_SPECIAL: dict[str, Callable[[Call, list[str]], str]] = {
    "negate": _negate,
    "not": lambda _, parts: f"(NOT {parts[0]})",
    "in": lambda _, parts: f"({parts[0]} IN ({', '.join(parts[1:])}))",
    "is_null": lambda _, parts: f"({parts[0]} IS NULL)",
    "like": _like,
    "ilike": _like,
    "case": _case,
    "cast": _cast,
    "try_cast": _cast,
    "trim": _trim,
    "ltrim": _trim,
    "rtrim": _trim,
    "round": _round,
    **dict.fromkeys(("timestampadd", "timestampdiff"), _of_unit),
    "split_element": lambda _, parts: f"try_element_at(split({', '.join(parts[:3])}), {parts[3]})",
}


def unscaled(name: str, type: SqlType) -> str:
    """The unscaled whole number of a DECIMAL column, as decimal(38,0)."""
    return f"CAST({name} * {10**type.scale}BD AS decimal(38,0))" if type.scale else name
