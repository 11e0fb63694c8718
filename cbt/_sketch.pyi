from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cbt._strings import Strings

Parts = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]

INFINITE: int
MINUS_INFINITE: int
NOT_A_NUMBER: int

def murmur(value: bytes) -> tuple[int, int]: ...
def registers_of_strings(strings: Strings, start: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def registers_of_words(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def exact_parts(values: NDArray[Any]) -> Parts: ...
def exact_squares_parts(values: NDArray[Any]) -> tuple[Parts, Parts]: ...
