"""Names in each clause: over lines (WHERE, GROUP BY, aggregates' arguments), over groups (SELECT, HAVING, ORDER BY). SELECT and
ORDER BY of a query without groups are over lines too.

Expressions over groups are first translated over the source's columns and the aggregates (`#a0`, …); then every part that equals
a GROUP BY expression is replaced by its key (`#k0`, …). A column that remains is not grouped, which is an error.
"""

from __future__ import annotations

from elf.jobmaster.compile import functions, types
from elf.jobmaster.compile.aggregates import FRACTIONS_MAX, both, fraction
from elf.jobmaster.compile.literals import Term
from elf.jobmaster.compile.names import WINDOW_COLUMN, WINDOW_FIELDS, Names, dotted
from elf.jobmaster.compile.parse import CALL_MARK, Node
from elf.jobmaster.compile.scalar import BY_TIME, SYNONYMS, Translator, named
from elf.jobmaster.compile.types import Mismatch
from elf.jobmaster.compile.window import window_of
from elf.jobmaster.plan.plan import Call, Column, Expression, Literal
from elf.jobmaster.values.sql_types import TIMESTAMP, WINDOW

_GROUP_HINT = "GROUP BY it, or put it into an aggregate"


class Rows(Translator):
    """Clauses over lines: WHERE, GROUP BY, and the arguments and filters of aggregates."""

    def column(self, node: Node) -> Term:
        return self.names.source_column(node)

    def aggregate(self, node: Node, name: str, condition: Node | None, skip_nulls: bool = False) -> Term:
        if self.clause == "an aggregate":
            self.fail(node, "an aggregate within an aggregate is not supported", "use one of the two")
        hint = "HAVING filters by aggregates" if self.clause == "WHERE" else "aggregates belong to SELECT"
        self.fail(node, f"an aggregate cannot be in {self.clause}", hint)

    def window(self, node: Node) -> Term:
        self.fail(
            node, f"window(…) cannot be in {self.clause}", "it belongs to GROUP BY, as one of its items"
        )


class Lines(Rows):
    """SELECT and ORDER BY of a query whose rows are lines: as `Rows`, and with the aliases of SELECT."""

    def column(self, node: Node) -> Term:
        alias = None if node.args.get("table") else self.names.aliases.get(node.name.lower())
        if alias is not None and (self.clause == "ORDER BY" or node.name.lower() not in self.names.columns):
            return Term(alias.expression, node.name)
        return self.names.source_column(node)


class Groups(Translator):
    """Clauses over groups: SELECT, HAVING, ORDER BY."""

    def __init__(self, names: Names, clause: str) -> None:
        super().__init__(names, clause)
        self.arguments = Rows(names, "an aggregate")
        self.seen: dict[str, Node] = {}

    def grouped(self, node: Node) -> Term:
        """`node` as an expression over keys and aggregates. Raises QueryError for a column that is not grouped."""
        self.seen = {}
        expression, name = self.term(node)
        return Term(self._regrouped(node, expression), name)

    def _regrouped(self, node: Node, expression: Expression) -> Expression:
        key = self.names.key_of(expression)
        if key is not None:
            return key
        if isinstance(expression, Call):
            operands = tuple(self._regrouped(node, o) for o in expression.arguments)
            return Call(expression.function, operands, expression.type)
        if isinstance(expression, Column) and not expression.name.startswith("#"):
            where = self.seen.get(expression.name, node)
            self.fail(where, f"{expression.name} is neither grouped nor aggregated", _GROUP_HINT)
        return expression

    def column(self, node: Node) -> Term:
        names, name = self.names, node.name.lower()
        field = names.window_field(node)
        if field is not None:
            return field
        alias = names.aliases.get(name) if len(dotted(node)) == 1 else None
        if alias is not None and self._prefers_alias(name):
            return Term(alias.expression, node.name)
        term = names.source_column(node)
        assert isinstance(term.expression, Column)
        self.seen.setdefault(term.expression.name, node)
        return term

    def _prefers_alias(self, name: str) -> bool:
        """Whether an alias hides the source's column of that name: Spark's rule differs by clause."""
        if name not in self.names.columns or self.clause == "ORDER BY":
            return True
        return self.clause == "HAVING" and self.names.columns[name] not in self.names.key_index

    def window(self, node: Node) -> Term:
        spec = window_of(self, node)
        if spec != self.names.window:
            self.fail(node, "this window is not the one that GROUP BY names", "GROUP BY the same window(…)")
        return Term(WINDOW_COLUMN, "window")

    def field(self, node: Node, inner: Term, field: str) -> Term:
        if inner.type != WINDOW or field not in WINDOW_FIELDS:
            self.fail(node, f"there is no field {field} in a {inner.type}", "a window has start and end")
        return Term(WINDOW_FIELDS[field], field)

    def aggregate(self, node: Node, name: str, condition: Node | None, skip_nulls: bool = False) -> Term:
        try:
            return self._aggregated(node, name, condition, skip_nulls)
        except Mismatch as error:
            self.fail(node, named(name, error.reason), error.hint)

    def _aggregated(self, node: Node, name: str, condition: Node | None, skip_nulls: bool) -> Term:
        parts, distinct = list(node.expressions), False
        if len(parts) == 1 and type(parts[0]).__name__ == "Distinct":
            parts, distinct = list(parts[0].expressions), True
        stars = sum(type(part).__name__ == "Star" for part in parts)
        if stars and (name != "count" or len(parts) > 1 or distinct):
            self.fail(node, f"{name} takes no * here", "name the columns; count(*) alone counts lines")
        if not parts:
            self.fail(node, f"{name} takes an argument", "count(*) counts lines" if name == "count" else "")
        terms = [] if stars else [self.arguments.term(part) for part in parts if not _is_array(part)]
        where = self._condition(condition)
        filtered = f" FILTER (WHERE {where.name})" if where else ""
        shown = ", ".join(t.name for t in terms) if terms else "1"
        if SYNONYMS.get(name, name) == "approx_percentile":
            column, shown = self._percentile(node, parts, where.expression if where else None)
        elif name in BY_TIME:
            column = self._by_time(node, name, terms, distinct, where, skip_nulls)
            shown = terms[0].name
        elif name in ("min_by", "max_by"):
            if len(terms) != 2 or distinct:
                self.fail(node, f"{name} takes 2 arguments", f"{name}(path, request_time)")
            value, by = (term.expression for term in terms)
            column = self.names.aggregates.extreme_by(name, value, by, where.expression if where else None)
        else:
            values = [term.expression for term in terms]
            column = self._plain(node, name, values, distinct, where.expression if where else None)
        return Term(column, f"{name}({'DISTINCT ' if distinct else ''}{shown}){filtered}")

    def _by_time(
        self, node: Node, name: str, terms: list[Term], distinct: bool, where: Term | None, skip_nulls: bool
    ) -> Column:
        """first and last: the value of the earliest or latest line by event time."""
        if not 1 <= len(terms) <= 2 or distinct:
            self.fail(node, f"{name} takes 1 argument, or true after it to leave out NULLs")
        value, condition = terms[0].expression, where.expression if where else None
        if len(terms) == 2:
            flag = terms[1].expression
            if not isinstance(flag, Literal) or not isinstance(flag.value, bool) or flag.parameter:
                self.fail(node, f"{name}: the second argument is true or false", f"{name}(x, true)")
            skip_nulls = flag.value
        if skip_nulls:
            condition = both(condition, types.call("not", functions.is_null(value)))
        time = self.names.columns.get("time")
        if time is None or time.type != TIMESTAMP:
            self.fail(node, f"{name} needs the event time, the column time", "max_by(x, y)")
        self.names.used[time.name] = time
        return self.names.aggregates.extreme_by(BY_TIME[name], value, time, condition)

    def _condition(self, condition: Node | None) -> Term | None:
        if condition is None:
            return None
        rows = Rows(self.names, "FILTER")
        expression, name = rows.term(condition)
        try:
            return Term(types.boolean(expression), name)
        except Mismatch as error:
            self.fail(condition, error.reason, error.hint)

    def _plain(
        self,
        node: Node,
        name: str,
        values: list[Expression],
        distinct: bool,
        where: Expression | None,
    ) -> Column:
        add = self.names.aggregates
        if name == "count":
            return add.count_distinct(values, where) if distinct else add.count(values, where)
        if len(values) != 1:
            hint = {
                "approx_count_distinct": "its error is always 1.6 %",
                "approx_set": "its size is fixed",
            }.get(name, "")
            self.fail(node, f"{name} takes 1 argument, not {len(values)}", hint)
        if distinct and name not in ("min", "max"):
            self.fail(node, f"{name}(DISTINCT …) is not supported", "use count(DISTINCT x)")
        value = values[0]
        if name == "count_if":
            condition = types.boolean(value)
            if where is not None:
                condition = types.call("and", where, condition)
            return add.count([], condition)
        if name == "approx_count_distinct":
            return add.approx_count_distinct(value, where)
        if name == "approx_set":
            return add.approx_set(value, where)
        if name in ("min", "max"):
            return add.extreme(name, value, where)
        if name == "mode":
            return add.mode(value, where)
        function = SYNONYMS.get(name, name)
        if function in ("sum", "avg"):
            return add.sum(function, value, where)
        return add.variance(function, value, where)

    def _percentile(self, node: Node, parts: list[Node], where: Expression | None) -> tuple[Column, str]:
        if not 2 <= len(parts) <= 3:
            reason = f"approx_percentile takes 2 or 3 arguments, not {len(parts)}"
            self.fail(node, reason, "approx_percentile(x, 0.99)")
        if len(parts) == 3:
            accuracy = self.arguments.term(parts[2]).expression
            if not isinstance(accuracy, Literal) or not accuracy.type.is_integer:
                self.fail(parts[2], "the accuracy must be a whole constant", "leave it out: the error is 1 %")
        many = _is_array(parts[1])
        items = parts[1].expressions if many else [parts[1]]
        terms = [self.arguments.term(item) for item in items]
        if not 1 <= len(terms) <= FRACTIONS_MAX:
            self.fail(parts[1], f"between 1 and {FRACTIONS_MAX} fractions are possible, not {len(terms)}")
        fractions = [fraction(term.expression) for term in terms]
        value = self.arguments.term(parts[0])
        shown = ", ".join(term.name for term in terms)
        shown = f"array({shown})" if many else shown
        accuracy_shown = self.arguments.term(parts[2]).name if len(parts) == 3 else "10000"
        column = self.names.aggregates.approx_percentile(value.expression, fractions, many, where)
        return column, f"{value.name}, {shown}, {accuracy_shown}"


def _is_array(node: Node) -> bool:
    return type(node).__name__ == "Anonymous" and str(node.this).lower() == CALL_MARK + "array"
