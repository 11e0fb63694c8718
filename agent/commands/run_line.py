"""The usual command line of `elf run`, read without typer: importing typer and declaring every command takes a quarter of
the time of a short run. Whatever is not plain (help, mistakes, completion, flags in one word) is left to typer, which says
what is wrong with it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

VALUES = {
    "--format": "format",
    "--report": "report",
    "--output": "output",
    "--sink": "sink",
    "--since": "since",
    "--until": "until",
    "--memory-max": "memory_max",
    "--timezone": "timezone",
    "--color": "color",
}
FLAGS = {
    "--follow": "follow",
    "-f": "follow",
    "--meta": "meta",
    "--quiet": "quiet",
    "-q": "quiet",
    "--verbose": "verbose",
    "-v": "verbose",
}
CHOICES = {"output": ("table", "json", "csv"), "color": ("auto", "always", "never")}
MANY = "sink"
COMPLETION = "_ELF_COMPLETE"


def read(argv: Sequence[str]) -> dict[str, Any] | None:
    """Fields of `commands.run.Arguments`, or None where typer must read `argv`."""
    if argv[:1] != ["run"] or "" in argv or COMPLETION in os.environ:
        return None
    given: dict[str, Any] = {}
    places: list[str] = []
    words = iter(argv[1:])
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            places += words
        elif not word.startswith("-") or word == "-":
            places.append(word)
        elif word in FLAGS:
            given[FLAGS[word]] = True
        elif name not in VALUES or not _take(given, VALUES[name], value if equals else next(words, "")):
            return None
    return given | {"query": places[0], "files": tuple(places[1:])} if places else None


def _take(given: dict[str, Any], field: str, value: str) -> bool:
    """Note a value; False for one that typer might refuse."""
    if not value or value.startswith("-") or value not in CHOICES.get(field, (value,)):
        return False
    given[field] = (*given.get(field, ()), value) if field == MANY else value
    return True
