"""The notation of a format in a table, `[format.NAME]`: read into a field plan.

    line = '{time:iso} {client_ip} "{request}" {status} {bytes} {request_time:ms}'

A `{column}` is a field: `{column:type}`, where the column's name does not say its type. Behind these may stand `+` (several
fields of this column are added), `=A,B` (the texts that mean NULL, besides -), and `?` (the line may end before this field).
`{_}` is skipped, `{{` is a brace. A type that begins with % is a strptime pattern. Keys of JSON, LTSV and logfmt objects say
`column:type` in the same way, and so do the names of groups of a regular expression in `types`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from elf.agent.formats import keys, nginx
from elf.agent.formats.fields import Convert, Escape, Field, Form, Format, Shape, is_text, type_of
from elf.agent.formats.layout import Piece, checked, literal
from elf.agent.formats.presets import COLUMN_TYPES
from elf.agent.formats.regex import compile_regex
from elf.errors import FormatError

# Names that say a conversion (and a column); any other is a column of text.
_BY_NAME: dict[str, tuple[Convert, str]] = {
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
_FORMS = {"client_ip": Form.CLIENT, "ident": Form.IDENT, "user": Form.USER}
"""What these columns are in a line, so that one with other text in front is none; with the type `text` they are any text."""
TYPES: dict[str, Convert] = {
    "text": Convert.STRING,
    "int": Convert.INT,
    "status": Convert.STATUS,
    "seconds": Convert.SECONDS,
    "ms": Convert.MILLISECONDS,
    "us": Convert.MICROSECONDS,
    "ns": Convert.NANOSECONDS,
    "seconds_list": Convert.SECONDS_LIST,
    "duration": Convert.DURATION,
    "duration_ms": Convert.DURATION_MS,
    "request": Convert.REQUEST,
    "request_url": Convert.REQUEST_URL,
    "uri": Convert.URI,
    "url": Convert.URL,
    "query": Convert.QUERY,
    "host": Convert.HOST,
    "host_port": Convert.HOST_PORT,
    "time": Convert.TIME_ANY,
    "iso": Convert.TIME_ISO,
    "clf": Convert.TIME_CLF,
    "epoch": Convert.TIME_EPOCH,
    "epoch_ms": Convert.TIME_EPOCH_MS,
    "epoch_us": Convert.TIME_EPOCH_US,
    "date": Convert.DATE,
    "time_of_day": Convert.TIME_OF_DAY,
}
"""The types that a field can have, as tables name them (docs/formats.md lists them)."""

_FIELD = re.compile(
    r"(?P<column>[A-Za-z_]\w*)?(?::(?P<type>%.*|\w+))?(?P<sum>\+)?(?:=(?P<nulls>[^?]*))?(?P<optional>\?)?"
)
_PIECE = re.compile(r"\{\{|\}\}|\{(?P<field>[^{}]*)\}|[{}]|[^{}]+")
_LAYOUTS = ("line", "nginx", "apache", "regex", "json", "ltsv", "logfmt")
_KEYED = {"json": Shape.JSON, "ltsv": Shape.LTSV, "logfmt": Shape.LOGFMT}
KEYS: dict[str, type] = {
    "summary": str,
    **dict.fromkeys(_LAYOUTS[:4], str),
    **dict.fromkeys(_LAYOUTS[4:], dict),
    "types": dict,
    "escape": str,
    "skip_to": str,
    "comment": str,
    "time_is": str,
    "zone": bool,
}
"""The keys of a table."""


def read_table(name: str, table: Mapping[str, Any]) -> Format:
    """The field plan that [format.NAME] describes. Raises FormatError, which names the table and the key."""
    try:
        return _read(name, table)
    except FormatError as error:
        said = str(error).removeprefix(f"format {name}: ")
        raise FormatError(f"[format.{name}]: {said}") from error


def _read(name: str, table: Mapping[str, Any]) -> Format:
    for key, value in table.items():
        if key not in KEYS:
            raise FormatError(f"unknown key {key}; {_meant(key, KEYS)}")
        if not isinstance(value, KEYS[key]) or value == "":
            raise FormatError(f"{key}: expected {_KINDS[KEYS[key]]}")
    given = [key for key in _LAYOUTS if key in table]
    if len(given) != 1:
        raise FormatError(f"expected one of {', '.join(_LAYOUTS)}, found {' and '.join(given) or 'none'}")
    plan = _plan(name, given[0], table)
    changes = {key: table[key] for key in ("time_is", "zone", "comment") if key in table}
    if "skip_to" in table:
        changes["skip_prefix"] = table["skip_to"]
    if changes.get("time_is", "end") not in ("start", "end"):
        raise FormatError('time_is: expected "start" or "end" (of the request)')
    return _typed(msgspec.structs.replace(plan, name=name, **changes))


def _meant(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"


def _typed(plan: Format) -> Format:
    """`plan` itself. Raises FormatError where a column has another type than in other formats, or than in another field."""
    types = dict(COLUMN_TYPES)
    for field in plan.fields:
        for column in field.columns:
            kind = type_of(field.convert)
            if column == "agent":
                raise FormatError("agent: this column is the name of the agent; choose another name")
            if types.setdefault(column, kind) != kind:
                where = "in every format" if column in COLUMN_TYPES else "by another field"
                raise FormatError(f"{field.name}: {column} is {types[column]} {where}, and {kind} here")
    return plan


_KINDS = {str: "text", dict: "a table", bool: "true or false"}


def _plan(name: str, layout: str, table: Mapping[str, Any]) -> Format:
    if "types" in table and layout != "regex":
        raise FormatError("types: only a regex has these; write {column:type}, or a key column:type")
    if "escape" in table and layout == "apache":
        raise FormatError("escape: apache has its own")
    text = table[layout]
    if layout == "line":
        return _from_line(name, text, _escape(table, Escape.BACKSLASH))
    if layout == "nginx":
        return nginx.from_string(text, name=name, escape=table.get("escape", "default"))
    if layout == "apache":
        from elf.agent.formats import apache

        return apache.from_string(text, name=name)
    if layout == "regex":
        return from_regex(text, name=name, types=table.get("types", {}), escape=_escape(table, Escape.NONE))
    return _from_keys(name, _KEYED[layout], text, table)


def _escape(table: Mapping[str, Any], default: Escape) -> Escape:
    try:
        return Escape(table["escape"]) if "escape" in table else default
    except ValueError:
        raise FormatError(f"escape: expected one of {', '.join(one.value for one in Escape)}") from None


def _from_line(name: str, text: str, escape: Escape) -> Format:
    pieces: list[Piece] = []
    for found in _PIECE.finditer(text):
        if found["field"] is not None:
            pieces.append(_field(found["field"], escape, in_line=True))
        elif found[0] in ("{", "}"):
            raise FormatError(
                f"line: a single {found[0]} at byte {found.start()}; write it twice for a brace of the log"
            )
        else:
            pieces.append(found[0].replace("{{", "{").replace("}}", "}"))
    plan = literal(name, pieces)
    fields = plan.fields
    if (
        escape is Escape.NONE
    ):  # a quote does not end a field, unless the text that follows the field comes with it
        fields = tuple(
            msgspec.structs.replace(field, quote="", stray=field.column == "user_agent") for field in fields
        )
    return msgspec.structs.replace(plan, fields=fields, zone=_has_zone(fields))


def _has_zone(fields: Iterable[Field]) -> bool:
    """Whether times carry their zone, as far as the table says (ISO 8601 and the like: each text says it itself)."""
    return not any(
        field.convert is Convert.TIME_OF_DAY
        or (field.convert is Convert.TIME_STRPTIME and "%z" not in field.pattern)
        for field in fields
    )


def _field(text: str, escape: Escape, *, shown: str = "", in_line: bool = False) -> Field:
    """The field that `{text}` means. shown: its name in the log, where that is not the column."""
    found = _FIELD.fullmatch(text)
    convert = _converted(found["column"], found["type"], text) if found else None
    column = found["column"] if found else None
    if found is None or convert is None or not (column or convert in _WHOLE):
        raise FormatError(f"{{{text}}}: expected {{column}} or {{column:type}}; {{_}} skips a field")
    by_name = _BY_NAME.get(column or "") if found["type"] is None else None
    form = _FORMS.get(column or "", Form.ANY) if in_line and found["type"] != "text" else Form.ANY
    if in_line and by_name and column == "bytes":
        convert = Convert.SIZE
    nulls = tuple(found["nulls"].encode().split(b",")) if found["nulls"] else ()
    return Field(
        shown or column or convert.value,
        convert,
        "" if convert in (*_WHOLE, Convert.SKIP) else by_name[1] if by_name else column or "",
        nulls=tuple(dict.fromkeys((*nulls, *_nulls(convert, form)))),
        escape=escape if is_text(convert) else Escape.NONE,
        optional=found["optional"] is not None,
        sum=found["sum"] is not None,
        list=convert is Convert.SECONDS_LIST,
        pattern=found["type"] if convert is Convert.TIME_STRPTIME else "",
        form=form,
    )


def _nulls(convert: Convert, form: Form) -> tuple[bytes, ...]:
    """The texts that mean NULL by default: of a size - is 0; clients, idents and users are never empty."""
    if convert in (Convert.SKIP, Convert.DATE) or convert.value.startswith("time_"):
        return ()
    if convert is Convert.SIZE:
        return (b"",)
    return (b"-", b"") if form is Form.ANY else (b"-",)


_WHOLE = (Convert.REQUEST, Convert.REQUEST_URL, Convert.URI, Convert.URL)
"""They fill columns of their own; the name is no column."""


def _converted(column: str | None, type: str | None, text: str) -> Convert:
    if column == "_":
        return Convert.SKIP
    if type is None:
        return _BY_NAME.get(column or "", (Convert.STRING, ""))[0]
    if type.startswith("%"):
        return Convert.TIME_STRPTIME
    if type not in TYPES:
        raise FormatError(f"{{{text}}}: unknown type {type}; {_meant(type, TYPES)}")
    return TYPES[type]


def _from_keys(name: str, shape: Shape, table: Mapping[str, Any], options: Mapping[str, Any]) -> Format:
    """Keys of the table by column; for columns that it does not name, the usual keys of such logs."""
    escape = _escape(options, Escape.JSON if shape is Shape.JSON else Escape.BACKSLASH)
    own: list[Field] = []
    for column, names in table.items():
        if not isinstance(names, str) or not names.strip():
            raise FormatError(f"{column}: expected keys divided by spaces")
        for key in names.split():
            field = _field(column, escape, shown=key)
            nulls = tuple(dict.fromkeys((*field.nulls, b"-", b"")))
            own.append(msgspec.structs.replace(field, nulls=nulls))
    taken = {column for field in own for column in field.columns} | {field.name for field in own}
    usual = {Shape.JSON: keys.GENERIC, Shape.LTSV: keys.LTSV, Shape.LOGFMT: keys.LOGFMT}[shape]
    others = [field for field in usual if field.name not in taken and taken.isdisjoint(field.columns)]
    return checked(Format(name, shape, (*own, *others), zone=_has_zone(own)))


def from_regex(
    pattern: str,
    *,
    name: str = "regex",
    types: Mapping[str, Any] | None = None,
    escape: Escape = Escape.NONE,
) -> Format:
    """A regular expression (Python's syntax, over bytes) that matches whole lines; its named groups are the fields.

    Raises FormatError for a pattern that does not compile, could take for ever, has no named group, or no group `time`.
    """
    groups = compile_regex(pattern, name).groupindex
    if not groups:
        raise FormatError(
            f"format {name}: the pattern has no named group; name the fields, as in (?P<status>[0-9]+)"
        )
    types = types or {}
    if unknown := [group for group in types if group not in groups]:
        raise FormatError(f"types: the pattern has no group {unknown[0]}")
    names = sorted(groups, key=groups.__getitem__)
    fields = [
        _field(f"{group}:{types[group]}" if group in types else group, escape, shown=group) for group in names
    ]
    return checked(Format(name, Shape.REGEX, tuple(fields), regex=pattern, zone=_has_zone(fields)))
