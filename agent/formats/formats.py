"""Log formats by name, by a server's own format string, from its configuration, or by detection.

It turns the text that an operator writes (`--format`, `format =`) into a field plan (`fields.Format`).
"""

from __future__ import annotations

import re

from elf.agent.formats import nginx, w3c
from elf.agent.formats.fields import Convert, Field, Format, Shape, type_of
from elf.agent.formats.layout import checked
from elf.agent.formats.presets import COLUMN_TYPES, PRESETS
from elf.agent.formats.table import SUMMARIES, ColumnRow, describe_format
from elf.errors import FormatError
from elf.jobmaster.values.sql_types import SqlType

__all__ = ["NAMES", "SUMMARIES", "ColumnRow", "column_types", "describe", "from_regex", "resolve"]

NAMES: tuple[str, ...] = tuple(PRESETS)


def resolve(spec: str, *, sample: bytes = b"") -> Format:
    """The format that `spec` means: `auto` (by `sample`, the first lines), a preset's name, `nginx:FILE#NAME`,
    `apache:FILE#NAME`, a pasted nginx log_format or Apache LogFormat, or `regex:PATTERN` with named groups.

    Raises FormatError: an unknown name (with the nearest known one), a name that the configuration lacks (with those it has),
    adjacent variables, no time, a broken pattern, a sample that no format fits (with the formats tried).
    """
    spec = spec.strip()
    if spec == "auto":
        from elf.agent.formats.detect import detect

        return detect(sample)
    if spec in PRESETS:
        return PRESETS[spec]
    if spec.startswith("regex:"):
        return from_regex(spec.removeprefix("regex:"))
    if spec.startswith(("nginx:", "apache:")):
        return _from_config(spec)
    if re.search(r"\$\{?\w", spec):
        return nginx.from_pasted(spec)
    if "%" in spec:
        from elf.agent.formats import apache

        return apache.from_statement(spec)
    if "(?P<" in spec:
        raise FormatError("format: write regex: before a regular expression, as in --format 'regex:…'")
    raise FormatError(_unknown(spec))


def _unknown(spec: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(spec.lower(), [*NAMES, "auto"], n=1)
    known = f"known are auto, {', '.join(NAMES)}, nginx:FILE#NAME, apache:FILE#NAME, regex:PATTERN"
    return f"format {spec!r} is not known; " + (f"did you mean {near[0]}?" if near else known)


def _from_config(spec: str) -> Format:
    server, _, place = spec.partition(":")
    path, mark, name = place.rpartition("#")
    if not (path and mark and name and place.isprintable()):
        raise FormatError(f"format {spec!r}: expected {server}:FILE#NAME, as in {_EXAMPLES[server]}")
    if server == "nginx":
        return nginx.from_config(path, name)
    from elf.agent.formats import apache

    return apache.from_config(path, name)


_EXAMPLES = {
    "nginx": "nginx:/etc/nginx/nginx.conf#main",
    "apache": "apache:/etc/apache2/apache2.conf#combined",
}

# Group names that select a conversion; any other group is a STRING column.
_GROUPS: dict[str, tuple[Convert, str]] = {
    "time": (Convert.TIME_ANY, "time"),
    "request": (Convert.REQUEST, ""),
    "uri": (Convert.URI, ""),
    "query": (Convert.QUERY, "query"),
    "status": (Convert.STATUS, "status"),
    "bytes": (Convert.INT, "bytes"),
    "request_length": (Convert.INT, "request_length"),
    "request_time": (Convert.SECONDS, "request_time"),
    "request_time_ms": (Convert.MILLISECONDS, "request_time"),
    "request_time_us": (Convert.MICROSECONDS, "request_time"),
    "upstream_response_time": (Convert.SECONDS_LIST, "upstream_response_time"),
}


def from_regex(pattern: str) -> Format:
    """A regular expression (Python's syntax, over bytes) that matches whole lines; its named groups are the fields.

    Raises FormatError for a pattern that does not compile, could take for ever, has no named group, or no group `time`.
    """
    from elf.agent.formats.regex import compile_regex

    names = compile_regex(pattern, "regex").groupindex
    if not names:
        raise FormatError(
            "format regex: the pattern has no named group; name the fields, as in (?P<status>[0-9]+)"
        )
    fields = []
    for name in sorted(names, key=names.__getitem__):
        convert, column = _GROUPS.get(name, (Convert.STRING, name))
        fields.append(Field(name, convert, column))
    return checked(Format("regex", Shape.REGEX, tuple(fields), regex=pattern))


def column_types(plan: Format) -> dict[str, SqlType]:
    """The SQL type of every column that `plan` can fill, plus `agent`. It is the source's schema for a query.

    A W3C log has all columns that a header can name, since a header may come in mid-file; they are NULL until then.
    """
    types = {column: type_of(convert) for column, convert in w3c.widened(plan).columns().items()}
    return {**types, "agent": COLUMN_TYPES["agent"]}


def describe(name: str) -> list[ColumnRow]:
    """The source of each column of a format: field, unit, NULL rule, and whether its time is the request's start or end.

    `name` is anything that `resolve` takes except `auto`. Raises FormatError like `resolve`.
    """
    return describe_format(resolve(name))
