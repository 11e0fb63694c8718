# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Takes the envelopes off the lines of a block; the work is in unwrap.h."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import numpy as np


cdef extern from "unwrap.h":
    enum:
        F_BARE
        F_OTHER
    ctypedef struct elf_text:
        const uint8_t *p
        size_t n
    ctypedef struct elf_bytes:
        uint8_t *p
        size_t n
    ctypedef struct elf_line:
        int64_t begin, end
        uint32_t size, at
        uint8_t flag
    ctypedef struct elf_pending:
        elf_bytes text, head
    ctypedef struct elf_unwrapper:
        int kind, with_heads, out_of_memory, n_programs
        size_t line_max, n_lines
        const elf_text *programs
        elf_bytes out, heads, further
        elf_pending pending[2]
        elf_line *lines
    void elf_unwrap(elf_unwrapper *u, const uint8_t *block, size_t n) noexcept nogil

cdef extern from "Python.h":
    enum:
        PyBUF_READ

KINDS = ("cri", "syslog", "kubectl", "compose", "stern", "docker", "journald", "json")
BARE, OTHER = F_BARE, F_OTHER


cdef class Unwrapper:
    """Takes envelopes of one kind off. What `lines` and `heads` return is valid until the next call of `unwrap`.

    programs: if any, lines of others get the flag OTHER. with_heads: whether `heads` is wanted.
    """

    cdef elf_unwrapper u
    cdef elf_text *programs
    cdef tuple kept

    def __cinit__(self, str kind, size_t line_max, tuple programs=(), bint with_heads=False):
        cdef int i
        self.kept = programs
        self.programs = <elf_text *> calloc(len(programs) + 1, sizeof(elf_text))
        if not self.programs:
            raise MemoryError
        for i in range(len(programs)):
            self.programs[i].p = <const uint8_t *> PyBytes_AS_STRING(programs[i])
            self.programs[i].n = len(programs[i])
        self.u.kind, self.u.line_max, self.u.with_heads = KINDS.index(kind), line_max, with_heads
        self.u.programs, self.u.n_programs = self.programs, len(programs)

    def __dealloc__(self):
        cdef int i
        free(self.programs)
        free(self.u.out.p)
        free(self.u.heads.p)
        free(self.u.lines)
        free(self.u.further.p)
        for i in range(2):
            free(self.u.pending[i].text.p)
            free(self.u.pending[i].head.p)

    def unwrap(self, const uint8_t[::1] block):
        """Read the whole lines of `block`. O(bytes); releases the GIL."""
        cdef size_t n = block.shape[0]
        if n:
            with nogil:
                elf_unwrap(&self.u, &block[0], n)
        else:
            self.u.out.n = self.u.heads.n = self.u.further.n = self.u.n_lines = 0
        if self.u.out_of_memory:
            raise MemoryError

    def lines(self):
        """The lines inside, each with its newline."""
        return _view(&self.u.out)

    def heads(self):
        """For each line its envelope; see unwrap.h."""
        return _view(&self.u.heads)

    def flags(self):
        """For each line 0, BARE or OTHER: uint8."""
        out = np.empty(self.u.n_lines, dtype=np.uint8)
        cdef uint8_t[::1] view = out
        cdef size_t i
        for i in range(self.u.n_lines):
            view[i] = self.u.lines[i].flag
        return out

    def further(self):
        """The raw lines that are further parts of a line: where each begins in the block, and where the line's first part does.
        int64, (n, 2)."""
        return np.frombuffer(bytes(_view(&self.u.further)), dtype=np.int64).reshape(-1, 2)

    def some(self, const int64_t[::1] which):
        """The lines inside at these numbers. O(their bytes)."""
        cdef size_t size = 0, at = 0
        cdef int64_t line, begin
        cdef Py_ssize_t i
        for i in range(which.shape[0]):
            size += self.u.lines[which[i]].end - self._begin(which[i])
        out = PyBytes_FromStringAndSize(NULL, size)
        for i in range(which.shape[0]):
            line, begin = which[i], self._begin(which[i])
            memcpy(PyBytes_AS_STRING(out) + at, self.u.out.p + begin, self.u.lines[line].end - begin)
            at += self.u.lines[line].end - begin
        return out

    cdef int64_t _begin(self, int64_t line):
        return self.u.lines[line - 1].end if line else 0

    def place(self, size_t line):
        """Where a line is in the block: begin and size of its first raw line, and where its text begins in that."""
        return self.u.lines[line].begin, self.u.lines[line].size, self.u.lines[line].at

    @property
    def nbytes(self):
        """Bytes of the lines and heads of the last block."""
        return self.u.out.n + self.u.heads.n + self.u.further.n + self.u.n_lines * sizeof(elf_line)


cdef object _view(elf_bytes *b):
    if not b.n:
        return b""
    return PyMemoryView_FromMemory(<char *> b.p, b.n, PyBUF_READ)
