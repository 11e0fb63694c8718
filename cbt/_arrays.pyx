# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Shared by the kernels: arrays as C pointers, operations as codes."""

from libc.stdint cimport uint64_t

import numpy as np

cnp.import_array()

cdef extern from "rows.h":
    enum:
        ELF_SUM64
        ELF_SUM128
        ELF_MIN
        ELF_MAX


OP_CODES = {"sum64": ELF_SUM64, "sum128": ELF_SUM128, "min": ELF_MIN, "max": ELF_MAX}


cdef bytes op_codes(ops):
    return bytes([OP_CODES[op.value] for op in ops])


cdef size_t count_lanes(bytes ops):
    return len(ops) + ops.count(ELF_SUM128)


cdef size_t length_of(list lengths):
    """The number of rows of columns, of which some may be constants of length 1."""
    return next((n for n in lengths if n != 1), 1 if lengths else 0)


cdef object as_bools(mask, size_t n):
    """A mask as contiguous bools of length n or 1."""
    mask = np.ascontiguousarray(mask, dtype=np.bool_)
    if len(mask) != n and len(mask) != 1:
        raise ValueError(f"a mask of {len(mask)} rows for {n}")
    return mask


cdef object check_ends(keys, ends):
    """The two arrays, contiguous, after a check that the offsets ascend within the bytes."""
    keys = np.ascontiguousarray(keys, dtype=np.uint8)
    ends = np.ascontiguousarray(ends, dtype=np.uint64)
    cdef const uint64_t *end = <const uint64_t *> start_of(ends)
    cdef size_t i, n = len(ends)
    cdef uint64_t last = 0, size = len(keys)
    cdef bint bad = False
    with nogil:
        for i in range(n):
            if end[i] < last:
                bad = True
                break
            last = end[i]
    if bad or last != size:
        raise ValueError("key offsets do not ascend to the end of the key bytes")
    return keys, ends
