"""`elf formats`: the log formats there are, or the columns of one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from elf.agent.formats.formats import SUMMARIES, describe
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.console.grid import Style, table
from elf.sinks.console.terminal import is_coloured

ALSO = """\
Besides these names, FORMAT may be:
  an nginx log_format or Apache LogFormat string, pasted from the server's configuration
  nginx:FILE#NAME or apache:FILE#NAME, read from that configuration, e.g. nginx:/etc/nginx/nginx.conf#main
  regex:PATTERN, a regular expression with named groups: (?P<client_ip>\\S+) … (?P<time>…) …
  ENVELOPE+FORMAT for lines within others, e.g. cri+combined or docker+auto; ENVELOPE is cri, syslog, kubectl, compose, stern,
    docker, journald or json
  auto: detected from the first lines"""


def formats_command(name: str | None) -> None:
    """Print the list, or the columns of one format. Raises `FormatError`."""
    style = Style(is_coloured("auto"))
    if name is None:
        _print(("format", "what"), sorted(SUMMARIES.items()), style)
        print(f"\n{ALSO}")
        return
    rows = [(row.column, row.type, row.fields, row.unit, row.null, row.time) for row in describe(name)]
    _print(("column", "type", "from", "read as", "NULL when", "time is"), rows, style)


def _print(names: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> None:
    width = shutil.get_terminal_size((200, 24)).columns if sys.stdout.isatty() else None
    header, *lines = table([ColumnInfo(name, "string") for name in names], rows, width)
    print(style.bold(header))
    print("\n".join(lines))
