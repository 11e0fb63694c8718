"""The names of one query: the source's columns, the window, the keys of its groups, and the aliases of SELECT."""

from __future__ import annotations

from collections.abc import Mapping, Set
from difflib import get_close_matches
from typing import NoReturn

from elf.jobmaster.compile.aggregates import Aggregates
from elf.jobmaster.compile.given import Given
from elf.jobmaster.compile.literals import Term
from elf.jobmaster.compile.parse import Node, fail
from elf.jobmaster.plan.plan import CANONICAL, Column, Expression, WindowSpec
from elf.jobmaster.values.sql_types import TIMESTAMP, WINDOW, SqlType

WINDOW_FIELDS = {"start": Column("#window_start", TIMESTAMP), "end": Column("#window_end", TIMESTAMP)}
WINDOW_COLUMN = Column("#window", WINDOW)
ANY = "*"
"""Stands in a schema for any other column, of that type: keys of JSON lines that no line had yet."""
LISTED_MAX = 60
"""Columns that a message names."""
_ELSEWHERE = {
    "client_ip": "ip addr address remote_addr remote_host remotehost clientip client client_addr source_ip src_ip c_ip host_ip",
    "user_agent": "ua useragent agent_string browser http_user_agent",
    "path": "url uri request request_uri request_path url_path page endpoint resource cs_uri_stem",
    "query": "args query_string querystring params",
    "status": "code status_code statuscode http_status response response_code sc_status",
    "bytes": "size length body_bytes_sent bytes_sent response_size sent sc_bytes",
    "time": "date datetime timestamp ts time_local time_iso8601 day hour",
    "method": "verb http_method request_method",
    "referer": "referrer http_referer",
    "request_time": "duration latency elapsed response_time time_taken took rt",
    "host": "vhost domain server server_name site http_host",
    "user": "username remote_user user_name login",
    "protocol": "http_version version",
}
"""Columns, and the names that other tools and servers give to what they hold."""


class Names:
    """The names of one query. Compiling its clauses, in their order, adds names.

    source: the name of the source; columns: the source's columns by lower-case name; qualifiers: the names that may precede a
    column's name, whose own dots need no quotes; selected: the aliases of SELECT, which enter `aliases` when SELECT is compiled;
    given: the parameters' values.
    """

    def __init__(
        self,
        sql: str,
        source: str,
        schema: Mapping[str, SqlType],
        qualifiers: Set[str],
        selected: Set[str],
        given: Given,
    ) -> None:
        self.sql, self.source, self.qualifiers = sql, source, qualifiers
        self.selected, self.given = selected, given
        self.columns = {name.lower(): Column(name, type) for name, type in schema.items() if name != ANY}
        self._any, self._adopted = schema.get(ANY), dict[str, Column]()
        self.window: WindowSpec | None = None
        self.key_index: dict[Expression, Column] = {}
        self.aliases: dict[str, Term] = {}
        self.aggregates = Aggregates()
        self.used: dict[str, Column] = {}

    def fail(self, node: Node | None, reason: str, hint: str = "") -> NoReturn:
        fail(self.sql, node, reason, hint)

    def source_column(self, node: Node) -> Term:
        """A column of the source."""
        if type(node.this).__name__ == "Star":
            self.fail(node, "* cannot be used here", "name the columns, or use count(*)")
        column, shown = self._found(dotted(node))
        if column is None:
            self._unknown_column(node)
        self.used[column.name] = column
        return Term(column, shown)

    def _found(self, parts: list[str]) -> tuple[Column | None, str]:
        """The column of that name, with or without the source's name before it, and the name that it gives to a result."""
        whole, last = ".".join(parts), parts[-1]
        if len(parts) > 1 and parts[0].lower() in self.qualifiers:
            column = self._named(".".join(parts[1:]))
            if column is not None:
                return column, ".".join(parts[1:])
        column = self._named(whole)
        return column, whole if len(parts) > 1 else last

    def _named(self, name: str) -> Column | None:
        low = name.lower()
        known = self.columns.get(low) or self._adopted.get(low)
        if known is None and self._any is not None and not ({low} & (CANONICAL | self.selected | {"window"})):
            known = self._adopted[low] = Column(name, self._any)
        return known

    def _unknown_column(self, node: Node) -> NoReturn:
        parts = dotted(node)
        if len(parts) > 1 and parts[0].lower() not in self.qualifiers:
            hint = f"write {min(self.qualifiers)}.name, or just name"
            self.fail(node, f"{'.'.join(parts)} is not known", hint)
        names = [column.name for column in self.columns.values()]
        if len(names) > LISTED_MAX:
            names = [*names[:LISTED_MAX], f"and {len(names) - LISTED_MAX} more"]
        if node.name.lower() == "window":
            hint = "add GROUP BY window(time, '10 seconds')"
            self.fail(node, "there is no window", hint)
        reason = f"there is no column {node.name} in {self.source}"
        if node.name.lower() in self.selected:
            self.fail(node, reason, "it is an alias of SELECT, which cannot be used here")
        if node.name.lower() in CANONICAL:
            hint = f"the log's format has no {node.name}; it has {', '.join(names)}"
            self.fail(node, reason, hint)
        near = _meant(node.name.lower(), names)
        meant = f"did you mean {near[0]}? " if near else ""
        self.fail(node, reason, f"{meant}the columns are {', '.join(names)}")

    def window_field(self, node: Node) -> Term | None:
        """`window`, `window.start`, and the same by the window's alias."""
        if len(dotted(node)) > 2:
            return None
        table = node.args.get("table")
        named = (table.name if table is not None else node.name).lower()
        alias = self.aliases.get(named)
        is_window = named == "window" and "window" not in self.columns
        if self.window is None or not (is_window or (alias and alias.expression == WINDOW_COLUMN)):
            return None
        if table is None:
            return Term(WINDOW_COLUMN, node.name)
        if node.name.lower() not in WINDOW_FIELDS:
            self.fail(node, f"a window has no {node.name}", "it has start and end")
        return Term(WINDOW_FIELDS[node.name.lower()], node.name)

    def key_of(self, expression: Expression) -> Column | None:
        return self.key_index.get(expression)


def _meant(name: str, columns: list[str]) -> list[str]:
    """The column that is likely meant by a name that none has, or none."""
    known = [column for column, names in _ELSEWHERE.items() if name in names.split() and column in columns]
    return known or get_close_matches(name, columns, n=1)


def dotted(node: Node) -> list[str]:
    """The parts of a name that is divided by dots; [] for a node that is no name."""
    if type(node).__name__ == "Dot":
        before = dotted(node.this)
        return [*before, node.expression.name] if before else []
    if type(node).__name__ != "Column":
        return []
    return [part.name for part in (node.args.get(key) for key in ("catalog", "db", "table", "this")) if part]
