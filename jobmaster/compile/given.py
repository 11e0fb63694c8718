"""The values that were given for a query's parameters, as the compiler meets them."""

from __future__ import annotations

from collections.abc import Mapping

from elf.jobmaster.compile.parse import Node, fail
from elf.jobmaster.compile.types import typed
from elf.jobmaster.plan.parameters import named
from elf.jobmaster.plan.plan import Expression, Literal, Plan, RowPlan
from elf.jobmaster.values.sql_types import INT, NULL, SqlType


class Given:
    """values: texts by name. types: those that are known before. seen: where the query uses each parameter first."""

    def __init__(self, values: Mapping[str, str], types: Mapping[str, SqlType] | None = None) -> None:
        self.values, self.types = values, types or {}
        self.seen: dict[str, Node] = {}

    def parameter(self, sql: str, node: Node, name: str) -> Expression:
        """The parameter `name`, without a type if none is known (see `types`). Raises QueryError without a value, Mismatch for a
        value of another type."""
        self.seen.setdefault(name, node)
        if name not in self.values:
            fail(
                sql,
                node,
                f"the parameter {name} has no value",
                f"give it one (--param {name}=VALUE), or write a constant",
            )
        untyped = Literal(self.values[name], NULL, name)
        return typed(untyped, self.types[name]) if name in self.types else untyped

    def types_in(self, sql: str, plan: Plan | RowPlan) -> dict[str, SqlType] | None:
        """The type of each parameter by its first use in the plan; None if all its uses agree. Raises QueryError for one that
        the plan has lost, because it stood where only constants of the text can."""
        uses = list(named(plan))
        for name in self.seen.keys() - {use.parameter for use in uses}:
            fail(sql, self.seen[name], f"the parameter {name} cannot be used here", "write a constant")
        first = {use.parameter: use.type for use in reversed(uses)}
        return None if all(use.type == first[use.parameter] for use in uses) else first


def with_ints(plan: Plan | RowPlan, types: Mapping[str, SqlType]) -> dict[str, SqlType]:
    """The types, but INT for each parameter that one use needs as an INT: LIMIT and some arguments of functions take no other
    type, and an INT converts to all other numbers."""
    return {**types, **{use.parameter: INT for use in named(plan) if use.type == INT}}
