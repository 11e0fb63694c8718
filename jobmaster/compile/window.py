"""`window(time, size[, slide])`: Spark's interval texts."""

from __future__ import annotations

import re

from elf.jobmaster.compile.parse import Node
from elf.jobmaster.compile.scalar import Translator
from elf.jobmaster.compile.types import Mismatch
from elf.jobmaster.plan.check import window_problem
from elf.jobmaster.plan.plan import Column, WindowSpec
from elf.jobmaster.values.sql_types import TIMESTAMP

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"\s*([+-]?)\s*(\d{1,18})(?:\.(\d{0,6}))?\s+([a-z]+)")
_EXAMPLES = "write it like '10 seconds', '5 minutes' or '1 hour 30 minutes'"


def parse_interval(text: str) -> int:
    """Microseconds of a Spark interval text such as '1 minute 30 seconds'. Raises Mismatch."""
    rest = re.sub(r"^\s*interval\s", " ", text.lower())
    total, at = 0, 0
    while rest[at:].strip():
        part = _PART.match(rest, at)
        if part is None:
            raise Mismatch(f"{text!r} is not an interval", _EXAMPLES)
        sign, whole, digits, unit = part.groups()
        unit = unit.removesuffix("s")
        if unit in ("month", "year"):
            raise Mismatch(f"{text!r}: months and years have no fixed length", "use days")
        if unit not in _UNITS_US or (digits is not None and unit != "second"):
            raise Mismatch(f"{text!r} is not an interval", _EXAMPLES)
        value = int(whole) * _UNITS_US[unit] + int((digits or "").ljust(6, "0"))
        total += -value if sign == "-" else value
        at = part.end()
    if not at:
        raise Mismatch(f"{text!r} is not an interval", _EXAMPLES)
    return total


def window_of(translator: Translator, node: Node) -> WindowSpec:
    """The windows of a call of `window(…)`. Raises QueryError."""
    arguments = node.expressions
    if not 2 <= len(arguments) <= 3:
        hint = "window(time, size[, slide]); windows start at the multiples of the slide"
        translator.fail(node, f"window takes 2 or 3 arguments, not {len(arguments)}", hint)
    time = translator.term(arguments[0]).expression
    if time != Column("time", TIMESTAMP):
        translator.fail(
            arguments[0], "the first argument of window must be the event time", "window(time, '10 seconds')"
        )
    lengths = [_length(translator, argument) for argument in arguments[1:]]
    window = WindowSpec(lengths[0], lengths[-1])
    wrong = window_problem(window)
    if wrong:
        translator.fail(node, wrong, "as in window(time, '10 seconds', '5 seconds')")
    return window


def _length(translator: Translator, node: Node) -> int:
    if type(node).__name__ != "Literal" or not node.is_string:
        translator.fail(node, "the length of a window must be a quoted interval", _EXAMPLES)
    try:
        return parse_interval(str(node.this))
    except Mismatch as error:
        translator.fail(node, error.reason, error.hint)
