"""The arguments of `elf run`, declared once, and a reader of its usual command line that needs no typer.

Importing typer and declaring every command takes a quarter of the time of a short run. Other command lines (help, mistakes,
completion, flags in one word) are left to typer: `typer_cli` makes the command from the same declaration.
"""

# Not `from __future__ import annotations`: the annotations are read here.
import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, get_args, get_origin


class Color(StrEnum):
    auto = "auto"
    always = "always"
    never = "never"


class Output(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


class Option(NamedTuple):
    """An argument of the command line: the value behind one of `flags`, or without flags a positional one."""

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    shown_default: str | None = None


class Arguments(NamedTuple):
    """The arguments of `elf run`."""

    query: Annotated[
        str | None, Option("Spark SQL (left out with --file and --report).", metavar="QUERY")
    ] = None
    files: Annotated[
        tuple[str, ...],
        Option("Names, globs, .gz, .zst, or - for stdin (the default in a pipe).", metavar="FILE"),
    ] = ()
    format: Annotated[
        str,
        Option(
            "The log's format: a name of `elf formats`, a log_format or LogFormat string, or nginx:FILE#NAME.",
            ("--format",),
            "FORMAT",
        ),
    ] = "auto"
    file: Annotated[
        str | None,
        Option("A file with QUERY, which is left out then.", ("--file", "-F"), "FILE"),
    ] = None
    report: Annotated[
        str | None,
        Option(
            "A usual question instead of QUERY: traffic, paths, errors, clients, latency; or all of a log.",
            ("--report",),
            "NAME",
        ),
    ] = None
    param: Annotated[
        tuple[str, ...],
        Option("The value of a parameter :NAME of QUERY, repeatable.", ("--param",), "NAME=VALUE"),
    ] = ()
    output: Annotated[
        str | None,
        Option(
            "The result's form: table, json, csv; html:FILE is a page of --report all.",
            ("--output",),
            "FORM",
            "table on a terminal, json in a pipe",
        ),
    ] = None
    sink: Annotated[
        tuple[str, ...],
        Option("Where results go, repeatable: parquet:DIR, or console (the default).", ("--sink",), "SINK"),
    ] = ()
    follow: Annotated[
        bool, Option("Live: continue with lines that come, to files or in a pipe.", ("--follow", "-f"))
    ] = False
    lateness: Annotated[
        str | None,
        Option(
            "Live: how long after its end a window waits for lines.", ("--lateness",), "SPAN", "by format"
        ),
    ] = None
    emit: Annotated[
        str | None,
        Option("Live: how often open windows are shown.", ("--emit",), "SPAN", "200ms"),
    ] = None
    open: Annotated[bool, Option("Live: JSON and CSV of open windows too, as they change.", ("--open",))] = (
        False
    )
    since: Annotated[
        str | None,
        Option("Only lines from then on: ISO 8601, or 1h for an hour ago.", ("--since",), "TIME"),
    ] = None
    until: Annotated[str | None, Option("Only lines before then.", ("--until",), "TIME")] = None
    memory_max: Annotated[
        str | None,
        Option("Cap on memory; beyond it, spill to TMPDIR.", ("--memory-max",), "SIZE", "half of memory"),
    ] = None
    timezone: Annotated[
        str, Option("For log times without a zone, and for --since and --until.", ("--timezone",), "TZ")
    ] = "UTC"
    display_timezone: Annotated[
        str, Option("For times in the result, and windows of days.", ("--display-timezone",), "TZ")
    ] = "UTC"
    meta: Annotated[bool, Option("Add status, revision and line counters to each row.", ("--meta",))] = False
    color: Annotated[Color, Option("Colours and styles.", ("--color",))] = Color.auto
    quiet: Annotated[bool, Option("No notices, progress or summary.", ("--quiet", "-q"))] = False
    verbose: Annotated[bool, Option("Also samples of rejected lines.", ("--verbose", "-v"))] = False


COMPLETION = "_ELF_COMPLETE"


class Field(NamedTuple):
    """A field of `Arguments`."""

    name: str
    type: Any
    option: Option

    @property
    def kind(self) -> Any:
        """The type of one value on the command line."""
        return (get_args(self.type) or (self.type,))[0]

    @property
    def is_many(self) -> bool:
        return get_origin(self.type) is tuple


FIELDS = [
    Field(name, declared.__origin__, declared.__metadata__[0])
    for name, declared in Arguments.__annotations__.items()
]


def read(argv: Sequence[str]) -> Arguments | None:
    """The arguments, or None where typer must read `argv`."""
    if argv[:1] != ["run"] or "" in argv or COMPLETION in os.environ:
        return None
    options = {flag: field for field in FIELDS for flag in field.option.flags}
    given: dict[str, Any] = {}
    places: list[str] = []
    words = iter(argv[1:])
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word == "--":
            places += words
        elif not word.startswith("-") or word == "-":
            places.append(word)
        elif name not in options or not _take(given, options[name], value if equals else None, words):
            return None
    return Arguments(places[0], tuple(places[1:]), **given) if places else None


def _take(given: dict[str, Any], field: Field, value: str | None, words: Iterator[str]) -> bool:
    """Record the value of a flag, from the text after its `=` or from the next word; False where typer might refuse it."""
    kind = field.kind
    if kind is bool:
        given[field.name] = True
        return value is None
    text = next(words, "") if value is None else value
    if not text or text.startswith("-") or (issubclass(kind, StrEnum) and text not in list(kind)):
        return False
    given[field.name] = (*given.get(field.name, ()), text) if field.is_many else kind(text)
    return True
