# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The inner loops over rows: ordering, merging, packing. The loops are C (rows.h, frame.h) and release the GIL.

This module checks the arguments and allocates the results. Shapes and dtypes of rows are those of rows.py.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from elf.cbt._arrays cimport check_ends, count_lanes, op_codes, start_of

import numpy as np

from elf.cbt._keys import hash_keys
from elf.cbt.rows import Rows
from elf.errors import PeerError

cnp.import_array()

cdef extern from "rows.h":
    ctypedef struct elf_rows:
        int64_t *pane
        uint64_t *hash
        uint64_t *sub
        uint32_t *split
        uint64_t *ends
        uint8_t *keys
        int64_t *lanes
        size_t lane_step
        size_t n
    void elf_trim() noexcept nogil
    size_t elf_lower_bound(const elf_rows *rows, size_t low, int64_t pane, uint64_t hash, uint64_t sub, uint8_t *key, size_t length) noexcept nogil
    size_t elf_first_disorder(const elf_rows *rows, size_t after) noexcept nogil
    int elf_sort(const elf_rows *rows, elf_rows *out, const uint8_t *ops, size_t n_ops, size_t n_lanes) noexcept nogil
    ctypedef struct elf_merger:
        const elf_rows *runs
        size_t *at
        size_t *stop
        size_t k
    void elf_merger_until(elf_merger *merger, int64_t pane, uint64_t hash, uint64_t sub, uint8_t *key, size_t length, size_t *rows, size_t *key_bytes) noexcept nogil
    void elf_gather(elf_merger *merger, elf_rows *out, size_t n_lanes) noexcept nogil
    int elf_merge(elf_merger *merger, elf_rows *out, const uint8_t *ops, size_t n_ops, size_t n_lanes) noexcept nogil

cdef extern from "frame.h":
    enum:
        ELF_COLUMN_HEAD
        ELF_ENDS_EARLY
        ELF_UNKNOWN_KIND
        ELF_TOO_LONG
        ELF_BAD_LENGTH
        ELF_BAD_SUM
    uint8_t *elf_pack_columns(uint8_t *to, const elf_rows *rows, size_t n_lanes, int64_t *spare) noexcept nogil
    int elf_unpack_rows(elf_rows *rows, size_t n_lanes, const uint8_t *at, size_t size, size_t key_bytes) noexcept nogil


# ---- rows ----


cdef object _fill_rows(elf_rows *to, rows, bint blank=False):
    """Describe rows (`blank`: not written yet) for C; returns the objects that must stay alive meanwhile."""
    cdef size_t n = len(rows.pane)
    lanes = rows.lanes
    if lanes.dtype != np.int64 or (lanes.size and lanes.strides[1] != 8):
        lanes = np.ascontiguousarray(lanes, dtype=np.int64)
    arrays = [
        np.ascontiguousarray(rows.pane, dtype=np.int64),
        np.ascontiguousarray(rows.hash, dtype=np.uint64),
        np.ascontiguousarray(rows.sub, dtype=np.uint64),
        np.ascontiguousarray(rows.split, dtype=np.uint32),
        np.ascontiguousarray(rows.ends, dtype=np.uint64),
    ]
    if any(len(part) != n for part in arrays) or lanes.ndim != 2 or lanes.shape[1] != n:
        raise ValueError("columns of rows differ in length")
    keys = np.ascontiguousarray(rows.keys, dtype=np.uint8)
    if n and not blank and <uint64_t> len(keys) < (<uint64_t *> start_of(arrays[4]))[n - 1]:
        raise ValueError("key offsets lie beyond the key bytes")
    to.pane, to.hash, to.sub = <int64_t *> start_of(arrays[0]), <uint64_t *> start_of(arrays[1]), <uint64_t *> start_of(arrays[2])
    to.split, to.ends, to.keys = <uint32_t *> start_of(arrays[3]), <uint64_t *> start_of(arrays[4]), <uint8_t *> start_of(keys)
    to.lanes, to.n = <int64_t *> start_of(lanes), n
    to.lane_step = lanes.strides[0] // 8 if lanes.shape[0] > 1 else n
    return arrays, keys, lanes


cdef object _room(size_t n, size_t key_bytes, size_t n_lanes):
    """Rows with room for n; unused pages of memory are never touched."""
    return Rows(
        np.empty(n, np.int64), np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.uint32),
        np.empty(n, np.uint64), np.empty(key_bytes, np.uint8), np.empty((n_lanes, n), np.int64),
    )


cdef object _cut(rows, size_t n):
    """The first n of `rows`: a copy if more than a quarter of the room would be unused, otherwise views."""
    if n == len(rows.pane):
        return rows
    key_bytes = int(rows.ends[n - 1]) if n else 0
    cut = Rows(
        rows.pane[:n], rows.hash[:n], rows.sub[:n], rows.split[:n], rows.ends[:n], rows.keys[:key_bytes], rows.lanes[:, :n]
    )
    return cut if 4 * n > 3 * <size_t> len(rows.pane) else cut.copy()


cdef object _sorted(rows, bytes ops):
    cdef elf_rows source, target
    cdef int failed
    cdef const uint8_t *codes = <const uint8_t *> <const char *> ops
    cdef size_t n_ops = len(ops), n_lanes = count_lanes(ops)
    alive = _fill_rows(&source, rows)
    if rows.lanes.shape[0] != n_lanes:
        raise ValueError(f"{rows.lanes.shape[0]} lanes where the operations need {n_lanes}")
    if source.n > 0xFFFFFFFFu:
        raise ValueError("too many rows for one piece")
    out = _room(source.n, len(rows.keys), n_lanes)
    alive_out = _fill_rows(&target, out, True)
    target.n = 0
    with nogil:
        failed = elf_sort(&source, &target, codes, n_ops, n_lanes)
    if failed:
        raise MemoryError
    return _cut(out, target.n)


def make_rows(pane, keys, ends, split, lanes, ops):
    """Rows from columns in any order: hashed, ordered by (pane, hash, sub, key), equal keys folded.

    `pane`: int64 array or one int for all; `split`: uint32 array, or None where keys are group keys only; `lanes`:
    (n_lanes, n) int64. The result owns its arrays. O(n) for spread hashes.
    """
    keys, ends = check_ends(keys, ends)
    hashes, subs = hash_keys(keys, ends, split)
    n = len(ends)
    panes = np.full(n, pane, dtype=np.int64) if np.ndim(pane) == 0 else np.ascontiguousarray(pane, dtype=np.int64)
    if split is None:
        split = np.diff(ends, prepend=np.uint64(0)).astype(np.uint32)
    lanes = np.ascontiguousarray(lanes, dtype=np.int64)
    return _sorted(Rows(panes, hashes, subs, split, ends, keys, lanes), op_codes(ops))


def fold(rows, ops):
    """`rows` in any order -> ordered, equal keys folded. O(n) for spread hashes."""
    check_ends(rows.keys, rows.ends)
    return _sorted(rows, op_codes(ops))


cdef class Merger:
    """Reads ordered runs as one run, with equal keys folded, from front to back, as far as requested. O(n log k) in total.

    Each of `runs` is ordered and folded; each of `scattered` consists of several such runs in sequence. They must not change
    meanwhile.
    """

    cdef elf_rows *runs
    cdef elf_merger state
    cdef list rows, alive
    cdef bytes ops
    cdef size_t n_lanes

    def __cinit__(self, runs, ops, scattered=()):
        cdef elf_rows source
        cdef size_t r, stop
        self.ops = op_codes(ops)
        self.n_lanes = count_lanes(self.ops)
        self.rows, self.alive, places = [], [], []
        for ordered, parts in ((True, runs), (False, scattered)):
            for part in parts:
                if part.lanes.shape[0] != self.n_lanes:
                    raise ValueError(f"{part.lanes.shape[0]} lanes where the operations need {self.n_lanes}")
                self.alive.append(_fill_rows(&source, part))
                stop = 0
                while stop < source.n:
                    start, stop = stop, source.n if ordered else elf_first_disorder(&source, stop)
                    self.rows.append(part)
                    places.append((start, stop))
        self.state.k = len(self.rows)
        self.runs = <elf_rows *> malloc((self.state.k + 1) * sizeof(elf_rows))
        self.state.at = <size_t *> malloc((self.state.k + 1) * sizeof(size_t))
        self.state.stop = <size_t *> malloc((self.state.k + 1) * sizeof(size_t))
        if self.runs == NULL or self.state.at == NULL or self.state.stop == NULL:
            raise MemoryError
        self.state.runs = self.runs
        for r in range(self.state.k):
            if r and self.rows[r] is self.rows[r - 1]:
                self.runs[r] = self.runs[r - 1]
            else:
                self.alive.append(_fill_rows(self.runs + r, self.rows[r]))
            self.state.at[r], self.runs[r].n = places[r]

    def __dealloc__(self):
        free(self.runs)
        free(self.state.at)
        free(self.state.stop)

    def read(self, until=None):
        """The rows from the end of the last read up to the bound `until`, (pane, hash, sub, key); None: all remaining rows.

        If they come from one run only, they are views of it; otherwise they own their arrays.
        """
        return self._next(until, True)

    def gather(self, until=None):
        """The rows that `read` would return, but unmerged, run by run. O(bytes)."""
        return self._next(until, False)

    def skip(self, until):
        """Skip all rows before the bound `until`. O(log n) per run."""
        cdef size_t r
        self._stop(until)
        for r in range(self.state.k):
            self.state.at[r] = self.state.stop[r]

    def left(self, until=None):
        """How many rows `gather` would return. O(log n) per run."""
        return self._stop(until)[0]

    cdef (size_t, size_t) _stop(self, until):
        """Stop all runs at a bound; returns the numbers of rows and of key bytes before it."""
        cdef int64_t pane = 0
        cdef uint64_t hashed = 0, sub = 0
        cdef uint8_t *key = NULL
        cdef size_t length = 0, rows, key_bytes
        if until is not None:
            pane, hashed, sub, text = until
            key, length = <uint8_t *> <char *> text, len(text)
        with nogil:
            elf_merger_until(&self.state, pane, hashed, sub, key, length, &rows, &key_bytes)
        return rows, key_bytes

    cdef object _next(self, until, bint ordered):
        cdef size_t rows, key_bytes, r
        cdef elf_rows target
        cdef int failed = 0
        cdef const uint8_t *codes = <const uint8_t *> <char *> self.ops
        cdef size_t n_ops = len(self.ops)
        rows, key_bytes = self._stop(until)
        for r in range(self.state.k):
            if rows and self.state.stop[r] - self.state.at[r] == rows:
                start, self.state.at[r] = self.state.at[r], self.state.stop[r]
                return self.rows[r] if rows == <size_t> len(self.rows[r].pane) else self.rows[r].slice(start, self.state.stop[r])
        out = _room(rows, key_bytes, self.n_lanes)
        if not rows:
            return out
        alive = _fill_rows(&target, out, True)
        target.n = 0
        with nogil:
            if ordered:
                failed = elf_merge(&self.state, &target, codes, n_ops, self.n_lanes)
            else:
                elf_gather(&self.state, &target, self.n_lanes)
        if failed:
            raise MemoryError
        return _cut(out, target.n)


def merge(runs, ops):
    """Ordered runs -> one ordered run, equal keys folded. O(n log k), reading each run from front to back.

    A single run is returned as it is; the result of several owns its arrays. No runs: no rows.
    """
    return Merger(runs, ops).read()


def take(rows, index):
    """The rows at the given indices (int64), in that order, in arrays of their own. Raises IndexError. O(bytes)."""
    index = np.ascontiguousarray(index, dtype=np.int64)
    cdef elf_rows source
    alive = _fill_rows(&source, rows)
    if len(index) and (index.min() < 0 or index.max() >= source.n):
        raise IndexError("a row index outside the rows")
    cdef size_t i, n = len(index)
    cdef const int64_t *at = <const int64_t *> start_of(index)
    lengths = np.diff(rows.ends, prepend=np.uint64(0))
    ends = np.cumsum(lengths[index], dtype=np.uint64)
    keys = np.empty(int(ends[n - 1]) if n else 0, np.uint8)
    cdef const uint64_t *end = <const uint64_t *> start_of(ends)
    cdef uint8_t *to = <uint8_t *> start_of(keys)
    cdef uint64_t start
    with nogil:
        for i in range(n):
            start = source.ends[at[i] - 1] if at[i] else 0
            memcpy(to, source.keys + start, source.ends[at[i]] - start)
            to += source.ends[at[i]] - start
    return Rows(rows.pane[index], rows.hash[index], rows.sub[index], rows.split[index], ends, keys, rows.lanes[:, index])


def lower_bound(rows, int64_t pane, uint64_t hash=0, uint64_t sub=0, bytes key=b""):
    """Index of the first of some ordered rows that is not before (pane, hash, sub, key). O(log n)."""
    cdef elf_rows source
    alive = _fill_rows(&source, rows)
    return elf_lower_bound(&source, 0, pane, hash, sub, <uint8_t *> <char *> key, len(key))


def first_disorder(rows, size_t after=0):
    """Index of the first row behind row `after` that is out of order: not after the row before it. len(rows) if none. O(n)."""
    cdef elf_rows source
    cdef size_t at
    alive = _fill_rows(&source, rows)
    with nogil:
        at = elf_first_disorder(&source, after)
    return at


def trim_memory():
    """Return freed pages to the system; the allocator (glibc) would keep them."""
    with nogil:
        elf_trim()


# ---- frames ----


def pack_columns(rows):
    """All columns of ordered rows but the keys, in the layout of frame.py: uint8 array. O(n)."""
    cdef elf_rows source
    cdef uint8_t *start
    cdef uint8_t *end
    alive = _fill_rows(&source, rows)
    cdef size_t n_lanes = rows.lanes.shape[0]
    out = np.empty((3 + n_lanes) * (ELF_COLUMN_HEAD + 8 * source.n), np.uint8)
    start = <uint8_t *> start_of(out)
    cdef int64_t *spare = <int64_t *> malloc((source.n + 1) * sizeof(int64_t))
    if spare == NULL:
        raise MemoryError
    with nogil:
        end = elf_pack_columns(start, &source, n_lanes, spare)
    free(spare)
    return out[: end - start]


_WRONG = {
    ELF_ENDS_EARLY: "ends too early",
    ELF_UNKNOWN_KIND: "unknown column kind",
    ELF_TOO_LONG: "bytes too many",
    ELF_BAD_LENGTH: "a key length out of range",
    ELF_BAD_SUM: "key lengths do not add up",
}


def unpack_rows(const uint8_t[::1] body, size_t n, size_t n_lanes, size_t key_bytes):
    """The n rows of `pack_columns` and the key bytes after them, hashed, in arrays of their own: views would keep all of `body`
    in memory, which no owner of rows counts. O(bytes).

    Lengths are checked, the order is not. Raises PeerError.
    """
    cdef elf_rows target
    cdef int wrong
    cdef size_t size = body.shape[0]
    out = _room(n, 0, n_lanes)
    alive = _fill_rows(&target, out, True)
    cdef const uint8_t *at = &body[0] if size else NULL
    with nogil:
        wrong = elf_unpack_rows(&target, n_lanes, at, size, key_bytes)
    if wrong:
        raise PeerError(f"rows frame: {_WRONG[wrong]}")
    out.keys = np.asarray(body)[size - key_bytes :].copy()
    return out
