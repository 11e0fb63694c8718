"""The parser of one source: a format, the columns that its jobs need, and the state that lasts from block to block.

    block of whole lines -> Tokenizer (compiled) -> Batch

It holds the dictionaries of string columns, the current header (W3C) and memos; the kernel does the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from elf.agent.formats._tokenize import REASONS, Tokenizer
from elf.agent.formats.batch import Batch, Lost, Reject
from elf.agent.formats.expected import expected
from elf.agent.formats.fields import KEYED, Field, Format, Reason, Shape
from elf.agent.formats.own_keys import own_fields, plain_name
from elf.agent.formats.regex import compile_regex, group_spans
from elf.agent.formats.steps import column_types, compile_plan
from elf.agent.formats.times import pattern_times, zone_offsets
from elf.cbt._strings import Strings
from elf.errors import FormatError
from elf.jobmaster.values.sql_types import BOOLEAN, DOUBLE, STRING, SqlType
from elf.jobmaster.values.vector import Vector

SAMPLES_MAX = 16
LINE_MAX = 256 * 1024
_REASONS = {number: Reason[name] for number, name in enumerate(REASONS) if name}
STRINGS_MAX = 8 * 1024 * 1024
VALUE_MAX = 80
"""Bytes shown of a value that does not convert."""


class Parser:
    """Parses the blocks of one source.

    format: of the lines. columns: those to fill; batches lack those that the format cannot fill. Whether a line is accepted does
    not depend on them. timezone: IANA name, for times without a zone. line_max: bytes; longer lines are rejected.
    agent: the value of the column `agent`. strings_max: bytes of dictionaries from which on `full` is true.
    types: of the columns that keys of the lines may fill by their own names (see `own_keys`).
    wide: use the widest instructions that the processor has (AVX2).

    Raises UsageError for an unknown zone, FormatError for a format that cannot be executed. Not for two threads at once.
    """

    def __init__(
        self,
        format: Format,
        columns: Collection[str],
        *,
        timezone: str = "UTC",
        line_max: int = LINE_MAX,
        agent: str = "",
        strings_max: int = STRINGS_MAX,
        types: Mapping[str, SqlType] | None = None,
        wide: bool = True,
    ) -> None:
        self._format, self._line_max, self._strings_max = format, line_max, strings_max
        self._regex = compile_regex(format.regex, format.name) if format.shape is Shape.REGEX else None
        self._asked = [column for column in dict.fromkeys(columns) if column != "agent"]
        self._slots: dict[str, int] = {}
        self._types: dict[str, SqlType] = {}
        self._patterns: list[str] = []
        self._kernel = Tokenizer(line_max, zone_offsets(timezone), pattern_times(self._patterns), wide)
        self._agent = _constant(agent) if "agent" in columns else None
        self._fields: tuple[Field, ...] = ()
        own = own_fields(format, {name: type for name, type in (types or {}).items() if name in columns})
        self._own = [each.column for each in own]
        self._keyed_by: dict[str, list[int]] | None = None
        """Of a format with keys: the fields of each requested column besides `time`, by their numbers."""
        self._header = b""
        if format.header:  # any column that a header may bring is there from the start, NULL until one does
            from elf.agent.formats.w3c import widened

            self._make_slots(column_types(widened(format)))
        fields = (*format.fields, *own)
        self._load(fields)
        if format.shape in KEYED:
            self._keyed_by = {
                column: [at for at, each in enumerate(fields) if column in each.columns]
                for column in self._asked
                if column != "time"
            }

    @property
    def header(self) -> bytes:
        """The current header line (W3C), to be saved with a position and passed to `begin` when reading resumes; else b""."""
        return self._header

    def begin(self, header: bytes = b"") -> None:
        """Begin a file, or resume it where `header` was the current header. Dictionaries stay."""
        if header:
            self._take_header(header)
        elif self._header:
            self._header = b""
            self._load(self._format.fields)

    def parse(self, block: bytes | memoryview) -> Batch:
        """The columns of whole lines; only the last may lack its newline. O(bytes); releases the GIL except for REGEX."""
        kernel, at, samples, lost = self._kernel, 0, list[Reject](), list[Lost]()
        kernel.begin()
        while at < len(block):
            spans = None
            if self._regex is not None:
                names = [field.name for field in self._fields]
                spans = group_spans(self._regex, block, names, self._line_max)
            at = kernel.feed(block, at, spans)
            samples += [self._reject(*sample) for sample in kernel.samples()[: SAMPLES_MAX - len(samples)]]
            if self._own:
                lost += [self._lost(*sample) for sample in kernel.lost_samples()]
            if at < len(block):
                at = self._follow_header(block, at)
        return self._batch(samples, lost)

    def full(self) -> bool:
        """Whether the dictionaries exceed `strings_max`. If so, settle everything that holds codes, then call `clear`."""
        return self._strings_nbytes() > self._strings_max

    def clear(self) -> None:
        """Forget the dictionaries' values; all codes handed out are void."""
        for slot in self._slots.values():
            strings = self._kernel.strings(slot)
            if strings is not None:
                strings.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of memory held: dictionaries and the buffers of the largest block so far."""
        return self._strings_nbytes() + self._kernel.nbytes

    def _strings_nbytes(self) -> int:
        held = (self._kernel.strings(slot) for slot in self._slots.values())
        return sum(strings.nbytes for strings in held if strings is not None)

    def _follow_header(self, block: bytes | memoryview, at: int) -> int:
        """Make the header line at `at` the current one. Returns where the next line begins."""
        line, newline, _ = bytes(block[at : at + self._line_max + 2]).partition(b"\n")
        self._take_header(line.removesuffix(b"\r"))
        return at + len(line) + len(newline)

    def _take_header(self, header: bytes) -> None:
        """Load the plan of the lines below `header`. If it names no time, every line below it is rejected."""
        from elf.agent.formats.w3c import fields_for

        if header != self._header:
            self._header = header
            try:
                self._load(fields_for(header))
            except FormatError:
                self._load(())

    def _load(self, fields: tuple[Field, ...]) -> None:
        """Make `fields` the current plan; columns seen for the first time get their slots."""
        types = column_types(msgspec.structs.replace(self._format, fields=fields))
        self._make_slots(types)
        usable = {
            column: slot for column, slot in self._slots.items() if types.get(column) == self._types[column]
        }
        self._kernel.load(compile_plan(self._format, fields, usable))
        self._patterns[:] = [field.pattern for field in fields]
        self._fields = fields

    def _make_slots(self, types: Mapping[str, SqlType]) -> None:
        for column in self._asked:
            if column in types and column not in self._types:
                self._types[column] = types[column]
                self._slots[column] = self._kernel.add(types[column] == STRING)

    def _batch(self, samples: list[Reject], lost_samples: list[Lost]) -> Batch:
        rows, lines, invalid_utf8, rejects = self._kernel.counts()
        columns = {column: self._vector(column, slot) for column, slot in self._slots.items()}
        if self._agent is not None:
            columns["agent"] = self._agent
        own = {
            name: self._kernel.lost_rows(self._slots[name])
            for name in self._own
            if self._types[name] != STRING
        }
        return Batch(
            rows=rows,
            columns=columns,
            lines=lines,
            rejects={_REASONS[number]: count for number, count in rejects.items()},
            reject_rows=self._kernel.reject_rows(),
            samples=tuple(samples),
            invalid_utf8=invalid_utf8,
            lost={name: rows for name, rows in own.items() if len(rows)},
            lost_samples=tuple(lost_samples),
            keyed=self._present(),
        )

    def _vector(self, column: str, slot: int) -> Vector:
        if self._types[column] == STRING:
            return Vector(STRING, self._kernel.codes(slot), strings=self._kernel.strings(slot))
        values, valid = self._kernel.numbers(slot)
        if self._types[column] == DOUBLE:
            values = values.view(np.float64)
        elif self._types[column] == BOOLEAN:
            values = values.astype(np.bool_)
        return Vector(self._types[column], values, valid)

    def _present(self) -> frozenset[str] | None:
        if not self._keyed_by:
            return None
        return frozenset(column for column, fields in self._keyed_by.items() if self._kernel.present(fields))

    def _lost(self, at: int, line: bytes, offset: int, length: int) -> Lost:
        column = self._fields[at].column
        value = line[offset : offset + min(length, VALUE_MAX)].decode("utf-8", "replace")
        return Lost(plain_name(column), str(self._types[column]), value, line, offset)

    def _reject(self, number: int, line: bytes, offset: int, at: int, detail: int) -> Reject:
        reason = _REASONS[number]
        field = self._fields[at] if 0 <= at < len(self._fields) else None
        return Reject(
            reason=reason,
            line=line,
            offset=offset,
            expected=expected(self._format, reason, field, detail, self._line_max),
            field=field.name if field else "",
        )


def _constant(text: str) -> Vector:
    strings = Strings()
    return Vector(STRING, np.array([strings.intern(text.encode())], dtype=np.int32), strings=strings)
