from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t


cdef extern from "hash.h":
    uint64_t elf_hash64(const void *data, size_t n, uint64_t seed) noexcept nogil
    const uint64_t ELF_ORDER_SEED


cdef struct Entry:
    uint32_t tag      # upper half of the hash; its low bits are the slot's index, so growing reads no text
    int32_t code      # -1: empty


cdef class Strings:
    """The layout is public to the kernels of other packages; only the methods are visible to Python."""
    cdef Entry *table
    cdef size_t mask
    cdef uint8_t *text          # all values, one after the other
    cdef size_t text_used, text_size
    cdef uint32_t *ends         # ends[code] = end offset of the value; its start is ends[code - 1] (0 for code 0)
    cdef size_t count, count_size
    cdef uint64_t seed
    cdef public long generation

    cdef int32_t put(self, const uint8_t *value, size_t n) except? -2 nogil
    cdef int32_t put_hashed(self, const uint8_t *value, size_t n, uint64_t h) except? -2 nogil
    cdef int _grow(self, size_t extra) except -1 nogil
