import numpy as np
from numpy.typing import NDArray

from elf.cbt.rows import Rows

Ints = NDArray[np.int64]

def group_index(groups: Rows, rows: Rows) -> tuple[Ints, Ints, bool]: ...
def sorted_members(bounds: Ints, numbers: Ints, counts: Ints) -> tuple[Ints, Ints]: ...
