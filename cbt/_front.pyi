from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cbt.rows import Op

Bools = NDArray[np.bool_]

KEPT_BYTES: int

class Front:
    """The hash table in front of a tree: groups of (pane, atoms), lanes updated in place. Slots are dense from 0."""

    atoms: int
    def __init__(self, atoms: int, ops: Sequence[Op]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    def slots(
        self,
        pane: int | NDArray[np.int64],
        columns: Sequence[tuple[NDArray[Any], Bools | None]],
        where: Bools | None = None,
        rows: int | None = None,
    ) -> NDArray[np.int32]: ...
    def count(self, k: int, slots: NDArray[np.int32], valid: Bools | None = None) -> None: ...
    def add(
        self, k: int, slots: NDArray[np.int32], values: NDArray[Any], valid: Bools | None = None
    ) -> None: ...
    def add_squares(
        self, k: int, slots: NDArray[np.int32], values: NDArray[Any], valid: Bools | None = None
    ) -> None: ...
    def add_wide(
        self,
        k: int,
        slots: NDArray[np.int32],
        low: NDArray[np.uint64],
        high: NDArray[np.int64],
        valid: Bools | None = None,
    ) -> None: ...
    def minimum(
        self, k: int, slots: NDArray[np.int32], values: NDArray[Any], valid: Bools | None = None
    ) -> None: ...
    def maximum(
        self, k: int, slots: NDArray[np.int32], values: NDArray[Any], valid: Bools | None = None
    ) -> None: ...
    def panes(self) -> NDArray[np.int64]: ...
    def column(self, i: int) -> tuple[NDArray[np.int64], Bools | None]: ...
    def lanes(self) -> NDArray[np.int64]: ...
    def clear(self) -> None: ...
    def check(self) -> None: ...
