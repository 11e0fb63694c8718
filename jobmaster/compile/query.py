"""The compiler: Spark SQL in, a `Plan` out, on the submitting side. Agents never see SQL.

    text -> parse (sqlglot's tree, with places) -> select (clause by clause) -> Plan, or lines -> RowPlan
                scopes (names over lines, over groups) -> scalar, functions (typed expressions)
                types (implicit casts), aggregates (accumulators, families), window

`compile` loads sqlglot, some 25 MB until the process ends. `compile_in_child` does the same in a child process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from elf.errors import InternalError, QueryError
from elf.jobmaster.plan import codec as plans
from elf.jobmaster.plan.plan import Plan, RowPlan
from elf.jobmaster.values.sql_types import STRING, SqlType

if TYPE_CHECKING:
    from elf.jobmaster.compile.given import Given
    from elf.jobmaster.compile.parse import Node

AnyPlan = TypeVar("AnyPlan", Plan, "Plan | RowPlan")
SQL_BYTES_MAX = 64 * 1024
CHILD_SECONDS_MAX = 30


def compile(
    sql: str,
    sources: Mapping[str, Mapping[str, SqlType]],
    values: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> Plan:
    """Compile one SELECT. `sources`: FROM name -> column -> type, in the order in which messages list them. values: texts of the
    query's parameters by name (`elf.jobmaster.plan.parameters`); defaults: of those that `values` lacks, and maybe of others.

    Raises QueryError with line, column, reason and a hint for a query that cannot run.
    """
    from elf.jobmaster.compile.select import Select

    def plan_of(statement: Node, given: Given) -> Plan:
        return Select(sql, statement, sources, given).plan()

    return _checked(sql, plan_of, values or {}, defaults or {})


def compile_for_run(
    sql: str, sources: Mapping[str, Mapping[str, SqlType]], values: Mapping[str, str] | None = None
) -> Plan | RowPlan:
    """As `compile`, for a run over files: a query without groups gives lines, and with one source FROM may be left out."""
    from elf.jobmaster.compile.lines import RunSelect

    def plan_of(statement: Node, given: Given) -> Plan | RowPlan:
        select = RunSelect(sql, statement, sources, given)
        return select.row_plan() if select.is_of_lines else select.plan()

    return _checked(sql, plan_of, values or {}, {})


def _checked(
    sql: str,
    plan_of: Callable[[Node, Given], AnyPlan],
    values: Mapping[str, str],
    defaults: Mapping[str, str],
) -> AnyPlan:
    from elf.jobmaster.plan.check import problem as problem_of
    from elf.jobmaster.plan.check import row_problem

    _check_text(sql)
    try:
        plan = _compiled(sql, plan_of, values, defaults)
    except RecursionError:
        raise QueryError("the query is nested too deeply", hint="split the expression up") from None
    problem = problem_of(plan) if isinstance(plan, Plan) else row_problem(plan)
    if not problem and len(plans.encode_any(plan)) > plans.PLAN_BYTES_MAX:
        problem = "the plan of the query is too large"
    if problem:
        raise QueryError(problem, hint="make the query smaller")
    return plan


def _compiled(
    sql: str,
    plan_of: Callable[[Node, Given], AnyPlan],
    values: Mapping[str, str],
    defaults: Mapping[str, str],
) -> AnyPlan:
    from elf.jobmaster.compile.given import Given, with_ints
    from elf.jobmaster.compile.parse import parse
    from elf.jobmaster.plan.parameters import literal, unknown

    texts = {**defaults, **values}
    try:
        for name, text in texts.items():
            literal(name, text, STRING)
    except ValueError as error:
        raise QueryError(str(error)) from None
    given = Given(texts)
    plan = plan_of(parse(sql), given)
    for name in values:
        if name not in given.seen:
            raise QueryError(unknown(name, given.seen))
    types = given.types_in(sql, plan)
    if types is None:
        return plan
    try:
        return plan_of(parse(sql), Given(texts, types))
    except QueryError:
        if (ints := with_ints(plan, types)) == types:
            raise
    return plan_of(parse(sql), Given(texts, ints))


def _check_text(sql: str) -> None:
    try:
        size = len(sql.encode())
    except UnicodeEncodeError:
        raise QueryError("the query is not valid UTF-8") from None
    if size > SQL_BYTES_MAX:
        raise QueryError(f"the query has {size:,} bytes; the limit is {SQL_BYTES_MAX:,}")


class _Request(msgspec.Struct):
    sql: str
    sources: dict[str, dict[str, SqlType]]


class _Failure(msgspec.Struct):
    reason: str
    line: int
    column: int
    hint: str


def compile_in_child(sql: str, sources: Mapping[str, Mapping[str, SqlType]]) -> Plan:
    """`compile` in a child process (about 0.25 s on an idle machine).

    Returns the same plan and raises the same QueryError; the caller's memory grows by less than 1 MB. Raises InternalError if the
    child fails.
    """
    _check_text(sql)
    request = _Request(sql, {name: dict(columns) for name, columns in sources.items()})
    try:
        child = subprocess.run(
            [sys.executable, "-m", "elf.jobmaster.compile.query"],
            input=msgspec.msgpack.encode(request),
            capture_output=True,
            timeout=CHILD_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InternalError(f"the query compiler took more than {CHILD_SECONDS_MAX} s") from None
    if child.returncode == 0:
        return plans.decode(child.stdout)
    if child.returncode == QueryError.exit_code:
        failure = msgspec.json.decode(child.stderr, type=_Failure)
        raise QueryError(failure.reason, line=failure.line, column=failure.column, hint=failure.hint)
    tail = child.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
    raise InternalError(f"the query compiler ended with exit code {child.returncode}: {tail[0]}")


def _child() -> int:
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Request)
    try:
        plan = compile(request.sql, request.sources)
    except QueryError as error:
        failure = _Failure(error.reason, error.line, error.column, error.hint)
        sys.stderr.buffer.write(msgspec.json.encode(failure))
        return QueryError.exit_code
    sys.stdout.buffer.write(plans.encode(plan))
    return 0


if __name__ == "__main__":
    sys.exit(_child())
