"""Functions of text, value by value over lists of str: they run once per distinct value, so plain Python is fast enough.

str compares by code point, which is the order of UTF-8 bytes; lengths and positions are in code points, as Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from elf.cbt._strings import Strings
from elf.jobmaster.functions import coding
from elf.jobmaster.functions.frame import Compile, Frame, Program, TextList, Texts, both, from_list, settle
from elf.jobmaster.functions.logic import COMPARE
from elf.jobmaster.plan import patterns
from elf.jobmaster.plan.plan import Call, Column, Expression, Literal
from elf.jobmaster.values._text import lengths, match
from elf.jobmaster.values.conversion import FROM_TEXT, TO_TEXT, TRY_FROM_TEXT, TRY_TO_TEXT
from elf.jobmaster.values.date_pattern import formatter
from elf.jobmaster.values.sql_types import BOOLEAN, Kind, SqlType
from elf.jobmaster.values.vector import Vector

CompileTexts = Callable[[Expression], Texts]
BuildTexts = Callable[[Call, Compile, CompileTexts], Texts]
BuildMeasure = Callable[[Call, Compile, CompileTexts], Program]
INT_MAX, INT_MIN = 2**31 - 1, -(2**31)


# ---- one value at a time --------------------------------------------------------------------------------------------


def substring(text: str, position: int, length: int = INT_MAX) -> str:
    """From `position` (1 and 0 are the first, -1 the last); `length` also counts positions before the text."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = min(max(start + length, INT_MIN), INT_MAX)
    return text[max(start, 0) : end] if end > max(start, 0) else ""


def split_part(delimiter: str, part: int) -> Callable[[str], str]:
    def run(text: str) -> str:
        parts = text.split(delimiter) if delimiter else [text]
        at = part - 1 if part > 0 else len(parts) + part
        return parts[at] if 0 <= at < len(parts) else ""

    return run


def replace(search: str, replacement: str = "") -> Callable[[str], str]:
    return lambda text: text.replace(search, replacement) if search else text


def substring_index(delimiter: str, count: int) -> Callable[[str], str]:
    """Before the count-th delimiter, or after it counted from the end. Delimiters may overlap, as in Spark."""

    def before(text: str) -> str:
        at = -1
        for _ in range(count):
            at = text.find(delimiter, at + 1)
            if at < 0:
                return text
        return text[:at]

    def after(text: str) -> str:
        end = len(text) + 1
        for _ in range(-count):
            end = text.rfind(delimiter, 0, end - 1)
            if end < 0:
                return text
            end += len(delimiter)
        return text[end:]

    if not delimiter or not count:
        return lambda text: ""
    return before if count > 0 else after


def split_element(pattern: str, limit: int, number: int) -> Callable[[str], str | None]:
    """The part of that number, from the end if it is negative; None if there is none."""
    split = patterns.split(pattern, limit)

    def run(text: str) -> str | None:
        parts = split(text)
        at = number - 1 if number > 0 else len(parts) + number
        return parts[at] if 0 <= at < len(parts) else None

    return run


def trim(characters: str = " ") -> Callable[[str], str]:
    return lambda text: text.strip(characters) if characters else text


def ltrim(characters: str = " ") -> Callable[[str], str]:
    return lambda text: text.lstrip(characters) if characters else text


def rtrim(characters: str = " ") -> Callable[[str], str]:
    return lambda text: text.rstrip(characters) if characters else text


def _parse_url(part: str, key: str | None = None) -> Callable[[str], str | None]:
    # Imported late: its grammar takes as long to compile as numpy to import, and few queries need it.
    from elf.jobmaster.functions.url import parse_url

    return parse_url(part, key)


WITH_LITERALS: dict[str, Callable[..., Callable[[str], Any]]] = {
    "md5": coding.md5,
    "sha1": coding.sha1,
    "sha2": coding.sha2,
    "crc32": coding.crc32,
    "url_decode": lambda: coding.url_decode,
    "substring_index": substring_index,
    "split_element": split_element,
    "lower": lambda: str.lower,
    "upper": lambda: str.upper,
    "length": lambda: len,
    "trim": trim,
    "ltrim": ltrim,
    "rtrim": rtrim,
    "split_part": split_part,
    "replace": replace,
    "like": patterns.like,
    "ilike": patterns.ilike,
    "rlike": patterns.rlike,
    "regexp_extract": patterns.regexp_extract,
    "regexp_replace": patterns.regexp_replace,
    "parse_url": _parse_url,
}
"""Functions of one text whose other arguments are literals: literals -> function of the text."""


# ---- lists of values ------------------------------------------------------------------------------------------------


def _mapped(call: Call, compile: Compile, texts: CompileTexts) -> Texts:
    """A function of WITH_LITERALS over a list."""
    inner = texts(call.arguments[0])
    function = WITH_LITERALS[call.function](*_literals(call.arguments[1:], call.function))

    def run(frame: Frame) -> list[Any]:
        return [None if text is None else function(text) for text in inner(frame)]

    return run


def _literals(arguments: Sequence[Expression], function: str) -> list[Any]:
    from elf.errors import InternalError

    for argument in arguments:
        if not isinstance(argument, Literal):
            raise InternalError(f"plan: {function} takes literals after its first argument")
    return [argument.value for argument in arguments if isinstance(argument, Literal)]


def _measured(call: Call, compile: Compile, texts: CompileTexts) -> Program:
    mapped = _mapped(call, compile, texts)
    return lambda frame: from_list(call.type, mapped(frame))


# ---- bytes against bytes --------------------------------------------------------------------------------------------

KERNEL_ITEMS_MAX = 16
"""With more items in an IN, a set of Python strings is faster than one pass for each item."""


def _wanted(call: Call) -> list[tuple[patterns.Shape, str]] | None:
    """The texts of which a row must match at least one, if the kernel can compute the call; else None."""
    column, *rest = call.arguments
    if not isinstance(column, Column) or not 0 < len(rest) <= KERNEL_ITEMS_MAX:
        return None
    literals = [item.value for item in rest if isinstance(item, Literal) and isinstance(item.value, str)]
    if len(literals) < len(rest):
        return None
    if call.function == "like":
        shape = patterns.like_shape(*literals)
        return None if shape is None else [shape]
    return [(patterns.Shape.EQUAL, text) for text in literals]


def _found(call: Call, wanted: Sequence[tuple[patterns.Shape, str]]) -> Program:
    column, *_ = columns = [part for part in call.arguments if isinstance(part, Column)]
    assert len(columns) == 1
    needles = [(shape.value, text.encode()) for shape, text in wanted]
    negated = call.function == "<>"

    def run(frame: Frame) -> Vector:
        vector = frame.columns[column.name]
        strings = vector.strings or Strings()
        out = match(strings, vector.values, *needles[0])
        for needle in needles[1:]:
            out |= match(strings, vector.values, *needle)
        valid = vector.is_valid()
        return Vector(BOOLEAN, (~out & valid) if negated else out, None if valid.all() else valid)

    return run


def _characters(call: Call, compile: Compile, texts: CompileTexts) -> Program:
    column = call.arguments[0]
    if not isinstance(column, Column):
        return _measured(call, compile, texts)

    def run(frame: Frame) -> Vector:
        vector = frame.columns[column.name]
        valid = vector.is_valid()
        counts = lengths(vector.strings or Strings(), vector.values)
        return Vector(call.type, counts, None if valid.all() else valid)

    return run


def _like(call: Call, compile: Compile, texts: CompileTexts) -> Program:
    wanted = _wanted(call)
    return _measured(call, compile, texts) if wanted is None else _found(call, wanted)


def _values(argument: Expression, compile: Compile, texts: CompileTexts) -> Texts:
    """Python values of an argument that may or may not be text."""
    if argument.type.kind is Kind.STRING:
        return texts(argument)
    inner = compile(argument)
    return lambda frame: inner(frame).to_python()


def _rows(frame: Frame, lists: Sequence[TextList]) -> list[Any]:
    """Lists of equal length: a list of one value repeats it."""
    length = max((len(values) for values in lists if len(values) != 1), default=1 if frame.rows else 0)
    return [values if len(values) == length else repeat(values[0], length) for values in lists]


def _substring(call: Call, compile: Compile, texts: CompileTexts) -> Texts:
    parts = [_values(argument, compile, texts) for argument in call.arguments]

    def run(frame: Frame) -> list[str | None]:
        rows = zip(*_rows(frame, [part(frame) for part in parts]), strict=True)
        return [None if None in row else substring(*row) for row in rows]

    return run


def _concat(call: Call, compile: Compile, texts: CompileTexts) -> Texts:
    parts = [texts(argument) for argument in call.arguments]

    def run(frame: Frame) -> list[str | None]:
        rows = zip(*_rows(frame, [part(frame) for part in parts]), strict=True)
        return [None if None in row else "".join(row) for row in rows]

    return run


def _concat_ws(call: Call, compile: Compile, texts: CompileTexts) -> Texts:
    parts = [texts(argument) for argument in call.arguments]

    def run(frame: Frame) -> list[str | None]:
        rows = zip(*_rows(frame, [part(frame) for part in parts]), strict=True)
        return [
            None if between is None else between.join(value for value in row if value is not None)
            for between, *row in rows
        ]

    return run


def _extreme(call: Call, compile: Compile, texts: CompileTexts) -> Texts:
    parts = [texts(argument) for argument in call.arguments]
    best = min if call.function == "least" else max

    def run(frame: Frame) -> list[str | None]:
        rows = zip(*_rows(frame, [part(frame) for part in parts]), strict=True)
        return [best((value for value in row if value is not None), default=None) for row in rows]

    return run


def _date_format(call: Call, compile: Compile, texts: CompileTexts) -> Texts:
    times = compile(call.arguments[0])
    written = formatter(*_literals(call.arguments[1:], call.function))
    return lambda frame: [None if time is None else written(time) for time in times(frame).to_python()]


def _case(call: Call, compile: Compile, texts: CompileTexts) -> Texts:
    conditions = [compile(argument) for argument in call.arguments[:-1:2]]
    results = [texts(argument) for argument in (*call.arguments[1:-1:2], call.arguments[-1])]

    def run(frame: Frame) -> list[str | None]:
        whens = [condition(frame).values.tolist() for condition in conditions]
        columns = _rows(frame, [*whens, *(result(frame) for result in results)])
        thens = [list(values) for values in columns[len(whens) :]]
        out = thens[-1]
        for when, then in zip(reversed(columns[: len(whens)]), reversed(thens[:-1]), strict=True):
            out = [b if yes else a for yes, b, a in zip(when, then, out, strict=True)]
        return out

    return run


def _coalesce(call: Call, compile: Compile, texts: CompileTexts) -> Texts:
    parts = [texts(argument) for argument in call.arguments]

    def run(frame: Frame) -> list[str | None]:
        rows = zip(*_rows(frame, [part(frame) for part in parts]), strict=True)
        return [next((value for value in row if value is not None), None) for row in rows]

    return run


def _cast_to_text(call: Call, compile: Compile, texts: CompileTexts) -> Texts:
    argument = call.arguments[0]
    if argument.type.kind is Kind.STRING:
        return texts(argument)
    inner = compile(argument)
    to_text = (TO_TEXT if call.function == "cast" else TRY_TO_TEXT)[argument.type.kind]

    def run(frame: Frame) -> list[str | None]:
        return [None if value is None else to_text(value) for value in inner(frame).to_python()]

    return run


def _cast_from_text(call: Call, compile: Compile, texts: CompileTexts) -> Program:
    inner = texts(call.arguments[0])
    read = (FROM_TEXT if call.function == "cast" else TRY_FROM_TEXT)[call.type.kind]

    def run(frame: Frame) -> Vector:
        return from_list(
            call.type, [None if text is None else read(text, call.type) for text in inner(frame)]
        )

    return run


def _compare(call: Call, compile: Compile, texts: CompileTexts) -> Program:
    if call.function in ("=", "<>") and isinstance(call.arguments[0], Literal):
        call = Call(call.function, call.arguments[::-1], call.type)
    wanted = _wanted(call) if call.function in ("=", "<>") else None
    if wanted is not None:
        return _found(call, wanted)
    left, right = map(texts, call.arguments)
    operator = COMPARE[call.function]

    def run(frame: Frame) -> Vector:
        a, b = _objects(frame, left(frame)), _objects(frame, right(frame))
        valid = both(a.valid, b.valid)
        out = np.asarray(operator(a.values, b.values), dtype=np.bool_)
        return settle(frame, BOOLEAN, out, valid)

    return run


def _objects(frame: Frame, texts: TextList) -> Vector:
    """Text as an object array for numpy's comparisons; NULL is "" and not valid."""
    out = np.empty(len(texts), dtype=object)
    out[:] = ["" if text is None else text for text in texts]
    valid = np.fromiter((text is not None for text in texts), dtype=np.bool_, count=len(texts))
    return Vector(SqlType(Kind.STRING), out, None if valid.all() else valid)


def _same(call: Call, compile: Compile, texts: CompileTexts) -> Program:
    left, right = map(texts, call.arguments)

    def run(frame: Frame) -> Vector:
        a, b = _rows(frame, [left(frame), right(frame)])
        return from_list(BOOLEAN, [x == y for x, y in zip(a, b, strict=True)])

    return run


def _is_null(call: Call, compile: Compile, texts: CompileTexts) -> Program:
    inner = texts(call.arguments[0])
    return lambda frame: from_list(BOOLEAN, [text is None for text in inner(frame)])


def _member(call: Call, compile: Compile, texts: CompileTexts) -> Program:
    wanted = _wanted(call)
    if wanted is not None:
        return _found(call, wanted)
    parts = [texts(argument) for argument in call.arguments]

    def found(value: str | None, *items: str | None) -> bool | None:
        if value is None:
            return None
        return True if value in items else None if None in items else False

    def run(frame: Frame) -> Vector:
        rows = zip(*_rows(frame, [part(frame) for part in parts]), strict=True)
        return from_list(BOOLEAN, [found(*row) for row in rows])

    if not all(isinstance(item, Literal) for item in call.arguments[1:]):
        return run
    items = {item.value for item in call.arguments[1:] if isinstance(item, Literal)}
    otherwise = None if None in items else False

    def run_set(frame: Frame) -> Vector:
        values = parts[0](frame)
        return from_list(BOOLEAN, [None if v is None else True if v in items else otherwise for v in values])

    return run_set


TEXT: dict[str, BuildTexts] = {
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim", "split_part", "replace"), _mapped),
    **dict.fromkeys(("regexp_extract", "regexp_replace", "parse_url"), _mapped),
    **dict.fromkeys(("md5", "sha1", "sha2", "url_decode", "substring_index", "split_element"), _mapped),
    **dict.fromkeys(("least", "greatest"), _extreme),
    "concat_ws": _concat_ws,
    "date_format": _date_format,
    **dict.fromkeys(("cast", "try_cast"), _cast_to_text),
    "substring": _substring,
    "concat": _concat,
    "case": _case,
    "coalesce": _coalesce,
}
"""Functions with a text result."""

MEASURE: dict[str, BuildMeasure] = {
    **dict.fromkeys(COMPARE, _compare),
    **dict.fromkeys(("ilike", "rlike", "crc32"), _measured),
    **dict.fromkeys(("cast", "try_cast"), _cast_from_text),
    "<=>": _same,
    "is_null": _is_null,
    "in": _member,
    "like": _like,
    "length": _characters,
}
"""Functions of text with another result."""
