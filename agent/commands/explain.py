"""`elf explain`: what a query was understood to be."""

from __future__ import annotations

from elf.errors import UsageError


def explain_command(query: str | None, report: str | None, output: str) -> None:
    """Print the plan of `query`, or of the usual question `report`. Raises `QueryError`, `UsageError`."""
    if (query is None) == (report is None):
        raise UsageError("name a query, or a usual question with --report NAME")
    from elf.jobmaster.explain import explain_json, explain_text
    from elf.jobmaster.query import compile as compile_query

    if report is not None:
        from elf.jobmaster.reports import report_query

        query = report_query(report)
    assert query is not None
    from elf.agent.presets import COLUMN_TYPES

    plan = compile_query(query, {"access": COLUMN_TYPES})
    print(explain_json(plan) if output == "json" else explain_text(plan))
