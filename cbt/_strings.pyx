# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The dictionary behind every string column: bytes in, dense int32 codes out, the same bytes back.

One `Strings` serves one column of one source across many blocks, so that a scalar function runs once per distinct
value and a group-by compares integers. It only grows; its owner empties it (`clear`, a new `generation`) when
`nbytes` passes the owner's bound, after everything that holds codes has been settled.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import os

import numpy as np

cdef enum:
    FIRST_ENTRIES = 256


cdef class Strings:
    """A bytes-to-code dictionary. Codes are dense from 0, in the order in which values first occur; NULL (-1) is not stored."""

    def __cinit__(self):
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.mask = FIRST_ENTRIES - 1
        self.table = <Entry *> malloc(FIRST_ENTRIES * sizeof(Entry))
        if self.table == NULL:
            raise MemoryError
        memset(self.table, 0xFF, FIRST_ENTRIES * sizeof(Entry))

    def __dealloc__(self):
        free(self.table)
        free(self.text)
        free(self.ends)

    cdef int32_t put(self, const uint8_t *value, size_t n) except? -2 nogil:
        """The code of `value`, new or known. O(n)."""
        return self.put_hashed(value, n, elf_hash64(value, n, self.seed))

    cdef int32_t put_hashed(self, const uint8_t *value, size_t n, uint64_t h) except? -2 nogil:
        """The code of a value whose hash, with `self.seed`, is known."""
        cdef uint32_t tag = <uint32_t> (h >> 32)
        cdef size_t at = tag & self.mask
        cdef uint32_t start
        cdef int32_t code
        while True:
            code = self.table[at].code
            if code < 0:
                break
            if self.table[at].tag == tag:
                start = self.ends[code - 1] if code else 0
                if self.ends[code] - start == n and memcmp(self.text + start, value, n) == 0:
                    return code
            at = (at + 1) & self.mask
        self._grow(n)
        at = tag & self.mask
        while self.table[at].code >= 0:
            at = (at + 1) & self.mask
        code = <int32_t> self.count
        self.table[at].tag = tag
        self.table[at].code = code
        if n:
            memcpy(self.text + self.text_used, value, n)
        self.text_used += n
        self.ends[code] = <uint32_t> self.text_used
        self.count += 1
        return code

    cdef int _grow(self, size_t extra) except -1 nogil:
        """Make room for one more value of `extra` bytes."""
        cdef void *moved
        cdef Entry *table
        cdef size_t size, old, at, mask
        if self.text_used + extra > 0xFFFFFFFFu or self.count >= 0x7FFFFFFFu:
            with gil:
                raise OverflowError("a string dictionary is full (4 GiB); clear it between blocks")
        if self.text_used + extra > self.text_size:
            size = max(self.text_used + extra, self.text_size + self.text_size // 2, <size_t> 4096)
            moved = realloc(self.text, size)
            if moved == NULL:
                with gil:
                    raise MemoryError
            self.text = <uint8_t *> moved
            self.text_size = size
        if self.count + 1 > self.count_size:
            size = max(self.count_size + self.count_size // 2, <size_t> 256)
            moved = realloc(self.ends, size * sizeof(uint32_t))
            if moved == NULL:
                with gil:
                    raise MemoryError
            self.ends = <uint32_t *> moved
            self.count_size = size
        if (self.count + 1) * 2 > self.mask + 1:
            mask = (self.mask + 1) * 2 - 1
            table = <Entry *> malloc((mask + 1) * sizeof(Entry))
            if table == NULL:
                with gil:
                    raise MemoryError
            memset(table, 0xFF, (mask + 1) * sizeof(Entry))
            for old in range(self.mask + 1):
                if self.table[old].code >= 0:
                    at = self.table[old].tag & mask
                    while table[at].code >= 0:
                        at = (at + 1) & mask
                    table[at] = self.table[old]
            free(self.table)
            self.table = table
            self.mask = mask
        return 0

    def __len__(self):
        return self.count

    @property
    def nbytes(self):
        """Bytes of memory held, tables included."""
        return self.text_size + self.count_size * sizeof(uint32_t) + (self.mask + 1) * sizeof(Entry)

    def intern(self, bytes value not None):
        """The code of `value`, new or known."""
        return self.put(<const uint8_t *> <const char *> value, len(value))

    def intern_all(self, values):
        """Codes (int32 array) of an iterable of bytes, str (as UTF-8) or None (-1)."""
        cdef list codes = []
        for value in values:
            if value is None:
                codes.append(-1)
            else:
                codes.append(self.intern(value.encode("utf-8") if isinstance(value, str) else value))
        return np.array(codes, dtype=np.int32)

    def __getitem__(self, long code):
        """The bytes of `code`. Raises IndexError outside [0, len)."""
        cdef uint32_t start
        if code < 0 or <size_t> code >= self.count:
            raise IndexError(code)
        start = self.ends[code - 1] if code else 0
        return PyBytes_FromStringAndSize(<char *> self.text + start, self.ends[code] - start)

    def values(self, long start=0, stop=None):
        """The values of codes [start, stop) as a list of str (invalid UTF-8 as U+FFFD)."""
        cdef long code, end = self.count if stop is None else min(<long> stop, <long> self.count)
        cdef uint32_t at
        cdef list out = []
        for code in range(max(start, 0), end):
            at = self.ends[code - 1] if code else 0
            out.append(PyUnicode_DecodeUTF8(<char *> self.text + at, self.ends[code] - at, "replace"))
        return out

    def buffers(self):
        """(text uint8, ends uint32): copies of all values and of their end offsets. O(bytes)."""
        text, ends = np.empty(self.text_used, dtype=np.uint8), np.empty(self.count, dtype=np.uint32)
        cdef uint8_t[::1] to_text = text
        cdef uint32_t[::1] to_ends = ends
        if self.text_used:
            memcpy(&to_text[0], self.text, self.text_used)
        if self.count:
            memcpy(&to_ends[0], self.ends, self.count * sizeof(uint32_t))
        return text, ends

    def lengths(self):
        """Byte length of each value: int64 array of len(self)."""
        cdef size_t code
        out = np.empty(self.count, dtype=np.int64)
        cdef long long[::1] view = out
        for code in range(self.count):
            view[code] = self.ends[code] - (self.ends[code - 1] if code else 0)
        return out

    def clear(self):
        """Forget all values and release the memory. Earlier codes become invalid, so `generation` changes."""
        free(self.table)
        free(self.text)
        free(self.ends)
        self.text = NULL
        self.ends = NULL
        self.text_used = self.text_size = self.count = self.count_size = 0
        self.mask = FIRST_ENTRIES - 1
        self.table = <Entry *> malloc(FIRST_ENTRIES * sizeof(Entry))
        if self.table == NULL:
            raise MemoryError
        memset(self.table, 0xFF, FIRST_ENTRIES * sizeof(Entry))
        self.generation += 1

    def check(self):
        """Raise AssertionError unless every value is found under its own code."""
        for code in range(self.count):
            assert self.intern(self[code]) == code, code
