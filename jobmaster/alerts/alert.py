"""What an alert is: a condition over the rows of a job's windows, for how long it must hold, and who gets it.

Alerts are among a job's settings (`elf.jobmaster.directory.settings`): they come into force at a control line, and decoding
accepts only what is bounded. `problem` says whether an alert fits a version of the job's query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from elf.errors import PeerError
from elf.jobmaster.alerts.template import names_in
from elf.jobmaster.plan.codec import ROWS_MAGIC, decode_any
from elf.jobmaster.plan.features import ALERTS, Features, needed_of_rows
from elf.jobmaster.plan.plan import Column, Plan, RowPlan
from elf.jobmaster.values.sql_types import SqlType
from elf.srt.messages.messages import Micros

ALERTS_MAX = 16
"""Of a job."""
LABELS_MAX = 16
TEXT_CHARS_MAX = 500
ALERTS_BYTES_MAX = 6 << 10
"""All alerts of a job, encoded. A spec remembers the settings before and after each of 64 changes: 768 KiB, and a spec has room
for 1 MiB."""
NO_DATA = "no data"
"""In place of a condition: no final window with lines for `for`."""
NO_DATA_BY = f"{NO_DATA} by "
"""In place of a condition, before columns that are keys of groups: values that had rows have none for `for`, in windows with
lines."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")]
LabelName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
LabelValue = Annotated[str, Meta(min_length=1, max_length=200)]
Labels = tuple[tuple[str, str], ...]
"""Names and values, in order of the names."""


class Alert(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """when: the condition's text, `NO_DATA`, or `NO_DATA_BY` and columns; condition: compiled and encoded, b"" of the latter two.
    for_us: how long it must hold, in event time. text: with {column} for values of the row (`template`). sinks: the names of
    those that it goes to; none: the job's own that deliver messages."""

    name: Name
    when: Annotated[str, Meta(min_length=1, max_length=4096)]
    condition: Annotated[bytes, Meta(max_length=16 << 10)]
    for_us: Annotated[int, Meta(ge=0, lt=1 << 50)] = 0
    labels: Annotated[tuple[tuple[LabelName, LabelValue], ...], Meta(max_length=LABELS_MAX)] = ()
    text: Annotated[str, Meta(max_length=TEXT_CHARS_MAX)] = ""
    sinks: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=16)] = ()

    @property
    def is_no_data(self) -> bool:
        return self.when == NO_DATA

    @property
    def by(self) -> tuple[str, ...]:
        """The columns of `NO_DATA_BY`, sorted; () for another condition."""
        return by_of(self.when)

    @property
    def plan(self) -> RowPlan | None:
        """The condition; None for bytes that are none, which never hold. Cached."""
        return _decoded(self.condition)


Alerts = Annotated[tuple[Alert, ...], Meta(max_length=ALERTS_MAX)]


@lru_cache(maxsize=256)
def by_of(when: str) -> tuple[str, ...]:
    """See `Alert.by`."""
    if not when.startswith(NO_DATA_BY):
        return ()
    return tuple(sorted({name.strip() for name in when.removeprefix(NO_DATA_BY).split(",")}))


@lru_cache(maxsize=256)
def _decoded(condition: bytes) -> RowPlan | None:
    if not condition.startswith(ROWS_MAGIC):
        return None
    try:
        plan = decode_any(condition)
    except PeerError:
        return None
    return plan if isinstance(plan, RowPlan) and plan.where is not None else None


def needs_of(alerts: Sequence[Alert]) -> Features:
    """The features that an agent must know to take part in a job with these alerts."""
    if not alerts:
        return frozenset()
    own = (needed_of_rows(each.condition) for each in alerts if each.condition)
    return frozenset({ALERTS}).union(*own)


def problem(alert: Alert, plan: Plan) -> str:
    """Why the alert cannot be judged by the rows of that query, "" if it can. O(columns)."""
    if plan.window is None:
        return "the query has no window; an alert is judged window by window"
    if alert.is_no_data:
        wrong = set(names_in(alert.text))
        return f"the text names {{{min(wrong)}}}, and without data there is no row" if wrong else ""
    if alert.by:
        return _by_problem(alert, plan)
    condition = alert.plan
    if condition is None:
        return "its condition is not one of this version of elf"
    return columns_problem(condition.columns, alert.text, plan)


def _by_problem(alert: Alert, plan: Plan) -> str:
    keys = [plan.select[at].name for at in keys_of(plan)]
    unknown = [name for name in alert.by if name not in keys]
    if unknown:
        known = ", ".join(keys) or "none"
        return f'"{NO_DATA_BY.strip()}" needs columns that the query groups by; {unknown[0]} is none of them: {known}'
    wrong = set(names_in(alert.text)) - set(alert.by)
    return (
        f"the text names {{{min(wrong)}}}, and without a row only {', '.join(alert.by)} is known"
        if wrong
        else ""
    )


def columns_problem(columns: Sequence[Column], text: str, plan: Plan) -> str:
    """As `problem`, of a condition that reads these columns."""
    types = types_of(plan)
    for column in columns:
        found = types.get(column.name)
        if found != column.type:
            what = f"is {found} there" if found is not None else "is no column of the query"
            return f"the condition reads {column.name} as {column.type}, which {what}"
    known = {name.lower() for name in types}
    unknown = [name for name in names_in(text) if name.lower() not in known]
    if unknown:
        return f"the text names {{{unknown[0]}}}, which is no column of the query; it has {', '.join(types)}"
    return ""


def types_of(plan: Plan) -> Mapping[str, SqlType]:
    """The columns of the query's result."""
    return {output.name: output.type for output in plan.select}


def keys_of(plan: Plan) -> list[int]:
    """The places of the columns of the result that are keys of groups: they identify the instances of an alert."""
    return [
        at
        for at, output in enumerate(plan.select)
        if isinstance(output.expression, Column) and output.expression.name.startswith("#k")
    ]


def is_on(sinks: Sequence[str], job_sinks: Sequence[str], name: str) -> bool:
    """Whether an alert with these sinks, of a job with those, goes to the sink of that name."""
    return name in (sinks or job_sinks)


def lowest_for(alerts: Sequence[Alert]) -> Micros:
    """The shortest time after which one of them says that there is no data; 0 without such."""
    return min((each.for_us for each in alerts if each.is_no_data), default=0)
