"""The columns of a source's files, as far as known now: from the named format, or from the files' first lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elf.agent.files.follow import Inode
from elf.agent.files.listing import Listing
from elf.agent.formats.choice import FormatChoice, head_of
from elf.agent.formats.envelopes.kinds import is_detected
from elf.agent.formats.presets import beyond
from elf.jobmaster.values.sql_types import SqlType

FILES_MAX = 16
"""The newest files of a source are examined."""


class SeenColumns:
    """The columns of one source beyond the canonical ones. Raises FormatError for an unknown format."""

    def __init__(self, format: str, patterns: Sequence[str]) -> None:
        self.is_detected = is_detected(format)
        """Whether the next `look` may find other columns."""
        self._formats = FormatChoice(format, lambda notice: None, lenient=True)
        self._listing = Listing(patterns, lambda notice: None)
        self._by_file: dict[Inode, dict[str, SqlType]] = {}

    def look(self) -> dict[str, SqlType]:
        """The columns found. Reads the beginning of each file once. O(files in the folders)."""
        if not self.is_detected:
            return beyond(self._formats.schema({}))
        newest = [one for one in self._listing.look(()) if one.wanted and one.status.st_size][-FILES_MAX:]
        before, self._by_file = self._by_file, {}
        found: dict[str, SqlType] = {}
        for one in newest:
            columns = before.get(one.inode)
            if not columns:
                columns = beyond(self._formats.schema({one.path: head_of(Path(one.path))}))
            self._by_file[one.inode] = columns
            found.update(columns)
        return found
