"""Scalar expressions: from sqlglot's tree to typed plan expressions, with the casts that Spark inserts.

`Translator` translates operators, literals and functions. Columns and aggregates depend on the clause: subclasses translate them.
Each expression comes with the name that Spark would give the column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NoReturn

from elf.jobmaster.compile import functions, times, types
from elf.jobmaster.compile.constants import text
from elf.jobmaster.compile.functions import BUILD, INSTEAD
from elf.jobmaster.compile.interval import read_interval
from elf.jobmaster.compile.interval import shown as interval_shown
from elf.jobmaster.compile.literals import Term, number, type_named
from elf.jobmaster.compile.names import Names, dotted
from elf.jobmaster.compile.parse import INTERVAL, PARAMETER_MARK, Node, called, parameter_name, source_of
from elf.jobmaster.compile.times import OF_UNIT
from elf.jobmaster.compile.types import Mismatch, call
from elf.jobmaster.plan import check
from elf.jobmaster.plan.plan import Call, Expression, Literal
from elf.jobmaster.plan.signatures import ARGUMENTS_MAX, SQL_FUNCTIONS, SqlFunction
from elf.jobmaster.values.conversion import timestamp_text
from elf.jobmaster.values.sql_types import BOOLEAN, NULL, STRING, TIMESTAMP, Kind

SYNONYMS = {
    "mean": "avg",
    "variance": "var_samp",
    "stddev": "stddev_samp",
    "std": "stddev_samp",
    "percentile_approx": "approx_percentile",
}
"""Further SQL names of aggregates."""
BY_TIME = {
    **dict.fromkeys(("first", "first_value", "any_value"), "min_by"),
    **dict.fromkeys(("last", "last_value"), "max_by"),
}
"""Aggregates that take the value of the earliest or the latest line."""
AGGREGATES = check.AGGREGATES - {"count_distinct"} | {"count_if", *SYNONYMS, *BY_TIME}
"""All SQL names of aggregates: `count(DISTINCT x)` has none of its own, `count_if` is a count with a filter."""
_BINARY = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "Mod": "%",
    "IntDiv": "div",
    "EQ": "=",
    "NEQ": "<>",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
    "NullSafeEQ": "<=>",
}
_REFUSED = {
    "Subquery": ("subqueries are not supported", "compute one thing with one SELECT"),
    "Select": ("subqueries are not supported", "compute one thing with one SELECT"),
    "Exists": ("subqueries are not supported", "compute one thing with one SELECT"),
    "Window": (
        "window functions (OVER) are not supported",
        "GROUP BY window(time, '10 seconds') groups by time",
    ),
    "Star": ("* cannot be used here", "name the columns, or use count(*)"),
    "Interval": (
        "an interval is only added to a timestamp, or taken from it",
        "time + INTERVAL '5 minutes'; timestampdiff(SECOND, a, b) is the time between two",
    ),
    "Extract": ("EXTRACT is not supported", "use hour(time), minute(time), dayofweek(time)"),
    "WithinGroup": ("WITHIN GROUP is not supported", "use approx_percentile(x, fraction)"),
    "Distinct": ("DISTINCT is not supported here", "count(DISTINCT x) counts the different values"),
    "Rollup": ("GROUP BY ROLLUP is not supported", "start one job for each grouping"),
    "Cube": ("GROUP BY CUBE is not supported", "start one job for each grouping"),
    "GroupingSets": ("GROUP BY GROUPING SETS is not supported", "start one job for each grouping"),
    "Placeholder": ("this is not a parameter", "write :name, without a space"),
    "Parameter": ("@ and $ stand for nothing here", "a parameter is written :name"),
    "Lambda": ("lambda functions are not supported", ""),
    "CurrentTimestamp": ("the present time is not available", "write the time as a constant"),
    "CurrentDate": ("the present time is not available", "write the time as a constant"),
    "Alias": ("an alias (AS) is only possible for a whole SELECT item", "leave it out"),
}


_COUNTING = ("element_at", "try_element_at", "get")
_COMMON = frozenset(("this", "expression", "expressions", "is_string"))
_ARGUMENTS = {
    "Between": frozenset(("this", "low", "high")),
    "In": frozenset(("this", "expressions", "query", "unnest", "field")),
    "Case": frozenset(("this", "ifs", "default")),
    "Cast": frozenset(("this", "to", "safe")),
    "TryCast": frozenset(("this", "to", "safe")),
    "Trim": frozenset(("this", "expression", "position")),
    "Column": frozenset(("this", "table", "db", "catalog")),
    "Like": frozenset(("this", "expression", "negate")),
    "ILike": frozenset(("this", "expression", "negate")),
    "DPipe": frozenset(("this", "expression", "safe")),
    "Div": frozenset(("this", "expression", "typed", "safe")),
}
"""For each kind of node, the arguments that are translated. Any other argument is an error, so that a detail that only some
versions of sqlglot record is never silently ignored."""


class Translator(ABC):
    """Translates the expressions of one clause. Raises QueryError with the place of what is wrong.

    The meaning of names, aggregates and windows differs by clause (`scopes`).
    """

    def __init__(self, names: Names, clause: str) -> None:
        self.names, self.clause = names, clause

    @abstractmethod
    def column(self, node: Node) -> Term:
        """A column, with or without the name of its source before it."""

    @abstractmethod
    def aggregate(self, node: Node, name: str, condition: Node | None, skip_nulls: bool = False) -> Term:
        """A call of an aggregate. `condition`: the condition of its FILTER. skip_nulls: it ends with IGNORE NULLS."""

    @abstractmethod
    def window(self, node: Node) -> Term:
        """A call of `window(time, …)`, outside of GROUP BY itself."""

    def fail(self, node: Node | None, reason: str, hint: str = "") -> NoReturn:
        self.names.fail(node, reason, hint)

    def term(self, node: Node) -> Term:
        """The typed form of `node`."""
        kind = type(node).__name__
        strange = [
            arg for arg, part in node.args.items() if part and arg not in _ARGUMENTS.get(kind, _COMMON)
        ]
        if strange and (kind in _BINARY or kind in _NODES):
            self.fail(
                node, f"this form of {kind.upper()} is not supported: {source_of(self.names.sql, node)}"
            )
        try:
            if kind in _BINARY:
                return self._binary(node, _BINARY[kind])
            translate = _NODES.get(kind)
            if translate is not None:
                return translate(self, node)
        except Mismatch as error:
            self.fail(node, error.reason, error.hint)
        reason, hint = _REFUSED.get(kind, ("", ""))
        self.fail(node, reason or f"this is not supported: {source_of(self.names.sql, node)}", hint)

    def _binary(self, node: Node, function: str) -> Term:
        if function in ("+", "-"):
            moved = self._moved(node, function)
            if moved is not None:
                return moved
        left, right = self.term(node.this), self.term(node.expression)
        build = types.arithmetic if function in ("+", "-", "*", "/", "%", "div") else types.comparison
        shown = f"(NOT ({left.name} = {right.name}))" if function == "<>" else ""
        name = shown or f"({left.name} {function} {right.name})"
        return Term(build(function, left.expression, right.expression), name)

    def _moved(self, node: Node, function: str) -> Term | None:
        """`time + INTERVAL '5 minutes'`, `time - INTERVAL …`, `INTERVAL … + time`."""
        left, right = node.this, node.expression
        at, moved = (right, left) if called(right) == INTERVAL else (left, right)
        if called(at) != INTERVAL or (at is left and function == "-"):
            return None
        interval, time = read_interval(str(at.expressions[0].this)), self.term(moved)
        shown = f"{time.name} {function} {interval_shown(interval)}"
        return Term(times.moved(time.expression, interval, function), shown)

    def _bracket(self, node: Node) -> Term:
        """`split(…)[n]`."""
        parts = [self.term(part) for part in (node.this, *node.expressions)]
        if len(parts) != 2:
            self.fail(node, "[n] takes one number", "split(path, '/')[1]")
        built = functions.element(parts[0].expression, parts[1].expression, counted_from=0)
        return Term(built, f"{parts[0].name}[{parts[1].name}]")

    def _arguments(self, node: Node, name: str) -> list[Term]:
        """The arguments of a call; in timestampadd(MINUTE, …) the first is the name of a unit."""
        first, *rest = node.expressions or [None]
        if name not in OF_UNIT or len(rest) != 2:
            return [self.term(argument) for argument in node.expressions]
        unit = first.name if type(first).__name__ in ("Column", "Var") else ""
        if not unit:
            self.fail(first, f"{name} takes the name of a unit first", f"{name}(MINUTE, …)")
        return [Term(times.unit_named(unit), unit), *(self.term(argument) for argument in rest)]

    def _check_split(self, node: Node) -> None:
        """An array is no value of its own: it is counted into at once."""
        outer = node.parent
        while type(outer).__name__ == "Paren":
            outer = outer.parent
        if type(outer).__name__ != "Bracket" and called(outer).lower() not in _COUNTING:
            hint = "split(x, '/')[0] is the first part, element_at(split(x, '/'), -1) the last"
            self.fail(node, "split makes an array, which cannot be a value here", hint)

    def _distinct_from(self, node: Node) -> Term:
        return self._negated(self._binary(node, "<=>"))

    def _connected(self, node: Node) -> Term:
        """AND, OR: a chain of a thousand conditions becomes one call, not a thousand nested calls."""
        function, kind, parts = type(node).__name__.lower(), type(node), []
        while type(node) is kind:
            parts.append(node.expression)
            node = node.this
        terms = [self.term(part) for part in [node, *reversed(parts)]]
        for part, term in zip([node, *reversed(parts)], terms, strict=True):
            if term.type.kind not in (Kind.BOOLEAN, Kind.NULL):
                reason = f"{function.upper()} joins conditions, and this is a {term.type}"
                self.fail(part, reason, "compare it with something")
        name = terms[0].name
        for term in terms[1:]:
            name = f"({name} {function.upper()} {term.name})"
        operands: list[Expression] = []
        for term in terms:
            operand = types.boolean(term.expression)
            nested = isinstance(operand, Call) and operand.function == function
            operands.extend(operand.arguments if isinstance(operand, Call) and nested else (operand,))
        return Term(call(function, *operands), name)

    def _not(self, node: Node) -> Term:
        inner = self.term(node.this)
        is_null = type(node.this).__name__ == "Is" and type(node.this.expression).__name__ == "Null"
        negated = self._negated(inner)
        return Term(negated.expression, inner.name[:-5] + "NOT NULL)") if is_null else negated

    def _negated(self, inner: Term) -> Term:
        return Term(call("not", types.boolean(inner.expression)), f"(NOT {inner.name})")

    def _negate(self, node: Node) -> Term:
        if type(node.this).__name__ == "Literal" and not node.this.is_string:
            return number(f"-{node.this.this}")
        inner = self.term(node.this)
        return Term(call("negate", types.number(inner.expression)), f"(- {inner.name})")

    def _is(self, node: Node) -> Term:
        inner, right = self.term(node.this), type(node.expression).__name__
        if right == "Null":
            return Term(functions.is_null(inner.expression), f"({inner.name} IS NULL)")
        if right != "Boolean":
            self.fail(node, "IS takes NULL, TRUE or FALSE", "use <=> to compare with NULLs")
        truth = Literal(bool(node.expression.this), BOOLEAN)
        compared = types.comparison("<=>", types.boolean(inner.expression), truth)
        return Term(compared, f"({inner.name} <=> {str(truth.value).lower()})")

    def _between(self, node: Node) -> Term:
        value, low, high = (self.term(node.args[arg]) for arg in ("this", "low", "high"))
        above = types.comparison(">=", value.expression, low.expression)
        below = types.comparison("<=", value.expression, high.expression)
        return Term(call("and", above, below), f"between({value.name}, {low.name}, {high.name})")

    def _in(self, node: Node) -> Term:
        if node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
            self.fail(node, "IN takes a list of values", "subqueries are not supported")
        if not node.expressions:
            self.fail(node, "IN takes a list of values", "status IN (200, 404)")
        terms = [self.term(part) for part in [node.this, *node.expressions]]
        names = ", ".join(term.name for term in terms[1:])
        operands = types.unified([term.expression for term in terms])
        return Term(call("in", *operands), f"({terms[0].name} IN ({names}))")

    def _like(self, node: Node, escape: str = "\\") -> Term:
        function = type(node).__name__.lower()
        if type(node.expression).__name__ in ("Any", "All", "Some"):
            self.fail(
                node, f"{function.upper()} ANY and ALL are not supported", "join several with OR or AND"
            )
        value, pattern = self.term(node.this), self.term(node.expression)
        shown = "" if escape == "\\" else f" ESCAPE '{escape}'"
        name = f"{value.name} LIKE {pattern.name}{shown}"
        if function == "ilike":
            name = f"ilike({value.name}, {pattern.name})"
        term = Term(functions.like(function, value.expression, pattern.expression, escape), name)
        return self._negated(term) if node.args.get("negate") else term

    def _escape(self, node: Node) -> Term:
        if type(node.this).__name__ not in ("Like", "ILike"):
            self.fail(node, "ESCAPE belongs to LIKE and ILIKE")
        literal = text(self.term(node.expression).expression, "escape character")
        return self._like(node.this, str(literal.value))

    def _rlike(self, node: Node) -> Term:
        value, pattern = self.term(node.this), self.term(node.expression)
        built = functions.rlike([value.expression, pattern.expression])
        return Term(built, f"RLIKE({value.name}, {pattern.name})")

    def _concat(self, node: Node) -> Term:
        for side in (node.this, node.expression):
            if type(side).__name__ in ("Add", "Sub"):
                self.fail(side, "|| next to + or - is ambiguous", "put parentheses round one of them")
        left, right = self.term(node.this), self.term(node.expression)
        first = left.expression
        chained = isinstance(first, Call) and first.function == "concat"
        head = first.arguments if isinstance(first, Call) and chained else (first,)
        built = functions.concat([*head, right.expression])
        return Term(built, f"concat({left.name}, {right.name})")

    def _case(self, node: Node) -> Term:
        subject = self.term(node.this) if node.this else None
        conditions: list[Expression] = []
        values: list[Expression] = []
        shown = "CASE"
        for branch in node.args["ifs"]:
            when, then = self.term(branch.this), self.term(branch.args["true"])
            condition, name = when
            if subject:
                condition = types.comparison("=", subject.expression, condition)
                name = f"({subject.name} = {name})"
            conditions.append(types.boolean(condition))
            values.append(then.expression)
            shown += f" WHEN {name} THEN {then.name}"
        default = node.args.get("default")
        other = self.term(default) if default is not None else Term(Literal(None, NULL), "")
        *values, last = types.unified([*values, other.expression])
        operands = [part for pair in zip(conditions, values, strict=True) for part in pair]
        shown += f" ELSE {other.name} END" if default is not None else " END"
        return Term(call("case", *operands, last), shown)

    def _cast(self, node: Node) -> Term:
        target, inner = type_named(node.args["to"]), self.term(node.this)
        value, trying = inner.expression, bool(node.args.get("safe"))
        name = f"{'TRY_CAST' if trying else 'CAST'}({inner.name} AS {str(target).upper()})"
        if isinstance(value, Literal) and value.type == STRING and target == TIMESTAMP and not trying:
            stamp = types.timestamp(value)
            if type(node).__name__ == "Cast" and isinstance(stamp, Literal):  # TIMESTAMP '…'
                name = f"TIMESTAMP '{timestamp_text(int(stamp.value or 0))}'"
            return Term(stamp, name)
        converted = types.cast(value, target)
        if trying and isinstance(converted, Call) and converted is not value:
            converted = call("try_cast", value, target=target)
        return Term(converted, name)

    def _trim(self, node: Node) -> Term:
        side, characters = str(node.args.get("position") or "BOTH").upper(), node.args.get("expression")
        inner = self.term(node.this)
        extra = self.term(characters) if characters is not None else None
        function = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(side, "trim")
        built = functions.trim(function, inner.expression, extra.expression if extra else None)
        name = (
            f"{function}({inner.name})" if extra is None else f"TRIM({side} {extra.name} FROM {inner.name})"
        )
        return Term(built, name)

    def _call(self, node: Node, condition: Node | None = None) -> Term:
        name = called(node).lower()
        if name in AGGREGATES:
            return self.aggregate(node, name, condition)
        if condition is not None:
            self.fail(node, f"FILTER belongs to an aggregate, and {name} is not one")
        if parameter := parameter_name(node):
            return Term(
                self.names.given.parameter(self.names.sql, node, parameter), PARAMETER_MARK + parameter
            )
        if name == "window":
            return self.window(node)
        if name == INTERVAL:
            self.fail(node, *_REFUSED["Interval"])
        function = SQL_FUNCTIONS.get(name)
        if function is None:
            self._unknown(node, name)
        if not function.fewest <= len(node.expressions) <= function.most:
            self.fail(node, f"{name} takes {_counted(function)}, not {len(node.expressions)}")
        if name == "split":
            self._check_split(node)
        try:
            terms = self._arguments(node, name)
        except Mismatch as error:
            self.fail(node, named(name, error.reason), error.hint)
        shown = [*(term.name for term in terms), *function.defaults[len(terms) :]]
        title = function.titles.get(len(terms), function.title).format(
            *shown, name=name, upper=name.upper(), arguments=", ".join(shown)
        )
        try:
            return Term(BUILD[name]([term.expression for term in terms]), title)
        except Mismatch as error:
            self.fail(node, named(name, error.reason), error.hint)

    def _unknown(self, node: Node, name: str) -> NoReturn:
        near = get_close_matches(name, [*SQL_FUNCTIONS, *AGGREGATES], n=1, cutoff=0.75)
        hint = INSTEAD.get(name) or (
            f"use approx_percentile(x, 0.{name[1:]})"
            if name[:1] == "p" and name[1:].isdecimal()
            else f"did you mean {near[0]}?"
            if near
            else "`elf functions` lists those that are"
        )
        self.fail(node, f"the function {name} is not supported", hint)

    def _ignoring(self, node: Node, condition: Node | None = None) -> Term:
        """`first(x) IGNORE NULLS`."""
        name = called(node.this).lower()
        if name not in BY_TIME:
            self.fail(node, "IGNORE NULLS belongs to first and last", "other aggregates leave NULLs out")
        return self.aggregate(node.this, name, condition, skip_nulls=True)

    def _filtered(self, node: Node) -> Term:
        if type(node.this).__name__ == "IgnoreNulls":
            return self._ignoring(node.this, node.expression.this)
        if type(node.this).__name__ != "Anonymous":
            self.fail(node, "FILTER belongs to an aggregate")
        return self._call(node.this, node.expression.this)

    def _literal(self, node: Node) -> Term:
        if node.is_string:
            return Term(Literal(str(node.this), STRING), str(node.this))
        return number(str(node.this))

    def _boolean(self, node: Node) -> Term:
        return Term(Literal(bool(node.this), BOOLEAN), str(bool(node.this)).lower())

    def _window_field(self, node: Node) -> Term:
        """`window(time, '…').start`; or a name of more parts than a column of a table has in SQL."""
        if dotted(node):
            return self.column(node)
        inner, field = self.term(node.this), node.expression.name.lower()
        return self.field(node, inner, field)

    def field(self, node: Node, inner: Term, field: str) -> Term:
        self.fail(node, f"there is no field {field} in a {inner.type}")


def named(function: str, reason: str) -> str:
    """`reason` with the function's name, unless it contains the name already."""
    return reason if function in reason else f"{function}: {reason}"


def _counted(function: SqlFunction) -> str:
    fewest, most = function.fewest, function.most
    if fewest == most:
        return f"{fewest} argument{'s' if fewest != 1 else ''}"
    return f"{fewest} or more arguments" if most == ARGUMENTS_MAX else f"{fewest} to {most} arguments"


_NODES: dict[str, Callable[[Translator, Any], Term]] = {
    "And": Translator._connected,
    "Or": Translator._connected,
    "Not": Translator._not,
    "Neg": Translator._negate,
    "Paren": lambda self, node: self.term(node.this),
    "Is": Translator._is,
    "Between": Translator._between,
    "In": Translator._in,
    "Like": Translator._like,
    "ILike": Translator._like,
    "Escape": Translator._escape,
    "RegexpLike": Translator._rlike,
    "DPipe": Translator._concat,
    "Case": Translator._case,
    "Cast": Translator._cast,
    "TryCast": Translator._cast,
    "Trim": Translator._trim,
    "Anonymous": Translator._call,
    "Filter": Translator._filtered,
    "IgnoreNulls": lambda self, node: self._ignoring(node),
    "Literal": Translator._literal,
    "NullSafeNEQ": Translator._distinct_from,
    "Boolean": Translator._boolean,
    "Null": lambda self, node: Term(Literal(None, NULL), "NULL"),
    "Column": lambda self, node: self.column(node),
    "Dot": Translator._window_field,
    "Bracket": Translator._bracket,
}
