from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cbt._strings import Strings

EQUAL: int
PREFIX: int
SUFFIX: int
INFIX: int

def decode(strings: Strings, codes: NDArray[Any]) -> list[str | None]: ...
def decode_all(text: NDArray[np.uint8], ends: NDArray[np.uint32]) -> list[str]: ...
def intern(strings: Strings, values: Sequence[str | None]) -> NDArray[np.int32]: ...
def match(strings: Strings, codes: NDArray[Any], how: int, needle: bytes) -> NDArray[np.bool_]: ...
def lengths(strings: Strings, codes: NDArray[Any]) -> NDArray[np.int64]: ...
