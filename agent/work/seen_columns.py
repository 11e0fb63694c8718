"""The columns of a source's files, as far as known now: from the named format, or from the files' first lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from elf.agent.files.follow import Inode
from elf.agent.files.listing import Listing
from elf.agent.formats.choice import HEAD_BYTES, FormatChoice, head_of
from elf.agent.formats.own_keys import widest
from elf.agent.formats.presets import beyond
from elf.jobmaster.values.sql_types import SqlType

FILES_MAX = 16
"""The newest files of a source are examined."""


class _Seen(msgspec.Struct, frozen=True):
    """What the beginning of a file showed when the file had that size."""

    size: int = 0
    columns: Mapping[str, SqlType] = {}
    lateness_us: int = 0


class SeenColumns:
    """The columns of one source beyond the canonical ones. Raises FormatError for an unknown format."""

    def __init__(self, format: str, patterns: Sequence[str]) -> None:
        self._formats = FormatChoice(format, lambda notice: None, lenient=True)
        self.is_detected = self._formats.depends_on_lines
        """Whether the next `look` may find other columns."""
        self._listing = Listing(patterns, lambda notice: None)
        self._by_file: dict[Inode, _Seen] = {}
        self.lateness_us = self._formats.lateness_us({})
        """How long after their time its lines may come, as far as known since the last `look`; 0: not known."""

    def look(self) -> dict[str, SqlType]:
        """The columns found. Reads the beginning of each file, again while it grows there. O(files in the folders)."""
        newest = [one for one in self._listing.look(()) if one.wanted and one.status.st_size][-FILES_MAX:]
        before, self._by_file = self._by_file, {}
        found = beyond(self._formats.schema({}))
        for one in newest:
            seen = before.get(one.inode, _Seen())
            if not seen.columns or seen.size < min(HEAD_BYTES, one.status.st_size):
                seen = self._seen_in(Path(one.path), one.status.st_size, seen.lateness_us)
            self._by_file[one.inode] = seen
            found.update({name: widest((type, found.get(name, type))) for name, type in seen.columns.items()})
        self.lateness_us = max([self.lateness_us, *(seen.lateness_us for seen in self._by_file.values())])
        return found

    def _seen_in(self, path: Path, size: int, lateness_us: int) -> _Seen:
        """Without elements of lists: every agent holds the adverts of all. If a job asks for them they are strings."""
        head = {str(path): head_of(path)}
        columns = beyond(self._formats.schema(head))
        named = {name: type for name, type in columns.items() if not name.rpartition(".")[2].isdigit()}
        return _Seen(size, named, lateness_us or self._formats.lateness_us(head))
