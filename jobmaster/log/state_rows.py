"""A state's rows at one entry, in pieces: how a large state is written and sent while the log continues.

Creating one is cheap: it shares the trees' immutable fragments until it is dropped. Its pieces are read one after the other, in
an order that depends only on the trees. Each has about `piece_bytes` of unpacked rows at most; together they are all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import finalize

import msgspec

from elf.cbt._kernel import Merger
from elf.cbt.budget import Budget, Fragment
from elf.cbt.frame import pack
from elf.cbt.rows import Op
from elf.jobmaster.windows.panes import Panes


class RowPiece(msgspec.Struct, frozen=True, array_like=True):
    """Some rows of one tree (groups 0, line counters 1, then the families) of a version, as a frame."""

    version: str
    tree: int
    frame: bytes


class StateRows:
    """Rows of all panes. Memory: the fragments that the trees have dropped meanwhile, which spill to disk like all others."""

    def __init__(self, panes: Mapping[str, Panes], budget: Budget, piece_bytes: int) -> None:
        """Raises OSError."""
        self._budget, self._piece_bytes = budget, piece_bytes
        self._trees: list[tuple[str, int, Sequence[Op], list[Fragment]]] = []
        for version, each in panes.items():
            for tree, (ops, fragments) in enumerate(zip(each.ops, each.share(), strict=True)):
                self._trees.append((version, tree, ops, fragments))
        fragments = [fragment for *_, fragments in self._trees for fragment in fragments]
        finalize(self, budget.abandon, fragments).atexit = False

    def pieces(self) -> Iterator[RowPiece]:
        """All pieces. Unpacks one fragment at a time, or as many small ones as fill a piece. Raises OSError."""
        for version, tree, ops, fragments in self._trees:
            for some in self._batches(fragments):
                for frame in self._frames(some, ops):
                    yield RowPiece(version, tree, frame)

    def _batches(self, fragments: Sequence[Fragment]) -> Iterator[list[Fragment]]:
        held: list[Fragment] = []
        for fragment in fragments:
            held.append(fragment)
            if sum(each.raw_bytes for each in held) >= self._piece_bytes:
                yield held
                held = []
        if held:
            yield held

    def _frames(self, fragments: Sequence[Fragment], ops: Sequence[Op]) -> Iterator[bytes]:
        with self._budget.scratch(2 * sum(fragment.raw_bytes for fragment in fragments)):
            rows = Merger((), ops, [self._budget.read(fragment) for fragment in fragments]).read()
            pieces = -(-rows.nbytes // self._piece_bytes) or 1
            each = -(-len(rows) // pieces) or 1
            frames = [
                pack(rows.slice(at, min(at + each, len(rows))), ops) for at in range(0, len(rows), each)
            ]
        del rows
        yield from frames


class Reading:
    """The pieces of one `StateRows` for one reader, in order: `at` is the number of the next."""

    def __init__(self, rows: Any) -> None:
        self._rows = iter(rows.pieces())
        self._next = next(self._rows, None)
        self.at = 0

    @property
    def is_over(self) -> bool:
        return self._next is None

    def take(self) -> Any:
        """The next piece; there must be one. Raises OSError."""
        piece, self._next = self._next, next(self._rows, None)
        assert piece is not None
        self.at += 1
        return piece
