"""The lanes of a plan's rows, shared by the worker that fills them and the master that reads them."""

from __future__ import annotations

from elf.cbt.rows import Op
from elf.jobmaster.plan.plan import Expression, Family, FamilyKind, Plan, Reduce

OPS = {
    Reduce.COUNT: Op.SUM64,
    Reduce.SUM: Op.SUM128,
    Reduce.SUM_SQUARES: Op.SUM128,
    Reduce.MIN: Op.MIN,
    Reduce.MAX: Op.MAX,
}

FAMILY_OPS = {
    FamilyKind.DISTINCT: (),
    FamilyKind.REGISTERS: (Op.MAX,),
    FamilyKind.BUCKETS: (Op.SUM64,),
    FamilyKind.EXACT_SUM: (Op.SUM128,),
    FamilyKind.EXACT_SUM_SQUARES: (Op.SUM128,),
    FamilyKind.LEAST: (),
    FamilyKind.GREATEST: (),
    FamilyKind.MIN_BY: (Op.MIN,),
    FamilyKind.MAX_BY: (Op.MAX,),
    FamilyKind.COUNTS: (Op.SUM64,),
    FamilyKind.HASHES: (),
}
_ONE_VALUE = frozenset(
    {FamilyKind.LEAST, FamilyKind.GREATEST, FamilyKind.MIN_BY, FamilyKind.MAX_BY, FamilyKind.COUNTS}
)

LINE_OPS = (Op.SUM64, Op.SUM64, Op.SUM64, Op.SUM64)
"""Lines read, parsed, rejected and late, of a pane."""


def group_ops(plan: Plan) -> tuple[Op, ...]:
    """One op per accumulator, in the plan's order."""
    return tuple(OPS[accumulator.reduce] for accumulator in plan.accumulators)


def member_inputs(family: Family) -> tuple[Expression, ...]:
    """The inputs whose values are a member's key; none where it is a number: a register, bucket, bin or hash."""
    if family.kind is FamilyKind.DISTINCT:
        return family.inputs
    return family.inputs[:1] if family.kind in _ONE_VALUE else ()


def is_valued(family: Family) -> bool:
    """Whether the result of the family is the value of one of its members."""
    return family.kind in _ONE_VALUE


def family_ops(family: Family) -> tuple[Op, ...]:
    return FAMILY_OPS[family.kind]


def lane_starts(ops: tuple[Op, ...]) -> list[int]:
    """The first lane of each accumulator."""
    starts, at = [], 0
    for op in ops:
        starts.append(at)
        at += op.lanes
    return starts


def lane_count(ops: tuple[Op, ...]) -> int:
    """The number of int64 lanes of a row."""
    return sum(op.lanes for op in ops)
