# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hash table in front of a tree. The loops are C (front.h) and release the GIL."""

cimport numpy as cnp
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from elf.cbt._arrays cimport as_bools, count_lanes, length_of, op_codes, start_of

import os

import numpy as np

from elf.cbt._arrays import OP_CODES

cnp.import_array()

cdef extern from "rows.h":
    enum:
        ELF_SUM128
        ELF_MIN
        ELF_MAX

cdef extern from "front.h":
    ctypedef struct elf_entry:
        pass
    ctypedef struct elf_front:
        elf_entry *table
        size_t mask
        int64_t *words
        size_t width
        int64_t *lanes
        size_t n_lanes
        int64_t *empty
        size_t count
        size_t size
        uint64_t seed
    ctypedef struct elf_column:
        const void *values
        int wide
        size_t step
        const uint8_t *valid
        size_t valid_step
    enum:
        ELF_CHUNK
    int elf_front_slots(elf_front *front, const elf_column *columns, size_t n, const uint8_t *where, int32_t *slots, int64_t *staged) noexcept nogil
    void elf_front_count(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *values) noexcept nogil
    void elf_front_add(int64_t *lanes, size_t step, int wide, const int32_t *slots, size_t n, const elf_column *values) noexcept nogil
    void elf_front_add_squares(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *values) noexcept nogil
    void elf_front_add_wide(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *values, const int64_t *high) noexcept nogil
    void elf_front_minimum(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *values) noexcept nogil
    void elf_front_maximum(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *values) noexcept nogil


KEPT_BYTES = 128 << 10
"""A front keeps at most so much memory when it is emptied."""


cdef class Front:
    """The hash table in front of a tree: groups of (pane, atoms), lanes updated in place. Slots are dense from 0.

    An atom is an integer: a number, a dictionary code, a double's bits; NULLs are stored separately. The hash is seeded at
    random, so that a log cannot choose collisions. The table grows until its owner empties it, when `used_bytes` exceeds a bound.
    """

    cdef elf_front table
    cdef bytes ops
    cdef list first_lane
    cdef readonly size_t atoms

    def __cinit__(self, size_t atoms, ops):
        if atoms > 64:
            raise ValueError("at most 64 grouping columns")
        self.ops = op_codes(ops)
        self.atoms = atoms
        self.first_lane = []
        self.table.width = atoms + 2
        self.table.n_lanes = count_lanes(self.ops)
        self.table.seed = int.from_bytes(os.urandom(8), "little")
        self.table.empty = <int64_t *> malloc((self.table.n_lanes + 1) * sizeof(int64_t))
        if self.table.empty == NULL:
            raise MemoryError
        cdef size_t lane = 0
        for op in self.ops:
            self.first_lane.append(lane)
            self.table.empty[lane] = INT64_MAX if op == ELF_MIN else INT64_MIN if op == ELF_MAX else 0
            lane += 1
            if op == ELF_SUM128:
                self.table.empty[lane] = 0
                lane += 1

    def __dealloc__(self):
        free(self.table.table)
        free(self.table.words)
        free(self.table.lanes)
        free(self.table.empty)

    def __len__(self):
        return self.table.count

    @property
    def nbytes(self):
        """Bytes of memory held, the table included."""
        cdef size_t table = 0 if self.table.table == NULL else (self.table.mask + 1) * sizeof(elf_entry)
        return table + self.table.size * (self.table.width + self.table.n_lanes) * 8

    @property
    def used_bytes(self):
        """Bytes that the groups need, at most those held: memory is taken for more groups than there are."""
        return self.table.count * ((self.table.width + self.table.n_lanes) * 8 + 2 * sizeof(elf_entry))

    cdef object _fill(self, elf_column *to, values, valid, size_t n):
        """Describe one column of n rows (or a constant) for C; returns the objects that must stay alive meanwhile."""
        if values.dtype != np.int32 and values.dtype != np.int64:
            if values.dtype != np.bool_ and not np.issubdtype(values.dtype, np.integer):
                raise TypeError(f"a front takes integers, not {values.dtype}")
            values = values.astype(np.int64)
        values = np.ascontiguousarray(values)
        if len(values) != n and len(values) != 1:
            raise ValueError(f"a column of {len(values)} rows for {n}")
        to.values, to.wide, to.step = start_of(values), values.itemsize == 8, 0 if len(values) == 1 else 1
        to.valid = NULL
        if valid is not None:
            valid = as_bools(valid, n)
            to.valid, to.valid_step = <const uint8_t *> start_of(valid), 0 if len(valid) == 1 else 1
        return values, valid

    def slots(self, pane, columns, where=None, rows=None):
        """Find or make each row's group: int32 array of n slots, -1 where the mask `where` is False. O(n).

        `pane`: int64 array or one int. `columns`: (values, valid or None) per atom, int32 or int64, of length n, or 1 for a
        constant. n is the length of the longest column, or of `where`; `rows` gives n if all are constants.
        """
        columns = list(columns)
        if len(columns) != self.atoms:
            raise ValueError(f"{len(columns)} columns for {self.atoms} atoms")
        panes = np.full(1, pane, np.int64) if np.ndim(pane) == 0 else np.ascontiguousarray(pane, dtype=np.int64)
        lengths = [len(panes), 1 if where is None else len(where)] + [len(values) for values, _ in columns]
        cdef size_t c, n = length_of(lengths) if rows is None else rows
        cdef int failed
        cdef const uint8_t *mask = NULL
        cdef int32_t *slot
        cdef elf_column *described = <elf_column *> malloc((self.atoms + 1) * sizeof(elf_column))
        cdef int64_t *staged = <int64_t *> malloc(ELF_CHUNK * self.table.width * sizeof(int64_t))
        try:
            if described == NULL or staged == NULL:
                raise MemoryError
            alive = [self._fill(described, panes, None, n)]
            for c in range(self.atoms):
                alive.append(self._fill(described + c + 1, columns[c][0], columns[c][1], n))
            if where is not None:
                where = np.broadcast_to(as_bools(where, n), n)
                where = np.ascontiguousarray(where)
                mask = <const uint8_t *> start_of(where)
            out = np.empty(n, dtype=np.int32)
            slot = <int32_t *> start_of(out)
            with nogil:
                failed = elf_front_slots(&self.table, described, n, mask, slot, staged)
            if failed:
                raise MemoryError
        finally:
            free(described)
            free(staged)
        return out

    cdef int64_t *_lane(self, size_t k, str wanted) except NULL:
        """Accumulator k's lane of group 0, after a check that its operation is one of `wanted`."""
        if k >= <size_t> len(self.ops) or self.ops[k] not in [OP_CODES[name] for name in wanted.split()]:
            raise ValueError(f"accumulator {k} is not one of: {wanted}")
        if self.table.lanes == NULL:
            return self.table.empty  # no group yet, so every slot is -1
        cdef size_t lane = self.first_lane[k]
        return self.table.lanes + lane

    cdef object _slots(self, slots):
        slots = np.ascontiguousarray(slots, dtype=np.int32)
        cdef const int32_t *slot = <const int32_t *> start_of(slots)
        cdef size_t i, n = len(slots)
        cdef int32_t highest = -1
        with nogil:
            for i in range(n):
                highest = max(highest, slot[i])
        if highest >= <int64_t> self.table.count:
            raise IndexError("a slot outside the front")
        return slots

    def count(self, size_t k, slots, valid=None):
        """Add 1 to SUM64 accumulator k of each row's group; rows with slot -1 or not valid are skipped, here and below."""
        cdef int64_t *lane = self._lane(k, "sum64")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        alive = self._fill(&column, np.zeros(1, np.int64), valid, n)
        cdef const int32_t *slot = <const int32_t *> start_of(slots)
        with nogil:
            elf_front_count(lane, step, slot, n, &column)

    def add(self, size_t k, slots, values, valid=None):
        """Add integers (length n, or a constant of length 1) to SUM64 or SUM128 accumulator k."""
        cdef int64_t *lane = self._lane(k, "sum64 sum128")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        cdef int wide = self.ops[k] == ELF_SUM128
        alive = self._fill(&column, values, valid, n)
        cdef const int32_t *slot = <const int32_t *> start_of(slots)
        with nogil:
            elf_front_add(lane, step, wide, slot, n, &column)

    def add_squares(self, size_t k, slots, values, valid=None):
        """Add the squares of integers to SUM128 accumulator k, which saturates at the largest int128."""
        cdef int64_t *lane = self._lane(k, "sum128")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        alive = self._fill(&column, values, valid, n)
        cdef const int32_t *slot = <const int32_t *> start_of(slots)
        with nogil:
            elf_front_add_squares(lane, step, slot, n, &column)

    def add_wide(self, size_t k, slots, low, high, valid=None):
        """Add 128-bit integers, given as low (uint64) and high (int64) halves, to SUM128 accumulator k; saturates likewise."""
        cdef int64_t *lane = self._lane(k, "sum128")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        low = np.ascontiguousarray(low).astype(np.uint64, copy=False).view(np.int64)
        high = np.ascontiguousarray(high, dtype=np.int64)
        if len(low) != len(high):
            raise ValueError("halves of different length")
        alive = self._fill(&column, low, valid, n)
        cdef const int32_t *slot = <const int32_t *> start_of(slots)
        cdef const int64_t *top = <const int64_t *> start_of(high)
        with nogil:
            elf_front_add_wide(lane, step, slot, n, &column, top)

    def minimum(self, size_t k, slots, values, valid=None):
        """Lower MIN accumulator k to the values."""
        cdef int64_t *lane = self._lane(k, "min")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        alive = self._fill(&column, values, valid, n)
        cdef const int32_t *slot = <const int32_t *> start_of(slots)
        with nogil:
            elf_front_minimum(lane, step, slot, n, &column)

    def maximum(self, size_t k, slots, values, valid=None):
        """Raise MAX accumulator k to the values."""
        cdef int64_t *lane = self._lane(k, "max")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        alive = self._fill(&column, values, valid, n)
        cdef const int32_t *slot = <const int32_t *> start_of(slots)
        with nogil:
            elf_front_maximum(lane, step, slot, n, &column)

    cdef object _words(self, size_t word):
        """One word of every group: a fresh int64 array of len(self)."""
        cdef size_t i, n = self.table.count, width = self.table.width
        out = np.empty(n, dtype=np.int64)
        cdef int64_t *to = <int64_t *> start_of(out)
        cdef const int64_t *words = self.table.words
        with nogil:
            for i in range(n):
                to[i] = words[i * width + word]
        return out

    def panes(self):
        """The pane of every slot: int64 (n,)."""
        return self._words(0)

    def column(self, size_t i):
        """Atom i of every slot: (values int64 (n,), valid bool (n,) or None if no value is NULL)."""
        if i >= self.atoms:
            raise IndexError(i)
        valid = (self._words(1).view(np.uint64) >> np.uint64(i)) & np.uint64(1) == 0
        return self._words(i + 2), None if valid.all() else valid

    def lanes(self):
        """The lanes of every slot: int64 (n_lanes, n)."""
        cdef size_t i, lane, n = self.table.count, n_lanes = self.table.n_lanes
        out = np.empty((n_lanes, n), dtype=np.int64)
        cdef int64_t *to = <int64_t *> start_of(out)
        cdef const int64_t *lanes = self.table.lanes
        with nogil:
            for lane in range(n_lanes):
                for i in range(n):
                    to[lane * n + i] = lanes[i * n_lanes + lane]
        return out

    def clear(self):
        """Forget all groups. Little memory is kept for the next ones: a front may have been large once, and never again."""
        self.table.count = 0
        if self.nbytes > KEPT_BYTES:
            free(self.table.table)
            free(self.table.words)
            free(self.table.lanes)
            self.table.table, self.table.words, self.table.lanes = NULL, NULL, NULL
            self.table.mask = self.table.size = 0
        elif self.table.table != NULL:
            memset(self.table.table, 0xFF, (self.table.mask + 1) * sizeof(elf_entry))

    def check(self):
        """Raise AssertionError unless every group is found under its own slot."""
        columns = [self.column(i) for i in range(self.atoms)]
        if len(self):
            assert (self.slots(self.panes(), columns) == np.arange(len(self))).all()
