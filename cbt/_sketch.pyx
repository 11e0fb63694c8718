# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernels of the sketches: HyperLogLog registers and theta hashes by the DataSketches hash, and doubles split for exact sums."""

from libc.math cimport frexp, isfinite, isnan, ldexp
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

import numpy as np

from elf.cbt._strings cimport Strings


cdef extern from *:
    """
    /* MurmurHash3 x64 128 (Austin Appleby, public domain), little-endian, as Apache DataSketches uses it. */
    #include <stdint.h>
    #include <string.h>
    #define ELF_ROTL(x, r) ((x) << (r) | (x) >> (64 - (r)))
    static inline uint64_t elf_murmur_mix(uint64_t k) {
        k ^= k >> 33; k *= 0xff51afd7ed558ccdull; k ^= k >> 33; k *= 0xc4ceb9fe1a85ec53ull; return k ^ k >> 33;
    }
    static inline void elf_murmur(const uint8_t *p, size_t n, uint64_t seed, uint64_t *out) {
        const uint64_t c1 = 0x87c37b91114253d5ull, c2 = 0x4cf5ad432745937full;
        uint64_t h1 = seed, h2 = seed, k1, k2;
        size_t left = n;
        for (; left >= 16; left -= 16, p += 16) {
            memcpy(&k1, p, 8); memcpy(&k2, p + 8, 8);
            k1 *= c1; k1 = ELF_ROTL(k1, 31); k1 *= c2; h1 ^= k1;
            h1 = ELF_ROTL(h1, 27); h1 += h2; h1 = h1 * 5 + 0x52dce729;
            k2 *= c2; k2 = ELF_ROTL(k2, 33); k2 *= c1; h2 ^= k2;
            h2 = ELF_ROTL(h2, 31); h2 += h1; h2 = h2 * 5 + 0x38495ab5;
        }
        uint8_t tail[16] = {0};
        memcpy(tail, p, left);
        memcpy(&k1, tail, 8); memcpy(&k2, tail + 8, 8);
        if (left > 8) { k2 *= c2; k2 = ELF_ROTL(k2, 33); k2 *= c1; h2 ^= k2; }
        if (left) { k1 *= c1; k1 = ELF_ROTL(k1, 31); k1 *= c2; h1 ^= k1; }
        h1 ^= n; h2 ^= n; h1 += h2; h2 += h1;
        h1 = elf_murmur_mix(h1); h2 = elf_murmur_mix(h2); h1 += h2; h2 += h1;
        out[0] = h1; out[1] = h2;
    }
    static inline int elf_rho(uint64_t h) { return h < 4 ? 63 : __builtin_clzll(h) + 1; }
    static inline void elf_square(uint64_t m, uint64_t *high, uint64_t *low) {
        unsigned __int128 product = (unsigned __int128)m * m;
        *high = (uint64_t)(product >> 53); *low = (uint64_t)product & 0x1fffffffffffffull;
    }
    """
    void elf_murmur(const uint8_t *p, size_t n, uint64_t seed, uint64_t *out) noexcept nogil
    int elf_rho(uint64_t h) noexcept nogil
    void elf_square(uint64_t m, uint64_t *high, uint64_t *low) noexcept nogil


cdef enum:
    SEED = 9001
    REGISTERS = 4096
    BIN_BITS = 32

INFINITE, MINUS_INFINITE, NOT_A_NUMBER = 1000, 1001, 1002


def murmur(bytes value not None):
    """The 128-bit hash of bytes as two unsigned halves, for tests."""
    cdef uint64_t[2] h
    elf_murmur(<const uint8_t *> <const char *> value, len(value), SEED, h)
    return h[0], h[1]


def registers_of_strings(Strings strings not None, long start=0):
    """(register, rho) of the values of codes [start, len), int64 each. Must not run while the dictionary grows."""
    cdef Py_ssize_t count = max(0, <Py_ssize_t> strings.count - start)
    registers, rhos = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    cdef int64_t[::1] register_view = registers
    cdef int64_t[::1] rho_view = rhos
    cdef Py_ssize_t i, code
    cdef size_t begin
    cdef uint64_t[2] h
    with nogil:
        for i in range(count):
            code = start + i
            begin = strings.ends[code - 1] if code else 0
            elf_murmur(strings.text + begin, strings.ends[code] - begin, SEED, h)
            register_view[i] = h[0] & (REGISTERS - 1)
            rho_view[i] = elf_rho(h[1])
    return registers, rhos


def registers_of_words(const uint64_t[::1] words):
    """(register, rho) of 8-byte values."""
    cdef Py_ssize_t count = words.shape[0]
    registers, rhos = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    cdef int64_t[::1] register_view = registers
    cdef int64_t[::1] rho_view = rhos
    cdef Py_ssize_t i
    cdef uint64_t[2] h
    with nogil:
        for i in range(count):
            elf_murmur(<const uint8_t *> &words[i], 8, SEED, h)
            register_view[i] = h[0] & (REGISTERS - 1)
            rho_view[i] = elf_rho(h[1])
    return registers, rhos


def hashes_of_strings(Strings strings not None, long start=0):
    """The theta hashes of the values of codes [start, len): int64, not negative. Must not run while the dictionary grows."""
    cdef Py_ssize_t count = max(0, <Py_ssize_t> strings.count - start)
    hashes = np.empty(count, dtype=np.int64)
    cdef int64_t[::1] hash_view = hashes
    cdef Py_ssize_t i, code
    cdef size_t begin
    cdef uint64_t[2] h
    with nogil:
        for i in range(count):
            code = start + i
            begin = strings.ends[code - 1] if code else 0
            elf_murmur(strings.text + begin, strings.ends[code] - begin, SEED, h)
            hash_view[i] = <int64_t> (h[0] >> 1)
    return hashes


def hashes_of_words(const uint64_t[::1] words):
    """The theta hashes of 8-byte values: int64, not negative."""
    cdef Py_ssize_t count = words.shape[0]
    hashes = np.empty(count, dtype=np.int64)
    cdef int64_t[::1] hash_view = hashes
    cdef Py_ssize_t i
    cdef uint64_t[2] h
    with nogil:
        for i in range(count):
            elf_murmur(<const uint8_t *> &words[i], 8, SEED, h)
            hash_view[i] = <int64_t> (h[0] >> 1)
    return hashes


cdef inline void put(int64_t mantissa, int exponent, int64_t *at, uint64_t *low, int64_t *high) noexcept nogil:
    """mantissa * 2**exponent as a 128-bit integer in the bin floor(exponent / 32)."""
    cdef int shift = exponent & (BIN_BITS - 1)
    at[0] = (exponent - shift) // BIN_BITS
    low[0] = <uint64_t> mantissa << shift
    high[0] = (mantissa >> 1) >> (63 - shift)


cdef inline int64_t special(double value, bint squared) noexcept nogil:
    if isnan(value):
        return 1002
    return 1000 if value > 0 or squared else 1001


def exact_parts(const double[::1] values):
    """(bin, low, high): each double as an integer times 2**(32 * bin)."""
    cdef Py_ssize_t count = values.shape[0]
    bins, lows, highs = np.empty(count, np.int64), np.empty(count, np.uint64), np.empty(count, np.int64)
    cdef int64_t[::1] at = bins
    cdef uint64_t[::1] low = lows
    cdef int64_t[::1] high = highs
    cdef Py_ssize_t i
    cdef int exponent
    cdef double fraction
    with nogil:
        for i in range(count):
            if not isfinite(values[i]):
                at[i], low[i], high[i] = special(values[i], False), 1, 0
                continue
            fraction = frexp(values[i], &exponent)
            put(<int64_t> ldexp(fraction, 53), exponent - 53, &at[i], &low[i], &high[i])
    return bins, lows, highs


def exact_squares_parts(const double[::1] values):
    """Two of `exact_parts`, whose sum is each double's square: the upper and the lower 53 bits."""
    cdef Py_ssize_t count = values.shape[0]
    upper = np.empty(count, np.int64), np.empty(count, np.uint64), np.empty(count, np.int64)
    lower = np.empty(count, np.int64), np.empty(count, np.uint64), np.zeros(count, np.int64)
    cdef int64_t[::1] upper_at = upper[0]
    cdef uint64_t[::1] upper_low = upper[1]
    cdef int64_t[::1] upper_high = upper[2]
    cdef int64_t[::1] lower_at = lower[0]
    cdef uint64_t[::1] lower_low = lower[1]
    cdef int64_t[::1] lower_high = lower[2]
    cdef Py_ssize_t i
    cdef int exponent
    cdef double fraction
    cdef uint64_t mantissa, over, under
    with nogil:
        for i in range(count):
            if not isfinite(values[i]):
                upper_at[i], upper_low[i], upper_high[i] = special(values[i], True), 1, 0
                lower_at[i], lower_low[i] = upper_at[i], 0
                continue
            fraction = frexp(values[i], &exponent)
            mantissa = <uint64_t> ldexp(fraction if fraction >= 0 else -fraction, 53)
            elf_square(mantissa, &over, &under)
            exponent = 2 * (exponent - 53)
            put(<int64_t> over, exponent + 53, &upper_at[i], &upper_low[i], &upper_high[i])
            put(<int64_t> under, exponent, &lower_at[i], &lower_low[i], &lower_high[i])
    return upper, lower
