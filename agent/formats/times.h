/* Times in text, to microseconds since 1970-01-01 UTC in the proleptic Gregorian calendar, years 1 to 9999.
 *
 * Each reader returns the bytes it read, 0 where there is no such time. A second of 60 (a leap second) is accepted and becomes
 * the last microsecond of its minute: it stays in its own minute, and times keep their order. Digits past the sixth of a
 * fraction are cut off. */
#ifndef ELF_TIMES_H
#define ELF_TIMES_H
#include "numbers.h"
#include "plan.h"

#define ELF_DAY 86400000000ll
#define ELF_TIME_MIN (-62135596800000000ll)
#define ELF_TIME_MAX 253402300799999999ll

static inline int elf_two(const uint8_t *p) {
    unsigned a = (uint8_t)(p[0] - '0'), b = (uint8_t)(p[1] - '0');
    return a > 9 || b > 9 ? -1 : (int)(a * 10 + b);
}

/* Days since 1970-01-01, or INT64_MIN where there is no such day. Hinnant's days_from_civil. */
static inline int64_t elf_days(int y, int m, int d) {
    static const uint8_t length[13] = {0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (y < 1 || y > 9999 || m < 1 || m > 12 || d < 1) return INT64_MIN;
    if (d > length[m] + (m == 2 && (y % 4 == 0 && (y % 100 != 0 || y % 400 == 0)))) return INT64_MIN;
    y -= m <= 2;
    int era = y / 400, yoe = y - era * 400, doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return (int64_t)era * 146097 + (yoe * 365 + yoe / 4 - yoe / 100 + doy) - 719468;
}

static inline int elf_year(const uint8_t *p) {
    int a = elf_two(p), b = elf_two(p + 2);
    return a < 0 || b < 0 ? -1 : a * 100 + b;
}

/* hh:mm:ss and a fraction */
static inline size_t elf_read_clock(const uint8_t *p, const uint8_t *end, int64_t *micros) {
    if (end - p < 8 || p[2] != ':' || p[5] != ':') return 0;
    int h = elf_two(p), m = elf_two(p + 3), s = elf_two(p + 6);
    if (h < 0 || h > 23 || m < 0 || m > 59 || s < 0 || s > 60) return 0;
    int64_t v = ((h * 60 + m) * 60 + s) * 1000000ll;
    const uint8_t *q = p + 8;
    if (end - q >= 2 && *q == '.' && elf_digit(q[1])) {
        int64_t unit = 100000;
        for (q++; q < end && elf_digit(*q); q++, unit /= 10) v += (*q - '0') * unit;
    }
    *micros = s == 60 ? ((h * 60 + m) * 60 + 60) * 1000000ll - 1 : v;
    return (size_t)(q - p);
}

/* ±hh, ±hhmm or ±hh:mm */
static inline size_t elf_read_offset(const uint8_t *p, const uint8_t *end, int64_t *micros) {
    if (end - p < 3 || (*p != '+' && *p != '-')) return 0;
    int h = elf_two(p + 1), m = 0;
    size_t n = 3;
    if (end - p >= 5 && elf_two(p + 3) >= 0) m = elf_two(p + 3), n = 5;
    else if (end - p >= 6 && p[3] == ':' && elf_two(p + 4) >= 0) m = elf_two(p + 4), n = 6;
    if (h < 0 || h > 23 || m > 59) return 0;
    *micros = (h * 60 + m) * 60000000ll * (*p == '-' ? -1 : 1);
    return n;
}

/* A local time of the source's zone, in UTC. The zone's offset is looked up once per quarter of an hour. */
static inline int64_t elf_local(elf_state *s, int64_t micros) {
    int64_t quarter = micros / 900000000 - (micros % 900000000 < 0);
    if (quarter != s->zone_quarter) {
        s->zone_micros = s->zone(s->owner, quarter);
        s->zone_quarter = quarter;
    }
    return micros - s->zone_micros;
}

static inline int elf_in_range(int64_t micros) { return micros >= ELF_TIME_MIN && micros <= ELF_TIME_MAX; }

/* "17/May/2015:", remembered from line to line */
static inline int64_t elf_clf_date(elf_state *s, const uint8_t *p) {
    static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    if (memcmp(p, s->date_text, 12) == 0) return s->date_days;
    if (p[2] != '/' || p[6] != '/' || p[11] != ':') return INT64_MIN;
    int month = 0;
    while (month < 12 && memcmp(names + 3 * month, p + 3, 3)) month++;
    int64_t days = elf_days(elf_year(p + 7), month + 1, elf_two(p));
    if (days != INT64_MIN) memcpy(s->date_text, p, 12), s->date_days = days;
    return days;
}

/* dd/Mon/yyyy:hh:mm:ss[.f][ ±hhmm] */
static inline size_t elf_read_clf(elf_state *s, const uint8_t *p, const uint8_t *end, int64_t *micros) {
    int64_t clock, offset;
    if (end - p < 20) return 0;
    int64_t days = elf_clf_date(s, p);
    if (days == INT64_MIN) return 0;
    const uint8_t *q = p + 12;
    size_t n = elf_read_clock(q, end, &clock);
    if (!n) return 0;
    q += n;
    *micros = days * ELF_DAY + clock;
    n = end - q >= 6 && *q == ' ' ? elf_read_offset(q + 1, end, &offset) : 0;
    if (n) *micros -= offset, q += 1 + n;
    else *micros = elf_local(s, *micros);
    return elf_in_range(*micros) ? (size_t)(q - p) : 0;
}

/* elf_quick_clf where its memo does not hold. */
static __attribute__((noinline)) int elf_read_clf26(elf_state *s, const uint8_t *p, const uint8_t *end, int64_t *micros) {
    int64_t clock = 0;
    if (end - p < 26 || elf_read_clf(s, p, p + 26, micros) != 26) return 0;
    if (p[20] != ' ') return 1;  /* a fraction */
    elf_read_clock(p + 12, p + 20, &clock);
    int64_t midnight = *micros - clock;
    if (!elf_in_range(midnight) || !elf_in_range(midnight + ELF_DAY - 1)) return 1;
    memcpy(s->clf_text, p, 26);
    s->clf_midnight = midnight;
    return 1;
}

/* "17/May/2015:10:05:03 +0000" in the 26 bytes at p. The instant at which that day begins at that offset is remembered, so that
 * the time of day is all that is read of most lines, its eight bytes at once. */
static inline int elf_quick_clf(elf_state *s, const uint8_t *p, const uint8_t *end, int64_t *micros) {
    uint64_t v = elf_word(p + 12) ^ 0x30303a30303a3030ull;  /* "00:00:00" */
    if (elf_word(p) == elf_word(s->clf_text) && !memcmp(p + 8, s->clf_text + 8, 4) &&
        elf_word(p + 18) >> 16 == elf_word(s->clf_text + 18) >> 16 &&
        !((v | (v + 0x0606000606000606ull)) & 0xf0f0fff0f0fff0f0ull)) {
        v = v * 10 + (v >> 8);
        unsigned h = v & 0xff, m = v >> 24 & 0xff, second = v >> 48 & 0xff;
        if (h < 24 && m < 60 && second < 60) {
            *micros = s->clf_midnight + ((h * 60 + m) * 60 + second) * 1000000ll;
            return 1;
        }
    }
    return elf_read_clf26(s, p, end, micros);
}

static inline int64_t elf_iso_date(const uint8_t *p) {
    if (p[4] != '-' || p[7] != '-') return INT64_MIN;
    return elf_days(elf_year(p), elf_two(p + 5), elf_two(p + 8));
}

/* yyyy-mm-ddThh:mm:ss[.f][Z|[ ]±hh:mm] */
static inline size_t elf_read_iso(elf_state *s, const uint8_t *p, const uint8_t *end, int64_t *micros) {
    int64_t clock, offset;
    if (end - p < 19 || (p[10] != 'T' && p[10] != ' ' && p[10] != 't')) return 0;
    int64_t days = elf_iso_date(p);
    if (days == INT64_MIN) return 0;
    const uint8_t *q = p + 11;
    size_t n = elf_read_clock(q, end, &clock);
    if (!n) return 0;
    q += n;
    *micros = days * ELF_DAY + clock;
    int space = end - q > 1 && *q == ' ';
    if (q < end && (*q == 'Z' || *q == 'z')) q++;
    else if ((n = elf_read_offset(q + space, end, &offset))) *micros -= offset, q += space + n;
    else *micros = elf_local(s, *micros);
    return elf_in_range(*micros) ? (size_t)(q - p) : 0;
}

/* Unix time in units of 10^scale microseconds; scale < 0: by its magnitude (seconds up to the year 5138). */
static inline int elf_epoch(const uint8_t *p, size_t n, int scale, int64_t *micros) {
    elf_decimal d;
    int64_t whole;
    if (!n || *p == '+' || elf_read_decimal(p, p + n, &d, 1) != n || d.negative) return 0;
    if (scale < 0) {
        if (!elf_scaled(&d, 0, 1, INT64_MAX, 0, &whole)) return 0;
        scale = whole < 100000000000ll ? 6 : whole < 100000000000000ll ? 3 : whole < 100000000000000000ll ? 0 : -3;
    }
    return elf_scaled(&d, scale, 1, ELF_TIME_MAX, 0, micros);
}
#endif
