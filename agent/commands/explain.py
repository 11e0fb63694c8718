"""`elf explain`: the plan of a query."""

from __future__ import annotations

from collections.abc import Sequence

from elf.agent.commands.arguments import report_query, values_of
from elf.agent.formats.presets import COLUMN_TYPES
from elf.errors import UsageError


def explain_command(query: str | None, report: str | None, params: Sequence[str], output: str) -> None:
    """Print the plan of `query`, or the SQL and plan of the usual question `report`. Raises `QueryError`, `UsageError`."""
    if (query is None) == (report is None):
        raise UsageError("name a query, or a usual question with --report NAME")
    if report == "all":
        raise UsageError("--report all is many queries; name one of the usual questions")
    from elf.jobmaster.compile.explain import explain, explain_rows, to_json
    from elf.jobmaster.compile.query import compile_for_run
    from elf.jobmaster.plan.plan import Plan

    sql = report_query(report) if report is not None else query or ""
    plan = compile_for_run(sql, {"access": COLUMN_TYPES}, values_of(params))
    if output == "json":
        print(to_json(plan))
        return
    print(sql if report is not None else "", end="\n" if report is not None else "")
    print(explain(plan) if isinstance(plan, Plan) else explain_rows(plan))
