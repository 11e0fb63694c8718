"""Apache's times: %t, %{…}t with strftime patterns, Unix times and fractions, and runs of them that make one time.

Source: https://httpd.apache.org/docs/2.4/mod/mod_log_config.html, "%{format}t".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TypeGuard

from elf.agent.formats.fields import Convert, Field
from elf.agent.formats.layout import Variable, unused
from elf.errors import FormatError

_EPOCHS = {
    "msec": (Convert.TIME_EPOCH_MS, 2),
    "usec": (Convert.TIME_EPOCH_US, 1),
}
# Parameters that strftime does not have, as strptime would write them ("%s" alone is recognised below).
_PARTS = {"sec": "%s", "msec_frac": "%f", "usec_frac": "%f"}


Directive = str | re.Match[str] | Variable
"""Literal text, a directive not read yet (groups `modifiers` and `letter`), or a directive that was read."""


def read_times(pieces: Iterator[Directive]) -> Iterator[Directive]:
    """The directives with every %t and %{…}t read; a run of the latter is one time ("%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t").

    Raises FormatError for a pattern that does not give a date and a time.
    """
    run: list[str | re.Match[str]] = []
    for piece in pieces:
        if _is_part_of_time(piece) or (
            run and isinstance(piece, str) and '"' not in piece and len(piece) <= 3
        ):
            assert not isinstance(piece, Variable)
            run.append(piece)
            continue
        yield from _time_of(run)
        run = []
        yield from _single(piece) if _is_time(piece) else [piece]
    yield from _time_of(run)


def _is_time(piece: Directive) -> TypeGuard[re.Match[str]]:
    return isinstance(piece, re.Match) and piece["letter"] == "t"


def _is_part_of_time(piece: Directive) -> bool:
    if not _is_time(piece):
        return False
    parameter = _time_parameter(piece)
    return parameter != "" and parameter not in _EPOCHS


def _time_parameter(piece: re.Match[str]) -> str:
    parameter = "".join(re.findall(r"\{([^}]*)\}", piece["modifiers"]))
    return parameter.removeprefix("begin:").removeprefix("end:")


def _single(piece: re.Match[str]) -> Iterator[str | Variable]:
    parameter = _time_parameter(piece)
    if parameter in _EPOCHS:
        convert, rank = _EPOCHS[parameter]
        yield _time_variable(piece[0], convert, rank)
    else:  # %t itself writes its brackets
        yield "["
        yield _time_variable(piece[0], Convert.TIME_CLF, 5)
        yield "]"


def _time_variable(name: str, convert: Convert, rank: int, pattern: str = "") -> Variable:
    time = Field(name, convert, "time", nulls=(), pattern=pattern)
    return Variable(time, rank, unused(time))


def _time_of(run: list[str | re.Match[str]]) -> Iterator[str | Variable]:
    """One time from a run of its parts; the literal text after the last part stays text."""
    if not run:
        return
    rest = run.pop() if isinstance(run[-1], str) else ""
    assert isinstance(rest, str)
    name = "".join(part if isinstance(part, str) else part[0] for part in run)
    pattern = "".join(
        part.replace("%", "%%")
        if isinstance(part, str)
        else _PARTS.get(_time_parameter(part), _time_parameter(part))
        for part in run
    )
    if pattern == "%f":  # a fraction apart from its time is of no use
        skipped = Field(name, Convert.SKIP)
        yield Variable(skipped, 9, skipped)
    else:
        yield _time_variable(name, *time_conversion(name, pattern))
    yield rest


_SHORT = {
    "%T": "%H:%M:%S",
    "%F": "%Y-%m-%d",
    "%D": "%m/%d/%y",
    "%R": "%H:%M",
    "%h": "%b",
    "%e": "%d",
    "%k": "%H",
    "%l": "%I",
}
_CLF = re.compile(r"%d/%b/%Y:%H:%M:%S(\.%f)?( %z)?")
_ISO = re.compile(r"%Y-%m-%d[T ]%H:%M:%S([.,]%f)?(%z|Z)?")


def time_conversion(name: str, pattern: str) -> tuple[Convert, int, str]:
    """How to parse the text of a strftime pattern: (conversion, rank, strptime pattern, or "" for a compiled conversion).

    Raises FormatError for a pattern that does not give a date and a time.
    """
    pattern = re.sub(r"%[A-Za-z%]", lambda m: _SHORT.get(m[0], m[0]), pattern)
    rank = 4 if "%f" in pattern else 5
    if pattern in ("%s", "%s.%f"):
        return Convert.TIME_EPOCH, 2 if "%f" in pattern else 3, ""
    if _CLF.fullmatch(pattern):
        return Convert.TIME_CLF, rank, ""
    if _ISO.fullmatch(pattern):
        return Convert.TIME_ISO, rank, ""
    probe = datetime(2015, 5, 17, 22, 5, 3, tzinfo=UTC)
    try:
        read = datetime.strptime(probe.strftime(pattern), pattern)
    except (ValueError, re.error) as error:  # re.error: a directive twice
        raise FormatError(f"LogFormat: {name} cannot be read back as a time ({error}); use %t") from error
    if (read.date(), read.hour) != (probe.date(), probe.hour):
        raise FormatError(f"LogFormat: {name} is not a whole date and time; use %t")
    return Convert.TIME_STRPTIME, rank, pattern


def has_zone(time: Field) -> bool:
    """Whether the text has its zone: a Unix time and %t do, a strftime pattern only with %z."""
    return time.convert.value.startswith("time_epoch") or "{" not in time.name or "%z" in time.name
