"""The builders of the language's scalar functions: SQL name (`jobmaster/plan/signatures.py`) -> the plan's call that it becomes.

Several SQL names share one function of plans; `if`, `nullif` and the like become `case`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from elf.jobmaster.compile import times, types
from elf.jobmaster.compile.constants import Build, text, whole
from elf.jobmaster.compile.types import Mismatch, call, cast
from elf.jobmaster.plan import patterns, signatures
from elf.jobmaster.plan.plan import Call, Expression, Literal
from elf.jobmaster.plan.signatures import SQL_FUNCTIONS, check_registered
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, INT, STRING, Kind, array


def pattern(operand: Expression) -> Literal:
    """A Java regular expression that the evaluator can use."""
    literal = text(operand, "pattern")
    value = str(literal.value)
    _check_length(value)
    wrong = patterns.check(value)
    if wrong:
        raise Mismatch(f"the pattern {value!r} cannot be used: {wrong}")
    return literal


def _check_length(value: str) -> None:
    if len(value) > signatures.PATTERN_CHARS_MAX:
        most = signatures.PATTERN_CHARS_MAX
        raise Mismatch(f"the pattern has {len(value):,} characters; the limit is {most:,}")


def like(function: str, operand: Expression, like_pattern: Expression, escape: str) -> Expression:
    """LIKE or ILIKE. The escape character must precede `%`, `_` or itself, as in Spark."""
    literal = text(like_pattern, "pattern")
    value = str(literal.value)
    _check_length(value)
    if len(escape) != 1:
        raise Mismatch("ESCAPE takes one character")
    wrong = patterns.check_like(value, escape)
    if wrong:
        raise Mismatch(f"the pattern {value!r} cannot be used: {wrong}")
    return call(function, types.string(operand), literal, Literal(escape, STRING))


def conditional(condition: Expression, then: Expression, other: Expression) -> Expression:
    branches = types.unified([then, other])
    return call("case", types.boolean(condition), *branches)


def _nullif(operands: Sequence[Expression]) -> Expression:
    value, other = operands
    return conditional(types.comparison("=", value, other), Literal(None, value.type), value)


def _strings(function: str) -> Build:
    return lambda operands: call(function, *map(types.string, operands))


def concat(operands: Sequence[Expression]) -> Expression:
    return _strings("concat")(operands)


def _trim(function: str) -> Build:
    """trim(x), and Spark's order of two: trim(characters, x)."""

    def build(operands: Sequence[Expression]) -> Expression:
        return trim(function, operands[-1], operands[0] if len(operands) == 2 else None)

    return build


def trim(function: str, operand: Expression, characters: Expression | None) -> Expression:
    extra = () if characters is None else (text(characters, "list of characters to trim"),)
    return call(function, types.string(operand), *extra)


def _substring(operands: Sequence[Expression]) -> Expression:
    return call("substring", types.string(operands[0]), *(_int(o) for o in operands[1:]))


def _int(operand: Expression) -> Expression:
    if operand.type.kind not in (Kind.INT, Kind.BIGINT, Kind.NULL):
        raise Mismatch(f"a whole number is expected, not a {operand.type}", "CAST(x AS INT)")
    return cast(operand, INT)


def _split_part(operands: Sequence[Expression]) -> Expression:
    number = whole(operands[2], "number of the part")
    if not number.value:
        raise Mismatch("parts are counted from 1, or from -1 at the end; there is no part 0")
    return call("split_part", types.string(operands[0]), text(operands[1], "delimiter"), number)


def _replace(operands: Sequence[Expression]) -> Expression:
    rest = [text(o, "text to replace") for o in operands[1:]]
    return call("replace", types.string(operands[0]), *rest)


def _regexp_extract(operands: Sequence[Expression]) -> Expression:
    regex = pattern(operands[1])
    group = whole(operands[2], "group") if len(operands) == 3 else Literal(1, INT)
    groups = patterns.groups(str(regex.value))
    if not 0 <= int(group.value or 0) <= groups:
        hint = "" if groups else "put parentheses round the part to extract, or use group 0"
        raise Mismatch(f"the pattern has {groups} groups; there is no group {group.value}", hint)
    return call("regexp_extract", types.string(operands[0]), regex, group)


def _regexp_replace(operands: Sequence[Expression]) -> Expression:
    regex, replacement = pattern(operands[1]), text(operands[2], "replacement")
    wrong = patterns.check_replacement(str(regex.value), str(replacement.value))
    if wrong:
        raise Mismatch(f"the replacement {replacement.value!r} cannot be used: {wrong}")
    return call("regexp_replace", types.string(operands[0]), regex, replacement)


def rlike(operands: Sequence[Expression]) -> Expression:
    return call("rlike", types.string(operands[0]), pattern(operands[1]))


def _parse_url(operands: Sequence[Expression]) -> Expression:
    part = text(operands[1], "part")
    if part.value not in signatures.URL_PARTS:
        raise Mismatch(f"a URL has no part {part.value!r}", "one of " + ", ".join(signatures.URL_PARTS))
    key = [text(o, "key") for o in operands[2:]]
    if key and part.value != "QUERY":
        raise Mismatch("only the part 'QUERY' takes a key")
    return call("parse_url", types.string(operands[0]), part, *key)


def _floor(function: str) -> Build:
    def build(operands: Sequence[Expression]) -> Expression:
        operand = types.number(operands[0])
        return cast(operand, BIGINT) if operand.type.is_integer else call(function, operand)

    return build


def _round(operands: Sequence[Expression]) -> Expression:
    digits = whole(operands[1], "number of digits") if len(operands) == 2 else Literal(0, INT)
    if digits.parameter:
        raise Mismatch("the number of digits cannot be a parameter: the type of the result depends on it")
    if abs(int(digits.value or 0)) > signatures.ROUND_DIGITS_MAX:
        raise Mismatch(f"round takes at most {signatures.ROUND_DIGITS_MAX} digits")
    return call("round", types.number(operands[0]), digits)


def is_null(operand: Expression) -> Expression:
    operand = types.typed(operand)
    if operand.type.kind is Kind.NULL:
        return Literal(True, BOOLEAN)
    return call("is_null", operand)


def _coalesce(operands: Sequence[Expression]) -> Expression:
    return call("coalesce", *types.unified(operands))


def _alike(operands: Sequence[Expression]) -> list[Expression]:
    """The operands of least and greatest, where Spark makes no text of a number."""
    kinds = {operand.type.kind for operand in types.together(operands)} - {Kind.NULL}
    if Kind.STRING in kinds and len(kinds) > 1:
        raise Mismatch("texts and other values cannot be compared here", "cast some of them")
    return types.unified(operands)


def _extreme(function: str) -> Build:
    return lambda operands: call(function, *_alike(operands))


def _hash(function: str) -> Build:
    def build(operands: Sequence[Expression]) -> Expression:
        operand = types.typed(operands[0], STRING)
        if operand.type != STRING and operand.type.kind is not Kind.NULL:
            raise Mismatch(f"a text is expected, not a {operand.type}", "CAST(x AS STRING)")
        return call(function, types.string(operand), *operands[1:])

    return build


def _sha2(operands: Sequence[Expression]) -> Expression:
    bits = whole(operands[1], "number of bits")
    if bits.value not in signatures.SHA2_BITS:
        raise Mismatch(f"there is no hash of {bits.value} bits", "one of 224, 256, 384, 512")
    return _hash("sha2")([operands[0], bits])


def _substring_index(operands: Sequence[Expression]) -> Expression:
    delimiter, count = text(operands[1], "delimiter"), whole(operands[2], "count")
    return call("substring_index", types.string(operands[0]), delimiter, count)


def _left(operands: Sequence[Expression]) -> Expression:
    return call("substring", types.string(operands[0]), Literal(1, INT), _int(types.typed(operands[1], INT)))


def _right(operands: Sequence[Expression]) -> Expression:
    count = whole(operands[1], "number of characters")
    if count.parameter:
        raise Mismatch("the number of characters cannot be a parameter", "substring(x, :n) with a negative n")
    value = min(int(count.value or 0), 2**31 - 1)
    rest = (Literal(-value, INT),) if value > 0 else (Literal(1, INT), Literal(0, INT))
    return call("substring", types.string(operands[0]), *rest)


def _containing(before: str, after: str) -> Build:
    """LIKE with a text that stands for itself."""

    def build(operands: Sequence[Expression]) -> Expression:
        wanted = text(operands[1], "text to find")
        if wanted.parameter:
            raise Mismatch("the text to find cannot be a parameter here", "x LIKE :pattern")
        escaped = re.sub(r"([\\%_])", r"\\\1", str(wanted.value))
        return like("like", operands[0], Literal(f"{before}{escaped}{after}", STRING), "\\")

    return build


def _split(operands: Sequence[Expression]) -> Expression:
    """An array, which only `element` takes: no plan has it."""
    literal = text(operands[1], "pattern")
    limit = whole(operands[2], "limit") if len(operands) == 3 else Literal(-1, INT)
    return Call("split", (types.string(operands[0]), pattern(literal), limit), array(STRING))


def element(parts: Expression, number: Expression, *, counted_from: int) -> Expression:
    """One part of `split(…)`: element_at counts from 1, or from -1 at the end; `[n]` counts from 0. NULL where there is none."""
    if not isinstance(parts, Call) or parts.function != "split":
        hint = "as in split(path, '/')[1]; each percentile needs its own approx_percentile(x, 0.99)"
        raise Mismatch("only the parts of split(…) are counted", hint)
    at = whole(number, "number of the part")
    value = int(at.value or 0)
    if counted_from and not value:
        raise Mismatch("parts are counted from 1, or from -1 at the end; there is no part 0")
    if not counted_from and value < 0:
        raise Mismatch("[n] counts from 0", "element_at(split(x, '/'), -1) is the last part")
    if not counted_from and at.parameter:
        raise Mismatch("[n] takes a constant", f"element_at(split(x, '/'), :{at.parameter}) counts from 1")
    if not counted_from:
        at = Literal(min(value + 1, 2**31 - 1), INT)
    return call("split_element", *parts.arguments, at)


def _width_bucket(operands: Sequence[Expression]) -> Expression:
    *numbers, count = (types.number(operand) for operand in operands)
    if not count.type.is_integer:
        raise Mismatch(f"the number of buckets is whole, not a {count.type}", "CAST(x AS BIGINT)")
    return call("width_bucket", *(cast(number, DOUBLE) for number in numbers), cast(count, BIGINT))


def _like(function: str) -> Build:
    def build(operands: Sequence[Expression]) -> Expression:
        escape = str(text(operands[2], "escape character").value) if len(operands) == 3 else "\\"
        return like(function, operands[0], operands[1], escape)

    return build


BUILD: dict[str, Build] = {
    **times.BUILD,
    **{name: _extreme(name) for name in ("least", "greatest")},
    **{name: _hash(name) for name in ("md5", "sha1", "crc32")},
    "sha": _hash("sha1"),
    "sha2": _sha2,
    **dict.fromkeys(("url_decode", "try_url_decode"), _strings("url_decode")),
    "concat_ws": _strings("concat_ws"),
    "substring_index": _substring_index,
    "left": _left,
    "right": _right,
    "contains": _containing("%", "%"),
    "startswith": _containing("", "%"),
    "endswith": _containing("%", ""),
    "split": _split,
    **dict.fromkeys(
        ("element_at", "try_element_at"), lambda operands: element(operands[0], operands[1], counted_from=1)
    ),
    "get": lambda operands: element(operands[0], operands[1], counted_from=0),
    "width_bucket": _width_bucket,
    "like": _like("like"),
    "ilike": _like("ilike"),
    **dict.fromkeys(("rlike", "regexp"), rlike),
    "if": lambda operands: conditional(*operands),
    "nullif": _nullif,
    **dict.fromkeys(("coalesce", "nvl", "ifnull"), _coalesce),
    "isnull": lambda operands: is_null(operands[0]),
    "isnotnull": lambda operands: call("not", is_null(operands[0])),
    **dict.fromkeys(("lower", "lcase"), _strings("lower")),
    **dict.fromkeys(("upper", "ucase"), _strings("upper")),
    **{name: _trim(name) for name in ("trim", "ltrim", "rtrim")},
    **dict.fromkeys(("length", "len", "char_length", "character_length"), _strings("length")),
    **dict.fromkeys(("substring", "substr"), _substring),
    "split_part": _split_part,
    "concat": concat,
    "replace": _replace,
    "regexp_extract": _regexp_extract,
    "regexp_replace": _regexp_replace,
    "regexp_like": rlike,
    "parse_url": _parse_url,
    "floor": _floor("floor"),
    **dict.fromkeys(("ceil", "ceiling"), _floor("ceil")),
    "round": _round,
    "abs": lambda operands: call("abs", types.number(operands[0])),
    "mod": lambda operands: types.arithmetic("%", operands[0], operands[1]),
}
"""SQL name -> the function that makes the call from the arguments."""

check_registered(SQL_FUNCTIONS, BUILD, "jobmaster/compile")

INSTEAD: dict[str, str] = {
    "instr": "use LIKE '%text%'",
    "locate": "use LIKE '%text%'",
    "date": "use date_trunc('DAY', time)",
    "trunc": "use date_trunc(unit, time)",
    "percentile": "use approx_percentile(x, fraction)",
    "median": "use approx_percentile(x, 0.5)",
    "percentile_cont": "use approx_percentile(x, fraction)",
    "percentile_disc": "use approx_percentile(x, fraction)",
    "now": "write the time as a constant: a result must not depend on when it is computed",
    "current_timestamp": "write the time as a constant: a result must not depend on when it is computed",
    "rand": "a result must depend only on the lines",
    "collect_list": "GROUP BY it",
    "collect_set": "GROUP BY it, or count(DISTINCT x)",
    "bool_or": "use count_if(x) > 0",
    "bool_and": "use count_if(NOT x) = 0",
    "every": "use count_if(NOT x) = 0",
    "any": "use count_if(x) > 0",
    "some": "use count_if(x) > 0",
    "session_window": "use window(time, '5 minutes')",
    "window_time": "use window.end",
}
"""Hints for functions that Spark has and this language lacks."""
