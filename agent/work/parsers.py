"""The parsers of one source: one for each format of its files. They share what is asked of them, and are emptied together."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elf.agent.formats.envelopes.wrapped import WrappedParser, make_parser
from elf.agent.formats.fields import Format
from elf.agent.formats.parser import LINE_MAX, Parser
from elf.jobmaster.values.sql_types import SqlType


class Parsers:
    """columns: the ones that all parsers fill; types: of those that keys of the lines may fill. strings_max: bytes of a
    parser's dictionary, past which it is full."""

    def __init__(
        self,
        columns: Collection[str],
        types: Mapping[str, SqlType],
        timezone: str,
        agent: str,
        strings_max: int,
        line_max: int = LINE_MAX,
    ) -> None:
        self._timezone, self._agent = timezone, agent
        self._strings_max, self._line_max = strings_max, line_max
        self._made: dict[Format, Parser | WrappedParser] = {}
        self.ask(columns, types)

    def ask(self, columns: Collection[str], types: Mapping[str, SqlType]) -> None:
        """Fill these columns from now on. The caller first settles everything that holds codes of the dictionaries."""
        self.columns, self.types = frozenset(columns), dict(types)
        self._made.clear()

    def of(self, format: Format) -> Parser | WrappedParser:
        """The parser of a format, made at its first use."""
        parser = self._made.get(format)
        if parser is None:
            parser = self._made[format] = make_parser(
                format,
                self.columns,
                timezone=self._timezone,
                line_max=self._line_max,
                agent=self._agent,
                strings_max=self._strings_max,
                types=self.types,
            )
        return parser

    def empty(self) -> None:
        """Free the dictionaries. The caller first settles everything that holds their codes."""
        for parser in self._made.values():
            parser.clear()

    @property
    def nbytes(self) -> int:
        """Memory of the dictionaries."""
        return sum(parser.nbytes for parser in self._made.values())
