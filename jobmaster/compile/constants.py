"""Arguments of functions that must be constants or parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elf.jobmaster.compile import types
from elf.jobmaster.compile.types import Mismatch
from elf.jobmaster.plan.plan import Expression, Literal
from elf.jobmaster.values.sql_types import INT, STRING

Build = Callable[[Sequence[Expression]], Expression]


def text(operand: Expression, what: str) -> Literal:
    """`operand` as a STRING constant. Raises Mismatch if it is not one."""
    operand = types.typed(operand, STRING)
    if not isinstance(operand, Literal) or not isinstance(operand.value, str):
        raise Mismatch(f"the {what} must be a quoted constant")
    return operand


def whole(operand: Expression, what: str) -> Literal:
    operand = types.typed(operand, INT)
    if not isinstance(operand, Literal) or operand.type != INT or operand.value is None:
        raise Mismatch(f"the {what} must be a whole constant")
    return operand
