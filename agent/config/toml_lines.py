"""The line of each key in a TOML text, for error messages; the standard parser does not give it."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\"'-]+)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=\s*(.*)$")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*')

Place = tuple[str, int, str]
"""(table, number of its repetition from 0, key); key "" is the table's header."""


def toml_problem(error: Exception) -> str:
    """ ":7: not valid TOML: …", behind the path of a file that the parser refused; without a line where it names none."""
    place = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
    if place is None:
        return f": not valid TOML: {error}"
    return f":{place[1]}: not valid TOML: {str(error)[: place.start()]}"


def key_lines(text: str) -> dict[Place, int]:
    """The line (from 1) of every table header and key of `text`, which must be valid TOML. O(n).

    Tables and keys one level deep, as the configuration has them; dotted keys count under their first part.
    """
    lines: dict[Place, int] = {}
    counts: dict[str, int] = {}
    table, index = "", 0
    open_quote, depth = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not open_quote and depth == 0:
            if header := _HEADER.match(line):
                table = header[2].strip("\"'")
                index = counts.get(table, 0)
                counts[table] = index + 1
                lines.setdefault((table, index, ""), number)
                continue
            if key := _KEY.match(line):
                _note(lines, table, index, key[1], number)
                line = key[2]
        open_quote, depth = _after(line, open_quote, depth)
    return lines


def _note(lines: dict[Place, int], table: str, index: int, key: str, number: int) -> None:
    first, _, rest = key.partition(".")
    name = first.strip("\"'")
    lines.setdefault((table, index, name), number)
    if not table:  # `agent.name = …` and `agent = {…}` at the top
        lines.setdefault((name, 0, rest.strip("\"'")), number)
        lines.setdefault((name, 0, ""), number)


def _after(line: str, open_quote: str, depth: int) -> tuple[str, int]:
    """Whether a multi-line string (its quotes) or list (its depth) is still open after `line`."""
    while line:
        if open_quote:
            end = line.find(open_quote)
            if end < 0:
                return open_quote, depth
            line, open_quote = line[end + 3 :], ""
        starts = [at for at in (line.find('"""'), line.find("'''")) if at >= 0]
        first = min(starts, default=len(line))
        plain = _QUOTED.sub("", line[:first])
        depth += plain.count("[") + plain.count("{") - plain.count("]") - plain.count("}")
        open_quote, line = line[first : first + 3], line[first + 3 :]
    return open_quote, max(depth, 0)
