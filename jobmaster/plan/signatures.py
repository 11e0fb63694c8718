"""The table of scalar functions: what a plan may call, its operand types and the type of its result, and its names in SQL.

`SIGNATURES` holds the functions of plans: the compiler takes the type of each call from it, `codec.decode` refuses any other
function, and `functions` registers a kernel for each. `SQL_FUNCTIONS` holds the names of the language, and `compile` registers a
builder for each. A missing kernel or builder fails at import (`check_registered`). Operands are already converted; nothing here
casts. The decimal rules are those of Spark 4 (`DecimalPrecisionTypeCoercion`, `DecimalType.adjustPrecisionScale`) with precision
loss allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from elf.errors import InternalError
from elf.jobmaster.plan import patterns
from elf.jobmaster.plan.plan import Expression, Literal
from elf.jobmaster.values.sql_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    Kind,
    SqlType,
    decimal,
)

PRECISION_MAX = 38
LANE_PRECISION_MAX = 18
"""Digits of a DECIMAL that fit an int64: the limit for MIN, MAX, keys and members of a family."""
PATTERN_CHARS_MAX = 1_000
ROUND_DIGITS_MAX = 38
UNITS = (
    "YEAR",
    "QUARTER",
    "MONTH",
    "WEEK",
    "DAY",
    "HOUR",
    "MINUTE",
    "SECOND",
    "MILLISECOND",
    "MICROSECOND",
)
SHA2_BITS = (0, 224, 256, 384, 512)
URL_PARTS = ("HOST", "PATH", "QUERY", "REF", "PROTOCOL", "FILE", "AUTHORITY", "USERINFO")

Rule = Callable[[Sequence[Expression], SqlType], SqlType | None]
"""(operands, target type of a cast) -> the type of the result, or None where the operands are wrong."""

SCALARS = frozenset(
    {Kind.BOOLEAN, Kind.INT, Kind.BIGINT, Kind.DOUBLE, Kind.DECIMAL, Kind.STRING, Kind.TIMESTAMP}
)


def bounded(precision: int, scale: int) -> SqlType:
    """DECIMAL(precision, scale), each cut at 38 (`DecimalType.bounded`)."""
    return decimal(min(precision, PRECISION_MAX), min(scale, PRECISION_MAX))


def adjusted(precision: int, scale: int) -> SqlType:
    """DECIMAL(precision, scale); past 38 digits the scale is reduced, down to 6 (`adjustPrecisionScale`)."""
    if precision <= PRECISION_MAX:
        return decimal(precision, scale)
    digits = precision - scale
    return decimal(PRECISION_MAX, max(PRECISION_MAX - digits, min(scale, 6)))


def wider_decimal(left: SqlType, right: SqlType) -> SqlType:
    """The DECIMAL that holds both; past 38 digits the scale is reduced first (`boundedPreferIntegralDigits`)."""
    scale = max(left.scale, right.scale)
    digits = max(left.precision - left.scale, right.precision - right.scale)
    if digits + scale <= PRECISION_MAX:
        return decimal(digits + scale, scale)
    return decimal(PRECISION_MAX, max(0, PRECISION_MAX - digits))


def decimal_result(function: str, left: SqlType, right: SqlType) -> SqlType:
    """The type of DECIMAL `+ - * / %`."""
    p1, s1, p2, s2 = left.precision, left.scale, right.precision, right.scale
    if function in ("+", "-"):
        return adjusted(max(p1 - s1, p2 - s2) + max(s1, s2) + 1, max(s1, s2))
    if function == "*":
        return adjusted(p1 + p2 + 1, s1 + s2)
    if function == "%":
        return adjusted(min(p1 - s1, p2 - s2) + max(s1, s2), max(s1, s2))
    scale = max(6, s1 + p2 + 1)
    return adjusted(p1 - s1 + s2 + scale, scale)


def rounded(type: SqlType, digits: int) -> SqlType:
    """The type of round(DECIMAL, digits) (`RoundBase.dataType`); any other type is unchanged."""
    if type.kind is not Kind.DECIMAL:
        return type
    integral = type.precision - type.scale + 1
    if digits < 0:
        return bounded(max(integral, 1 - digits), 0)
    scale = min(type.scale, digits)
    return bounded(integral + scale, scale)


def _arithmetic(function: str, kinds: frozenset[Kind]) -> Rule:
    def rule(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
        left, right = operands[0].type, operands[1].type
        if left.kind is not right.kind or left.kind not in kinds:
            return None
        if left.kind is not Kind.DECIMAL:
            return BIGINT if function == "div" else left
        if function == "div":
            return BIGINT
        if function == "%":
            return left if left == right else None
        return decimal_result(function, left, right)

    return rule


def _same(operands: Sequence[Expression]) -> SqlType | None:
    type = operands[0].type
    return type if type.kind in SCALARS and all(o.type == type for o in operands) else None


def _predicate(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    return BOOLEAN if _same(operands) else None


def _numeric_same(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    return operands[0].type if operands[0].type.is_numeric else None


def _scalar(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    return BOOLEAN if operands[0].type.kind in SCALARS else None


def _case(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    if len(operands) % 2 == 0 or any(o.type != BOOLEAN for o in operands[:-1:2]):
        return None
    return _same([*operands[1::2], operands[-1]])


def _coalesce(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    return _same(operands)


def castable(source: SqlType, target: SqlType) -> bool:
    """Whether `cast` and `try_cast` support this conversion: any type to itself, to STRING and from STRING; numbers and BOOLEAN
    among themselves; TIMESTAMP to BIGINT (whole seconds)."""
    numbers = (Kind.BOOLEAN, Kind.INT, Kind.BIGINT, Kind.DOUBLE, Kind.DECIMAL)
    if source.kind not in SCALARS or target.kind not in SCALARS:
        return False
    if source == target or Kind.STRING in (source.kind, target.kind):
        return True
    if source.kind is Kind.TIMESTAMP:
        return target.kind is Kind.BIGINT
    return source.kind in numbers and target.kind in numbers


def _cast(operands: Sequence[Expression], target: SqlType) -> SqlType | None:
    return target if castable(operands[0].type, target) else None


def _is_text(operand: Expression, among: Sequence[str] = (), chars_max: int = 1 << 16) -> bool:
    if not isinstance(operand, Literal) or operand.type != STRING or not isinstance(operand.value, str):
        return False
    return len(operand.value) <= chars_max and (not among or operand.value in among)


def _is_whole(operand: Expression, low: int, high: int) -> bool:
    return (
        isinstance(operand, Literal)
        and operand.type == INT
        and isinstance(operand.value, int)
        and low <= operand.value <= high
    )


def _texts(result: SqlType) -> Rule:
    """A function of a STRING and string literals."""

    def rule(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
        literals = all(_is_text(operand) for operand in operands[1:])
        return result if operands[0].type == STRING and literals else None

    return rule


def _value(operand: Expression) -> str:
    return str(operand.value) if isinstance(operand, Literal) else ""


def _is_pattern(operand: Expression) -> bool:
    """A regular expression that the evaluator can use."""
    return _is_text(operand, chars_max=PATTERN_CHARS_MAX) and patterns.check(_value(operand)) is None


def _like(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    texts = _is_text(operands[1], chars_max=PATTERN_CHARS_MAX) and all(_is_text(o) for o in operands[2:])
    escape = _value(operands[2]) if len(operands) == 3 else "\\"
    if operands[0].type != STRING or not texts or len(escape) != 1:
        return None
    return BOOLEAN if patterns.check_like(_value(operands[1]), escape) is None else None


def _rlike(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    return BOOLEAN if operands[0].type == STRING and _is_pattern(operands[1]) else None


def _substring(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    return STRING if operands[0].type == STRING and all(o.type == INT for o in operands[1:]) else None


def _split_part(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    part = operands[2]
    ok = operands[0].type == STRING and _is_text(operands[1]) and _is_whole(part, -(2**31), 2**31 - 1)
    return STRING if ok and isinstance(part, Literal) and part.value else None


def _regexp_extract(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    if operands[0].type != STRING or not _is_pattern(operands[1]):
        return None
    return STRING if _is_whole(operands[2], 0, patterns.groups(_value(operands[1]))) else None


def _regexp_replace(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    if operands[0].type != STRING or not _is_pattern(operands[1]) or not _is_text(operands[2]):
        return None
    wrong = patterns.check_replacement(_value(operands[1]), _value(operands[2]))
    return STRING if wrong is None else None


def _parse_url(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    part = operands[1]
    if operands[0].type != STRING or not _is_text(part, URL_PARTS):
        return None
    if len(operands) == 3 and not (_is_text(part, ("QUERY",)) and _is_text(operands[2])):
        return None
    return STRING


def _floor(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    type = operands[0].type
    if type.kind is Kind.DECIMAL:
        return bounded(type.precision - type.scale + 1, 0)
    return BIGINT if type.kind is Kind.DOUBLE else None


def _round(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    type, digits = operands[0].type, operands[1]
    if not type.is_numeric or not _is_whole(digits, -ROUND_DIGITS_MAX, ROUND_DIGITS_MAX):
        return None
    return rounded(type, int(digits.value or 0)) if isinstance(digits, Literal) else None


def _date_trunc(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    return TIMESTAMP if _is_text(operands[0], UNITS) and operands[1].type == TIMESTAMP else None


def _sha2(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    bits = operands[1]
    ok = operands[0].type == STRING and isinstance(bits, Literal) and bits.type == INT
    return STRING if ok and isinstance(bits, Literal) and bits.value in SHA2_BITS else None


def _substring_index(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    ok = operands[0].type == STRING and _is_text(operands[1])
    return STRING if ok and _is_whole(operands[2], -(2**31), 2**31 - 1) else None


def _split_element(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    ok = operands[0].type == STRING and _is_pattern(operands[1])
    limit, number = operands[2:]
    ok = ok and _is_whole(limit, -(2**31), 2**31 - 1) and _is_whole(number, -(2**31), 2**31 - 1)
    return STRING if ok and isinstance(number, Literal) and number.value else None


def _width_bucket(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    *numbers, count = operands
    return BIGINT if count.type == BIGINT and all(o.type == DOUBLE for o in numbers) else None


def _date_format(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    from elf.jobmaster.values import date_pattern

    time, pattern = operands
    ok = time.type == TIMESTAMP and _is_text(pattern, chars_max=PATTERN_CHARS_MAX)
    return STRING if ok and not date_pattern.problem(_value(pattern)) else None


def _zone_moved(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    from elf.jobmaster.values import zone_names

    time, name = operands
    ok = time.type == TIMESTAMP and _is_text(name, chars_max=PATTERN_CHARS_MAX)
    return TIMESTAMP if ok and zone_names.zone(_value(name)) is not None else None


def _timestampadd(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    unit, count, time = operands
    return TIMESTAMP if _is_text(unit, UNITS) and (count.type, time.type) == (BIGINT, TIMESTAMP) else None


def _timestampdiff(operands: Sequence[Expression], _: SqlType) -> SqlType | None:
    unit, *times = operands
    return BIGINT if _is_text(unit, UNITS) and all(o.type == TIMESTAMP for o in times) else None


def _of(operand: SqlType, result: SqlType) -> Rule:
    """Operands of one type, and the type of the result."""
    return lambda operands, _: result if all(o.type == operand for o in operands) else None


_NUMBERS = frozenset({Kind.INT, Kind.BIGINT, Kind.DOUBLE, Kind.DECIMAL})
_MANY = 10_000

SIGNATURES: dict[str, tuple[int, int, Rule]] = {
    **{name: (2, 2, _arithmetic(name, _NUMBERS)) for name in ("+", "-", "*", "%")},
    "/": (2, 2, _arithmetic("/", frozenset({Kind.DOUBLE, Kind.DECIMAL}))),
    "div": (2, 2, _arithmetic("div", frozenset({Kind.BIGINT, Kind.DECIMAL}))),
    **dict.fromkeys(("negate", "abs"), (1, 1, _numeric_same)),
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "<=>"), (2, 2, _predicate)),
    **dict.fromkeys(("and", "or"), (2, _MANY, _of(BOOLEAN, BOOLEAN))),
    "not": (1, 1, _of(BOOLEAN, BOOLEAN)),
    "in": (2, _MANY, _predicate),
    **dict.fromkeys(("like", "ilike"), (2, 3, _like)),
    "rlike": (2, 2, _rlike),
    "is_null": (1, 1, _scalar),
    "case": (3, _MANY, _case),
    "coalesce": (1, _MANY, _coalesce),
    **dict.fromkeys(("cast", "try_cast"), (1, 1, _cast)),
    **dict.fromkeys(("lower", "upper"), (1, 1, _of(STRING, STRING))),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), (1, 2, _texts(STRING))),
    "length": (1, 1, _of(STRING, INT)),
    "substring": (2, 3, _substring),
    "split_part": (3, 3, _split_part),
    "concat": (1, _MANY, _of(STRING, STRING)),
    "replace": (2, 3, _texts(STRING)),
    "regexp_extract": (3, 3, _regexp_extract),
    "regexp_replace": (3, 3, _regexp_replace),
    "parse_url": (2, 3, _parse_url),
    **dict.fromkeys(("floor", "ceil"), (1, 1, _floor)),
    "round": (2, 2, _round),
    "date_trunc": (2, 2, _date_trunc),
    **dict.fromkeys(
        ("hour", "minute", "second", "dayofweek", "day", "month", "year"), (1, 1, _of(TIMESTAMP, INT))
    ),
    "unix_timestamp": (1, 1, _of(TIMESTAMP, BIGINT)),
    **dict.fromkeys(("least", "greatest"), (2, _MANY, _coalesce)),
    **dict.fromkeys(("md5", "sha1", "url_decode"), (1, 1, _of(STRING, STRING))),
    "sha2": (2, 2, _sha2),
    "crc32": (1, 1, _of(STRING, BIGINT)),
    "concat_ws": (1, _MANY, _of(STRING, STRING)),
    "substring_index": (3, 3, _substring_index),
    "split_element": (4, 4, _split_element),
    "width_bucket": (4, 4, _width_bucket),
    "date_format": (2, 2, _date_format),
    **dict.fromkeys(("from_utc_timestamp", "to_utc_timestamp"), (2, 2, _zone_moved)),
    "timestampadd": (3, 3, _timestampadd),
    "timestampdiff": (3, 3, _timestampdiff),
}
"""Canonical name -> (fewest operands, most operands, rule)."""


class SqlFunction(NamedTuple):
    """A name of the language, and how many arguments it takes. `title`, `titles` (by the number of arguments) and `defaults` give
    the name of an unaliased column, as Spark prints it."""

    fewest: int
    most: int
    title: str = "{name}({arguments})"
    defaults: tuple[str, ...] = ()
    titles: Mapping[int, str] = MappingProxyType({})


ARGUMENTS_MAX = 1_000

SQL_FUNCTIONS: dict[str, SqlFunction] = {
    "if": SqlFunction(3, 3, "(IF({arguments}))"),
    **dict.fromkeys(("nullif", "nvl", "ifnull", "mod", "date_trunc"), SqlFunction(2, 2)),
    **dict.fromkeys(("coalesce", "concat"), SqlFunction(1, ARGUMENTS_MAX)),
    "isnull": SqlFunction(1, 1, "({arguments} IS NULL)"),
    "isnotnull": SqlFunction(1, 1, "({arguments} IS NOT NULL)"),
    **dict.fromkeys(("lower", "lcase", "upper", "ucase"), SqlFunction(1, 1)),
    "trim": SqlFunction(1, 2, titles={2: "TRIM(BOTH {0} FROM {1})"}),
    "ltrim": SqlFunction(1, 2, titles={2: "TRIM(LEADING {0} FROM {1})"}),
    "rtrim": SqlFunction(1, 2, titles={2: "TRIM(TRAILING {0} FROM {1})"}),
    **dict.fromkeys(("length", "len", "char_length", "character_length"), SqlFunction(1, 1)),
    **dict.fromkeys(("substring", "substr"), SqlFunction(2, 3, defaults=("", "", "2147483647"))),
    "split_part": SqlFunction(3, 3),
    "replace": SqlFunction(2, 3, defaults=("", "", "")),
    "regexp_extract": SqlFunction(2, 3, defaults=("", "", "1")),
    "regexp_replace": SqlFunction(3, 3, "{name}({arguments}, 1)"),
    "regexp_like": SqlFunction(2, 2, "{upper}({arguments})"),
    "parse_url": SqlFunction(2, 3),
    **dict.fromkeys(("floor", "ceil"), SqlFunction(1, 1, "{upper}({arguments})")),
    **dict.fromkeys(("ceiling", "abs"), SqlFunction(1, 1)),
    "round": SqlFunction(1, 2, defaults=("", "0")),
    **dict.fromkeys(("hour", "minute", "second", "dayofweek"), SqlFunction(1, 1)),
    **dict.fromkeys(("day", "dayofmonth", "month", "year"), SqlFunction(1, 1)),
    "unix_timestamp": SqlFunction(1, 1, "{name}({arguments}, yyyy-MM-dd HH:mm:ss)"),
    **dict.fromkeys(("least", "greatest"), SqlFunction(2, ARGUMENTS_MAX)),
    **dict.fromkeys(("md5", "sha", "sha1", "crc32", "url_decode", "try_url_decode"), SqlFunction(1, 1)),
    "sha2": SqlFunction(2, 2),
    "concat_ws": SqlFunction(1, ARGUMENTS_MAX),
    "substring_index": SqlFunction(3, 3),
    **dict.fromkeys(("left", "right", "contains", "startswith", "endswith"), SqlFunction(2, 2)),
    "split": SqlFunction(2, 3, defaults=("", "", "-1")),
    **dict.fromkeys(("element_at", "try_element_at", "get"), SqlFunction(2, 2)),
    "width_bucket": SqlFunction(4, 4),
    "like": SqlFunction(2, 3, "{0} LIKE {1}", titles={3: "{0} LIKE {1} ESCAPE '{2}'"}),
    "ilike": SqlFunction(2, 3, "ilike({0}, {1})"),
    **dict.fromkeys(("rlike", "regexp"), SqlFunction(2, 2, "{upper}({arguments})")),
    **dict.fromkeys(("date_format", "from_utc_timestamp", "to_utc_timestamp"), SqlFunction(2, 2)),
    **dict.fromkeys(("to_date", "to_timestamp"), SqlFunction(1, 1)),
    "from_unixtime": SqlFunction(1, 2, defaults=("", "yyyy-MM-dd HH:mm:ss")),
    **dict.fromkeys(("timestampadd", "dateadd"), SqlFunction(3, 3, "timestampadd({arguments})")),
    "timestampdiff": SqlFunction(3, 3),
    "datediff": SqlFunction(2, 3, titles={3: "timestampdiff({arguments})"}),
}
"""By SQL name; several names may become one function of plans."""


def check_registered(table: Collection[str], names: Collection[str], package: str) -> None:
    """Raises InternalError unless `names`, which `package` implements, are those of `table`."""
    wrong = sorted({*table} ^ {*names})
    if wrong:
        raise InternalError(f"{package} and jobmaster/plan/signatures.py differ in: {', '.join(wrong)}")


def result_type(function: str, operands: Sequence[Expression], target: SqlType) -> SqlType | None:
    """The type of `Call(function, operands)`, or None where there is no such call. Only casts use `target`."""
    fewest, most, rule = SIGNATURES.get(function, (1, 0, _coalesce))
    return rule(operands, target) if fewest <= len(operands) <= most else None
