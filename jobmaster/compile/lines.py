"""Compiles a SELECT whose rows are lines into a `RowPlan`: `elf run` takes both kinds of queries."""

from __future__ import annotations

from elf.jobmaster.compile.parse import Node
from elf.jobmaster.compile.scopes import Lines
from elf.jobmaster.compile.select import Select, has_aggregate, is_number
from elf.jobmaster.plan.plan import Expression, Order, Output, RowPlan
from elf.jobmaster.values.sql_types import Kind


class RunSelect(Select):
    """A query of `elf run`, which reads one set of files: FROM may be left out, and without groups the rows are lines."""

    needs_from = False

    @property
    def is_of_lines(self) -> bool:
        """Whether the rows are lines: there is no GROUP BY, HAVING, DISTINCT, nor an aggregate in SELECT."""
        if {"group", "having", "distinct"} & self.clauses.keys():
            return False
        return not any(map(has_aggregate, self.clauses["expressions"]))

    @property
    def takes_star(self) -> bool:
        return super().takes_star or self.is_of_lines

    def row_plan(self) -> RowPlan:
        where = self.where()
        outputs = self._outputs()
        order = self._orders(outputs)
        limit, parameter = self.limit()
        return RowPlan(
            sql=self.sql,
            source=self.names.source,
            columns=tuple(self.names.used[name] for name in sorted(self.names.used)),
            where=where,
            select=outputs,
            order=order,
            limit=limit,
            limit_parameter=parameter,
        )

    def _outputs(self) -> tuple[Output, ...]:
        outputs: list[Output] = []
        lines = Lines(self.names, "SELECT")
        for item in self.items:
            self.add_output(outputs, item, lines.term(item.node))
        return tuple(outputs)

    def _orders(self, outputs: tuple[Output, ...]) -> tuple[Order, ...]:
        clause = self.clauses.get("order")
        orders: list[Order] = []
        for node in clause.expressions if clause is not None else ():
            descending, nulls_first = bool(node.args.get("desc")), bool(node.args.get("nulls_first"))
            orders += [Order(each, descending, nulls_first) for each in self._ordered_by(node.this, outputs)]
        return tuple(orders)

    def _ordered_by(self, node: Node, outputs: tuple[Output, ...]) -> list[Expression]:
        """The expressions that one item of ORDER BY names: ALL, an ordinal, or an expression."""
        if self.is_all(node):
            return [output.expression for output in outputs]
        if is_number(node) and str(node.this).isdigit():
            return [outputs[self.items.index(self.ordinal(node, "ORDER BY"))].expression]
        term = self.typed(Lines(self.names, "ORDER BY").term(node))
        return [] if term.type.kind is Kind.NULL else [term.expression]
