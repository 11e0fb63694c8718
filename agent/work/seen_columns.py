"""The columns of a source's files, as far as known now: from the named format, or from the files' first lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elf.agent.files.follow import Inode
from elf.agent.files.listing import Listing
from elf.agent.formats.choice import HEAD_BYTES, FormatChoice, head_of
from elf.agent.formats.own_keys import widest
from elf.agent.formats.presets import beyond
from elf.jobmaster.values.sql_types import SqlType

FILES_MAX = 16
"""The newest files of a source are examined."""


class SeenColumns:
    """The columns of one source beyond the canonical ones. Raises FormatError for an unknown format."""

    def __init__(self, format: str, patterns: Sequence[str]) -> None:
        self._formats = FormatChoice(format, lambda notice: None, lenient=True)
        self.is_detected = self._formats.depends_on_lines
        """Whether the next `look` may find other columns."""
        self._listing = Listing(patterns, lambda notice: None)
        self._by_file: dict[Inode, tuple[int, dict[str, SqlType]]] = {}  # with the size of the file then

    def look(self) -> dict[str, SqlType]:
        """The columns found. Reads the beginning of each file, again while it grows there. O(files in the folders)."""
        found = beyond(self._formats.schema({}))
        if not self.is_detected:
            return found
        newest = [one for one in self._listing.look(()) if one.wanted and one.status.st_size][-FILES_MAX:]
        before, self._by_file = self._by_file, {}
        for one in newest:
            size, columns = before.get(one.inode, (0, {}))
            if not columns or size < min(HEAD_BYTES, one.status.st_size):
                size, columns = one.status.st_size, self._columns_of(Path(one.path))
            self._by_file[one.inode] = size, columns
            found.update({name: widest((type, found.get(name, type))) for name, type in columns.items()})
        return found

    def _columns_of(self, path: Path) -> dict[str, SqlType]:
        """Without elements of lists: every agent holds the adverts of all. If a job asks for them they are strings."""
        columns = beyond(self._formats.schema({str(path): head_of(path)}))
        return {name: type for name, type in columns.items() if not name.rpartition(".")[2].isdigit()}
