# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Keys of bytes that compare as ORDER BY does, and sorting by them. All that is done per row releases the GIL.

The key of a row is, for each item of the order: a byte that says whether the value is NULL, then the value so that memcmp
compares it; of a descending item the complement. Integers are 8 bytes, the highest first, with the sign flipped; texts have 00
FF for each 00, and 00 00 at their end, so that a prefix sorts first and no text's key is a prefix of another's; wider numbers
are given as bytes.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memchr, memcmp, memcpy

import numpy as np

cnp.import_array()

cdef extern from *:
    uint64_t swap_bytes "__builtin_bswap64"(uint64_t x) nogil

cdef enum:
    FEW = 12  # keys that are sorted by insertion
    DEPTH_MAX = 64  # chunks of 8 bytes that many keys may share before they are compared as a whole

WIDE_BYTES = 20
"""Size of the numbers that are given as bytes."""


cdef struct Item:
    uint64_t chunk  # 8 bytes of the key, as a number
    int64_t index


cdef struct Keys:
    const uint8_t *bytes
    const uint64_t *ends


def order_keys(parts, size_t rows):
    """One key per row: (keys uint8, ends uint64 (rows,)). O(bytes).

    parts: (values, text, ends, valid, descending, nulls_first) for each item of the order. values: int64 (rows,); or
    uint8 (rows, WIDE_BYTES); or int32 (rows,), codes into `text` (uint8) and its `ends` (uint32) with -1 for NULL. valid: bool
    (rows,), or None where nothing is NULL.
    """
    offsets = np.zeros(rows + 1, dtype=np.uint64)
    cdef uint64_t[::1] at = offsets
    cdef size_t i
    held = [_contiguous(part) for part in parts]
    for part in held:
        _measure(part, at, rows)
    with nogil:
        for i in range(rows):
            at[i + 1] += at[i]
    keys = np.empty(offsets[rows], dtype=np.uint8)
    if len(keys):
        for part in held:
            _write(part, at, rows, keys)  # afterwards at[i] is where the next part of key i begins
    return keys, offsets[:rows] if len(held) else np.zeros(rows, dtype=np.uint64)


def _contiguous(part):
    values, text, ends, valid, descending, nulls_first = part
    values = np.ascontiguousarray(values)
    if text is not None:
        text, ends = np.ascontiguousarray(text), np.ascontiguousarray(ends, dtype=np.uint32)
    if valid is not None:
        valid = np.ascontiguousarray(valid)
    return values, text, ends, valid, bool(descending), bool(nulls_first)


cdef _measure(part, uint64_t[::1] at, size_t rows):
    values, text, ends, valid, _, _ = part
    cdef const uint8_t[::1] ok = None if valid is None else valid.view(np.uint8)
    cdef bint nullable = valid is not None
    cdef size_t i, width = 8
    cdef const int32_t[::1] codes
    cdef const uint32_t[::1] end
    cdef const uint8_t[::1] chars
    cdef int32_t code
    cdef uint32_t start
    if text is None:
        width = WIDE_BYTES if values.ndim == 2 else 8
        with nogil:
            for i in range(rows):
                at[i + 1] += 1 if nullable and not ok[i] else 1 + width
        return
    codes, end, chars = values, ends, text
    with nogil:
        for i in range(rows):
            code = codes[i]
            at[i + 1] += 1
            if code >= 0:
                start = end[code - 1] if code else 0
                at[i + 1] += end[code] - start + 2
                if end[code] > start:
                    at[i + 1] += _zeros(&chars[start], end[code] - start)


cdef size_t _zeros(const uint8_t *text, size_t n) noexcept nogil:
    cdef size_t found = 0
    cdef const uint8_t *stop = text + n
    cdef const uint8_t *hit = <const uint8_t *> memchr(text, 0, n)
    while hit != NULL:
        found += 1
        hit = <const uint8_t *> memchr(hit + 1, 0, stop - hit - 1) if hit + 1 < stop else NULL
    return found


cdef _write(part, uint64_t[::1] at, size_t rows, uint8_t[::1] keys):
    values, text, ends, valid, descending, nulls_first = part
    cdef const uint8_t[::1] ok = None if valid is None else valid.view(np.uint8)
    cdef bint nullable = valid is not None
    cdef uint8_t flip = 0xFF if descending else 0, null = 0 if nulls_first else 2
    cdef size_t i, j, length
    cdef const int64_t[::1] numbers
    cdef const uint8_t[:, ::1] wide
    cdef const int32_t[::1] codes
    cdef const uint32_t[::1] end
    cdef const uint8_t[::1] chars
    cdef uint8_t *to
    cdef uint64_t number
    cdef uint32_t start
    if text is None and values.ndim == 1:
        numbers = values
        with nogil:
            for i in range(rows):
                to = &keys[at[i]]
                if nullable and not ok[i]:
                    to[0] = null
                    at[i] += 1
                    continue
                to[0] = 1
                number = swap_bytes(<uint64_t> numbers[i] ^ (<uint64_t> 1 << 63))
                if flip:
                    number = ~number
                memcpy(to + 1, &number, 8)
                at[i] += 9
        return
    if text is None:
        wide = values
        length = wide.shape[1]
        with nogil:
            for i in range(rows):
                to = &keys[at[i]]
                to[0] = null if nullable and not ok[i] else 1
                at[i] += 1
                if to[0] == 1:
                    for j in range(length):
                        to[1 + j] = wide[i, j] ^ flip
                    at[i] += length
        return
    codes, end, chars = values, ends, text
    with nogil:
        for i in range(rows):
            to = &keys[at[i]]
            if codes[i] < 0:
                to[0] = null
                at[i] += 1
                continue
            start = end[codes[i] - 1] if codes[i] else 0
            length = end[codes[i]] - start
            to[0] = 1
            at[i] += 1 + _put_text(to + 1, &chars[start] if length else NULL, length, flip)


cdef size_t _put_text(uint8_t *to, const uint8_t *text, size_t n, uint8_t flip) noexcept nogil:
    cdef size_t i, used = 0
    for i in range(n):
        to[used] = text[i] ^ flip
        used += 1
        if text[i] == 0:
            to[used] = 0xFF ^ flip
            used += 1
    to[used] = flip
    to[used + 1] = flip
    return used + 2


def sorted_index(keys, ends):
    """The order of `keys` (uint8; key i is keys[ends[i - 1]:ends[i]], ends uint64 or uint32) as bytes; equal keys keep their
    order: int64 (n,). O(n log n), and 16 bytes of memory for each.
    """
    cdef const uint8_t[::1] text = np.ascontiguousarray(keys)
    ends = np.ascontiguousarray(ends, dtype=np.uint64)
    cdef const uint64_t[::1] end = ends
    cdef size_t i, n = len(ends)
    index = np.empty(n, dtype=np.int64)
    if not n:
        return index
    cdef int64_t[::1] to = index
    cdef Keys known
    known.bytes, known.ends = &text[0] if len(text) else NULL, &end[0]
    cdef Item *items = <Item *> malloc(n * sizeof(Item))
    if items == NULL:
        raise MemoryError
    with nogil:
        for i in range(n):
            items[i].index = i
        _sort(&known, items, n, 0)
        for i in range(n):
            to[i] = items[i].index
    free(items)
    return index


cdef void _sort(const Keys *keys, Item *items, size_t n, size_t depth) noexcept nogil:
    """Sort items whose keys have the first `depth` chunks in common."""
    cdef size_t i, start = 0
    cdef bint longer
    if n <= FEW:
        _insert(keys, items, n)
        return
    if depth == DEPTH_MAX:
        _heap_sort(keys, items, n)
        return
    for i in range(n):
        items[i].chunk = _chunk(keys, items[i].index, 8 * depth)
    qsort(items, n, sizeof(Item), _by_chunk)
    while start < n:
        i = start
        longer = True  # whether no key ends within this chunk
        while i < n and items[i].chunk == items[start].chunk:
            longer = longer and _length(keys, items[i].index) >= 8 * (depth + 1)
            i += 1
        if i - start > 1:
            if longer:
                _sort(keys, items + start, i - start, depth + 1)
            else:
                _heap_sort(keys, items + start, i - start)
        start = i


cdef int _by_chunk(const void *a, const void *b) noexcept nogil:
    cdef const Item *x = <const Item *> a
    cdef const Item *y = <const Item *> b
    if x.chunk != y.chunk:
        return 1 if x.chunk > y.chunk else -1
    return (x.index > y.index) - (x.index < y.index)


cdef inline uint64_t _start(const Keys *keys, int64_t i) noexcept nogil:
    return keys.ends[i - 1] if i else 0


cdef inline size_t _length(const Keys *keys, int64_t i) noexcept nogil:
    return keys.ends[i] - _start(keys, i)


cdef inline uint64_t _chunk(const Keys *keys, int64_t i, size_t at) noexcept nogil:
    """8 bytes of a key from `at`, with zeros behind its end."""
    cdef uint64_t start = _start(keys, i) + at, out = 0
    if start < keys.ends[i]:
        memcpy(&out, keys.bytes + start, min(<uint64_t> 8, keys.ends[i] - start))
    return swap_bytes(out)


cdef inline bint _before(const Keys *keys, int64_t a, int64_t b) noexcept nogil:
    cdef size_t n = _length(keys, a), m = _length(keys, b)
    cdef int sign = 0
    if n and m:
        sign = memcmp(keys.bytes + _start(keys, a), keys.bytes + _start(keys, b), min(n, m))
    if sign:
        return sign < 0
    return a < b if n == m else n < m


cdef void _insert(const Keys *keys, Item *items, size_t n) noexcept nogil:
    cdef size_t i, j
    cdef int64_t held
    for i in range(1, n):
        held = items[i].index
        j = i
        while j and _before(keys, held, items[j - 1].index):
            items[j].index = items[j - 1].index
            j -= 1
        items[j].index = held


cdef void _heap_sort(const Keys *keys, Item *items, size_t n) noexcept nogil:
    """For keys with a long common prefix: compares whole keys, without recursion."""
    cdef size_t root = n // 2, last = n, child
    cdef int64_t held
    while last > 1:
        if root:
            root -= 1
        else:
            last -= 1
            held = items[0].index
            items[0].index = items[last].index
            items[last].index = held
        held = items[root].index
        child = root
        while 2 * child + 1 < last:
            child = 2 * child + 1
            if child + 1 < last and _before(keys, items[child].index, items[child + 1].index):
                child += 1
            if not _before(keys, held, items[child].index):
                child = (child - 1) // 2
                break
            items[(child - 1) // 2].index = items[child].index
        items[child].index = held


def lower_bound(keys, ends, bytes key):
    """How many of the ordered keys are before `key`. O(log n)."""
    cdef const uint8_t[::1] text = keys
    cdef const uint64_t[::1] end = ends
    cdef const uint8_t *wanted = key
    cdef size_t low = 0, high = len(ends), middle, n, m = len(key)
    cdef uint64_t start
    cdef int sign
    while low < high:
        middle = (low + high) // 2
        start = end[middle - 1] if middle else 0
        n = end[middle] - start
        sign = memcmp(&text[start], wanted, min(n, m)) if n and m else 0
        if sign < 0 or (sign == 0 and n < m):
            low = middle + 1
        else:
            high = middle
    return low


def join_texts(parts):
    """The texts of rows, concatenated, without any text for code -1: (text uint8, ends uint32 (n,)). O(bytes).

    parts: (codes int32, text uint8, ends uint32) each. Raises OverflowError from 4 GiB of text.
    """
    cdef const uint8_t[::1] text
    cdef const uint32_t[::1] end
    cdef const int32_t[::1] code
    cdef uint8_t[::1] to
    cdef size_t i, n, at = 0
    cdef uint64_t total = 0
    out_ends = np.empty(sum([len(part[0]) for part in parts]), dtype=np.uint32)
    cdef uint32_t[::1] to_end = out_ends
    for part in parts:
        code, end, n = part[0], part[2], len(part[0])
        with nogil:
            for i in range(n):
                if code[i] >= 0:
                    total += end[code[i]] - (end[code[i] - 1] if code[i] else 0)
                to_end[at] = <uint32_t> total
                at += 1
        if total > 0xFFFFFFFFu:
            raise OverflowError("texts of more than 4 GiB at once")
    out = np.empty(total, dtype=np.uint8)
    to = out
    at = 0
    for part in parts:
        code, text, end, n = part[0], part[1], part[2], len(part[0])
        with nogil:
            for i in range(n):
                _copy(to, to_end[at], code[i], text, end)
                at += 1
    return out, out_ends


cdef inline void _copy(
    uint8_t[::1] to, uint32_t until, int32_t code, const uint8_t[::1] text, const uint32_t[::1] end
) noexcept nogil:
    """Copy the text of `code` into `to`, so that it ends at `until`."""
    cdef uint32_t start, length
    if code >= 0:
        start = end[code - 1] if code else 0
        length = end[code] - start
        if length:
            memcpy(&to[until - length], &text[start], length)
