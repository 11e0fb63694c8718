"""Shared by the kernels: arrays as C pointers, operations as codes."""

cimport numpy as cnp


cdef inline void *start_of(array) noexcept:
    """The address of an array's first value."""
    return cnp.PyArray_DATA(<cnp.ndarray> array)


cdef bytes op_codes(ops)
cdef size_t count_lanes(bytes codes)
cdef size_t length_of(list lengths)
cdef object as_bools(mask, size_t n)
cdef object check_ends(keys, ends)
