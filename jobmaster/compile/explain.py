"""A plan as text for people: what it reads, groups by, keeps for each group, and does with the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from elf.jobmaster.plan import codec as plans
from elf.jobmaster.plan.parameters import parameters, shown
from elf.jobmaster.plan.plan import (
    Accumulator,
    Aggregate,
    Call,
    Column,
    Expression,
    Family,
    FamilyKind,
    Literal,
    Plan,
    Reduce,
    RowPlan,
)
from elf.jobmaster.values.sql_types import Kind, SqlType

ROW_BYTES = 36
"""Bytes of each row of partial aggregates besides key and lanes: pane, hash, sub, split and end (`elf.cbt.rows`)."""
STRING_BYTES, NUMBER_BYTES = 32, 5
"""A key's value, as estimated: a path or address, and a status or count, in the key's own encoding."""

_LANES = {Reduce.SUM: 2, Reduce.SUM_SQUARES: 2}
_FAMILY_LANES = {
    FamilyKind.DISTINCT: 0,
    FamilyKind.REGISTERS: 1,
    FamilyKind.BUCKETS: 1,
    FamilyKind.EXACT_SUM: 2,
    FamilyKind.EXACT_SUM_SQUARES: 2,
    FamilyKind.LEAST: 0,
    FamilyKind.GREATEST: 0,
    FamilyKind.MIN_BY: 1,
    FamilyKind.MAX_BY: 1,
    FamilyKind.COUNTS: 1,
    FamilyKind.HASHES: 0,
}
_ONE = "one row from each report of each agent"
_MEMBERS = {
    FamilyKind.DISTINCT: "one row for each different value",
    FamilyKind.REGISTERS: "at most 4096 rows",
    FamilyKind.BUCKETS: "one row for each bucket of 2 % that occurs",
    FamilyKind.EXACT_SUM: "one row for each exponent that occurs",
    FamilyKind.EXACT_SUM_SQUARES: "one row for each exponent that occurs",
    **dict.fromkeys((FamilyKind.LEAST, FamilyKind.GREATEST, FamilyKind.MIN_BY, FamilyKind.MAX_BY), _ONE),
    FamilyKind.COUNTS: "one row for each different value",
    FamilyKind.HASHES: "at most 4097 rows of an agent at a time, and of a result",
}
_INFIX = frozenset(
    ("+", "-", "*", "/", "%", "div", "=", "<>", "<", "<=", ">", ">=", "<=>", "and", "or", "rlike")
)


def explain(plan: Plan) -> str:
    """Lines of text, without a newline at the end."""
    about = described(plan)
    rows: list[tuple[str, str]] = [
        ("plan", f"{about['version']} over {about['source']}"),
        ("reads", ", ".join(f"{c['name']} {c['type']}" for c in about["columns"]) or "whole lines only"),
        ("where", about["where"] or "every line"),
        ("window", _window_text(about["window"])),
    ]
    rows += _listed("keys", [_titled(key) for key in about["keys"]], "none: one group")
    rows += _listed("keeps", [_kept(part) for part in about["accumulators"]], "")
    rows += _listed("families", [_kept(part) + f": {part['rows']}" for part in about["families"]], "none")
    rows.append(("memory", about["memory"]["text"]))
    rows += _listed("returns", [_titled(output) for output in about["select"]], "")
    rows.append(("having", about["having"] or "every group"))
    rows += _listed("order", [_ordered(order) for order in about["order"]], "none: one group")
    rows.append(("limit", "none" if about["limit"] is None else f"{about['limit']} in each window"))
    rows += _values(about["parameters"])
    return "\n".join(f"{title:<10}{text}" for title, text in rows)


def explain_rows(plan: RowPlan) -> str:
    """As `explain`, for a query whose rows are lines."""
    about = described_rows(plan)
    rows: list[tuple[str, str]] = [
        ("plan", f"rows of {about['source']}, each of one line"),
        ("reads", ", ".join(f"{c['name']} {c['type']}" for c in about["columns"]) or "whole lines only"),
        ("where", about["where"] or "every line"),
    ]
    rows += _listed("returns", [_titled(output) for output in about["select"]], "")
    rows += _listed(
        "order", [_ordered(order) for order in about["order"]], "none: rows appear as lines are read"
    )
    rows.append(("limit", "none" if about["limit"] is None else str(about["limit"])))
    rows += _values(about["parameters"])
    return "\n".join(f"{title:<10}{text}" for title, text in rows)


def described_rows(plan: RowPlan) -> dict[str, Any]:
    """The plan of a query whose rows are lines as plain values."""
    return {
        "sql": plan.sql,
        "source": plan.source,
        "columns": _columns(plan),
        "where": None if plan.where is None else text(plan.where),
        **_shown_rows(plan, {}),
    }


def to_json(plan: Plan | RowPlan) -> str:
    """The plan as one JSON object, indented; expressions as text, times in microseconds."""
    plain = described(plan) if isinstance(plan, Plan) else described_rows(plan)
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()


def described(plan: Plan) -> dict[str, Any]:
    """The plan as plain values, for `to_json`."""
    names = _result_names(plan)
    return {
        "version": plans.digest(plan),
        "sql": plan.sql,
        "source": plan.source,
        "columns": _columns(plan),
        "where": None if plan.where is None else text(plan.where),
        "window": None
        if plan.window is None
        else {
            "size_us": plan.window.size_us,
            "slide_us": plan.window.slide_us,
            "pane_us": plan.window.pane_us,
        },
        "keys": [
            {"name": key.name, "type": str(key.expression.type), "expression": text(key.expression)}
            for key in plan.keys
        ],
        "accumulators": [_part(part.reduce.value, part) for part in plan.accumulators],
        "families": [{**_part(part.kind.value, part), "rows": _MEMBERS[part.kind]} for part in plan.families],
        "memory": _memory(plan),
        "having": None if plan.having is None else text(plan.having, names),
        **_shown_rows(plan, names),
    }


def _columns(plan: Plan | RowPlan) -> list[dict[str, str]]:
    return [{"name": column.name, "type": str(column.type)} for column in plan.columns]


def _shown_rows(plan: Plan | RowPlan, names: Mapping[str, str]) -> dict[str, Any]:
    """What a plan does with its rows: columns, order, limit, and its parameters."""
    return {
        "select": [
            {"name": output.name, "type": str(output.type), "expression": text(output.expression, names)}
            for output in plan.select
        ],
        "order": [
            {
                "expression": text(order.expression, names),
                "descending": order.descending,
                "nulls_first": order.nulls_first,
            }
            for order in plan.order
        ],
        "limit": plan.limit if not plan.limit_parameter else f":{plan.limit_parameter}",
        "parameters": [
            {"name": name, "type": str(each.type), "value": shown(each)}
            for name, each in parameters(plan).items()
        ],
    }


def text(expression: Expression, names: Mapping[str, str] | None = None) -> str:
    """An expression as people write it. `names`: texts to write instead of a column's name."""
    if isinstance(expression, Column):
        return (names or {}).get(expression.name, expression.name)
    if isinstance(expression, Literal):
        return f":{expression.parameter}" if expression.parameter else _constant(expression)
    return _call(expression, [text(operand, names) for operand in expression.arguments])


def _constant(literal: Literal) -> str:
    from decimal import Decimal

    value = literal.value
    if value is None or isinstance(value, bool):
        return str(value).upper().replace("NONE", "NULL")
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if literal.type.kind is Kind.DECIMAL:
        return f"{Decimal(value).scaleb(-literal.type.scale):f}"
    if literal.type.kind is Kind.TIMESTAMP:
        from elf.jobmaster.values.conversion import timestamp_text

        return f"TIMESTAMP '{timestamp_text(int(value))}'"
    return str(value)


def _call(call: Call, parts: list[str]) -> str:
    function = call.function
    if function in _INFIX:
        return "(" + f" {function.upper()} ".join(parts) + ")"
    if function in ("like", "ilike"):
        escape = f" ESCAPE {parts[2]}" if len(parts) == 3 and parts[2] != r"'\\'" else ""
        return f"({parts[0]} {function.upper()} {parts[1]}{escape})"
    if function == "in":
        return f"({parts[0]} IN ({', '.join(parts[1:])}))"
    if function == "case":
        pairs = zip(parts[:-1:2], parts[1::2], strict=True)
        return (
            "CASE " + " ".join(f"WHEN {when} THEN {then}" for when, then in pairs) + f" ELSE {parts[-1]} END"
        )
    simple = {
        "not": "(NOT {0})",
        "negate": "(-{0})",
        "is_null": "({0} IS NULL)",
        "cast": f"CAST({{0}} AS {str(call.type).upper()})",
        "try_cast": f"TRY_CAST({{0}} AS {str(call.type).upper()})",
    }
    if function in simple:
        return simple[function].format(parts[0])
    return f"{function}({', '.join(parts)})"


def _result_names(plan: Plan) -> dict[str, str]:
    names = {f"#k{at}": key.name for at, key in enumerate(plan.keys)}
    names.update({"#window": "window", "#window_start": "window.start", "#window_end": "window.end"})
    names.update({f"#a{at}": _aggregate(plan, aggregate) for at, aggregate in enumerate(plan.aggregates)})
    return names


def _aggregate(plan: Plan, aggregate: Aggregate) -> str:
    part: Accumulator | Family
    if aggregate.families:
        part = plan.families[aggregate.families[0]]
        inputs: tuple[Expression, ...] = part.inputs
    else:
        part = plan.accumulators[aggregate.accumulators[0]]
        inputs = () if part.input is None else (part.input,)
    shown = [text(value) for value in inputs] or ["*"]
    where = "" if part.filter is None else f" FILTER (WHERE {text(part.filter)})"
    if aggregate.function == "count_distinct":
        return f"count(DISTINCT {', '.join(shown)}){where}"
    return f"{aggregate.function}({', '.join([*shown, *aggregate.fractions])}){where}"


def _part(kind: str, part: Accumulator | Family) -> dict[str, Any]:
    inputs = list(part.inputs) if isinstance(part, Family) else [part.input] if part.input else []
    return {
        "kind": kind,
        "of": [text(value) for value in inputs],
        "filter": None if part.filter is None else text(part.filter),
    }


def _memory(plan: Plan) -> dict[str, Any]:
    """Bytes of a group in one pane, before compression."""
    key = sum(map(_key_bytes, (part.expression.type for part in plan.keys)))
    group = ROW_BYTES + key + 8 * sum(_LANES.get(part.reduce, 1) for part in plan.accumulators)
    members = [
        ROW_BYTES + key + 8 * _FAMILY_LANES[part.kind] + sum(_key_bytes(value.type) for value in part.inputs)
        for part in plan.families
    ]
    panes = plan.window.size_us // plan.window.pane_us if plan.window else 1
    shown = f"about {group} bytes for each group and pane"
    if members:
        shown += ", and " + ", ".join(
            f"{size} for each row of family {at}" for at, size in enumerate(members)
        )
    if panes > 1:
        shown += f"; {panes} panes in a window"
    return {"group_bytes": group, "family_row_bytes": members, "panes_per_window": panes, "text": shown}


def _key_bytes(type: SqlType) -> int:
    return {Kind.STRING: STRING_BYTES, Kind.DOUBLE: 9}.get(type.kind, NUMBER_BYTES)


def _window_text(window: dict[str, int] | None) -> str:
    if window is None:
        return "none: one window over all lines"
    size, slide, pane = (_length(window[part]) for part in ("size_us", "slide_us", "pane_us"))
    if size == slide:
        return f"every {size}"
    return f"{size} long, every {slide}, kept in panes of {pane}"


def _length(micros: int) -> str:
    for unit, name in ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s")):
        if micros % unit == 0:
            return f"{micros // unit} {name}"
    return f"{micros / 1_000:g} ms"


def _listed(title: str, items: list[str], none: str) -> list[tuple[str, str]]:
    rows = items or [none]
    return [(title if at == 0 else "", row) for at, row in enumerate(rows)]


def _values(parameters: list[dict[str, Any]]) -> list[tuple[str, str]]:
    shown = [f"{each['name']} {each['type']} = {each['value']}" for each in parameters]
    return _listed("values", shown, "") if shown else []


def _titled(part: dict[str, Any]) -> str:
    same = part["name"] == part["expression"]
    return f"{part['name']} {part['type']}" + ("" if same else f" = {part['expression']}")


def _kept(part: dict[str, Any]) -> str:
    where = f" where {part['filter']}" if part["filter"] else ""
    return f"{part['kind']}({', '.join(part['of']) or '*'}){where}"


def _ordered(order: dict[str, Any]) -> str:
    nulls = (
        ""
        if order["nulls_first"] is not order["descending"]
        else (", NULLs first" if order["nulls_first"] else ", NULLs last")
    )
    return f"{order['expression']} {'descending' if order['descending'] else 'ascending'}{nulls}"
