"""`window(time, size[, slide])`."""

from __future__ import annotations

from elf.jobmaster.compile.interval import EXAMPLES, parse_interval
from elf.jobmaster.compile.parse import Node
from elf.jobmaster.compile.scalar import Translator
from elf.jobmaster.compile.types import Mismatch
from elf.jobmaster.plan.check import window_problem
from elf.jobmaster.plan.plan import Column, WindowSpec
from elf.jobmaster.values.sql_types import TIMESTAMP


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
        translator.fail(node, "the length of a window must be a quoted interval", EXAMPLES)
    try:
        return parse_interval(str(node.this))
    except Mismatch as error:
        translator.fail(node, error.reason, error.hint)
