"""A job file: one job of the mesh as text, for `elf job start`, `update` and `apply`. A file whose name ends in .toml is TOML:

    lateness = "5s"
    sinks = ["lake"]
    sql = '''
    SELECT …
    '''

Any other file is SQL. The same keys may stand above the query, as comments between two fences:

    -- +++
    -- lateness = "5s"
    -- +++
    SELECT …
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from elf.agent.config import units
from elf.agent.config.alert_table import AlertTable, read_alerts
from elf.agent.config.limits import limits_table, read_limits
from elf.agent.config.names import is_name
from elf.agent.config.specs import read_name
from elf.agent.config.toml_lines import key_lines, toml_problem
from elf.agent.config.toml_values import (
    Key,
    found_text,
    meant_key,
    read_duration,
    read_emit,
    read_source,
    read_text,
)
from elf.errors import QueryError, UsageError
from elf.jobmaster.alerts.alert import Alert
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.limits import NO_LIMITS, Limits
from elf.jobmaster.directory.versions import parameter_texts

EMIT_US, KEEP_US = 200_000, 3_600_000_000
"""What a job has unless its file or command says otherwise."""
FENCE = "-- +++"
FILE_BYTES_MAX = 256 << 10
"""Four times the longest query."""
SINKS_MAX = 16
"""As many as a job's spec has room for."""


class JobFile(msgspec.Struct, frozen=True):
    """What a job file says. name, lateness_us: None if it does not say. params: parameter -> its value as text. lines: the keys
    that it has, and their lines; sql_line: that of the query's first line. Lines count from 1."""

    path: Path
    sql: str
    name: str | None = None
    source: str | None = None
    lateness_us: int | None = None
    emit_us: int = EMIT_US
    keep_us: int = KEEP_US
    sinks: tuple[str, ...] = ()
    params: dict[str, str] = {}
    limits: Limits = NO_LIMITS
    alerts: tuple[AlertTable, ...] = ()
    lines: dict[str, int] = {}
    sql_line: int = 1

    def place(self, key: str) -> str:
        """Where the file says that, for a message."""
        line = self.sql_line if key == "sql" else self.lines.get(key)
        return f"{self.path}:{line}: {key}" if line else f"{self.path}: {key}"

    def refusal(self, error: QueryError) -> UsageError:
        """An error of the query, with its line in the file."""
        line = self.sql_line + max(error.line, 1) - 1
        hint = f"; {error.hint}" if error.hint else ""
        return UsageError(f"{self.path}:{line}: query: {error.reason}{hint}")


def read_job_file(path: Path) -> JobFile:
    """Raises UsageError for a file that cannot be read, or is no job file."""
    try:
        with path.open("rb") as file:
            found = file.read(FILE_BYTES_MAX + 1)
        text = found.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: expected UTF-8 text, found other bytes at {error.start}") from error
    if len(found) > FILE_BYTES_MAX:
        raise UsageError(f"{path}: expected a job file, found more than {FILE_BYTES_MAX:,} bytes")
    return parse_job_file(text, path)


def parse_job_file(text: str, path: Path) -> JobFile:
    """As `read_job_file`, from the file's text."""
    text = text.replace("\r\n", "\n")
    return _of_toml(text, path) if path.suffix == ".toml" else _of_sql(text, path)


def _of_toml(text: str, path: Path) -> JobFile:
    values, lines = _keys(text, path)
    if "sql" not in values:
        if "sql" in values.get("params", {}):
            raise UsageError(f"{path}: sql stands below [params], and so belongs to it; move it above")
        raise UsageError(
            f"{path}: sql: expected the query, as in sql = '''SELECT …''', found nothing; a file of SQL is called .sql"
        )
    line = lines["sql"]
    behind = text.split("\n")[line - 1].partition("=")[2].strip()
    before, sql = _trimmed(values.pop("sql"))
    return JobFile(path, sql, lines=lines, sql_line=line + before + (behind in ('"""', "'''")), **values)


def _of_sql(text: str, path: Path) -> JobFile:
    head, body = _split(text, path)
    values, lines = _keys(head, path)
    before, sql = _trimmed(body)
    if "sql" in values:
        raise UsageError(f"{path}:{lines['sql']}: sql: the query stands below the head, not in it")
    if not sql:
        raise UsageError(f"{path}: expected a query, found {'only its head' if lines else 'an empty file'}")
    return JobFile(path, sql, lines=lines, sql_line=before + 1, **values)


def _split(text: str, path: Path) -> tuple[str, str]:
    """The head as TOML, and the query. Each keeps its lines' numbers: empty lines stand for the other's. Raises UsageError."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if line.rstrip() == FENCE]
    if not fences:
        return "", text
    first = fences[0]
    if any(line.strip() and not line.startswith("--") for line in lines[:first]):
        raise UsageError(f"{path}:{first + 1}: the head ({FENCE}) must stand above the query")
    for number, line in enumerate(lines[first + 1 :], first + 1):
        if number in fences:
            inside = [line.removeprefix("--").removeprefix(" ") for line in lines[first + 1 : number]]
            head = [""] * (first + 1) + inside
            return "\n".join(head), "\n".join(
                lines[:first] + [""] * (number + 1 - first) + lines[number + 1 :]
            )
        if not line.startswith("--"):
            break
    raise UsageError(
        f"{path}:{first + 1}: the head that begins here does not end: every line of it begins with --, the last is {FENCE}"
    )


def _trimmed(sql: str) -> tuple[int, str]:
    """How many empty lines are before the query, and the query without them."""
    blank = re.match(r"(?:[^\S\n]*\n)*", sql)
    assert blank is not None
    return blank[0].count("\n"), sql[blank.end() :].rstrip()


def _keys(text: str, path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of TOML, as fields of `JobFile`, and the lines of the keys. Raises UsageError."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}{toml_problem(error)}") from error
    places = key_lines(text)
    values, lines = {}, {}
    for key, value in table.items():
        line = places.get(("", 0, key)) or places.get((key, 0, ""))
        place = f"{path}:{line}: {key}" if line else f"{path}: {key}"
        lines[key] = line or 0
        if key == "alert":
            values["alerts"] = read_alerts(value, str(path), places, text)
            continue
        if key not in KEYS:
            raise UsageError(f"{place}: unknown key; {meant_key(key, [*KEYS, 'alert'])}")
        field, known = KEYS[key]
        try:
            values[field] = known.read(value)
        except ValueError as error:
            raise UsageError(f"{place}: expected {error}, found {found_text(value)}") from error
    return values, lines


def _read_sinks(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and is_name(name) for name in names):
        raise ValueError('the name of a [[sink]] of an agent, or a list of them like ["lake"]')
    if len(set(names)) < len(names) or len(names) > SINKS_MAX:
        raise ValueError(f"each sink once, and at most {SINKS_MAX}")
    return tuple(names)


def _read_params(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or any(isinstance(each, dict | list) for each in value.values()):
        raise ValueError("a table of one value for each parameter, headed [params], below all other keys")
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in value.items()}


KEYS = {
    "name": ("name", Key(read_name)),
    "sql": ("sql", Key(read_text)),
    "source": ("source", Key(read_source)),
    "lateness": ("lateness_us", Key(read_duration)),
    "emit": ("emit_us", Key(read_emit)),
    "keep": ("keep_us", Key(read_duration)),
    "sinks": ("sinks", Key(_read_sinks)),
    "params": ("params", Key(_read_params)),
    "limits": ("limits", Key(read_limits)),
}
"""Key -> field of `JobFile`, and how its value is read."""


# Written.


def job_text(spec: JobSpec) -> str:
    """The TOML job file that starts this job again. What FROM says is its source."""
    values = {
        "name": _quoted(spec.name),
        "lateness": _quoted(units.duration_text(spec.lateness_us)),
        "emit": _quoted(units.duration_text(spec.emit_us)) if spec.emit_us else None,
        "keep": _quoted(units.duration_text(spec.keep_us)),
        "sinks": f"[{', '.join(map(_quoted, spec.sinks))}]" if spec.sinks else None,
        "sql": _block(spec.query.text.strip()),
    }
    lines = [f"{key} = {value}" for key, value in values.items() if value is not None]
    parameters = parameter_texts(spec.query)
    if parameters:
        lines += ["", "[params]", *(f"{name} = {_value(text)}" for name, text in parameters.items())]
    return "\n".join([*lines, *limits_table(spec.limits), *_alert_tables(spec.alerts)])


def _alert_tables(alerts: Sequence[Alert]) -> Iterator[str]:
    for alert in alerts:
        labels = ", ".join(f"{name} = {_quoted(value)}" for name, value in alert.labels)
        values = {
            "name": _quoted(alert.name),
            "when": _block(alert.when) if "\n" in alert.when else _quoted(alert.when),
            "for": _quoted(units.duration_text(alert.for_us)) if alert.for_us else None,
            "text": _quoted(alert.text) if alert.text else None,
            "labels": f"{{ {labels} }}" if labels else None,
            "sinks": f"[{', '.join(map(_quoted, alert.sinks))}]" if alert.sinks else None,
        }
        yield from (
            "",
            "[[alert]]",
            *(f"{key} = {value}" for key, value in values.items() if value is not None),
        )


def _value(text: str) -> str:
    """Whole numbers bare, all else as text."""
    return text if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text) else _quoted(text)


def _block(text: str) -> str:
    """Verbatim where TOML can hold it so, and with escapes for what could control a terminal."""
    if "'''" not in text and all(map(_is_shown, text.replace("\n", ""))):
        return f"'''\n{text}\n'''"
    escaped = "\n".join(_escaped(line) for line in text.split("\n"))
    return f'"""\n{escaped}\n"""'


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in '"\\' else c if _is_shown(c) else f"\\U{ord(c):08X}" for c in text)


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or letter == "\t"
