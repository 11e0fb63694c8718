"""The tables [[alert]] of a job file: read, checked against the job's query, and written.

[[alert]]
name = "errors"
when = "hits > 100"
for = "1m"
text = "{path} had {hits} errors"
labels = { severity = "page" }
sinks = ["pager"]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from elf.agent.config import units
from elf.agent.config.names import is_name
from elf.agent.config.toml_values import Key, found_text, meant_key, read_duration, read_text
from elf.errors import QueryError, UsageError
from elf.jobmaster.alerts import template
from elf.jobmaster.alerts.alert import (
    ALERTS_BYTES_MAX,
    ALERTS_MAX,
    LABELS_MAX,
    NO_DATA,
    NO_DATA_BY,
    TEXT_CHARS_MAX,
    Alert,
    Labels,
    by_of,
    problem,
)
from elf.jobmaster.plan.codec import encode_any
from elf.jobmaster.plan.plan import Plan

WHEN_CHARS_MAX = 4_096
SINKS_MAX = 16
_NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_LABEL = "[A-Za-z_][A-Za-z0-9_]{0,63}"


class AlertTable(msgspec.Struct, frozen=True):
    """One alert as a file says it. place: of the table, and lines: of its keys, for messages; whens: how many lines after its key
    the condition's text begins."""

    name: str
    when: str
    for_us: int = 0
    labels: Labels = ()
    text: str = ""
    sinks: tuple[str, ...] = ()
    path: str = ""
    lines: Mapping[str, int] = {}
    later: int = 0

    def place(self, key: str, more: int = 0) -> str:
        """Where the file says that. more: lines below."""
        line = self.lines.get(key) or self.lines.get("", 0)
        where = f"{self.path}:{line + more}: " if line else f"{self.path}: " if self.path else ""
        return f"{where}alert {self.name}: {key}"


def read_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(_NAME, value):
        raise ValueError("a name of letters, digits, _, - and ., 64 at most")
    return value


def read_when(value: Any) -> str:
    text = read_text(value)
    if len(text) > WHEN_CHARS_MAX:
        raise ValueError(f"at most {WHEN_CHARS_MAX:,} characters")
    words = " ".join(text.split())
    if words.lower() == NO_DATA:
        return NO_DATA
    if words.lower() == NO_DATA_BY.strip():
        raise ValueError(f'columns that the query groups by behind it, like "{NO_DATA_BY}agent"')
    if words.lower().startswith(NO_DATA_BY):
        return NO_DATA_BY + ", ".join(by_of(NO_DATA_BY + words[len(NO_DATA_BY) :]))
    return text.rstrip()


def read_alert_text(value: Any) -> str:
    text = read_text(value)
    if len(text) > TEXT_CHARS_MAX:
        raise ValueError(f"at most {TEXT_CHARS_MAX} characters")
    if (at := template.stray_brace(text)) is not None:
        raise ValueError(
            f"{{column}} for a value, and {{{{ or }}}} for a brace; there is one alone at character {at + 1}"
        )
    return text


def read_labels(value: Any) -> Labels:
    is_table = isinstance(value, dict) and len(value) <= LABELS_MAX
    if not is_table or not all(isinstance(each, str) and 1 <= len(each) <= 200 for each in value.values()):
        raise ValueError(f'a table of at most {LABELS_MAX} texts like {{ severity = "page" }}')
    for name in value:
        if not re.fullmatch(_LABEL, name) or name in ("alertname", "job"):
            raise ValueError(
                "names of labels of letters, digits and _, not alertname or job, which it has anyway"
            )
    return tuple(sorted(value.items()))


def read_sinks(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    is_list = isinstance(names, list) and all(isinstance(name, str) and is_name(name) for name in names)
    if not is_list or len(set(names)) < len(names) or len(names) > SINKS_MAX:
        raise ValueError(
            f'the name of a [[sink]] of an agent, or a list of at most {SINKS_MAX}, like ["pager"]'
        )
    return tuple(names)


KEYS = {
    "name": ("name", Key(read_name)),
    "when": ("when", Key(read_when)),
    "for": ("for_us", Key(read_duration)),
    "labels": ("labels", Key(read_labels)),
    "text": ("text", Key(read_alert_text)),
    "sinks": ("sinks", Key(read_sinks)),
}
"""Key -> field of `AlertTable`, and how its value is read."""


def read_alerts(
    value: Any, path: str, places: Mapping[tuple[str, int, str], int], text: str
) -> tuple[AlertTable, ...]:
    """The tables of a file. places: the lines of its keys; text: all of it. Raises UsageError with the place."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UsageError(f"{path}: alert: expected tables headed [[alert]], found {found_text(value)}")
    if len(value) > ALERTS_MAX:
        raise UsageError(f"{path}: alert: a job has at most {ALERTS_MAX} alerts, found {len(value)}")
    found = [_table(each, at, path, places, text.split("\n")) for at, each in enumerate(value)]
    for at, table in enumerate(found):
        if table.name in [each.name for each in found[:at]]:
            raise UsageError(
                f"{table.place('name')}: another alert of the job has this name; choose another one"
            )
    return tuple(found)


def _table(
    value: dict[str, Any], at: int, path: str, places: Mapping[tuple[str, int, str], int], text: Sequence[str]
) -> AlertTable:
    lines = {key: line for (table, n, key), line in places.items() if table == "alert" and n == at}
    header = f"{path}:{lines['']}" if "" in lines else path
    fields: dict[str, Any] = {}
    for key, each in value.items():
        place = f"{path}:{lines[key]}" if key in lines else header
        if key not in KEYS:
            raise UsageError(f"{place}: alert: {key}: unknown key; {meant_key(key, list(KEYS))}")
        field, known = KEYS[key]
        try:
            fields[field] = known.read(each)
        except ValueError as error:
            raise UsageError(f"{place}: alert: {key}: expected {error}, found {found_text(each)}") from error
    for key, example in (("name", 'name = "errors"'), ("when", 'when = "hits > 100"')):
        if key not in fields:
            raise UsageError(f"{header}: alert: {key}: expected {example}, found nothing")
    if fields["when"].startswith(NO_DATA) and not fields.get("for_us"):
        raise UsageError(f'{header}: alert {fields["name"]}: for: "no data" needs one, like for = "5m"')
    behind = text[lines["when"] - 1].partition("=")[2].strip() if "when" in lines else ""
    return AlertTable(**fields, path=path, lines=lines, later=int(behind in ('"""', "'''")))


# Checked against a query.


def compiled_alerts(tables: Sequence[AlertTable], plan: Plan) -> tuple[Alert, ...]:
    """The alerts of a job with that query. Raises UsageError with the place of what is wrong."""
    alerts = tuple(_compiled(table, plan) for table in tables)
    size = len(msgspec.msgpack.encode(alerts))
    if size > ALERTS_BYTES_MAX:
        raise UsageError(
            f"{tables[0].path}: alert: the alerts of a job take {size:,} bytes, and {ALERTS_BYTES_MAX:,} is the limit; shorten "
            "texts and conditions, or start another job for some of them"
        )
    return alerts


def _compiled(table: AlertTable, plan: Plan) -> Alert:
    condition = b""
    if table.when != NO_DATA and not by_of(table.when):
        condition = _condition(table, plan)
    alert = Alert(table.name, table.when, condition, table.for_us, table.labels, table.text, table.sinks)
    if wrong := problem(alert, plan):
        raise UsageError(f"{table.place('text' if wrong.startswith('the text') else 'when')}: {wrong}")
    return alert


def _condition(table: AlertTable, plan: Plan) -> bytes:
    from elf.jobmaster.compile.condition import compile_condition  # it loads sqlglot

    try:
        return encode_any(compile_condition(table.when, plan))
    except QueryError as error:
        line, column = max(error.line, 1), max(error.column, 1)
        hint = f"; {error.hint}" if error.hint else ""
        place = table.place("when", line - 1 + table.later)
        raise UsageError(f"{place}: character {column} of its line: {error.reason}{hint}") from error


def fitting(alerts: Sequence[Alert], plan: Plan, job: str) -> tuple[Alert, ...]:
    """The alerts that a job has, for another query: those whose columns have another type there are compiled again. Raises
    UsageError for one that cannot be."""
    found = []
    for alert in alerts:
        if problem(alert, plan):
            table = AlertTable(alert.name, alert.when, alert.for_us, alert.labels, alert.text, alert.sinks)
            try:
                alert = _compiled(table, plan)
            except UsageError as error:
                raise UsageError(
                    f"job {job}: with this query its alerts cannot be judged: {error}; change both with one job file "
                    f"(elf job update {job} -f FILE); nothing was changed"
                ) from error
        found.append(alert)
    return tuple(found)


# Written.


def alert_text(alert: Alert) -> str:
    """An alert on one line, all of it."""
    parts = [f"{alert.name}: {' '.join(alert.when.split())}"]
    if alert.for_us:
        parts.append(f"for {units.duration_text(alert.for_us)}")
    if alert.labels:
        parts.append(f"labels {', '.join(f'{name}={value}' for name, value in alert.labels)}")
    if alert.text:
        parts.append(f"text {alert.text!r}")
    if alert.sinks:
        parts.append(f"to {', '.join(sorted(alert.sinks))}")
    return " ".join(parts)


def alerts_text(alerts: Sequence[Alert]) -> str:
    return "; ".join(map(alert_text, alerts)) or "none"
