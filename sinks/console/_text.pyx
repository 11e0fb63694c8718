# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rows of columns as text, without a Python object for each cell.

Text is escaped once for each distinct value (`csv_texts`, `json_texts`), so that `join_rows`, which writes the rows, only copies it
and prints integers, decimals, booleans and times. What it writes is valid UTF-8, whatever bytes come in.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.math cimport isfinite, isnan
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset, strlen

import numpy as np

cnp.import_array()

cdef extern from "Python.h":
    char *PyOS_double_to_string(double value, char format, int precision, int flags, int *kind) except NULL
    int Py_DTSF_ADD_DOT_0

TEXT, INTEGER, DECIMAL, BOOLEAN, TIME = range(5)

cdef enum:
    IS_TEXT = 0
    IS_INTEGER = 1
    IS_DECIMAL = 2
    IS_BOOLEAN = 3
    IS_TIME = 4
    CELL_MAX = 48  # most bytes of a cell that is no text: a sign, 19 digits and a point; or a quoted time of 29
    CSV_SPECIAL = 1
    JSON_SPECIAL = 2
    NOT_ASCII = 4

cdef int64_t DAY_US = 86_400 * 1_000_000
cdef uint8_t[256] CLASS
cdef char[200] PAIRS  # 00 01 02 … 99


cdef void _fill_tables() noexcept:
    cdef int i
    for i in range(256):
        CLASS[i] = NOT_ASCII if i >= 0x80 else JSON_SPECIAL if i < 0x20 else 0
    for i in range(100):
        PAIRS[2 * i] = 48 + i // 10
        PAIRS[2 * i + 1] = 48 + i % 10
    CLASS[ord(b",")] |= CSV_SPECIAL
    CLASS[ord(b"\n")] |= CSV_SPECIAL
    CLASS[ord(b"\r")] |= CSV_SPECIAL
    CLASS[ord(b'"')] |= CSV_SPECIAL | JSON_SPECIAL
    CLASS[ord(b"\\")] |= JSON_SPECIAL


_fill_tables()


# ---- a buffer that grows ----


cdef struct Out:
    uint8_t *text
    size_t used
    size_t size


cdef int _room(Out *out, size_t more) except -1 nogil:
    """Make sure that `more` bytes fit."""
    cdef size_t size
    cdef void *moved
    if out.used + more > out.size:
        size = max(out.used + more, out.size + out.size // 2, <size_t> 4096)
        moved = realloc(out.text, size)
        if moved == NULL:
            with gil:
                raise MemoryError
        out.text = <uint8_t *> moved
        out.size = size
    return 0


cdef inline void _put(Out *out, const void *text, size_t n) noexcept nogil:
    memcpy(out.text + out.used, text, n)
    out.used += n


cdef object _array(Out *out):
    """A copy of the buffer's bytes as an array."""
    array = np.empty(out.used, dtype=np.uint8)
    if out.used:
        memcpy(cnp.PyArray_DATA(<cnp.ndarray> array), out.text, out.used)
    return array


# ---- distinct texts, escaped once ----


cdef int _classes(const uint8_t *text, size_t n) noexcept nogil:
    cdef size_t i
    cdef int classes = 0
    for i in range(n):
        classes |= CLASS[text[i]]
    return classes


cdef int _put_csv(Out *out, const uint8_t *text, size_t n, int classes) except -1 nogil:
    cdef size_t i
    _room(out, 2 * n + 2)
    if not classes & CSV_SPECIAL:
        _put(out, text, n)
        return 0
    _put(out, b'"', 1)
    for i in range(n):
        if text[i] == 34:
            _put(out, b'"', 1)
        out.text[out.used] = text[i]
        out.used += 1
    _put(out, b'"', 1)
    return 0


cdef int _put_json(Out *out, const uint8_t *text, size_t n, int classes) except -1 nogil:
    cdef size_t i
    cdef uint8_t c, short
    _room(out, 6 * n + 2)
    _put(out, b'"', 1)
    if not classes & JSON_SPECIAL:
        _put(out, text, n)
    else:
        for i in range(n):
            c = text[i]
            if not CLASS[c] & JSON_SPECIAL:
                out.text[out.used] = c
                out.used += 1
                continue
            short = 0
            if c == 34 or c == 92:
                short = c
            elif c == 8:
                short = c"b"
            elif c == 9:
                short = c"t"
            elif c == 10:
                short = c"n"
            elif c == 12:
                short = c"f"
            elif c == 13:
                short = c"r"
            if short:
                out.text[out.used] = 92
                out.text[out.used + 1] = short
                out.used += 2
            else:
                _put(out, b"\\u00", 4)
                out.text[out.used] = 48 + (c >> 4)
                c &= 15
                out.text[out.used + 1] = c + (48 if c < 10 else 87)
                out.used += 2
    _put(out, b'"', 1)
    return 0


cdef object _texts(text, ends, bint json):
    cdef const uint8_t[::1] texts = text
    cdef const uint32_t[::1] stops = ends
    cdef const uint8_t *all = &texts[0] if len(texts) else NULL
    cdef const uint8_t *value
    cdef size_t i, n = len(stops), start = 0, used = stops[n - 1] if n else 0
    cdef Py_ssize_t size
    cdef int classes
    cdef Out out
    if used > <size_t> len(texts):
        raise ValueError("text ends beyond its bytes")
    if not json and not _classes(all, used) & (CSV_SPECIAL | NOT_ASCII):
        return text, ends
    out_ends = np.empty(n, dtype=np.uint32)
    cdef uint32_t[::1] to = out_ends
    memset(&out, 0, sizeof(Out))
    try:
        _room(&out, used + 2 * n)
        for i in range(n):
            value, size = all + start, stops[i] - start
            start = stops[i]
            classes = _classes(value, size)
            if classes & NOT_ASCII:
                # Each value is decoded by itself, not with its neighbours; invalid bytes become U+FFFD.
                sound = PyUnicode_DecodeUTF8(<const char *> value, size, "replace")
                value = <const uint8_t *> PyUnicode_AsUTF8AndSize(sound, &size)
            if json:
                _put_json(&out, value, size, classes)
            else:
                _put_csv(&out, value, size, classes)
            if out.used > 0xFFFFFFFFu:
                raise OverflowError("escaped text of more than 4 GiB")
            to[i] = <uint32_t> out.used
        return _array(&out), out_ends
    finally:
        free(out.text)


def csv_texts(text, ends):
    """Each value as a CSV cell: (text, ends), quoted where it holds a comma, a quote or a line end. O(bytes)."""
    return _texts(text, ends, False)


def json_texts(text, ends):
    """Each value as a JSON string, quotes included: (text, ends). O(bytes)."""
    return _texts(text, ends, True)


def double_texts(const double[::1] values):
    """Each double as Python's repr prints it, or, if it is not finite, Spark's name for it: (text, ends)."""
    cdef size_t i, n = len(values), size
    cdef double value
    cdef const char *word
    cdef char *printed
    cdef Out out
    ends = np.empty(n, dtype=np.uint32)
    cdef uint32_t[::1] to = ends
    memset(&out, 0, sizeof(Out))
    try:
        for i in range(n):
            _room(&out, CELL_MAX)
            value = values[i]
            if not isfinite(value):
                word = b"NaN" if isnan(value) else b"Infinity" if value > 0 else b"-Infinity"
                _put(&out, word, strlen(word))
            elif -1e15 < value and value < 1e15 and value != 0 and value == <double> <int64_t> value:
                out.used += _print_integer(out.text + out.used, <int64_t> value)
                _put(&out, b".0", 2)
            else:
                printed = PyOS_double_to_string(value, c"r", 0, Py_DTSF_ADD_DOT_0, NULL)
                _put(&out, printed, strlen(printed))
                PyMem_Free(printed)
            to[i] = <uint32_t> out.used
        return _array(&out), ends
    finally:
        free(out.text)


# ---- numbers and times ----


cdef inline size_t _digits(uint8_t *to, uint64_t value) noexcept nogil:
    """Print `value`; returns the number of its digits."""
    cdef uint8_t[20] turned
    cdef size_t at = 20
    cdef uint64_t rest
    while value >= 100:
        rest = value // 100
        at -= 2
        memcpy(turned + at, PAIRS + 2 * (value - rest * 100), 2)
        value = rest
    if value >= 10:
        at -= 2
        memcpy(turned + at, PAIRS + 2 * value, 2)
    else:
        at -= 1
        turned[at] = 48 + <uint8_t> value
    memcpy(to, turned + at, 20 - at)
    return 20 - at


cdef inline size_t _print_integer(uint8_t *to, int64_t value) noexcept nogil:
    if value >= 0:
        return _digits(to, <uint64_t> value)
    to[0] = c"-"
    return 1 + _digits(to + 1, 0 - <uint64_t> value)


cdef inline size_t _print_decimal(uint8_t *to, int64_t unscaled, size_t scale) noexcept nogil:
    """All digits, no exponent: at least one before the point and `scale` behind it."""
    cdef uint8_t[20] digits
    cdef size_t n, sign = 0, whole
    if scale == 0:
        return _print_integer(to, unscaled)
    if unscaled < 0:
        to[0] = c"-"
        sign = 1
        n = _digits(digits, 0 - <uint64_t> unscaled)
    else:
        n = _digits(digits, <uint64_t> unscaled)
    to += sign
    if n > scale:
        whole = n - scale
        memcpy(to, digits, whole)
        to[whole] = c"."
        memcpy(to + whole + 1, digits + whole, scale)
        return sign + n + 1
    memset(to, 48, 2 + scale - n)
    to[1] = c"."
    memcpy(to + 2 + scale - n, digits, n)
    return sign + 2 + scale


cdef inline void _two(uint8_t *to, uint64_t value) noexcept nogil:
    memcpy(to, PAIRS + 2 * value, 2)


cdef size_t _print_time(uint8_t *to, int64_t us) noexcept nogil:
    """ISO 8601 in UTC, of a time in the years 1 to 9999, with a fraction of six digits unless it is 0."""
    cdef int64_t days = us // DAY_US
    cdef int64_t left = us - days * DAY_US
    if left < 0:
        days -= 1
        left += DAY_US
    # Civil from days (H. Hinnant, "chrono-compatible low-level date algorithms"): years begin in March.
    cdef uint64_t shifted = <uint64_t> (days + 719_468)
    cdef uint64_t era = shifted // 146_097
    cdef uint64_t of_era = shifted - era * 146_097
    cdef uint64_t year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    cdef uint64_t of_year = of_era - (365 * year + year // 4 - year // 100)
    cdef uint64_t turned = (5 * of_year + 2) // 153
    cdef uint64_t month = turned + 3 if turned < 10 else turned - 9
    cdef uint64_t seconds = <uint64_t> left // 1_000_000
    cdef uint64_t fraction = <uint64_t> left - seconds * 1_000_000
    year += era * 400 + (month <= 2)
    _two(to, year // 100)
    _two(to + 2, year % 100)
    to[4] = c"-"
    _two(to + 5, month)
    to[7] = c"-"
    _two(to + 8, of_year - (153 * turned + 2) // 5 + 1)
    to[10] = c"T"
    _two(to + 11, seconds // 3600)
    to[13] = c":"
    _two(to + 14, seconds // 60 % 60)
    to[16] = c":"
    _two(to + 17, seconds % 60)
    cdef size_t n = 19
    if fraction:
        to[19] = c"."
        _two(to + 20, fraction // 10_000)
        _two(to + 22, fraction // 100 % 100)
        _two(to + 24, fraction % 100)
        n = 26
    to[n] = c"Z"
    return n + 1


# ---- rows ----


cdef struct Cell:
    int kind
    size_t scale
    const void *values
    const uint8_t *valid
    const uint8_t *text
    const uint32_t *ends
    size_t texts
    const uint8_t *prefix
    size_t prefix_size
    int64_t shown       # TIME: the last value, and its text. Times repeat; those of windows on every row.
    size_t look_size
    uint8_t[CELL_MAX] look


cdef void *_at(array) noexcept:
    return cnp.PyArray_DATA(<cnp.ndarray> array)


cdef object _describe(Cell *cell, parts, bytes prefix, size_t rows):
    """Fill `cell`; returns the objects that must stay alive meanwhile."""
    kind, values, valid, text, ends, scale = parts
    dtype = {TEXT: np.int32, BOOLEAN: np.bool_}.get(kind, np.int64)
    values = np.ascontiguousarray(values, dtype=dtype)
    valid = None if valid is None else np.ascontiguousarray(valid, dtype=np.bool_)
    if len(values) != rows or (valid is not None and len(valid) != rows):
        raise ValueError("columns of rows differ in length")
    if not 0 <= scale <= 18:
        raise ValueError(f"no scale of 64 bits: {scale}")
    cell.kind, cell.scale = kind, scale
    cell.values = _at(values)
    cell.valid = NULL if valid is None else <const uint8_t *> _at(valid)
    if kind == IS_TEXT:
        text, ends = np.ascontiguousarray(text, dtype=np.uint8), np.ascontiguousarray(ends, dtype=np.uint32)
        cell.text, cell.ends, cell.texts = <const uint8_t *> _at(text), <const uint32_t *> _at(ends), len(ends)
        if len(ends) and ends[len(ends) - 1] > len(text):
            raise ValueError("text ends beyond its bytes")
        if rows and int(values.max()) >= len(ends):
            raise ValueError("a code without a text")
    cell.prefix, cell.prefix_size = <const uint8_t *> <const char *> prefix, len(prefix)
    cell.shown = INT64_MIN
    return values, valid, text, ends, prefix


cdef inline int _put_cell(Out *out, Cell *cell, size_t i, size_t rest, const char *null, size_t null_size, bint quoted) except -1 nogil:
    """Write the cell of row i, its prefix first. `rest`: bytes of room that are left when it returns."""
    cdef int32_t code
    cdef size_t start, n
    cdef int64_t value
    _put(out, cell.prefix, cell.prefix_size)
    if cell.kind == IS_TEXT:
        code = (<const int32_t *> cell.values)[i]
        if code < 0:
            _put(out, null, null_size)
            return 0
        start = cell.ends[code - 1] if code else 0
        n = cell.ends[code] - start
        _room(out, n + rest)
        _put(out, cell.text + start, n)
        return 0
    if cell.valid != NULL and not cell.valid[i]:
        _put(out, null, null_size)
    elif cell.kind == IS_INTEGER:
        out.used += _print_integer(out.text + out.used, (<const int64_t *> cell.values)[i])
    elif cell.kind == IS_DECIMAL:
        out.used += _print_decimal(out.text + out.used, (<const int64_t *> cell.values)[i], cell.scale)
    elif cell.kind == IS_BOOLEAN:
        if (<const uint8_t *> cell.values)[i]:
            _put(out, b"true", 4)
        else:
            _put(out, b"false", 5)
    else:
        value = (<const int64_t *> cell.values)[i]
        if value != cell.shown:
            cell.shown = value
            n = 0
            if quoted:
                cell.look[0] = 34
                n = 1
            n += _print_time(cell.look + n, value)
            if quoted:
                cell.look[n] = 34
                n += 1
            cell.look_size = n
        _put(out, cell.look, cell.look_size)
    return 0


def join_rows(cells, prefixes, bytes suffix not None, bytes null not None, bint quoted, bytes empty not None):
    """The text of n rows: for each row every cell behind its prefix, then the suffix. Releases the GIL. O(bytes).

    cells: (kind, values (n,), valid (n,) or None, text, ends, scale). The values of a TEXT cell are codes into (text, ends), -1
    for NULL; those of a TIME cell are in the years 1 to 9999. null: the text of NULL. quoted: put quotes around times. empty: the
    text of a row that would have no bytes. Raises ValueError for inconsistent columns.
    """
    cdef size_t i, c, start, n_cells = len(cells), rows = len(cells[0][1]) if cells else 0
    cdef size_t suffix_size = len(suffix), null_size = len(null), empty_size = len(empty)
    cdef const char *ending = suffix
    cdef const char *nothing = null
    cdef const char *blank = empty
    cdef size_t fixed = suffix_size + empty_size + sum(map(len, prefixes)) + n_cells * (CELL_MAX + null_size)
    cdef Out out
    cdef Cell *all = <Cell *> calloc(n_cells + 1, sizeof(Cell))
    memset(&out, 0, sizeof(Out))
    if all == NULL:
        raise MemoryError
    try:
        held = [
            _describe(&all[number], parts, prefix, rows)
            for number, (parts, prefix) in enumerate(zip(cells, prefixes, strict=True))
        ]
        with nogil:
            for i in range(rows):
                _room(&out, fixed)
                start = out.used
                for c in range(n_cells):
                    _put_cell(&out, &all[c], i, fixed, nothing, null_size, quoted)
                if out.used == start:
                    _put(&out, blank, empty_size)
                _put(&out, ending, suffix_size)
        return PyBytes_FromStringAndSize(<char *> out.text, out.used)
    finally:
        free(all)
        free(out.text)
