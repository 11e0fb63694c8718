# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Conversion of text between a dictionary and Python, and comparisons of bytes that need no Python string.

Valid texts are equal, or one is a prefix, suffix or infix of the other, exactly if that holds for their UTF-8 bytes.
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

import numpy as np

from elf.cbt._strings cimport Strings


cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <string.h>
    """
    const void *memmem(const void *text, size_t n, const void *needle, size_t m) noexcept nogil


EQUAL, PREFIX, SUFFIX, INFIX = range(4)


def decode(Strings strings not None, const int32_t[::1] codes):
    """The values of codes as a list of str, None for -1; invalid UTF-8 becomes U+FFFD."""
    cdef Py_ssize_t i, n = codes.shape[0]
    cdef list out = [None] * n
    cdef int32_t code
    cdef uint32_t start
    for i in range(n):
        code = codes[i]
        if code >= 0:
            start = strings.ends[code - 1] if code else 0
            out[i] = PyUnicode_DecodeUTF8(<char *> strings.text + start, strings.ends[code] - start, "replace")
    return out


def decode_all(const uint8_t[::1] text, const uint32_t[::1] ends):
    """The values of a dictionary in its wire form, value i text[ends[i - 1]:ends[i]], as a list of str; as `decode`."""
    cdef const char *all = <const char *> &text[0] if len(text) else NULL
    cdef size_t i, start = 0, n = len(ends)
    cdef list out = [None] * n
    for i in range(n):
        out[i] = PyUnicode_DecodeUTF8(all + start, ends[i] - start, "replace")
        start = ends[i]
    return out


def intern(Strings strings not None, values not None):
    """The codes (int32) of a sequence of str, -1 for None."""
    cdef Py_ssize_t i = 0, size, n = len(values)
    codes = np.empty(n, dtype=np.int32)
    cdef int32_t[::1] view = codes
    cdef const char *text
    for value in values:
        if value is None:
            view[i] = -1
        else:
            text = PyUnicode_AsUTF8AndSize(value, &size)
            view[i] = strings.put(<const uint8_t *> text, size)
        i += 1
    return codes


def match(Strings strings not None, const int32_t[::1] codes, int how, bytes needle not None):
    """Whether each code's value equals, begins with, ends with or contains `needle`; False for -1. Releases the GIL."""
    cdef Py_ssize_t i, n = codes.shape[0]
    out = np.zeros(n, dtype=np.bool_)
    cdef uint8_t[::1] view = out.view(np.uint8)
    cdef const char *what = needle
    cdef size_t m = len(needle), size
    cdef const uint8_t *text
    cdef int32_t code
    cdef uint32_t start
    with nogil:
        for i in range(n):
            code = codes[i]
            if code < 0:
                continue
            start = strings.ends[code - 1] if code else 0
            size, text = strings.ends[code] - start, strings.text + start
            if size < m:
                continue
            if how == 0:
                view[i] = size == m and memcmp(text, what, m) == 0
            elif how == 1:
                view[i] = memcmp(text, what, m) == 0
            elif how == 2:
                view[i] = memcmp(text + size - m, what, m) == 0
            else:
                view[i] = memmem(text, size, what, m) != NULL
    return out


def lengths(Strings strings not None, const int32_t[::1] codes):
    """Characters of each code's value: int64, 0 for -1. Releases the GIL."""
    cdef Py_ssize_t i, at, n = codes.shape[0]
    out = np.zeros(n, dtype=np.int64)
    cdef int64_t[::1] view = out
    cdef int32_t code
    cdef int64_t count
    with nogil:
        for i in range(n):
            code = codes[i]
            if code < 0:
                continue
            count = 0
            for at in range(strings.ends[code - 1] if code else 0, strings.ends[code]):
                count += (strings.text[at] & 0xC0) != 0x80
            view[i] = count
    return out
