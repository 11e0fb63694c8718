"""`elf help`: the pages of documentation that come with the package, whole or by section."""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from importlib.resources import files

from elf.errors import UsageError

PAGES = {
    "query": "the query language: clauses, types, aggregates, functions, differences from Spark",
    "formats": "log formats: names, columns, units, time zones, detection",
    "jobs": "jobs on the agents of a mesh: start, change, watch, stop",
    "alerts": "alerts over a job's windows, and where they go",
    "mesh": "agents together: joining, leaving, what they promise",
    "keys": "certificates: the mesh's authority, operators, revocation",
    "lake": "results as Parquet, and reports of them",
    "spark": "raw logs and lakes as data frames",
    "deploy": "installing agents, and what they need",
}


def help_command(page: str | None, section: str | None) -> None:
    """Print the list of pages, one page, or the sections of it whose title begins with `section`. Raises UsageError."""
    if page is None:
        width = max(map(len, PAGES))
        print("\n".join(f"{name:{width}}  {what}" for name, what in PAGES.items()))
        print(
            "\n`elf help PAGE` prints one, `elf help PAGE SECTION` a part of it; `elf COMMAND --help` the options of a command."
        )
        return
    text = _page(page)
    if section is not None:
        text = _section(page, text, section)
    if sys.stdout.isatty():
        import pydoc

        pydoc.pager(text)
    else:
        print(text, end="")


def _page(name: str) -> str:
    if name.lower() not in PAGES:
        near = get_close_matches(name.lower(), PAGES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the pages are {', '.join(PAGES)}"
        raise UsageError(f"there is no page {name}; {hint}")
    text = files("elf").joinpath("docs", f"{name.lower()}.md").read_text(encoding="utf-8")
    return re.sub(r"<!--.*?-->\n*", "", text, flags=re.DOTALL)


def _section(page: str, text: str, wanted: str) -> str:
    """The parts of a page under the headings of the second level that begin with `wanted`, without case."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    titles = [part.partition("\n")[0].removeprefix("## ") for part in parts]
    found = [
        part for title, part in zip(titles, parts, strict=True) if title.lower().startswith(wanted.lower())
    ]
    if not found:
        raise UsageError(f"the page {page} has no section {wanted}; its sections are {', '.join(titles)}")
    return "".join(found)
