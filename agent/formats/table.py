"""Tables of formats: of one, for each column the fields that it is read from, derived from the field plan; of all, a line each.

`elf formats` prints both, and docs/formats.md holds the latter (`python -m elf.agent.formats.table docs/formats.md`).
"""

from __future__ import annotations

import sys
from itertools import groupby, pairwise
from pathlib import Path

import msgspec

from elf.agent.formats import w3c
from elf.agent.formats.fields import Convert, Field, Format, Shape, type_of

SUMMARIES: dict[str, str] = {
    "common": "Common log format: Apache's `common`, and logs that imitate it",
    "combined": "Combined log format: Apache's and nginx's `combined`",
    "vhost_common": "Common log format behind the virtual host and its port (`%v:%p`)",
    "vhost_combined": "Debian's Apache: combined behind the virtual host and its port (`%v:%p`)",
    "nginx_main": "nginx's packages and images: combined and `$http_x_forwarded_for`",
    "nginx_ingress": "Kubernetes' ingress-nginx, with its default format",
    "nginx_json": "nginx with `escape=json`: objects keyed by nginx's variable names, and by the keys of `json` besides",
    "json": "One JSON object a line, with the keys that loggers, proxies and clouds usually write",
    "ltsv": "Labeled tab-separated values (ltsv.org), also with nginx's variable names as labels",
    "logfmt": "`key=value` pairs, with the keys of `json`",
    "w3c": "W3C extended, as IIS writes it: a `#Fields:` line names the fields of the lines below it; until then IIS's default",
    "cloudfront": "AWS CloudFront standard logs; a `#Fields:` line names the fields of the lines below it",
    "alb": "AWS Application Load Balancer",
    "haproxy": "HAProxy's `option httplog`, with or without a syslog prefix",
    "caddy": "Caddy's JSON access log",
    "traefik": "Traefik's common log format",
    "traefik_json": "Traefik's JSON access log",
}
"""A description of each preset, in a line."""


def summaries() -> dict[str, str]:
    """A description of each format that comes with ELF, in a line."""
    from elf.agent.formats.products.catalogue import TABLES

    return SUMMARIES | {name: table["summary"] for name, table in TABLES.items()}


_BOTH_SERVERS = ("common", "combined", "vhost_common", "vhost_combined")

_READ: dict[Convert, str] = {
    Convert.SECONDS: "seconds",
    Convert.MILLISECONDS: "milliseconds",
    Convert.MICROSECONDS: "microseconds",
    Convert.NANOSECONDS: "nanoseconds",
    Convert.SECONDS_LIST: "seconds, a list is summed",
    Convert.DURATION: "duration with its unit, else seconds",
    Convert.DURATION_MS: "duration with its unit, else milliseconds",
    Convert.TAKEN: "milliseconds, seconds if it has a decimal point",
    Convert.REQUEST: "part of METHOD URI PROTOCOL",
    Convert.REQUEST_URL: "part of METHOD URL PROTOCOL",
    Convert.URI: "part of path?query",
    Convert.URL: "part of a URL",
    Convert.HOST: "without its port",
    Convert.HOST_PORT: "without its port",
    Convert.STATUS: "0 to 999",
    Convert.TIME_CLF: "17/May/2015:10:05:03 +0000",
    Convert.TIME_ISO: "ISO 8601",
    Convert.TIME_EPOCH: "seconds since 1970, or ms, µs, ns by magnitude",
    Convert.TIME_EPOCH_MS: "milliseconds since 1970",
    Convert.TIME_EPOCH_US: "microseconds since 1970",
    Convert.TIME_ANY: "ISO 8601, 17/May/2015:10:05:03 +0000, or since 1970 (s, ms, µs, ns by magnitude)",
    Convert.DATE: "date, UTC",
    Convert.TIME_OF_DAY: "time of day, UTC",
}
_INT_UNITS: dict[str, str] = {
    "bytes": "bytes",
    "bytes_sent": "bytes",
    "bytes_read": "bytes",
    "origin_bytes": "bytes",
    "request_length": "bytes",
    "content_length": "bytes",
    "range_start": "bytes",
    "range_end": "bytes",
    "tcpinfo_rtt": "microseconds",
    "tcpinfo_rttvar": "microseconds",
}


class ColumnRow(msgspec.Struct, frozen=True):
    """One column of one format.

    type: its SQL type. fields: the log's fields that fill it, divided by commas and semicolons; the first that is not NULL
    wins. unit: how the field's text is read (durations are always DECIMAL seconds in the column). null: when it is NULL.
    time: for the time column, whether it is the request's "start" or "end", else "".
    """

    column: str
    type: str
    fields: str
    unit: str
    null: str
    time: str


def describe_format(plan: Format) -> list[ColumnRow]:
    """The rows of `plan`, in the order of its fields; for W3C, of all fields that a header may name."""
    plan = w3c.widened(plan)
    return [_row(plan, column) for column in plan.columns()]


def _row(plan: Format, column: str) -> ColumnRow:
    fields = [field for field in plan.fields if column in field.columns] or [
        field for field in plan.outer if column in field.columns
    ]
    groups = [(key, [f.name for f in group]) for key, group in groupby(fields, lambda f: _unit(f, column))]
    summed = len(fields) > 1 and all(field.sum for field in fields)
    return ColumnRow(
        column=column,
        type=str(type_of(fields[0].convert)),
        fields=(" + " if summed else "; ").join(
            (" + " if summed else ", ").join(names) for _, names in groups
        ),
        unit="; ".join(dict.fromkeys(unit for unit, _ in groups if unit)),
        null=_null(plan, fields, column, summed),
        time=_time(plan) if column == "time" else "",
    )


def _unit(field: Field, column: str) -> str:
    if field.convert is Convert.SIZE:
        return "bytes" if b"-" in field.nulls else "bytes, - is 0"
    if field.convert is Convert.INT:
        return _INT_UNITS.get(column, "number")
    if field.convert is Convert.TIME_STRPTIME:
        return f"strptime {field.pattern}"
    return _READ.get(field.convert, "")


def _time(plan: Format) -> str:
    return "start (Apache), end (nginx)" if plan.name in _BOTH_SERVERS else plan.time_is


def _null(plan: Format, fields: list[Field], column: str, summed: bool) -> str:
    """When the column is NULL, as text."""
    if column == "time":
        return "never: without a time a line is rejected"
    texts = [_shown(text) for text in fields[0].nulls]
    rules = [", ".join(texts)] if texts else []
    if fields[0].convert in (Convert.REQUEST, Convert.REQUEST_URL):
        rules.append("not a request line")
    if column == "query":
        rules.append("no query")
    if summed:
        rules.append("any part is NULL")
    if plan.shape in (Shape.JSON, Shape.LTSV, Shape.LOGFMT):
        rules.append("absent")
    if fields[0].optional:
        rules.append("line ends before")
    return "; ".join(rules) or "never"


def _shown(text: bytes) -> str:
    return text.decode() if text else "empty"


MARKS = (
    "<!-- Derived from the code and its tests: python -m elf.agent.formats.table docs/formats.md -->\n",
    "<!-- end -->\n",
)
SHOWN_MAX = 160
"""Characters of a line that the documentation shows."""


def overview(golden: Path) -> str:
    """All formats as a table of Markdown, each with a line of it: the first record in its file below `golden`."""
    rows = ["| format | a line of it | what it is |", "|---|---|---|"]
    for name, summary in summaries().items():
        path = golden / f"{name}.txt"
        path = path if path.exists() else golden / "products" / f"{name}.txt"
        rows.append(
            f"| `{name}` | {_code(_first_record(path.read_text(encoding='utf-8')))} | {_cell(summary)} |"
        )
    return "\n".join(rows) + "\n"


def _first_record(text: str) -> str:
    lines = [line for line in text.split("\n") if line]
    return next(
        line
        for line, after in pairwise(lines)
        if line[0] != " " and after.startswith("    ") and "=" in after
    )


def _code(line: str) -> str:
    shown = line if len(line) <= SHOWN_MAX else line[: SHOWN_MAX - 1] + "…"
    return f"`{_cell(shown.replace(chr(9), '⇥'))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def refreshed(document: str, golden: Path) -> str:
    """`document` with everything between `MARKS` replaced by the present table. Raises ValueError without these."""
    start = document.index(MARKS[0]) + len(MARKS[0])
    return document[:start] + f"\n{overview(golden)}\n" + document[document.index(MARKS[1], start) :]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    text = target.read_text(encoding="utf-8")
    target.write_text(
        refreshed(text, target.absolute().parent.parent / "tests/golden/formats"), encoding="utf-8"
    )
