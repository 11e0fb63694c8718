"""W3C extended logs (IIS and others) and CloudFront's: a `#Fields:` line names the fields of the lines below it.

Sources: https://www.w3.org/TR/WD-logfile, IIS's "W3C logging" and CloudFront's "standard log file fields". Both write when
the response is done, in UTC.
"""

from __future__ import annotations

import re

import msgspec

from elf.agent.formats.fields import Convert, Escape, Field, Form, Format, type_of
from elf.errors import FormatError
from elf.jobmaster.values.sql_types import STRING

_TEXT = (Convert.STRING, Escape.NONE)
_PLUS = (Convert.STRING, Escape.PLUS)
_PERCENT = (Convert.STRING, Escape.PERCENT)
_INT = (Convert.INT, Escape.NONE)

_BOTH: dict[str, tuple[str, Convert, Escape]] = {
    "date": ("time", Convert.DATE, Escape.NONE),
    "time": ("time", Convert.TIME_OF_DAY, Escape.NONE),
    "c-ip": ("client_ip", *_TEXT),
    "c-port": ("client_port", *_INT),
    "s-ip": ("server_addr", *_TEXT),
    "s-port": ("server_port", *_INT),
    "cs-method": ("method", *_TEXT),
    "cs-uri-query": ("query", Convert.QUERY, Escape.NONE),
    "sc-status": ("status", Convert.STATUS, Escape.NONE),
    "sc-bytes": ("bytes", *_INT),
    "cs-bytes": ("request_length", *_INT),
}
# A space within a field is written as '+' by IIS. A query keeps its '+', which is a space to a form anyway.
_W3C: dict[str, tuple[str, Convert, Escape]] = {
    **_BOTH,
    "cs-uri-stem": ("path", *_PLUS),
    "cs-uri": ("", Convert.URI, Escape.PLUS),
    "bytes": ("bytes", *_INT),
    "cs-username": ("user", *_PLUS),
    "cs-host": ("host", *_TEXT),
    "cs(host)": ("host", *_TEXT),
    "cs-version": ("protocol", *_TEXT),
    "cs(user-agent)": ("user_agent", *_PLUS),
    "cs(referer)": ("referer", *_PLUS),
    "cs(cookie)": ("cookie", *_PLUS),
    "sc-substatus": ("substatus", *_INT),
    "sc-win32-status": ("win32_status", *_INT),
    "time-taken": ("request_time", Convert.TAKEN, Escape.NONE),
    "x-forwarded-for": ("http_x_forwarded_for", *_PLUS),
    "cs(x-forwarded-for)": ("http_x_forwarded_for", *_PLUS),
    "s-sitename": ("site", *_TEXT),
    "s-computername": ("computer", *_TEXT),
}
_CLOUDFRONT: dict[str, tuple[str, Convert, Escape]] = {
    **_BOTH,
    "cs-uri-stem": ("path", *_TEXT),
    "cs(host)": ("distribution", *_TEXT),
    "x-host-header": ("host", *_TEXT),
    "cs(user-agent)": ("user_agent", *_PERCENT),
    "cs(referer)": ("referer", *_PERCENT),
    "cs(cookie)": ("cookie", *_PERCENT),
    "cs-protocol": ("scheme", *_TEXT),
    "cs-protocol-version": ("protocol", *_TEXT),
    "time-taken": ("request_time", Convert.SECONDS, Escape.NONE),
    "time-to-first-byte": ("time_to_first_byte", Convert.SECONDS, Escape.NONE),
    "x-forwarded-for": ("http_x_forwarded_for", *_TEXT),
    "x-edge-location": ("edge_location", *_TEXT),
    "x-edge-result-type": ("edge_result_type", *_TEXT),
    "x-edge-response-result-type": ("edge_response_result_type", *_TEXT),
    "x-edge-detailed-result-type": ("edge_detailed_result_type", *_TEXT),
    "x-edge-request-id": ("request_id", *_TEXT),
    "fle-encrypted-fields": ("fle_encrypted_fields", *_INT),
    "sc-content-len": ("content_length", *_INT),
    "sc-content-type": ("content_type", *_TEXT),
    "sc-range-start": ("range_start", *_INT),
    "sc-range-end": ("range_end", *_INT),
    "timestamp": ("time", Convert.TIME_EPOCH, Escape.NONE),
    "timestamp(ms)": ("time", Convert.TIME_EPOCH_MS, Escape.NONE),
}
_TABLES = {"w3c": (_W3C, " "), "cloudfront": (_CLOUDFRONT, "\t")}
_OTHER_TYPES = {
    column
    for table, _ in _TABLES.values()
    for column, convert, _ in table.values()
    if type_of(convert) != STRING
}
"""Columns that are no text: an unknown field of such a name is a column with another name."""
_EPOCHS = {Convert.TIME_EPOCH, Convert.TIME_EPOCH_MS}
_TIMES = {Convert.DATE, Convert.TIME_OF_DAY} | _EPOCHS

IIS_FIELDS = (
    b"#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer)"
    b" sc-status sc-substatus sc-win32-status time-taken"
)
"""IIS's default fields, for a file whose header is missing."""
CLOUDFRONT_FIELDS = (
    b"#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent)"
    b" cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken"
    b" x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status"
    b" fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len"
    b" sc-range-start sc-range-end"
)
FIELDS_MAX = 200
"""Names taken from one header; IIS has about 30, CloudFront 33."""


def kind_of(header: bytes) -> str:
    """The kind of the header: "cloudfront" (its lines are divided by tabs) or "w3c" (by spaces)."""
    return "cloudfront" if b"x-edge-" in header or b"x-host-header" in header else "w3c"


def fields_for(header: bytes) -> tuple[Field, ...]:
    """The field plan of the lines below a `#Fields:` line.

    An unknown name becomes a STRING column of that name in snake_case ("x-foo(Bar)" -> x_foo_bar).
    Raises FormatError for a line that is no header or names no time: the lines below it cannot be parsed.
    """
    start, _, rest = header.partition(b":")
    if start.strip().lower() != b"#fields":
        raise FormatError(f"not a W3C header: {header[:60]!r}; expected '#Fields: date time …'")
    names = rest.decode("utf-8", "replace").split()[:FIELDS_MAX]
    known, separator = _TABLES[kind_of(header)]
    fields = tuple(
        _field(name, known, separator if at + 1 < len(names) else "") for at, name in enumerate(names)
    )
    converts = {field.convert for field in fields}
    if not ({Convert.DATE, Convert.TIME_OF_DAY} <= converts or converts & _EPOCHS):
        raise FormatError(
            "the #Fields: line names no date and time; switch both on in the server's logging fields"
        )
    return fields


def widened(plan: Format) -> Format:
    """`plan` with every known field of headers of its kind, since a later header in the file may name them."""
    if not plan.header:
        return plan
    known, separator = _TABLES[plan.header]
    present = {field.name.lower() for field in plan.fields}
    others = tuple(_field(name, known, separator) for name in known if name not in present)
    return msgspec.structs.replace(plan, fields=(*plan.fields, *others))


def _field(name: str, known: dict[str, tuple[str, Convert, Escape]], separator: str) -> Field:
    own = re.sub(r"\W+", "_", name).strip("_").lower() or "unnamed"
    if own in _OTHER_TYPES:
        own += "_field"
    column, convert, escape = known.get(name.lower(), (own, *_TEXT))
    nulls: tuple[bytes, ...] = (b"-", b"")
    if convert in _TIMES:
        nulls = ()
    elif convert is Convert.STATUS:  # CloudFront: the viewer closed the connection before an answer
        nulls = (b"-", b"000")
    # A line of more words than the header has names is not one of its lines.
    return Field(name, convert, column, nulls=nulls, escape=escape, after=separator, form=Form.WORD)
