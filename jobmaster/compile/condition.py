"""Compiles the condition of an alert: SQL over the columns of a query's result, as a WHERE over its rows."""

from __future__ import annotations

from msgspec.structs import replace

from elf.errors import QueryError
from elf.jobmaster.compile.query import compile_for_run
from elf.jobmaster.plan.codec import encode_any
from elf.jobmaster.plan.plan import Plan, RowPlan

ROWS = "rows"
"""What messages call the query's result."""
CONDITION_BYTES_MAX = 16 << 10


def compile_condition(text: str, plan: Plan) -> RowPlan:
    """The condition over the rows of `plan`'s results. Raises QueryError with the place in `text`, which counts lines from 1."""
    columns = {output.name: output.type for output in plan.select}
    # In parentheses on lines of their own, so that a comment cannot hide the end.
    sql = f"SELECT true AS holds FROM {ROWS} WHERE (\n{text}\n)"
    try:
        found = compile_for_run(sql, {ROWS: columns})
    except QueryError as error:
        raise _in_text(error, text) from None
    if not isinstance(found, RowPlan) or found.where is None or found.order or found.limit is not None:
        raise QueryError(
            "a condition is one expression", line=1, column=1, hint="leave other clauses out, like hits > 100"
        )
    condition = replace(found, sql="")
    if len(encode_any(condition)) > CONDITION_BYTES_MAX:
        raise QueryError(
            "the condition is too large", hint="make it shorter, or compute a part of it in the query"
        )
    return condition


def _in_text(error: QueryError, text: str) -> QueryError:
    """The error with its place in the condition's own text. An end that comes too early is behind the last character."""
    lines = text.split("\n")
    line, column = max(error.line - 1, 1), error.column
    if line > len(lines):
        line, column = len(lines), len(lines[-1]) + 1
    reason, hint = error.reason, error.hint
    if "aggregate" in reason:
        reason, hint = "an aggregate cannot be in a condition", "name the column of the query that has it"
    elif reason.startswith("syntax error"):
        hint = "a condition is expected, like hits > 100"
    return QueryError(reason, line=line, column=column, hint=hint)
