# cython: boundscheck=False, wraparound=False
"""Where a block may end, so that all parts of a line that a container's runtime wrote in parts are in it; see parts.h."""

from libc.stdint cimport uint8_t


cdef extern from "parts.h":
    int elf_part(const uint8_t *p, const uint8_t *end, int *stream, const uint8_t **text) noexcept nogil
    const uint8_t *elf_clean_end(const uint8_t *p, const uint8_t *end, const uint8_t *stop, size_t line_max) noexcept nogil


def clean_end(const uint8_t[::1] buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t stop, size_t line_max):
    """The last place in the whole lines `buffer[start:end]` where no line is open; `start` if there is none behind it.

    start: such a place. stop: the end of the incomplete line after them. O(length of a few lines) where
    these are no parts, else O(end - start).
    """
    if start >= end:
        return end
    return elf_clean_end(&buffer[start], &buffer[0] + end, &buffer[0] + stop, line_max) - &buffer[0]


def is_part(const uint8_t[::1] line):
    """Whether a line, without its newline, is a part of a line or a whole one as container runtimes write them."""
    cdef int stream
    cdef const uint8_t *text
    return line.shape[0] > 0 and elf_part(&line[0], &line[0] + line.shape[0], &stream, &text) != 0
