# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Key bytes of rows and their hashes; the encoding is that of rows.py. The loops are C (keys.h, hash.h) and release the GIL."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from elf.cbt._arrays cimport as_bools, check_ends, length_of, start_of
from elf.cbt._strings cimport Strings

import numpy as np

from elf.errors import PeerError

cnp.import_array()

cdef extern from "hash.h":
    uint64_t elf_hash64(const void *data, size_t n, uint64_t seed) noexcept nogil
    const uint64_t ELF_ORDER_SEED

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


TAGS = {"int": ELF_INT, "string": ELF_STRING, "double": ELF_DOUBLE}


def hash64(bytes data not None):
    """The order hash of some bytes. O(n)."""
    return elf_hash64(<const char *> data, len(data), ELF_ORDER_SEED)


def hash_keys(keys, ends, split=None):
    """(hash, sub), uint64 arrays: of each key's first `split` bytes (None: all) and of the rest (0 if there is no rest)."""
    keys, ends = check_ends(keys, ends)
    cdef size_t i, n = len(ends)
    cdef const uint8_t *key = <const uint8_t *> start_of(keys)
    cdef const uint64_t *end = <const uint64_t *> start_of(ends)
    cdef const uint32_t *cut = NULL
    if split is not None:
        split = np.ascontiguousarray(split, dtype=np.uint32)
        if len(split) != n:
            raise ValueError(f"{len(split)} splits for {n} keys")
        cut = <const uint32_t *> start_of(split)
    hashes = np.empty(n, dtype=np.uint64)
    subs = np.empty(n, dtype=np.uint64)
    cdef uint64_t *h = <uint64_t *> start_of(hashes)
    cdef uint64_t *sub = <uint64_t *> start_of(subs)
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
    """Describe one column for C; returns the objects that must stay alive meanwhile."""
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
    to.values = start_of(values)
    to.width = values.itemsize
    to.step = 0 if len(values) == 1 else 1
    if len(values) != n and len(values) != 1:
        raise ValueError(f"a key column of {len(values)} rows for {n}")
    if valid is not None:
        valid = as_bools(valid, n)
        to.valid = <const uint8_t *> start_of(valid)
        to.valid_step = 0 if len(valid) == 1 else 1
    if kind == "string":
        text = strings
        to.text, to.text_ends, to.text_count = text.text, text.ends, text.count
    return values, valid, strings


def encode_keys(columns, rows=None):
    """Key bytes of n rows: (keys uint8, ends uint64). `columns`: (kind, values, valid, strings) each, see KeyColumn.

    A column of length 1 is a constant; `rows` gives n if all are constants (default: the longest column). Raises
    IndexError for a string code outside its dictionary. O(bytes).
    """
    columns = list(columns)
    cdef size_t c, done, k = len(columns), n = length_of([len(column[1]) for column in columns]) if rows is None else rows
    cdef uint64_t *end
    cdef uint8_t *to
    cdef elf_key_column *described = <elf_key_column *> malloc((k + 1) * sizeof(elf_key_column))
    if described == NULL:
        raise MemoryError
    try:
        alive = [_fill_key_column(described + c, columns[c], n) for c in range(k)]
        ends = np.empty(n, dtype=np.uint64)
        end = <uint64_t *> start_of(ends)
        with nogil:
            done = elf_keys_measure(described, k, n, end)
        if done < n:
            raise IndexError(f"row {done}: a string code outside its dictionary")
        keys = np.empty(end[n - 1] if n else 0, dtype=np.uint8)
        to = <uint8_t *> start_of(keys)
        with nogil:
            elf_keys_write(described, k, n, to)
    finally:
        free(described)
    return keys, ends


def concat_keys(a_keys, a_ends, index, b_keys, b_ends):
    """Family keys: group key `index[i]` of `a`, then member key i of `b`. Returns (keys, ends, split). O(bytes)."""
    a_keys, a_ends = check_ends(a_keys, a_ends)
    b_keys, b_ends = check_ends(b_keys, b_ends)
    index = np.ascontiguousarray(index, dtype=np.int32)
    cdef size_t i, n = len(index), groups = len(a_ends)
    if len(b_ends) != n:
        raise ValueError(f"{len(b_ends)} members for {n} groups")
    cdef const uint8_t *a = <const uint8_t *> start_of(a_keys)
    cdef const uint8_t *b = <const uint8_t *> start_of(b_keys)
    cdef const uint64_t *a_end = <const uint64_t *> start_of(a_ends)
    cdef const uint64_t *b_end = <const uint64_t *> start_of(b_ends)
    cdef const int32_t *group = <const int32_t *> start_of(index)
    ends = np.empty(n, dtype=np.uint64)
    splits = np.empty(n, dtype=np.uint32)
    cdef uint64_t *end = <uint64_t *> start_of(ends)
    cdef uint32_t *split = <uint32_t *> start_of(splits)
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
    cdef uint8_t *to = <uint8_t *> start_of(keys)
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
    """The first `fields` values of each key, from offset `start[i]` (None: 0) within it; the rest is not read.

    Returns a list of (tags uint8, values int64, codes int32, Strings), one per field: a value's tag (rows.py), its integer
    (a double's bits; else 0), its code in the Strings (else -1). `into`: the Strings to use, one per field. O(bytes).
    Raises PeerError for bytes that are no canonical encoding.
    """
    keys, ends = check_ends(keys, ends)
    cdef size_t i, f, n = len(ends)
    cdef const uint8_t *key = <const uint8_t *> start_of(keys)
    cdef const uint64_t *end = <const uint64_t *> start_of(ends)
    cdef const uint32_t *skip = NULL
    if start is not None:
        start = np.ascontiguousarray(start, dtype=np.uint32)
        if len(start) != n:
            raise ValueError(f"{len(start)} starts for {n} keys")
        skip = <const uint32_t *> start_of(start)
    at_all = np.zeros(n, dtype=np.uint64)
    cdef uint64_t *at = <uint64_t *> start_of(at_all)
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
        tag, value, code = <uint8_t *> start_of(tags), <int64_t *> start_of(values), <int32_t *> start_of(codes)
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
