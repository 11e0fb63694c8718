from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEXT: int
INTEGER: int
DECIMAL: int
BOOLEAN: int
TIME: int

Bytes = NDArray[np.uint8]
Ends = NDArray[np.uint32]
Cell = tuple[int, NDArray[Any], NDArray[np.bool_] | None, Bytes | None, Ends | None, int]

def csv_texts(text: Bytes, ends: Ends) -> tuple[Bytes, Ends]: ...
def json_texts(text: Bytes, ends: Ends) -> tuple[Bytes, Ends]: ...
def double_texts(values: NDArray[np.float64]) -> tuple[Bytes, Ends]: ...
def join_rows(
    cells: Sequence[Cell],
    prefixes: Sequence[bytes],
    suffix: bytes,
    null: bytes,
    quoted: bool,
    empty: bytes,
) -> bytes: ...
