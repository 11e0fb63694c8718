"""`elf functions`: what the language has, or one function.

python -m elf.agent.commands.functions docs/query.md writes the tables of that page.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from elf.errors import QueryError
from elf.jobmaster.compile.functions import INSTEAD
from elf.jobmaster.plan.manual import AGGREGATES, FUNCTIONS, Entry
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.console.grid import Style, table
from elf.sinks.console.terminal import is_coloured


def functions_command(name: str | None) -> None:
    """Print the list, or what is known of one function. Raises QueryError for a name that there is none of."""
    style = Style(is_coloured("auto"))
    if name is not None:
        _print_one(name.lower().partition("(")[0].strip(), style)
        return
    for title, entries in (("Functions", FUNCTIONS), ("Aggregates", AGGREGATES)):
        rows = [
            (call, entry.type, entry.example_of(call.partition("(")[0]))
            for entry in entries
            for call in entry.calls
        ]
        width = shutil.get_terminal_size((200, 24)).columns if sys.stdout.isatty() else None
        columns = [ColumnInfo(each, "string") for each in (title.lower(), "result", "example")]
        header, *lines = table(columns, rows, width)
        print(style.bold(header))
        print("\n".join(lines) + "\n")
    print("`elf functions NAME` says what one does; `elf help query` explains the language.")


def _print_one(name: str, style: Style) -> None:
    found = [entry for entry in (*FUNCTIONS, *AGGREGATES) if name in entry.names]
    if not found:
        names = [each for entry in (*FUNCTIONS, *AGGREGATES) for each in entry.names]
        near = get_close_matches(name, names, n=1, cutoff=0.75)
        hint = INSTEAD.get(name) or (f"did you mean {near[0]}?" if near else "`elf functions` lists all")
        raise QueryError(f"there is no function {name}", hint=hint)
    for entry in found:
        print(style.bold(", ".join(call for call in entry.calls if call.startswith(f"{name}("))))
        others = [call for call in entry.calls if not call.startswith(f"{name}(")]
        print(f"  result   {entry.type}")
        print(f"  meaning  {entry.meaning.replace('`', '')}")
        print(f"  example  SELECT {_select(entry, name)}")
        if others:
            print(f"  see also {', '.join(others)}")


def _select(entry: Entry, name: str) -> str:
    """A whole query that uses the function."""
    example = entry.example_of(name)
    if entry in AGGREGATES:
        return f"{example} FROM access"
    return f"{example} AS x, count(*) FROM access GROUP BY x"


def written(entries: Sequence[Entry], title: str) -> str:
    """The table of the page."""
    lines = [f"| {title} | type | result |", "|---|---|---|"]
    for entry in entries:
        calls = ", ".join(f"`{call}`" for call in entry.calls)
        lines.append(f"| {calls} | {entry.type} | {entry.meaning} |")
    return "\n".join(lines) + "\n"


def refreshed(page: str) -> str:
    """The page with its tables of functions and aggregates as they are now."""
    for entries, title in ((AGGREGATES, "aggregate"), (FUNCTIONS, "function")):
        found = re.search(rf"^\| {title} \|.*?\n(?=\n)", page, re.DOTALL | re.MULTILINE)
        if found is not None:
            page = page[: found.start()] + written(entries, title) + page[found.end() :]
    return page


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
