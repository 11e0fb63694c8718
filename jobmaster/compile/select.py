"""Compiles one SELECT into a `Plan`: its clauses, in the order of their dependencies.

WHERE, then GROUP BY (the window and the keys), then SELECT (the aggregates and the aliases), HAVING, ORDER BY, LIMIT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NoReturn

from elf.jobmaster.compile import types
from elf.jobmaster.compile.aggregates import lane
from elf.jobmaster.compile.given import Given
from elf.jobmaster.compile.literals import Term
from elf.jobmaster.compile.names import ANY, WINDOW_COLUMN, WINDOW_FIELDS, Names
from elf.jobmaster.compile.parse import Node, called, fail, parameter_name, source_of
from elf.jobmaster.compile.scalar import AGGREGATES
from elf.jobmaster.compile.scopes import Groups, Rows
from elf.jobmaster.compile.types import Mismatch
from elf.jobmaster.compile.window import window_of
from elf.jobmaster.plan.plan import Column, Expression, Key, Literal, Order, Output, Plan
from elf.jobmaster.plan.signatures import SQL_FUNCTIONS
from elf.jobmaster.values.sql_types import INT, Kind, SqlType

Sources = Mapping[str, Mapping[str, SqlType]]

_CLAUSES = {
    "joins": ("joins are not supported", "a query reads one source"),
    "laterals": ("LATERAL VIEW is not supported", "a query reads one source"),
    "qualify": ("QUALIFY is not supported", "ORDER BY … LIMIT applies within each window"),
    "windows": ("named windows are not supported", "GROUP BY window(time, '10 seconds') groups by time"),
    "offset": ("OFFSET is not supported", "LIMIT returns the first rows of each window"),
    "sort": ("SORT BY is not supported", "use ORDER BY"),
    "cluster": ("CLUSTER BY is not supported", "use ORDER BY"),
    "distribute": ("DISTRIBUTE BY is not supported", "leave it out"),
    "sample": ("TABLESAMPLE is not supported", "every line counts"),
    "pivots": ("PIVOT is not supported", "use sum(x) FILTER (WHERE …) for each column"),
    "kind": ("SELECT AS STRUCT is not supported", "select the columns"),
    "into": ("SELECT INTO is not supported", "the sinks of the job determine where results are written"),
}
_KNOWN = frozenset({"expressions", "from", "where", "group", "having", "order", "limit", "hint", "distinct"})


class Select:
    """The state of one compilation, of a query with groups. SELECT DISTINCT is one: its columns are the keys."""

    needs_from = True

    def __init__(self, sql: str, statement: Node, sources: Sources, given: Given) -> None:
        self.sql, self.statement = sql, statement
        self.keys: list[Key] = []
        self.clauses = self._checked()
        source, qualifiers = self._from(sources)
        self.items = [_Item(node) for node in self._without_stars(sources[source])]
        aliases = {item.alias.lower() for item in self.items}
        self.names = Names(sql, source, sources[source], qualifiers, aliases, given)

    def fail(self, node: Node | None, reason: str, hint: str = "") -> NoReturn:
        fail(self.sql, node, reason, hint)

    def _checked(self) -> dict[str, Node]:
        """The clauses of the statement; refuses statements and clauses that are not supported."""
        statement = self.statement
        kind = type(statement).__name__
        if kind in ("Union", "Intersect", "Except"):
            self.fail(
                statement.expression, f"{kind.upper()} is not supported", "send one job for each SELECT"
            )
        if kind != "Select":
            self.fail(
                statement, f"{kind.upper()} is not a query", "only SELECT … FROM source … GROUP BY … runs"
            )
        clauses = {name.rstrip("_"): part for name, part in statement.args.items() if part}
        if "expressions" not in clauses:
            self.fail(statement, "SELECT has no columns", "name them, or * for all of the log's")
        for name, part in clauses.items():
            if name in _KNOWN:
                continue
            reason, hint = _CLAUSES.get(name, (f"{name.upper()} is not supported", ""))
            first = part[0] if isinstance(part, list) else part
            self.fail(first if hasattr(first, "walk") else None, reason, hint)
        return clauses

    @property
    def takes_star(self) -> bool:
        return "distinct" in self.clauses

    def _without_stars(self, columns: Mapping[str, SqlType]) -> Sequence[Node]:
        """The items of SELECT; in the place of `*` the columns of the log's format, if the query can return them."""
        items: list[Node] = []
        for node in self.clauses["expressions"]:
            items += self._columns_of(node, columns) if self.takes_star and _is_star(node) else [node]
        return items

    def _columns_of(self, star: Node, columns: Mapping[str, SqlType]) -> Sequence[Node]:
        """The columns that `*` or `access.*` names: those of the format, in its order, without the agent's name."""
        from sqlglot import exp

        if any(star.args.values()) and type(star).__name__ == "Star":
            self.fail(star, "* takes no EXCEPT, REPLACE or RENAME", "name the columns")
        table = star.args.get("table")
        return [exp.column(name, table=table, quoted=True) for name in columns if name not in ("agent", ANY)]

    def _from(self, sources: Sources) -> tuple[str, frozenset[str]]:
        """The source, and the names by which its columns may be qualified."""
        clause = self.clauses.get("from")
        known = ", ".join(sources)
        if clause is None and not self.needs_from and len(sources) == 1:
            return known, frozenset({known.lower()})
        write = f"write FROM {known}" if len(sources) == 1 else f"the sources are: {known}"
        if clause is None:
            self.fail(self.statement, "there is no FROM", write)
        table = clause.this
        if type(table).__name__ != "Table":
            self.fail(table, "subqueries are not supported", f"FROM takes a source: {known}")
        for name, (reason, hint) in _CLAUSES.items():
            if table.args.get(name):
                self.fail(table, reason, hint)
        if table.args.get("db") or type(table.this).__name__ != "Identifier":
            self.fail(table, f"FROM takes the name of a source, not {source_of(self.sql, table)}", write)
        found = [name for name in sources if name.lower() == table.name.lower()]
        if not found:
            near = get_close_matches(table.name, list(sources), n=1)
            meant = f"did you mean {near[0]}?" if near else write
            self.fail(table, f"there is no source {table.name}", meant)
        return found[0], frozenset({(table.alias or table.name).lower()})

    # Clauses, in the order in which they are compiled

    def plan(self) -> Plan:
        where = self.where()
        self._group()
        outputs = self._select()
        having = self._having()
        order = self._order(outputs)
        limit, parameter = self.limit()
        self.names.aggregates.ensure_rows()
        return Plan(
            sql=self.sql,
            source=self.names.source,
            columns=tuple(self.names.used[name] for name in sorted(self.names.used)),
            where=where,
            window=self.names.window,
            keys=tuple(self.keys),
            accumulators=tuple(self.names.aggregates.accumulators),
            families=tuple(self.names.aggregates.families),
            aggregates=tuple(self.names.aggregates.aggregates),
            having=having,
            select=outputs,
            order=order,
            limit=limit,
            limit_parameter=parameter,
        )

    def where(self) -> Expression | None:
        clause = self.clauses.get("where")
        if clause is None:
            return None
        term = Rows(self.names, "WHERE").term(clause.this)
        return self._boolean(clause.this, term)

    def _boolean(self, node: Node, term: Term) -> Expression:
        try:
            return types.boolean(term.expression)
        except Mismatch as error:
            self.fail(node, error.reason, error.hint)

    def _group(self) -> None:
        clause = self.clauses.get("group")
        if "distinct" in self.clauses:
            self._group_by_items()
            return
        if clause is None:
            return
        for name, part in clause.args.items():
            if part and name not in ("expressions", "all"):
                self.fail(
                    clause, f"GROUP BY {name.upper()} is not supported", "start one job for each grouping"
                )
        nodes = list(clause.expressions)
        if clause.args.get("all") or (len(nodes) == 1 and self.is_all(nodes[0])):
            nodes = [item.node for item in self.items if not has_aggregate(item.node)]
        for node in nodes:
            self._group_item(self._group_target(node))

    def _group_by_items(self) -> None:
        """SELECT DISTINCT: every item is a key."""
        node = self.clauses["distinct"]
        if node.args.get("on"):
            self.fail(
                node, "DISTINCT ON is not supported", "GROUP BY these columns, and aggregate the others"
            )
        aggregated = [item.node for item in self.items if has_aggregate(item.node)]
        if aggregated or "group" in self.clauses:
            hint = "leave DISTINCT out: each group is one row"
            self.fail(next(iter(aggregated), node), "DISTINCT beside groups is not supported", hint)
        for item in self.items:
            self._group_item(item.node)

    def is_all(self, node: Node) -> bool:
        plain = type(node).__name__ in ("Column", "Var") and not getattr(node.this, "quoted", False)
        return plain and node.name.lower() == "all" and "all" not in self.names.columns

    def _group_target(self, node: Node) -> Node:
        """The SELECT item that an ordinal or an alias in GROUP BY names."""
        if type(node).__name__ == "Literal" and str(node.this).isdigit() and not node.is_string:
            return self.ordinal(node, "GROUP BY").node
        if type(node).__name__ == "Column" and not node.args.get("table"):
            name = node.name.lower()
            if name not in self.names.columns:
                return next((item.node for item in self.items if item.alias.lower() == name), node)
        return node

    def ordinal(self, node: Node, clause: str) -> _Item:
        text = str(node.this)
        if not 1 <= int(text) <= len(self.items):
            self.fail(node, f"{clause} {text}: SELECT has {len(self.items)} items", "count them from 1")
        return self.items[int(text) - 1]

    def _group_item(self, node: Node) -> None:
        if type(node).__name__ == "Dot" and _calls(node.this) == "window":
            node = (
                node.this
            )  # windows of one size begin at different times: their start or end means the window
        if _calls(node) == "window":
            spec = window_of(Rows(self.names, "GROUP BY"), node)
            if self.names.window not in (None, spec):
                self.fail(node, "a query has one window", "start another job for the other one")
            self.names.window = spec
            return
        term = self.typed(Rows(self.names, "GROUP BY").term(node))
        if term.type.kind is Kind.NULL:
            self.fail(node, "NULL cannot be a key", "leave it out")
        try:
            lane(term.expression, "GROUP BY")
        except Mismatch as error:
            self.fail(node, error.reason, error.hint)
        if term.expression not in self.names.key_index:
            self.names.key_index[term.expression] = Column(f"#k{len(self.keys)}", term.type)
            self.keys.append(Key(term.name, term.expression))

    def _select(self) -> tuple[Output, ...]:
        self._check_aggregated()
        outputs: list[Output] = []
        groups = Groups(self.names, "SELECT")
        for item in self.items:
            self.add_output(outputs, item, groups.grouped(item.node))
        self._name_keys(outputs)
        return tuple(outputs)

    def add_output(self, outputs: list[Output], item: _Item, found: Term) -> None:
        """Add the column of a SELECT item, whose expression is `found`. Its alias is known from here on."""
        term = self.typed(found)
        name = item.alias or item.name or term.name
        if term.type.kind is Kind.NULL:
            self.fail(item.node, "NULL alone has no type", "CAST(NULL AS STRING)")
        if any(name.lower() == output.name.lower() for output in outputs):
            self.fail(item.node, f"two columns are named {name}", "rename one of them with AS")
        outputs.append(Output(name, term.expression, term.type))
        if item.alias:
            self.names.aliases[item.alias.lower()] = term

    def typed(self, term: Term) -> Term:
        """A parameter that stands alone has the type of its value."""
        return Term(types.typed(term.expression), term.name)

    def _check_aggregated(self) -> None:
        calls = {_calls(part) for item in self.items for part in item.node.walk()}
        # An unknown function counts as an aggregate here: `Translator` refuses it later, by name.
        if {"group", "distinct"} & self.clauses.keys() or calls - {"", "window", *SQL_FUNCTIONS}:
            return
        if "having" not in self.clauses:
            reason = "SELECT without an aggregate or GROUP BY returns single lines, and a job returns groups"
            hint = "add count(*), GROUP BY these columns, or SELECT DISTINCT; elf run and elf grep show lines of files"
            self.fail(self.items[0].node, reason, hint)

    def _name_keys(self, outputs: list[Output]) -> None:
        """Give each key the name of its output column, made unique."""
        taken: set[str] = set()
        for at, key in enumerate(self.keys):
            column = Column(f"#k{at}", key.expression.type)
            name = next((o.name for o in outputs if o.expression == column), key.name)
            unique, n = name, 2
            while unique.lower() in taken:
                unique, n = f"{name}_{n}", n + 1
            taken.add(unique.lower())
            self.keys[at] = Key(unique, key.expression)

    def _having(self) -> Expression | None:
        clause = self.clauses.get("having")
        if clause is None:
            return None
        return self._boolean(clause.this, Groups(self.names, "HAVING").grouped(clause.this))

    def _order(self, outputs: tuple[Output, ...]) -> tuple[Order, ...]:
        clause = self.clauses.get("order")
        orders: list[Order] = []
        for node in clause.expressions if clause is not None else ():
            orders.extend(self._ordered(node, outputs))
        taken = {order.expression for order in orders}
        keys = [Column(f"#k{at}", key.expression.type) for at, key in enumerate(self.keys)]
        return (*orders, *(Order(key) for key in keys if key not in taken))

    def _ordered(self, node: Node, outputs: tuple[Output, ...]) -> list[Order]:
        target, descending = node.this, bool(node.args.get("desc"))
        nulls_first = bool(node.args.get("nulls_first"))
        if self.is_all(target):
            expressions = [output.expression for output in outputs]
        elif type(target).__name__ == "Literal" and str(target.this).isdigit() and not target.is_string:
            item = self.ordinal(target, "ORDER BY")
            expressions = [outputs[self.items.index(item)].expression]
        else:
            expressions = [Groups(self.names, "ORDER BY").grouped(target).expression]
        orders = []
        for expression in expressions:
            if expression in (WINDOW_COLUMN, *WINDOW_FIELDS.values()):
                if descending:
                    self.fail(node, "windows are always in time order", "leave the window out of ORDER BY")
                continue
            if expression.type.kind is Kind.ARRAY:
                self.fail(node, "ORDER BY does not take an array", "ORDER BY one approx_percentile(x, 0.99)")
            orders.append(Order(expression, descending, nulls_first))
        return orders

    def limit(self) -> tuple[int | None, str]:
        """The number, and the parameter that gives it, "" for a constant."""
        clause = self.clauses.get("limit")
        if clause is None or self.is_all(clause.expression):
            return None, ""
        node = clause.expression
        text, parameter = str(node.this) if is_number(node) else "", parameter_name(node)
        if parameter:
            try:
                value = types.typed(self.names.given.parameter(self.sql, node, parameter), INT)
            except Mismatch as error:
                self.fail(node, error.reason, error.hint)
            text = str(value.value) if isinstance(value, Literal) and value.type == INT else ""
        if not text.isdigit() or int(text) >= 2**31:
            self.fail(node, "LIMIT takes a whole constant", "LIMIT 20")
        return int(text), parameter


class _Item:
    """An item of SELECT.

    alias: "" without one. name: the column's name if the item casts a column, since Spark names the result after it; else "".
    """

    def __init__(self, node: Node) -> None:
        aliased = type(node).__name__ == "Alias"
        self.node: Node = node.this if aliased else node
        self.alias: str = node.alias if aliased else ""
        cast = type(self.node).__name__ in ("Cast", "TryCast") and type(self.node.this).__name__ == "Column"
        self.name: str = self.node.this.name if cast else ""


def _calls(node: Node) -> str:
    """The name of the function that `node` calls, in lower case, "" where it is no call."""
    return "" if parameter_name(node) else called(node).lower()


def _is_star(node: Node) -> bool:
    return "Star" in (type(node).__name__, type(node.this).__name__) and type(node).__name__ in (
        "Star",
        "Column",
    )


def is_number(node: Node) -> bool:
    return type(node).__name__ == "Literal" and not node.is_string


def has_aggregate(node: Node) -> bool:
    return any(_calls(part) in AGGREGATES for part in node.walk())
