"""The parsers of a source of an agent, which reads from any offset: the parse state there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from elf.agent.formats.envelopes.wrapped import WrappedParser
from elf.agent.formats.fields import Format
from elf.agent.formats.parser import Parser
from elf.agent.work.parsers import Parsers, ParseState, advance, parsed, timed
from elf.agent.work.rescan import Rescan
from elf.errors import SourceError
from elf.jobmaster.values.sql_types import SqlType

ONLY_TIME = frozenset({"time"})
LOOK_BACK_BYTES = (64 << 10, 1 << 20)
"""Bytes before an offset in which the line before it is searched; if it begins earlier, the file is read from its start."""


class Parsing(Parsers):
    """The parsers of one source, and others that find only the time of lines."""

    needs_time = True

    def __init__(self, timezone: str, agent: str, line_max: int, strings_max: int) -> None:
        self._clocks = Parsers(ONLY_TIME, {}, timezone, agent, strings_max, line_max)
        super().__init__(ONLY_TIME, {}, timezone, agent, strings_max, line_max)

    def ask(self, columns: Collection[str], types: Mapping[str, SqlType]) -> None:
        super().ask(columns, types)
        self._clocks.ask(ONLY_TIME, types)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._clocks.nbytes

    def state_at(
        self, scan: Rescan, format: Format, now_us: int, from_start: Callable[[], Rescan]
    ) -> ParseState:
        """The parse state where `scan` begins. It depends on the lines before that offset only.

        O(1) as a rule; O(offset) if no line near before it has a time, or if a header may be anywhere. Raises OSError.
        """
        if not scan.offset:
            return ParseState(format)
        clock = self._clocks.of(format)
        clock.clear()
        for size in () if format.header else LOOK_BACK_BYTES:
            tail = scan.tail(size)
            begin = 0 if tail is None or len(tail) == scan.offset else tail.find(b"\n") + 1
            if tail is None or (not begin and len(tail) < scan.offset):
                continue
            state = ParseState(format)
            carry = scan.file.state.carry if len(tail) == scan.offset else b""
            advance(state, timed(parsed(clock, carry + tail[begin:], state, now_us)))
            if state.last_time is not None or len(tail) == scan.offset:
                return state
        return self._read_from_start(clock, format, scan.offset, now_us, from_start)

    def _read_from_start(
        self,
        clock: Parser | WrappedParser,
        format: Format,
        offset: int,
        now_us: int,
        from_start: Callable[[], Rescan],
    ) -> ParseState:
        state, scan = ParseState(format), from_start()
        try:
            while (block := scan.next(offset)) is not None:
                advance(state, timed(parsed(clock, block.lines, state, now_us)))
        except SourceError:
            pass  # use the state at the last readable line
        finally:
            scan.close()
        return state
