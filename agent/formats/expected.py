"""The text that was expected at the first mismatch of a rejected line, described for `elf parse`."""

from __future__ import annotations

from elf.agent.formats.fields import Convert, Field, Form, Format, Reason, Shape

_TIMES = {
    Convert.TIME_CLF: "a time like 17/May/2015:10:05:03 +0000",
    Convert.TIME_ISO: "a time like 2015-05-17T10:05:03+00:00",
    Convert.TIME_ANY: "a time like 2015-05-17T10:05:03Z, 17/May/2015:10:05:03 +0000 or 1431857103.123",
    Convert.TIME_EPOCH: "a Unix time like 1431857103.123",
    Convert.TIME_EPOCH_MS: "a Unix time in milliseconds like 1431857103123",
    Convert.TIME_EPOCH_US: "a Unix time in microseconds like 1431857103123456",
    Convert.DATE: "a date like 2015-05-17",
    Convert.TIME_OF_DAY: "a time of day like 10:05:03",
}
_NUMBERS = {
    Convert.INT: "digits",
    Convert.SIZE: "digits or '-'",
    Convert.STATUS: "a status from 0 to 999",
    Convert.SECONDS: "seconds like 0.005",
    Convert.MILLISECONDS: "milliseconds like 5 or 5.25",
    Convert.MICROSECONDS: "microseconds in digits",
    Convert.NANOSECONDS: "nanoseconds in digits",
    Convert.SECONDS_LIST: "seconds like 0.005, 0.019 : 0.001",
    Convert.DURATION: "a duration like 1.5ms, or seconds",
    Convert.DURATION_MS: "a duration like 1.5ms, or milliseconds",
    Convert.TAKEN: "milliseconds like 29, or seconds like 0.029",
}
_FORMS = {
    Form.ANY: "text",
    Form.WORD: "a word without spaces",
    Form.CLIENT: "a client's address or host name",
    Form.IDENT: "'-' or a word",
    Form.USER: "a user name (one with a space only behind the ident '-')",
}
# J_VALUE … J_END of plan.h
_JSON = {
    1: "a JSON value",
    2: "a key between double quotes",
    3: "':' after the key",
    4: "',' or the closing bracket",
    5: "a JSON string: valid escapes, no control characters, a closing quote",
    6: "a JSON number",
    7: "nesting of at most 64 levels",
    8: "a JSON object",
    9: "the end of the line after the object",
}


def expected(format: Format, reason: Reason, field: Field | None, detail: int, line_max: int) -> str:
    """The text that `format` expected where a line was rejected for `reason`, in `field` (None: before the first field)."""
    if reason is Reason.TIME and field is not None:
        return _TIMES.get(field.convert, f"a time by the pattern {field.pattern}")
    if reason is Reason.TEXT and field is not None:
        return _FORMS[field.form]
    if reason is Reason.NUMBER and field is not None:
        if field.convert is Convert.STATUS and format.shape is Shape.LITERAL:
            return "a status of three digits"
        return _NUMBERS[field.convert]
    if reason in (Reason.LITERAL, Reason.TRUNCATED):
        return _separator(format, field)
    words: dict[Reason, str] = {
        Reason.EMPTY: f"a line of format {format.name}",
        Reason.TOO_LONG: f"at most {line_max} bytes",
        Reason.NUL: "text without NUL bytes",
        Reason.UNTERMINATED: f"a closing {field.quote or chr(34)}" if field else "a closing quote",
        Reason.TRAILING: "the end of the line",
        Reason.JSON: _JSON.get(detail, "a JSON object"),
        Reason.MISSING: f"a field {field.name}"
        if field
        else "a #Fields: line with a date and time above the record",
        Reason.PATTERN: "a line that the regular expression matches from end to end (.* takes any rest)",
    }
    return words.get(reason, reason.name)


def _separator(format: Format, field: Field | None) -> str:
    if format.shape is Shape.LTSV:
        return "label:value"
    if format.shape is Shape.LOGFMT:
        return "key=value"
    return f"a separator {field.after!r}" if field else f"{format.prefix!r} at the line's start"
