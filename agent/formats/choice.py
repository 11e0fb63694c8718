"""The format of each file: the one that was named, or the one detected from its first lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from elf.agent.files.blocks import Block
from elf.agent.files.content import first_text, reading
from elf.agent.formats.envelopes.kinds import is_detected
from elf.agent.formats.envelopes.wrapped import has_keys, layers, make_parser
from elf.agent.formats.fields import Format
from elf.agent.formats.formats import column_types, resolve
from elf.agent.formats.own_keys import ANY, Keys
from elf.agent.formats.presets import COLUMN_TYPES
from elf.errors import FormatError
from elf.jobmaster.values.sql_types import STRING, SqlType

HEAD_BYTES = 64 << 10
"""Bytes of a file from which its format is detected."""

SECOND_US = 1_000_000
DISORDER_MAX_US = 300 * SECOND_US
NAMED_MAX = 3
"""Files named in a notice for each format."""


class FormatChoice:
    """The format of each file: one for all, or detected for each. `chosen` maps paths to the names of their formats.

    lenient: a file whose format is not detected takes the format of the file before it (a live agent must not stop); without
    one, detection is retried with the file's next block. `take_found` returns the detected formats. head: the beginning of a
    block's file.
    """

    def __init__(
        self,
        spec: str,
        notices: Callable[[str], None],
        *,
        lenient: bool = False,
        head: Callable[[Block], bytes] = lambda block: text_of(block.data),
    ) -> None:
        self.spec, self.chosen = spec, dict[str, str]()
        self._notices, self._lenient, self._head = notices, lenient, head
        self._fixed = None if is_detected(spec) else resolve(spec)
        self._by_file: dict[object, Format] = {}
        # Size of a head that no format fits: detection is retried with a longer one only.
        self._unknown: dict[object, int] = {}
        self._last: Format | None = None
        self._found: dict[str, list[str]] = {}  # paths by format, since the last `take_found`
        self._keys, self._others = Keys(), frozenset[str]()  # of the last schema

    @property
    def depends_on_lines(self) -> bool:
        """Whether the columns depend on the files' lines."""
        return self._fixed is None or has_keys(self._fixed)

    def of(self, block: Block) -> Format:
        """The format of the block's file. Raises FormatError, which names the file, if it is not detected (unless lenient)."""
        if self._fixed is not None:
            self.chosen.setdefault(block.path, self._fixed.name)
            return self._fixed
        known = self._by_file.get(block.file)
        if known is not None:
            return known
        head = self._head(block)
        if not head.strip() or self._unknown.get(block.file) == len(head):
            return self._last or resolve("combined")
        try:
            found = self.detect(block.path, head)
        except FormatError as error:
            if not self._lenient:
                raise
            if self._last is None:
                if block.file not in self._unknown:
                    self._notices(str(error))
                self._unknown[block.file] = len(head)
                return resolve("combined")
            found = self._last
        self.remember(block.file, found)
        return found

    def of_head(self, path: str, head: bytes) -> Format:
        """The format of a file that begins with `head`. Raises FormatError if it is not detected."""
        if self._fixed is not None:
            return self._fixed
        return self.detect(path, head) if head.strip() else resolve("combined")

    def remember(self, file: object, format: Format) -> None:
        """Set the format of a file that is resumed in its middle from a saved state."""
        self._by_file[file] = self._last = format
        self._unknown.pop(file, None)

    def forget(self, file: object) -> None:
        """Drop a file that was read to its end."""
        self._by_file.pop(file, None)
        self._unknown.pop(file, None)

    def detect(self, path: str, head: bytes) -> Format:
        from elf.agent.formats.detect import doubt

        found = _detected(self.spec, path, head)
        if self.chosen.get(path) != found.name:
            self.chosen[path] = found.name
            said = found.name + doubt(head, found)
            if self._lenient:
                self._found.setdefault(said, []).append(path)
            else:
                self._notices(f"{path}: format {said}")
        return found

    @property
    def has_found(self) -> bool:
        """Whether `take_found` has lines."""
        return bool(self._found)

    def take_found(self) -> list[str]:
        """The formats detected since the last call, a line for each format with its files."""
        lines = [_found_line(name, paths) for name, paths in self._found.items()]
        self._found = {}
        return lines

    def lateness_us(self, heads: Mapping[str, bytes]) -> int:
        """How long after their time lines of files that begin so may come: as the formats say, and at least by how much a line of
        these is older than one before it. In whole seconds, as microseconds; 0 while no format is known."""
        found = [0 if self._fixed is None else self._fixed.lateness_us]
        for path, head in heads.items():
            format = self._fixed
            if format is None and head.strip():
                with suppress(FormatError):
                    format = _detected(self.spec, path, head)
            if format is not None:
                found += [format.lateness_us, disorder_us(format, head)]
        return -(-max(found) // SECOND_US) * SECOND_US

    def schema(self, heads: Mapping[str, bytes]) -> dict[str, SqlType]:
        """The columns of a query over files that begin with `heads`: the union over their formats, or all known columns while
        no format is known. Of lines that name their values also the keys, and `ANY`, since other keys may come later."""
        columns = dict(column_types(self._fixed)) if self._fixed is not None else dict[str, SqlType]()
        keys, is_open = Keys(), self._fixed is not None and has_keys(self._fixed)
        for path, head in heads.items():
            format = self._format_of(path, head) if head.strip() else None
            if format is not None:
                columns.update(column_types(format))
                for layer in layers(format, head):
                    keys.add(*layer)
                is_open |= has_keys(format)
        self._keys, self._others = keys, frozenset(columns)
        if not is_open:
            return columns or dict(COLUMN_TYPES)
        own = keys.columns(columns)
        hidden = {name.lower() for name in own}
        return {name: type for name, type in columns.items() if name not in hidden} | own | {ANY: STRING}

    def _format_of(self, path: str, head: bytes) -> Format | None:
        if self._fixed is not None:
            return self._fixed
        try:
            return _detected(self.spec, path, head)
        except FormatError:
            if not self._lenient:
                raise
            return None

    def other_keys(self, heads: Mapping[str, bytes]) -> dict[str, SqlType]:
        """The columns by keys of which the formats make no column of another name."""
        schema = self.schema(heads)
        return {
            name: type
            for name, type in schema.items()
            if name in self._keys.unread() and name not in self._others
        }

    def notes(self, asked: Iterable[str]) -> list[str]:
        """What to report about the columns `asked` of the last schema: keys that no line had, values of several kinds."""
        return self._keys.notes(asked, self._others) if self._keys.kinds else []

    def never(self, column: str) -> str:
        """The message that no line of any file has a key of that column."""
        near = ", ".join(self._keys.nearest(column))
        return f"no line has {column}{f' (nearest: {near})' if near else ''}: it is NULL throughout"

    def no_key(self, path: str, asked: Sequence[str]) -> str:
        """The message that no line of that file has a key of the columns `asked`."""
        here, head = Keys(), head_of(Path(path))
        format = self._format_of(path, head) if head.strip() else None
        for layer in layers(format, head) if format is not None else ():
            here.add(*layer)
        listed = (here if here.kinds else self._keys).listed(asked)
        return f"{path}: no line has {' or '.join(asked)}; the keys are {listed}"


def disorder_us(format: Format, lines: bytes) -> int:
    """By how much a line is older than one before it, at most; at most `DISORDER_MAX_US`: more is a clock that was set back."""
    parser = make_parser(format, frozenset({"time"}))
    parser.begin(b"")
    batch = parser.parse(lines[: lines.rfind(b"\n") + 1])
    if not batch.rows or "time" not in batch.columns:
        return 0
    times = batch.columns["time"].values
    return min(int((np.maximum.accumulate(times) - times).max()), DISORDER_MAX_US)


def _found_line(format: str, paths: Sequence[str]) -> str:
    if len(paths) == 1:
        return f"{paths[0]}: format {format}"
    more = f" and {len(paths) - NAMED_MAX} more" if len(paths) > NAMED_MAX else ""
    return f"{len(paths)} files: format {format} ({', '.join(paths[:NAMED_MAX])}{more})"


@lru_cache(maxsize=2)  # asked twice of a file: for the columns, then with its first block
def _detected(spec: str, path: str, head: bytes) -> Format:
    try:
        return resolve(spec, sample=head)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def text_of(data: memoryview | bytes) -> bytes:
    """The head in a block of lines; a hole of NULs in front of the first is left out."""
    head = bytes(data[:HEAD_BYTES])
    return head if head[:1] != b"\0" else bytes(data).lstrip(b"\0")[:HEAD_BYTES]


def head_of(path: Path) -> bytes:
    """The first `HEAD_BYTES` of a file, uncompressed; b"" if it cannot be read now."""
    try:
        with reading(str(path)) as content:
            return first_text(content, HEAD_BYTES)
    except OSError:
        return b""
