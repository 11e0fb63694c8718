"""The kinds of envelopes, the columns of each, and how a format is put into one."""

from __future__ import annotations

import msgspec

from elf.agent.formats.fields import Convert, Field, Format, Shape
from elf.errors import FormatError

KINDS = ("cri", "syslog", "kubectl", "compose", "stern", "docker", "journald", "json")
OBJECTS = ("docker", "journald", "json")
"""Kinds whose lines are JSON objects."""
TEXTS = ("log", "message", "MESSAGE", "msg")
"""Their keys that may hold the line inside."""

# The parts of a text envelope in the order in which unwrap.h writes them, and the columns of each kind.
_PARTS = ("log_time", "log_host", "program", "container", "stream")
_TEXT_COLUMNS = {
    "cri": ("log_time", "stream"),
    "syslog": ("log_time", "log_host", "program"),
    "kubectl": ("log_time", "log_host", "container"),
    "compose": ("log_time", "container"),
    "stern": ("log_time", "log_host", "container"),
}
# Of several keys of one column the first that an object has counts. Docker: moby's jsonlog; journald: systemd.journal-fields.
_KEYS: dict[str, tuple[tuple[str, str], ...]] = {
    "docker": (("time", "log_time"), ("stream", "stream")),
    "journald": (
        ("__REALTIME_TIMESTAMP", "log_time"),
        ("_HOSTNAME", "log_host"),
        ("SYSLOG_IDENTIFIER", "program"),
        ("_COMM", "program"),
        ("CONTAINER_NAME", "container"),
    ),
    "json": (
        ("time", "log_time"),
        ("@timestamp", "log_time"),
        ("timestamp", "log_time"),
        ("hostname", "log_host"),
        ("host.name", "log_host"),
        ("host", "log_host"),
        ("kubernetes.host", "log_host"),
        ("SYSLOG_IDENTIFIER", "program"),
        ("ident", "program"),
        ("container_name", "container"),
        ("container.name", "container"),
        ("kubernetes.container_name", "container"),
        ("stream", "stream"),
    ),
}
EXAMPLES = {
    "cri": "2022-01-28T16:04:05.4Z stdout F …",
    "syslog": "May 17 10:05:00 web1 nginx[1]: …",
    "kubectl": "[pod/web-1/nginx] 2022-01-28T16:04:05.4Z …",
    "compose": "nginx-1  | …",
    "stern": "web-1 nginx …",
    "docker": '{"log":"…\\n","stream":"stdout","time":"…"}',
    "journald": '{"MESSAGE":"…","__REALTIME_TIMESTAMP":"…"}',
    "json": '{"log":"…"}, or the key message, MESSAGE or msg',
}
"""A line of each kind."""


def split(spec: str) -> tuple[str, str]:
    """The envelope's kind and the inner format of `ENVELOPE+FORMAT`; ("", spec) for a format without an envelope."""
    kind, plus, inner = spec.strip().partition("+")
    return (kind, inner.strip()) if plus and kind in KINDS else ("", spec)


def is_detected(spec: str) -> bool:
    """Whether the format of each file is detected: `auto` or `ENVELOPE+auto`."""
    return split(spec)[1].strip() == "auto"


def wrapped(kind: str, inner: Format, programs: tuple[str, ...] = ()) -> Format:
    """`inner` in an envelope. programs: whose lines were found to be of that format (containers, streams); () is unknown.

    Raises FormatError for a format whose lines depend on lines above them, which an envelope may mix.
    """
    if inner.header or inner.comment:
        raise FormatError(
            f"format {kind}+{inner.name}: {inner.name} has header lines, which cannot be in an envelope"
        )
    if inner.envelope:
        raise FormatError(f"format {kind}+{inner.name}: an envelope within an envelope is not read")
    return msgspec.structs.replace(
        inner, name=f"{kind}+{inner.name}", envelope=kind, programs=programs, outer=_fields(kind)
    )


def envelope_format(format: Format) -> Format:
    """The format of the envelope alone, as the unwrapper hands it out."""
    shape = Shape.JSON if format.envelope in OBJECTS else Shape.LITERAL
    return Format(format.envelope, shape, format.outer)


def _fields(kind: str) -> tuple[Field, ...]:
    if kind in OBJECTS:
        return tuple(Field(key, _convert(column), column, nulls=(b"-", b"")) for key, column in _KEYS[kind])
    shown = _TEXT_COLUMNS[kind]
    return tuple(
        Field(
            part,
            _convert(part) if part in shown else Convert.SKIP,
            part if part in shown else "",
            after="" if part == _PARTS[-1] else "\t",
        )
        for part in _PARTS
    )


def _convert(column: str) -> Convert:
    return Convert.TIME_ANY if column == "log_time" else Convert.STRING
