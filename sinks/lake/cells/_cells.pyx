# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""MessagePack arrays of numbers and texts as the buffers of Arrow arrays, without an object of Python for each value.

It needs no numpy, which the lake's writer does without. A value of another kind raises ValueError: then the caller decodes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    typedef __int128 elf_i128;
    typedef unsigned __int128 elf_u128;
    """
    ctypedef int elf_i128
    ctypedef int elf_u128

cdef enum:
    DIGITS_MAX = 38
    NIL = 0xC0

cdef uint64_t BYTES_MAX = 0x7FFFFFFF


cdef struct Reader:
    const uint8_t* at
    const uint8_t* end


cdef uint64_t _big(Reader* r, int width) except? 0:
    """An unsigned number of so many bytes, high byte first."""
    if r.end - r.at < width:
        raise ValueError("a value is cut off")
    cdef uint64_t number = 0
    for _ in range(width):
        number = number << 8 | r.at[0]
        r.at += 1
    return number


cdef int64_t _length(Reader* r) except -1:
    """The length of an array, after its header."""
    cdef uint64_t kind = _big(r, 1)
    if kind >= 0x90 and kind <= 0x9F:
        return kind & 0x0F
    if kind == 0xDC:
        return <int64_t>_big(r, 2)
    if kind == 0xDD:
        return <int64_t>_big(r, 4)
    raise ValueError("no array")


cdef int64_t _text(Reader* r, uint8_t kind) except -1:
    """The bytes of a text, after its header."""
    cdef uint64_t size
    if kind >= 0xA0 and kind <= 0xBF:
        size = kind & 0x1F
    elif kind >= 0xD9 and kind <= 0xDB:
        size = _big(r, 1 << (kind - 0xD9))
    else:
        raise ValueError("no text")
    if <uint64_t>(r.end - r.at) < size:
        raise ValueError("a text is cut off")
    return <int64_t>size


cdef int64_t _whole(Reader* r, uint8_t kind) except? -1:
    """A whole number."""
    cdef uint64_t number
    if kind <= 0x7F:
        return kind
    if kind >= 0xE0:
        return <int8_t>kind
    if kind >= 0xCC and kind <= 0xCF:
        number = _big(r, 1 << (kind - 0xCC))
        if number >> 63:
            raise ValueError("a number is too large")
        return <int64_t>number
    if kind == 0xD0:
        return <int8_t>_big(r, 1)
    if kind == 0xD1:
        return <int16_t>_big(r, 2)
    if kind == 0xD2:
        return <int32_t>_big(r, 4)
    if kind == 0xD3:
        return <int64_t>_big(r, 8)
    raise ValueError("no whole number")


cdef elf_i128 _decimal(const uint8_t* text, int64_t size, int scale) except? -1:
    """The unscaled number of `-12.5`, `7` or `0E-9`."""
    cdef elf_u128 number = 0
    cdef int64_t at = 0, exponent = 0, sign = 1
    cdef int digits = 0, shift = scale
    cdef bint negative = False, after = False, some = False
    if size and text[0] == c"-":
        negative = True
        at = 1
    while at < size:
        if text[at] >= c"0" and text[at] <= c"9":
            number = number * 10 + (text[at] - c"0")
            some = True
            if number:
                digits += 1
            if after:
                shift -= 1
            if digits > DIGITS_MAX or shift < -DIGITS_MAX * 2:
                raise ValueError("too many digits")
        elif text[at] == c"." and not after:
            after = True
        elif text[at] == c"E" and at + 1 < size:
            at += 1
            if text[at] == c"-" or text[at] == c"+":
                sign = -1 if text[at] == c"-" else 1
                at += 1
            if at == size:
                raise ValueError("no exponent")
            while at < size:
                if text[at] < c"0" or text[at] > c"9" or exponent > 1000:
                    raise ValueError("no exponent")
                exponent = exponent * 10 + (text[at] - c"0")
                at += 1
            break
        else:
            raise ValueError("no decimal")
        at += 1
    if not some:
        raise ValueError("no decimal")
    if number:
        shift += <int>(sign * exponent)
        if shift < 0 or digits + shift > DIGITS_MAX:
            raise ValueError("it does not fit")
        for _ in range(shift):
            number = number * 10
    return -<elf_i128>number if negative else <elf_i128>number


def count(const uint8_t[::1] column not None):
    """The length of the MessagePack array. Raises ValueError if it is none."""
    cdef Reader r
    if not len(column):
        raise ValueError("no array")
    r.at, r.end = &column[0], &column[0] + len(column)
    return _length(&r)


cdef int64_t _total(list columns) except -1:
    cdef int64_t total = 0
    for column in columns:
        total += <int64_t>count(column)
    return total


cdef bytes _validity(int64_t total):
    """A bitmap in which nothing is valid."""
    cdef bytes bits = PyBytes_FromStringAndSize(NULL, (total + 7) // 8)
    memset(PyBytes_AS_STRING(bits), 0, (total + 7) // 8)
    return bits


def integers(list columns not None, int width):
    """(rows, NULLs, validity, data) of these arrays in a row, as numbers of 4 or 8 bytes."""
    cdef int64_t total = _total(columns), at = 0, nulls = 0, number, i
    cdef bytes valid = _validity(total), data = PyBytes_FromStringAndSize(NULL, total * width)
    cdef char* bits = PyBytes_AS_STRING(valid)
    cdef char* out = PyBytes_AS_STRING(data)
    cdef const uint8_t[::1] view
    cdef Reader r
    cdef uint8_t kind
    memset(out, 0, total * width)
    for column in columns:
        view = column
        r.at, r.end = &view[0], &view[0] + len(view)
        for i in range(_length(&r)):
            kind = <uint8_t>_big(&r, 1)
            if kind == NIL:
                nulls += 1
            else:
                number = _whole(&r, kind)
                if width == 8:
                    (<int64_t*>out)[at] = number
                elif number == <int32_t>number:
                    (<int32_t*>out)[at] = <int32_t>number
                else:
                    raise ValueError("a number is too large")
                bits[at >> 3] |= 1 << (at & 7)
            at += 1
    return total, nulls, valid, data


def texts(list columns not None):
    """(rows, NULLs, validity, offsets of 4 bytes, data)"""
    cdef int64_t total = _total(columns), at = 0, nulls = 0, i
    cdef uint64_t size = 0, most = 0
    cdef const uint8_t[::1] view
    cdef Reader r
    cdef uint8_t kind
    for column in columns:
        view = column
        most += len(view)
    if most > BYTES_MAX:
        raise ValueError("too much text")
    cdef bytes valid = _validity(total), ends = PyBytes_FromStringAndSize(NULL, (total + 1) * 4)
    cdef bytes data = PyBytes_FromStringAndSize(NULL, most)
    cdef char* bits = PyBytes_AS_STRING(valid)
    cdef int32_t* offsets = <int32_t*>PyBytes_AS_STRING(ends)
    cdef char* out = PyBytes_AS_STRING(data)
    cdef int64_t length
    offsets[0] = 0
    for column in columns:
        view = column
        r.at, r.end = &view[0], &view[0] + len(view)
        for i in range(_length(&r)):
            kind = <uint8_t>_big(&r, 1)
            if kind == NIL:
                nulls += 1
            else:
                length = _text(&r, kind)
                memcpy(out + size, r.at, length)
                r.at += length
                size += length
                bits[at >> 3] |= 1 << (at & 7)
            at += 1
            offsets[at] = <int32_t>size
    return total, nulls, valid, ends, data[:size]


def decimals(list columns not None, int scale):
    """(rows, NULLs, validity, data) of decimals, which are texts, as numbers of 16 bytes with so many digits after the point."""
    cdef int64_t total = _total(columns), at = 0, nulls = 0, length, i
    cdef bytes valid = _validity(total), data = PyBytes_FromStringAndSize(NULL, total * 16)
    cdef char* bits = PyBytes_AS_STRING(valid)
    cdef char* out = PyBytes_AS_STRING(data)
    cdef const uint8_t[::1] view
    cdef Reader r
    cdef uint8_t kind
    cdef elf_i128 number
    memset(out, 0, total * 16)
    for column in columns:
        view = column
        r.at, r.end = &view[0], &view[0] + len(view)
        for i in range(_length(&r)):
            kind = <uint8_t>_big(&r, 1)
            if kind == NIL:
                nulls += 1
            else:
                length = _text(&r, kind)
                number = _decimal(r.at, length, scale)
                memcpy(out + at * 16, &number, 16)
                r.at += length
                bits[at >> 3] |= 1 << (at & 7)
            at += 1
    return total, nulls, valid, data
