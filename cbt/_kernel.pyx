# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The group-by's inner loops: key bytes, hashes, ordering and merging of rows, and the hash table in front.

The loops are C (rows.h, front.h, keys.h); here are the checks of what comes in, and the arrays of what goes out. All
release the GIL. Shapes and dtypes of rows are those of rows.py.
"""

cimport numpy as cnp
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from elf.cbt._strings cimport Strings

import os

import numpy as np

from elf.cbt.rows import Rows
from elf.errors import PeerError

cnp.import_array()

cdef extern from "hash.h":
    uint64_t elf_hash64(const void *data, size_t n, uint64_t seed) noexcept nogil
    const uint64_t ELF_ORDER_SEED

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
    enum:
        ELF_SUM64
        ELF_SUM128
        ELF_MIN
        ELF_MAX
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

cdef extern from "keys.h":
    enum:
        ELF_NULL
        ELF_INT
        ELF_STRING
        ELF_DOUBLE
    ctypedef struct elf_key_column:
        int tag
        const void *values
        int width
        size_t step
        const uint8_t *valid
        size_t valid_step
        const uint8_t *text
        const uint32_t *text_ends
        size_t text_count
    const uint8_t *elf_get_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) noexcept nogil
    size_t elf_keys_measure(const elf_key_column *columns, size_t k, size_t n, uint64_t *ends) noexcept nogil
    void elf_keys_write(const elf_key_column *columns, size_t k, size_t n, uint8_t *to) noexcept nogil


OP_CODES = {"sum64": ELF_SUM64, "sum128": ELF_SUM128, "min": ELF_MIN, "max": ELF_MAX}
TAGS = {"int": ELF_INT, "string": ELF_STRING, "double": ELF_DOUBLE}


cdef inline void *_at(array) noexcept:
    return cnp.PyArray_DATA(<cnp.ndarray> array)


cdef bytes _op_codes(ops):
    return bytes([OP_CODES[op.value] for op in ops])


cdef size_t _count_lanes(bytes ops):
    return len(ops) + ops.count(ELF_SUM128)


cdef size_t _length(list lengths):
    """The number of rows among columns of which some are constants of length 1."""
    return next((n for n in lengths if n != 1), 1 if lengths else 0)


cdef object _as_bools(mask, size_t n):
    """A mask as contiguous bools of length n or 1."""
    mask = np.ascontiguousarray(mask, dtype=np.bool_)
    if len(mask) != n and len(mask) != 1:
        raise ValueError(f"a mask of {len(mask)} rows for {n}")
    return mask


# ---- hashes and key bytes ----


def hash64(bytes data not None):
    """The order hash of some bytes. O(n)."""
    return elf_hash64(<const char *> data, len(data), ELF_ORDER_SEED)


cdef object _check_ends(keys, ends):
    """The two arrays, contiguous, after a check that the offsets ascend within the bytes."""
    keys = np.ascontiguousarray(keys, dtype=np.uint8)
    ends = np.ascontiguousarray(ends, dtype=np.uint64)
    cdef const uint64_t *end = <const uint64_t *> _at(ends)
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


def hash_keys(keys, ends, split=None):
    """(hash, sub), uint64 arrays: of each key's first `split` bytes (None: all) and of the rest (0 where there is none)."""
    keys, ends = _check_ends(keys, ends)
    cdef size_t i, n = len(ends)
    cdef const uint8_t *key = <const uint8_t *> _at(keys)
    cdef const uint64_t *end = <const uint64_t *> _at(ends)
    cdef const uint32_t *cut = NULL
    if split is not None:
        split = np.ascontiguousarray(split, dtype=np.uint32)
        if len(split) != n:
            raise ValueError(f"{len(split)} splits for {n} keys")
        cut = <const uint32_t *> _at(split)
    hashes = np.empty(n, dtype=np.uint64)
    subs = np.empty(n, dtype=np.uint64)
    cdef uint64_t *h = <uint64_t *> _at(hashes)
    cdef uint64_t *sub = <uint64_t *> _at(subs)
    cdef uint64_t start = 0, length, group
    cdef bint bad = False
    with nogil:
        for i in range(n):
            length = end[i] - start
            group = length if cut == NULL else cut[i]
            if group > length:
                bad = True
                break
            h[i] = elf_hash64(key + start, group, ELF_ORDER_SEED)
            sub[i] = 0 if group == length else elf_hash64(key + start + group, length - group, ELF_ORDER_SEED)
            start = end[i]
    if bad:
        raise ValueError("a split lies beyond its key")
    return hashes, subs


cdef object _fill_key_column(elf_key_column *to, column, size_t n):
    """Describe one column to the C side; returns what must stay alive."""
    kind, values, valid, strings = column
    cdef Strings text
    memset(to, 0, sizeof(elf_key_column))
    to.tag = TAGS[kind]
    if kind == "double" and values.dtype == np.float64:
        values = values.view(np.int64)
    elif values.dtype != np.int32 and values.dtype != np.bool_:
        if not np.issubdtype(values.dtype, np.integer):
            raise TypeError(f"a key column of dtype {values.dtype}")
        values = values.astype(np.int64, copy=False)
    values = np.ascontiguousarray(values)
    to.values = _at(values)
    to.width = values.itemsize
    to.step = 0 if len(values) == 1 else 1
    if len(values) != n and len(values) != 1:
        raise ValueError(f"a key column of {len(values)} rows for {n}")
    if valid is not None:
        valid = _as_bools(valid, n)
        to.valid = <const uint8_t *> _at(valid)
        to.valid_step = 0 if len(valid) == 1 else 1
    if kind == "string":
        text = strings
        to.text, to.text_ends, to.text_count = text.text, text.ends, text.count
    return values, valid, strings


def encode_keys(columns, rows=None):
    """Key bytes of n rows: (keys uint8, ends uint64). `columns`: (kind, values, valid, strings) each, see KeyColumn.

    A column of length 1 is a constant; `rows` gives n where no column does (default: the longest column). Raises
    IndexError for a string code outside its dictionary. O(bytes).
    """
    columns = list(columns)
    cdef size_t c, done, k = len(columns), n = _length([len(column[1]) for column in columns]) if rows is None else rows
    cdef uint64_t *end
    cdef uint8_t *to
    cdef elf_key_column *described = <elf_key_column *> malloc((k + 1) * sizeof(elf_key_column))
    if described == NULL:
        raise MemoryError
    try:
        alive = [_fill_key_column(described + c, columns[c], n) for c in range(k)]
        ends = np.empty(n, dtype=np.uint64)
        end = <uint64_t *> _at(ends)
        with nogil:
            done = elf_keys_measure(described, k, n, end)
        if done < n:
            raise IndexError(f"row {done}: a string code outside its dictionary")
        keys = np.empty(end[n - 1] if n else 0, dtype=np.uint8)
        to = <uint8_t *> _at(keys)
        with nogil:
            elf_keys_write(described, k, n, to)
    finally:
        free(described)
    return keys, ends


def concat_keys(a_keys, a_ends, index, b_keys, b_ends):
    """Family keys: group key `index[i]` of `a`, then member key i of `b`. Returns (keys, ends, split). O(bytes)."""
    a_keys, a_ends = _check_ends(a_keys, a_ends)
    b_keys, b_ends = _check_ends(b_keys, b_ends)
    index = np.ascontiguousarray(index, dtype=np.int32)
    cdef size_t i, n = len(index), groups = len(a_ends)
    if len(b_ends) != n:
        raise ValueError(f"{len(b_ends)} members for {n} groups")
    cdef const uint8_t *a = <const uint8_t *> _at(a_keys)
    cdef const uint8_t *b = <const uint8_t *> _at(b_keys)
    cdef const uint64_t *a_end = <const uint64_t *> _at(a_ends)
    cdef const uint64_t *b_end = <const uint64_t *> _at(b_ends)
    cdef const int32_t *group = <const int32_t *> _at(index)
    ends = np.empty(n, dtype=np.uint64)
    splits = np.empty(n, dtype=np.uint32)
    cdef uint64_t *end = <uint64_t *> _at(ends)
    cdef uint32_t *split = <uint32_t *> _at(splits)
    cdef uint64_t total = 0, start = 0, first
    cdef bint bad = False
    with nogil:
        for i in range(n):
            if group[i] < 0 or <size_t> group[i] >= groups:
                bad = True
                break
            first = a_end[group[i] - 1] if group[i] else 0
            split[i] = <uint32_t> (a_end[group[i]] - first)
            total += split[i] + b_end[i] - start
            start = b_end[i]
            end[i] = total
    if bad:
        raise IndexError("a group index outside the group keys")
    keys = np.empty(total, dtype=np.uint8)
    cdef uint8_t *to = <uint8_t *> _at(keys)
    with nogil:
        start = 0
        for i in range(n):
            first = a_end[group[i] - 1] if group[i] else 0
            memcpy(to, a + first, split[i])
            memcpy(to + split[i], b + start, b_end[i] - start)
            to += split[i] + b_end[i] - start
            start = b_end[i]
    return keys, ends, splits


def decode_keys(keys, ends, size_t fields, start=None, into=None):
    """The first `fields` values of each key, from offset `start[i]` (None: 0) within it; what follows is left alone.

    Returns a list of (tags uint8, values int64, codes int32, Strings), one per field: a value's tag (rows.py), its integer
    (a double's bits; else 0), its code in the Strings (else -1). `into`: the Strings to use, one per field. O(bytes).
    Raises PeerError for bytes that are no canonical encoding.
    """
    keys, ends = _check_ends(keys, ends)
    cdef size_t i, f, n = len(ends)
    cdef const uint8_t *key = <const uint8_t *> _at(keys)
    cdef const uint64_t *end = <const uint64_t *> _at(ends)
    cdef const uint32_t *skip = NULL
    if start is not None:
        start = np.ascontiguousarray(start, dtype=np.uint32)
        if len(start) != n:
            raise ValueError(f"{len(start)} starts for {n} keys")
        skip = <const uint32_t *> _at(start)
    at_all = np.zeros(n, dtype=np.uint64)
    cdef uint64_t *at = <uint64_t *> _at(at_all)
    cdef uint64_t first = 0
    for i in range(n):
        at[i] = first + (0 if skip == NULL else skip[i])
        first = end[i]
    out = []
    cdef Strings strings
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef uint64_t number
    cdef uint8_t *tag
    cdef int64_t *value
    cdef int32_t *code
    cdef size_t failed = n
    for f in range(fields):
        strings = Strings() if into is None else into[f]
        tags, values, codes = np.empty(n, np.uint8), np.zeros(n, np.int64), np.full(n, -1, np.int32)
        tag, value, code = <uint8_t *> _at(tags), <int64_t *> _at(values), <int32_t *> _at(codes)
        with nogil:
            for i in range(n):
                p, stop, failed = key + at[i], key + end[i], i
                if p >= stop:
                    break
                tag[i] = p[0]
                p += 1
                if tag[i] == ELF_INT:
                    p = elf_get_varint(p, stop, &number)
                    if p == NULL:
                        break
                    value[i] = <int64_t> (number >> 1) ^ -<int64_t> (number & 1)
                elif tag[i] == ELF_STRING:
                    p = elf_get_varint(p, stop, &number)
                    if p == NULL or number > <uint64_t> (stop - p):
                        break
                    code[i] = strings.put(p, number)
                    p += number
                elif tag[i] == ELF_DOUBLE:
                    if stop - p < 8:
                        break
                    memcpy(value + i, p, 8)
                    p += 8
                elif tag[i] != ELF_NULL:
                    break
                at[i] = p - key
                failed = n
        if failed < n:
            raise PeerError(f"key {failed}, value {f}: not a key encoding")
        out.append((tags, values, codes, strings))
    return out


# ---- rows ----


cdef object _fill_rows(elf_rows *to, rows, bint blank=False):
    """Describe rows (`blank`: not written yet) to the C side; returns what must stay alive."""
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
    if n and not blank and <uint64_t> len(keys) < (<uint64_t *> _at(arrays[4]))[n - 1]:
        raise ValueError("key offsets lie beyond the key bytes")
    to.pane, to.hash, to.sub = <int64_t *> _at(arrays[0]), <uint64_t *> _at(arrays[1]), <uint64_t *> _at(arrays[2])
    to.split, to.ends, to.keys = <uint32_t *> _at(arrays[3]), <uint64_t *> _at(arrays[4]), <uint8_t *> _at(keys)
    to.lanes, to.n = <int64_t *> _at(lanes), n
    to.lane_step = lanes.strides[0] // 8 if lanes.shape[0] > 1 else n
    return arrays, keys, lanes


cdef object _room(size_t n, size_t key_bytes, size_t n_lanes):
    """Rows with room for n; pages that stay unused are never touched."""
    return Rows(
        np.empty(n, np.int64), np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.uint32),
        np.empty(n, np.uint64), np.empty(key_bytes, np.uint8), np.empty((n_lanes, n), np.int64),
    )


cdef object _cut(rows, size_t n):
    """The first n of `rows`: copied where the unused room would cost more than a quarter."""
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
    cdef size_t n_ops = len(ops), n_lanes = _count_lanes(ops)
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
    keys, ends = _check_ends(keys, ends)
    hashes, subs = hash_keys(keys, ends, split)
    n = len(ends)
    panes = np.full(n, pane, dtype=np.int64) if np.ndim(pane) == 0 else np.ascontiguousarray(pane, dtype=np.int64)
    if split is None:
        split = np.diff(ends, prepend=np.uint64(0)).astype(np.uint32)
    lanes = np.ascontiguousarray(lanes, dtype=np.int64)
    return _sorted(Rows(panes, hashes, subs, split, ends, keys, lanes), _op_codes(ops))


def fold(rows, ops):
    """`rows` in any order -> ordered, equal keys folded. O(n) for spread hashes."""
    _check_ends(rows.keys, rows.ends)
    return _sorted(rows, _op_codes(ops))


cdef class Merger:
    """Reads ordered runs as one, equal keys folded, from front to back and as far as is asked. O(n log k) over all.

    `runs` are ordered and folded, each; `scattered` are several such runs one after the other, each. They must not change
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
        self.ops = _op_codes(ops)
        self.n_lanes = _count_lanes(self.ops)
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
        """The rows from where the last read ended up to the place `until`, (pane, hash, sub, key); None: all that are left.

        Where they come from one run alone, they are views of it; else they own their arrays.
        """
        return self._next(until, True)

    def gather(self, until=None):
        """The rows that `read` would give, but one run after the other, as they are. O(bytes)."""
        return self._next(until, False)

    def skip(self, until):
        """Go on from the place `until`, as if all before it had been read. O(log n) per run."""
        cdef size_t r
        self._stop(until)
        for r in range(self.state.k):
            self.state.at[r] = self.state.stop[r]

    def left(self, until=None):
        """How many rows `gather` would give. O(log n) per run."""
        return self._stop(until)[0]

    cdef (size_t, size_t) _stop(self, until):
        """Stop all runs at a place; returns how many rows and bytes of keys lie before it."""
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
    cdef const int64_t *at = <const int64_t *> _at(index)
    lengths = np.diff(rows.ends, prepend=np.uint64(0))
    ends = np.cumsum(lengths[index], dtype=np.uint64)
    keys = np.empty(int(ends[n - 1]) if n else 0, np.uint8)
    cdef const uint64_t *end = <const uint64_t *> _at(ends)
    cdef uint8_t *to = <uint8_t *> _at(keys)
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
    """Index of the first row behind row `after` that is not after the one before it; len(rows) if there is none. O(n)."""
    cdef elf_rows source
    cdef size_t at
    alive = _fill_rows(&source, rows)
    with nogil:
        at = elf_first_disorder(&source, after)
    return at


def trim_memory():
    """Give freed pages back to the system, where the allocator would keep them (glibc)."""
    with nogil:
        elf_trim()


# ---- frames ----


def pack_columns(rows):
    """All columns of ordered rows but the keys, as frame.py lays them out: uint8 array. O(n)."""
    cdef elf_rows source
    cdef uint8_t *start
    cdef uint8_t *end
    alive = _fill_rows(&source, rows)
    cdef size_t n_lanes = rows.lanes.shape[0]
    out = np.empty((3 + n_lanes) * (ELF_COLUMN_HEAD + 8 * source.n), np.uint8)
    start = <uint8_t *> _at(out)
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
    """The n rows of `pack_columns` and the key bytes behind them, hashed; the keys are a view of `body`. O(bytes).

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
    out.keys = np.asarray(body)[size - key_bytes :]
    return out


# ---- the front ----


cdef class Front:
    """The hash table in front of a tree: groups of (pane, atoms), lanes updated in place. Slots are dense from 0.

    An atom is an integer: a number, a dictionary code, a double's bits; its NULLs are kept apart. The hash is seeded at
    random, so that a log cannot choose collisions. It only grows; its owner empties it when `nbytes` passes a bound.
    """

    cdef elf_front table
    cdef bytes ops
    cdef list first_lane
    cdef readonly size_t atoms

    def __cinit__(self, size_t atoms, ops):
        if atoms > 64:
            raise ValueError("at most 64 grouping columns")
        self.ops = _op_codes(ops)
        self.atoms = atoms
        self.first_lane = []
        self.table.width = atoms + 2
        self.table.n_lanes = _count_lanes(self.ops)
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

    cdef object _fill(self, elf_column *to, values, valid, size_t n):
        """Describe one column of n rows (or a constant) to the C side; returns what must stay alive."""
        if values.dtype != np.int32 and values.dtype != np.int64:
            if values.dtype != np.bool_ and not np.issubdtype(values.dtype, np.integer):
                raise TypeError(f"a front takes integers, not {values.dtype}")
            values = values.astype(np.int64)
        values = np.ascontiguousarray(values)
        if len(values) != n and len(values) != 1:
            raise ValueError(f"a column of {len(values)} rows for {n}")
        to.values, to.wide, to.step = _at(values), values.itemsize == 8, 0 if len(values) == 1 else 1
        to.valid = NULL
        if valid is not None:
            valid = _as_bools(valid, n)
            to.valid, to.valid_step = <const uint8_t *> _at(valid), 0 if len(valid) == 1 else 1
        return values, valid

    def slots(self, pane, columns, where=None, rows=None):
        """Find or make each row's group: int32 array of n slots, -1 where the mask `where` is False. O(n).

        `pane`: int64 array or one int. `columns`: (values, valid or None) per atom, int32 or int64, of length n, or 1 for a
        constant. n is that of the longest, or of `where`; `rows` says it where neither does.
        """
        columns = list(columns)
        if len(columns) != self.atoms:
            raise ValueError(f"{len(columns)} columns for {self.atoms} atoms")
        panes = np.full(1, pane, np.int64) if np.ndim(pane) == 0 else np.ascontiguousarray(pane, dtype=np.int64)
        lengths = [len(panes), 1 if where is None else len(where)] + [len(values) for values, _ in columns]
        cdef size_t c, n = _length(lengths) if rows is None else rows
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
                where = np.broadcast_to(_as_bools(where, n), n)
                where = np.ascontiguousarray(where)
                mask = <const uint8_t *> _at(where)
            out = np.empty(n, dtype=np.int32)
            slot = <int32_t *> _at(out)
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
        cdef const int32_t *slot = <const int32_t *> _at(slots)
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
        cdef const int32_t *slot = <const int32_t *> _at(slots)
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
        cdef const int32_t *slot = <const int32_t *> _at(slots)
        with nogil:
            elf_front_add(lane, step, wide, slot, n, &column)

    def add_squares(self, size_t k, slots, values, valid=None):
        """Add the squares of integers to SUM128 accumulator k; past 127 bits it sticks at the largest int128."""
        cdef int64_t *lane = self._lane(k, "sum128")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        alive = self._fill(&column, values, valid, n)
        cdef const int32_t *slot = <const int32_t *> _at(slots)
        with nogil:
            elf_front_add_squares(lane, step, slot, n, &column)

    def add_wide(self, size_t k, slots, low, high, valid=None):
        """Add 128-bit integers, given as low (uint64) and high (int64) halves, to SUM128 accumulator k; sticks as above."""
        cdef int64_t *lane = self._lane(k, "sum128")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        low = np.ascontiguousarray(low).astype(np.uint64, copy=False).view(np.int64)
        high = np.ascontiguousarray(high, dtype=np.int64)
        if len(low) != len(high):
            raise ValueError("halves of different length")
        alive = self._fill(&column, low, valid, n)
        cdef const int32_t *slot = <const int32_t *> _at(slots)
        cdef const int64_t *top = <const int64_t *> _at(high)
        with nogil:
            elf_front_add_wide(lane, step, slot, n, &column, top)

    def minimum(self, size_t k, slots, values, valid=None):
        """Lower MIN accumulator k to the values."""
        cdef int64_t *lane = self._lane(k, "min")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        alive = self._fill(&column, values, valid, n)
        cdef const int32_t *slot = <const int32_t *> _at(slots)
        with nogil:
            elf_front_minimum(lane, step, slot, n, &column)

    def maximum(self, size_t k, slots, values, valid=None):
        """Raise MAX accumulator k to the values."""
        cdef int64_t *lane = self._lane(k, "max")
        cdef elf_column column
        slots = self._slots(slots)
        cdef size_t n = len(slots), step = self.table.n_lanes
        alive = self._fill(&column, values, valid, n)
        cdef const int32_t *slot = <const int32_t *> _at(slots)
        with nogil:
            elf_front_maximum(lane, step, slot, n, &column)

    cdef object _words(self, size_t word):
        """One word of every group: a fresh int64 array of len(self)."""
        cdef size_t i, n = self.table.count, width = self.table.width
        out = np.empty(n, dtype=np.int64)
        cdef int64_t *to = <int64_t *> _at(out)
        cdef const int64_t *words = self.table.words
        with nogil:
            for i in range(n):
                to[i] = words[i * width + word]
        return out

    def panes(self):
        """The pane of every slot: int64 (n,)."""
        return self._words(0)

    def column(self, size_t i):
        """Atom i of every slot: (values int64 (n,), valid bool (n,) or None where nothing is NULL)."""
        if i >= self.atoms:
            raise IndexError(i)
        valid = (self._words(1).view(np.uint64) >> np.uint64(i)) & np.uint64(1) == 0
        return self._words(i + 2), None if valid.all() else valid

    def lanes(self):
        """The lanes of every slot: int64 (n_lanes, n)."""
        cdef size_t i, lane, n = self.table.count, n_lanes = self.table.n_lanes
        out = np.empty((n_lanes, n), dtype=np.int64)
        cdef int64_t *to = <int64_t *> _at(out)
        cdef const int64_t *lanes = self.table.lanes
        with nogil:
            for lane in range(n_lanes):
                for i in range(n):
                    to[lane * n + i] = lanes[i * n_lanes + lane]
        return out

    def clear(self):
        """Forget all groups; the memory is kept for the next ones."""
        self.table.count = 0
        if self.table.table != NULL:
            memset(self.table.table, 0xFF, (self.table.mask + 1) * sizeof(elf_entry))

    def check(self):
        """Raise AssertionError unless every group is found under its own slot."""
        columns = [self.column(i) for i in range(self.atoms)]
        if len(self):
            assert (self.slots(self.panes(), columns) == np.arange(len(self))).all()
