"""A small terminal: enough of one for text with line wrap, scrolling, cursor up and erase, as `elf` writes them."""

from __future__ import annotations

import re

from elf.sinks.console.grid import places

_PIECES = re.compile(r"\x1b\[(\d*)([FJKm])|[^\x1b]", re.DOTALL)


class Screen:
    """`shown` is the screen, `history` what has scrolled out of it; both as lines without trailing spaces."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.history: list[str] = []
        self._rows: list[list[str]] = [[]]
        self._row = self._at = 0

    @property
    def shown(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._rows]

    @property
    def text(self) -> list[str]:
        """All lines that were not erased, without the empty ones."""
        return [line for line in (*self.history, *self.shown) if line]

    def feed(self, text: str) -> None:
        end = 0
        for piece in _PIECES.finditer(text):
            assert piece.start() == end, f"an unknown sequence: {text[end : end + 9]!r}"
            end = piece.end()
            if piece[2] is None:
                self._put(piece[0])
            elif piece[2] == "F":
                self._row, self._at = max(0, self._row - int(piece[1] or 1)), 0
            elif piece[2] in "JK":
                assert piece[1] in ("", "0")
                del self._rows[self._row][self._at :]
                if piece[2] == "J":
                    del self._rows[self._row + 1 :]
        assert end == len(text)

    def _put(self, character: str) -> None:
        if character == "\r":
            self._at = 0
            return
        if character == "\n":  # a tty writes \r\n for it
            self._feed_line()
            return
        if self._at + places(character) > self.columns:  # only now: a full line wraps with its next character
            self._feed_line()
        row = self._rows[self._row]
        row[self._at :] = [*(" " * (self._at - len(row))), character, *[""] * (places(character) - 1)]
        self._at += places(character)

    def _feed_line(self) -> None:
        self._row, self._at = self._row + 1, 0
        if self._row == len(self._rows):
            self._rows.append([])
        if len(self._rows) > self.lines:
            self.history.append("".join(self._rows.pop(0)).rstrip())
            self._row -= 1
