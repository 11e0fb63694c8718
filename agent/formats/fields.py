"""The field plan: a log format in compiled form, which the tokenizer executes.

A `Format` is a `Shape` (how a line is cut into raw fields) plus `Field`s (how each raw field becomes columns). Formats are
made in `formats.py` and its neighbours, and executed in `parser.py` and `_tokenize.pyx`; this file is the contract
between the two.

**Acceptance** (whatever columns a query reads): the shape matches the whole line; every field's text converts by its rule or is
one of its NULL texts; the line has a time. Then the line is *parsed*, else *rejected* with one `Reason`.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, MICROS, STRING, TIMESTAMP, SqlType


class Shape(Enum):
    LITERAL = "literal"  # fields divided by literal separators
    JSON = "json"  # one JSON object a line; a field's key is a path ("request.headers.User-Agent.0")
    LTSV = "ltsv"  # label:value, tab-separated
    LOGFMT = "logfmt"  # key=value or key="quoted value", space-separated
    REGEX = "regex"  # named groups; the last resort


KEYED = (Shape.JSON, Shape.LTSV, Shape.LOGFMT)
"""Shapes whose lines name their values."""


class Convert(Enum):
    """How a raw field's text becomes column values."""

    SKIP = "skip"  # any text; feeds no column
    STRING = "string"
    INT = "int"  # an optional '-' or '+' (HAProxy), then digits, within int64
    SIZE = "size"  # digits; '-' is 0, where it is no NULL text (Apache's %b)
    SECONDS = "seconds"  # decimal seconds -> micro-units, rounded half to even, as those below
    MILLISECONDS = "milliseconds"  # int or decimal -> micro-units
    MICROSECONDS = "microseconds"  # int -> micro-units
    NANOSECONDS = "nanoseconds"  # int -> micro-units
    SECONDS_LIST = "seconds_list"  # nginx upstream times "0.005, 0.019 : 0.001": the sum, without '-' parts
    DURATION = "duration"  # Go style "1.5ms", "12.3µs", "2s", "1m2.5s"; a bare number is seconds
    DURATION_MS = "duration_ms"  # the same, but a bare number is milliseconds
    TAKEN = (
        "taken"  # W3C time-taken: with a decimal point seconds (WebLogic, Tomcat), else milliseconds (IIS)
    )
    REQUEST = "request"  # "METHOD URI PROTOCOL" -> method, path, query, protocol; anything else: accepted, all four NULL
    REQUEST_URL = "request_url"  # the same with an absolute URL (ALB): also host and scheme
    URI = "uri"  # path[?query] -> path, query
    URL = "url"  # scheme://host[/path][?query] -> scheme, host, path, query; without "://" as URI
    QUERY = "query"  # as STRING into `query`, a leading '?' removed
    STATUS = "status"  # INT of 0..999; in LITERAL three digits
    HOST_PORT = "host_port"  # "1.2.3.4:5678", "[::1]:80" or "::1:5678" (HAProxy) -> the text before the last ':', unbracketed
    HOST = "host"  # the same, but the port is optional: cut after ']' or at a single ':'; "::1" and "10.0.0.1" stay whole
    # 17/May/2015:10:05:03 +0000, also with .mmm fraction; without zone: the source's zone
    TIME_CLF = "time_clf"
    # 2015-05-17T10:05:03[.ffffff][Z|±hh:mm]; 'T' or ' '; without zone: the source's zone
    TIME_ISO = "time_iso"
    TIME_EPOCH = "time_epoch"  # unix time by magnitude: seconds (with fraction), ms, µs or ns
    TIME_ANY = "time_any"  # by its form: a number as TIME_EPOCH, dd/Mon/… as TIME_CLF, else TIME_ISO; [ ] around it are skipped
    TIME_EPOCH_MS = "time_epoch_ms"
    TIME_EPOCH_US = "time_epoch_us"
    DATE = "date"  # 2015-05-17: the date part of `time`; with a TIME_OF_DAY field
    TIME_OF_DAY = "time_of_day"  # 10:05:03[.fff]
    TIME_STRPTIME = "time_strptime"  # by `Field.pattern`, a strptime format (Apache %{...}t); slow path
    # Columns by their keys' own names (keys.own_fields). A value that does not convert is NULL and counted; it rejects no line.
    OWN_TEXT = "own_text"  # any value as text; objects and lists as they are written
    OWN_INT = "own_int"  # a whole number within int64, however it is spelled (2e2)
    OWN_DOUBLE = "own_double"
    OWN_BOOL = "own_bool"


_INTEGERS = (Convert.INT, Convert.SIZE, Convert.STATUS)
OWN = {
    STRING: Convert.OWN_TEXT,
    BIGINT: Convert.OWN_INT,
    DOUBLE: Convert.OWN_DOUBLE,
    BOOLEAN: Convert.OWN_BOOL,
}
"""The conversion of a column by its key's own name, by the column's type."""
_OWN_TYPES = {convert: type for type, convert in OWN.items()}
_DURATIONS = (
    Convert.SECONDS,
    Convert.MILLISECONDS,
    Convert.MICROSECONDS,
    Convert.NANOSECONDS,
    Convert.SECONDS_LIST,
    Convert.DURATION,
    Convert.DURATION_MS,
    Convert.TAKEN,
)


def type_of(convert: Convert) -> SqlType:
    """The SQL type of a column that `convert` fills."""
    if convert is Convert.DATE or convert.value.startswith("time_"):
        return TIMESTAMP
    if convert in _OWN_TYPES:
        return _OWN_TYPES[convert]
    if convert in _INTEGERS:
        return BIGINT
    return MICROS if convert in _DURATIONS else STRING


def is_text(convert: Convert) -> bool:
    """Whether `convert` fills columns of strings."""
    return type_of(convert) == STRING


_FIXED: dict[Convert, tuple[str, ...]] = {
    Convert.REQUEST: ("method", "path", "query", "protocol"),
    Convert.REQUEST_URL: ("method", "scheme", "host", "path", "query", "protocol"),
    Convert.URI: ("path", "query"),
    Convert.URL: ("scheme", "host", "path", "query"),
    Convert.QUERY: ("query",),
    Convert.DATE: ("time",),
    Convert.TIME_OF_DAY: ("time",),
    Convert.SKIP: (),
}
"""The columns that a conversion fills, where the field does not name them."""


class Escape(Enum):
    NONE = "none"
    BACKSLASH = "backslash"  # \" \\ \n \t \r \b \f \v \xHH (nginx, Apache and similar servers)
    JSON = "json"
    PLUS = "plus"  # '+' stands for a space (W3C / IIS)
    PERCENT = "percent"  # %20 (CloudFront user agents; %2520 decodes once)
    DOUBLED = "doubled"  # "" within a quoted field


class Form(Enum):
    """What a LITERAL field's unquoted text must be; other text rejects the line."""

    ANY = "any"  # a client may control it: its end is found by the fields behind it
    WORD = "word"  # no space
    CLIENT = "client"  # an address, a host name or unix:, or a list of these, of which the first counts
    IDENT = "ident"  # a word; if it is not '-', the user behind it has no space
    USER = "user"  # not empty


class Reason(Enum):
    """Why a line was rejected: one reason per line, that of the first mismatch in it."""

    EMPTY = "empty line"
    TOO_LONG = "line too long"
    NUL = "NUL byte"
    LITERAL = "separator missing"  # the text between two fields is not where it should be
    UNTERMINATED = "unterminated quote"
    TRAILING = "text after the last field"
    TRUNCATED = "line ends early"
    TIME = "bad time"
    NUMBER = "bad number"
    JSON = "bad JSON"
    MISSING = "field missing"  # a required field (time) is absent in JSON, LTSV, logfmt
    PATTERN = "pattern does not match"
    TEXT = "bad text"  # an unquoted field is no client, user or word
    ENVELOPE = "envelope missing"  # wrapped formats: the line is not wrapped as the others are
    PROGRAM = "line of another program or stream"  # wrapped formats: it does not fit, and another wrote it
    FUTURE = "time in the future"  # more than 5 minutes past the clock of the machine that reads it


class Field(msgspec.Struct, frozen=True):
    """One raw field.

    name: its name in the log format ("remote_addr", "%>s", "cs-uri-stem", a JSON path, a group's name).
    column: the column it fills, "" for none; a REQUEST or URI fills its fixed ones. Several fields with one `column`: durations
        are summed when all say `sum` (NULL if any is NULL), otherwise the first that is not NULL wins.
    nulls: texts that mean NULL, compared before unescaping ("-" and empty text nearly everywhere; "-1", "000").
    quote: LITERAL only: the closing quote character if the field is quoted (then an escaped quote does not end it), else "".
    after: LITERAL only: the literal text that follows the field; "" only for the last (it ends with the line).
    optional: LITERAL only: the line may end before this field (then it and the rest are NULL).
    list: LITERAL only, unquoted: elements are divided by ", " or " : " (nginx upstream_*), so an occurrence of `after` that is
        preceded by ',' or ' :', or followed by ': ', does not end the field.
    form: LITERAL only, unquoted: what its text must be.
    stray: LITERAL only, between quotes: its text may hold quotes that are not escaped; the fields behind it show which one closes
        it. One field of a format, that which visitors choose most freely: it takes what its neighbours could have, too.
    required: JSON, LTSV, LOGFMT: its absence rejects the line. Absent otherwise: NULL.
    scale: micro-units per unit, for numeric JSON values too (given by `convert`).
    """

    name: str
    convert: Convert
    column: str = ""
    nulls: tuple[bytes, ...] = (b"-", b"")
    escape: Escape = Escape.NONE
    quote: str = ""
    after: str = ""
    optional: bool = False
    required: bool = False
    sum: bool = False
    list: bool = False
    pattern: str = ""
    form: Form = Form.ANY
    stray: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that this field fills."""
        return _FIXED.get(self.convert, (self.column,) if self.column else ())


LATENESS_MAX_US = 60_000_000
LATENESS_US = {"end": 5_000_000, "start": LATENESS_MAX_US}
"""How long windows wait for lines by default: servers that write the time of a request's end buffer a log for some seconds; a
request takes a minute at most, as a rule, where its beginning is written."""


class Format(msgspec.Struct, frozen=True):
    """A compiled log format.

    name: what `auto` reports ("combined", "nginx:main", …). prefix: LITERAL: text before the first field. skip_prefix: LITERAL:
    a marker; everything up to and including its first occurrence is skipped if present (syslog's "haproxy[123]: ").
    regex: REGEX: the pattern, bytes semantics. comment: lines that start with it are neither parsed nor rejected (W3C '#').
    header: "w3c" if `#Fields:` lines replace the field plan within a file ("cloudfront": the same, tab-separated), else "".
    time_is: "start" or "end" of the request: lines with its start come later after it (`lateness_us`). zone: True when the
    time text carries its zone (else `timezone` applies). envelope: what the lines are wrapped in ("cri"), else "". outer: its
    fields. programs: those whose lines have this format, as the envelope names them; () is unknown.
    """

    name: str
    shape: Shape
    fields: tuple[Field, ...]
    prefix: str = ""
    skip_prefix: str = ""
    regex: str = ""
    comment: str = ""
    header: str = ""
    time_is: str = "end"
    zone: bool = True
    envelope: str = ""
    outer: tuple[Field, ...] = ()
    programs: tuple[str, ...] = ()

    @property
    def lateness_us(self) -> int:
        """How long after its time a line may be written, as far as the format shows, in microseconds."""
        return LATENESS_US[self.time_is]

    def columns(self) -> dict[str, Convert]:
        """Every column that this format can fill, in the order of its fields, with the conversion that fills it. A column of the
        envelope comes last, unless the format has one of that name."""
        out: dict[str, Convert] = {}
        for field in (*self.fields, *self.outer):
            for column in field.columns:
                out.setdefault(column, field.convert)
        return out
