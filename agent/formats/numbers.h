/* Numbers in text: integers, and decimals scaled to micro-units. Each returns 1, or 0 where the text is not one. */
#ifndef ELF_NUMBERS_H
#define ELF_NUMBERS_H
#include <stdint.h>
#include <string.h>

#define ELF_MICROS_MAX 999999999999999999ll  /* DECIMAL(18,6) */

typedef unsigned __int128 elf_wide;

/* mantissa * 10^exponent, negative or not */
typedef struct { elf_wide mantissa; int exponent, negative, more; } elf_decimal;  /* more: a little above it */

static inline int elf_digit(uint8_t c) { return (uint8_t)(c - '0') <= 9; }

/* Eight digits in a word (as 0..9, the first in the lowest byte), by three multiplications instead of a loop whose length
 * the processor cannot predict. Lemire, "Quickly parsing eight digits" (2018). */
static inline uint64_t elf_eight_digits(uint64_t v) {
    v = v * 10 + (v >> 8);
    return ((v & 0x000000ff000000ffull) * 0x000f424000000064ull + (v >> 16 & 0x000000ff000000ffull) * 0x0000271000000001ull) >> 32;
}

/* [-+]?[0-9]+ within int64 */
static inline int elf_int(const uint8_t *p, size_t n, int64_t *out) {
    const uint8_t *end = p + n;
    int negative = n && *p == '-';
    uint64_t v = 0;
    p += negative || (n && *p == '+');
    if (p == end) return 0;
    for (; p < end; p++) {
        unsigned d = (uint8_t)(*p - '0');
        if (d > 9 || v > (UINT64_MAX - d) / 10) return 0;
        v = v * 10 + d;
    }
    if (v > (uint64_t)INT64_MAX + negative) return 0;
    *out = (int64_t)(negative ? 0 - v : v);
    return 1;
}

/* [-+]?([0-9]+.?[0-9]*|.[0-9]+)([eE][+-]?[0-9]+)? at the start of [p, end): the bytes read, 0 if there is none. Thirty digits
 * are kept; of further ones only that some are not 0, which decides between the halves when a value is rounded. */
static inline size_t elf_read_decimal(const uint8_t *p, const uint8_t *end, elf_decimal *d, int exponents) {
    const uint8_t *start = p;
    int digits = 0, seen = 0, point = 0;
    d->mantissa = 0, d->exponent = d->more = 0;
    d->negative = p < end && *p == '-';
    for (p += d->negative || (p < end && *p == '+'); p < end; p++) {
        if (*p == '.' && !point) { point = 1; continue; }
        if (!elf_digit(*p)) break;
        seen = 1;
        if (digits < 30) {
            d->mantissa = d->mantissa * 10 + (*p - '0');
            digits += d->mantissa != 0;
            d->exponent -= point;
        } else {
            d->exponent += !point;
            d->more |= *p != '0';
        }
    }
    if (!seen) return 0;
    if (exponents && p < end && (*p | 0x20) == 'e') {
        const uint8_t *q = p + 1;
        int negative = 0, e = 0;
        if (q < end && (*q == '+' || *q == '-')) negative = *q++ == '-';
        if (q < end && elf_digit(*q)) {
            for (; q < end && elf_digit(*q); q++) e = e < 100000000 ? e * 10 + (*q - '0') : e;
            d->exponent += negative ? -e : e;
            p = q;
        }
    }
    return (size_t)(p - start);
}

/* The decimal times 10^scale times `factor`, cut off towards zero or rounded half to even; 0 where it exceeds `max`. */
static inline int elf_scaled(const elf_decimal *d, int scale, unsigned factor, int64_t max, int round, int64_t *out) {
    elf_wide v = d->mantissa;
    int shift = d->exponent + scale;
    unsigned digit = 0, rest = d->more;
    if (v > ((elf_wide)1 << 112)) return 0;
    v *= factor;
    for (; shift < 0 && (v || digit); shift++) rest |= digit, digit = (unsigned)(v % 10), v /= 10;
    for (; shift > 0 && v; shift--)
        if ((v *= 10) > (elf_wide)max) return 0;
    if (round && (digit > 5 || (digit == 5 && (rest || (v & 1))))) v++;
    if (v > (elf_wide)max) return 0;
    *out = d->negative ? -(int64_t)v : (int64_t)v;
    return 1;
}

/* A decimal in units of 10^scale micro-units. */
static inline int elf_micros(const uint8_t *p, size_t n, int scale, int64_t *out) {
    const uint8_t *end = p + n;
    const uint8_t *q = p;
    uint64_t v = 0;
    /* The usual "0.005": at most 17 digits, three or six of them after the point. */
    if (scale == 6 && n <= 18) {
        while (q < end && elf_digit(*q)) v = v * 10 + (*q++ - '0');
        if (q > p && q + 4 == end && *q == '.' && elf_digit(q[1]) && elf_digit(q[2]) && elf_digit(q[3]) && q - p <= 12) {
            *out = (int64_t)(v * 1000 + (q[1] - '0') * 100u + (q[2] - '0') * 10u + (q[3] - '0')) * 1000;
            return 1;
        }
    }
    elf_decimal d;
    return n && elf_read_decimal(p, end, &d, 1) == n && elf_scaled(&d, scale, 1, ELF_MICROS_MAX, 1, out);
}

/* An integer count of nanoseconds or microseconds, as micro-units, rounded half to even. */
static inline int elf_whole(const uint8_t *p, size_t n, int64_t divisor, int64_t *out) {
    if (!elf_int(p, n, out)) return 0;
    int64_t rest = *out % divisor * 2, sign = rest < 0 ? -1 : 1;
    *out /= divisor;
    if (rest * sign > divisor || (rest * sign == divisor && *out & 1)) *out += sign;
    return *out <= ELF_MICROS_MAX && *out >= -ELF_MICROS_MAX;
}

/* nginx: parts divided by commas, colons and spaces; a part "-" adds nothing. Returns 2 where all parts are "-". */
static inline int elf_seconds_list(const uint8_t *p, size_t n, int64_t *out) {
    const uint8_t *end = p + n;
    int parts = 0, dashes = 0;
    int64_t v;
    *out = 0;
    while (p < end) {
        if (*p == ' ' || *p == ',' || *p == ':') { p++; continue; }
        const uint8_t *q = p;
        while (q < end && *q != ' ' && *q != ',' && *q != ':') q++;
        if (q - p == 1 && *p == '-') dashes++;
        else if (!elf_micros(p, (size_t)(q - p), 6, &v)) return 0;
        else parts++, *out += v;
        if (*out > ELF_MICROS_MAX || *out < -ELF_MICROS_MAX) return 0;
        p = q;
    }
    return parts ? 1 : dashes ? 2 : 0;
}

/* Go's "1h2m3.5s", "12.3µs" (either letter mu); a bare number is in units of 10^bare micro-units. */
static inline int elf_duration(const uint8_t *p, size_t n, int bare, int64_t *out) {
    const uint8_t *end = p + n;
    int negative = n && *p == '-', first = 1;
    int64_t v, total = 0;
    for (p += negative; p < end || first; first = 0) {
        elf_decimal d;
        int scale = 6;
        unsigned factor = 1;
        size_t read = p < end && *p != '-' && *p != '+' ? elf_read_decimal(p, end, &d, first) : 0;
        if (!read) return 0;
        p += read;
        size_t left = (size_t)(end - p);
        if (!left) { if (!first) return 0; scale = bare; }
        else if (left >= 2 && !memcmp(p, "ns", 2)) scale = -3, p += 2;
        else if (left >= 2 && !memcmp(p, "us", 2)) scale = 0, p += 2;
        else if (left >= 3 && (!memcmp(p, "\xc2\xb5s", 3) || !memcmp(p, "\xce\xbcs", 3))) scale = 0, p += 3;
        else if (left >= 2 && !memcmp(p, "ms", 2)) scale = 3, p += 2;
        else if (*p == 's') p++;
        else if (*p == 'm') factor = 60, p++;
        else if (*p == 'h') factor = 3600, p++;
        else return 0;
        if (!elf_scaled(&d, scale, factor, ELF_MICROS_MAX, 1, &v)) return 0;
        total += v;
        if (total > ELF_MICROS_MAX) return 0;
    }
    *out = negative ? -total : total;
    return 1;
}
#endif
