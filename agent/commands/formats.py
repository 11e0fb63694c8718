"""`elf formats`: the log formats there are, or the columns of one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from elf.agent.formats.formats import describe
from elf.agent.formats.products.catalogue import TABLES
from elf.agent.formats.products.own import own_tables
from elf.agent.formats.table import summaries
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.console.grid import Style, table
from elf.sinks.console.terminal import is_coloured

ALSO = """\
Besides these names, FORMAT may be:
  an nginx log_format or Apache LogFormat string, pasted from the server's configuration
  nginx:FILE#NAME or apache:FILE#NAME, read from that configuration, e.g. nginx:/etc/nginx/nginx.conf#main
  a name of your own: [format.NAME] in ~/.config/elf/formats.toml or /etc/elf/formats.toml; toml:FILE#NAME for any other file
  regex:PATTERN, a regular expression with named groups: (?P<client_ip>\\S+) … (?P<time>…) …
  auto: detected from the first lines"""


def formats_command(name: str | None) -> None:
    """Print the list, or the columns of one format. Raises `FormatError`."""
    style = Style(is_coloured("auto"))
    if name is None:
        own = {one: str(table.get("summary", path)) for one, (path, table) in own_tables().items()}
        _print(("format", "what"), sorted((summaries() | own).items()), style)
        print(f"\n{ALSO}")
        return
    if name in TABLES:
        print(f"{TABLES[name]['summary']}\n{TABLES[name]['source']}\n")
    rows = [(row.column, row.type, row.fields, row.unit, row.null, row.time) for row in describe(name)]
    _print(("column", "type", "from", "read as", "NULL when", "time is"), rows, style)


def _print(names: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> None:
    width = shutil.get_terminal_size((200, 24)).columns if sys.stdout.isatty() else None
    header, *lines = table([ColumnInfo(name, "string") for name in names], rows, width)
    print(style.bold(header))
    print("\n".join(lines))
