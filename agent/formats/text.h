/* Text: UTF-8 repair and the escapes that logs use. Both write into the strip's arena. */
#ifndef ELF_TEXT_H
#define ELF_TEXT_H
#include "numbers.h"
#include "plan.h"

/* The length of the UTF-8 sequence at p, or minus that of the longest prefix of one. */
static inline int elf_utf8(const uint8_t *p, const uint8_t *end) {
    uint8_t c = *p, low = 0x80, high = 0xbf;
    int more;
    if (c < 0x80) return 1;
    if (c >= 0xc2 && c <= 0xdf) more = 1;
    else if (c >= 0xe0 && c <= 0xef) more = 2, low = c == 0xe0 ? 0xa0 : 0x80, high = c == 0xed ? 0x9f : 0xbf;
    else if (c >= 0xf0 && c <= 0xf4) more = 3, low = c == 0xf0 ? 0x90 : 0x80, high = c == 0xf4 ? 0x8f : 0xbf;
    else return -1;
    for (int i = 1; i <= more; i++, low = 0x80, high = 0xbf)
        if (p + i >= end || p[i] < low || p[i] > high) return -i;
    return more + 1;
}

static inline int elf_utf8_valid(const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    while (p < end) {
        int k = elf_utf8(p, end);
        if (k < 0) return 0;
        p += k;
    }
    return 1;
}

/* A byte that is not UTF-8 becomes \xhh (two small hexadecimal digits), so that different bytes stay different texts. Backslashes
 * before one, and before an "xhh" that stood in the text, are doubled: so an odd number of them before "xhh" means a byte, an even
 * number means themselves, and no two texts become the same. */
static inline int elf_small_hex(uint8_t c) { return elf_digit(c) || (c >= 'a' && c <= 'f'); }

static inline int elf_looks_escaped(const uint8_t *p, const uint8_t *end) {
    return end - p >= 3 && *p == 'x' && elf_small_hex(p[1]) && elf_small_hex(p[2]);
}

/* Is there no backslash before an "xhh"? */
static int elf_unescaped(const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    while (p < end && (p = (const uint8_t *)memchr(p, '\\', (size_t)(end - p))))
        if (elf_looks_escaped(++p, end)) return 0;
        else if (p == end) break;
    return 1;
}

/* Valid UTF-8, by the rule above; the span itself where that changes nothing. */
static elf_span elf_repair(elf_state *s, elf_span span) {
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = span.p, *end = p + span.n;
    int valid = elf_utf8_valid(p, span.n);
    if (valid && elf_unescaped(p, span.n)) return span;
    s->replaced |= !valid;
    uint8_t *out = elf_take(s, 4 * (size_t)span.n), *q = out;
    if (!out) return span;
    while (p < end) {
        const uint8_t *run = p;
        while (p < end && *p == '\\') *q++ = *p++;
        if (p == end) break;
        int k = elf_utf8(p, end);
        if (k < 0 || elf_looks_escaped(p, end)) memset(q, '\\', (size_t)(p - run)), q += p - run;
        if (k > 0) { memcpy(q, p, (size_t)k); p += k, q += k; continue; }
        for (; k < 0; k++, p++) *q++ = '\\', *q++ = 'x', *q++ = (uint8_t)digits[*p >> 4], *q++ = (uint8_t)digits[*p & 15];
    }
    span.p = out, span.n = (uint32_t)(q - out);
    return span;
}

static inline int elf_hex(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static inline int elf_hex2(const uint8_t *p, const uint8_t *end) {
    if (end - p < 2) return -1;
    int a = elf_hex(p[0]), b = elf_hex(p[1]);
    return a < 0 || b < 0 ? -1 : a << 4 | b;
}

static inline int elf_hex4(const uint8_t *p, const uint8_t *end) {
    int a = elf_hex2(p, end), b = end - p < 4 ? -1 : elf_hex2(p + 2, end);
    return a < 0 || b < 0 ? -1 : a << 8 | b;
}

static inline uint8_t *elf_put_utf8(uint8_t *q, uint32_t c) {
    if (c < 0x80) *q++ = (uint8_t)c;
    else if (c < 0x800) *q++ = (uint8_t)(0xc0 | c >> 6), *q++ = (uint8_t)(0x80 | (c & 63));
    else if (c < 0x10000) *q++ = (uint8_t)(0xe0 | c >> 12), *q++ = (uint8_t)(0x80 | (c >> 6 & 63)), *q++ = (uint8_t)(0x80 | (c & 63));
    else {
        *q++ = (uint8_t)(0xf0 | c >> 18), *q++ = (uint8_t)(0x80 | (c >> 12 & 63));
        *q++ = (uint8_t)(0x80 | (c >> 6 & 63)), *q++ = (uint8_t)(0x80 | (c & 63));
    }
    return q;
}

static inline int elf_simple_escape(uint8_t c) {
    switch (c) {
        case '"': case '\\': case '/': case '\'': return c;
        case 'n': return '\n';
        case 't': return '\t';
        case 'r': return '\r';
        case 'b': return '\b';
        case 'f': return '\f';
        case 'v': return '\v';
        default: return -1;
    }
}

/* \uXXXX at p (past the backslash), a pair of surrogates as one. A lone one stays, as three bytes that are not UTF-8. The bytes
 * read, 0 if malformed. */
static inline size_t elf_unicode_escape(const uint8_t *p, const uint8_t *end, uint32_t *c, int *lone) {
    int u = elf_hex4(p + 1, end), v;
    if (u < 0) return 0;
    *c = (uint32_t)u;
    if (u < 0xd800 || u > 0xdfff) return 5;
    if (u < 0xdc00 && end - p >= 11 && p[5] == '\\' && p[6] == 'u' && (v = elf_hex4(p + 7, end)) >= 0xdc00 && v <= 0xdfff) {
        *c = 0x10000 + (((uint32_t)u - 0xd800) << 10) + ((uint32_t)v - 0xdc00);
        return 11;
    }
    *lone = 1;
    return 5;
}

/* The span with its escapes decoded, never longer than before. Other text stays as it is. */
static elf_span elf_unescape(elf_state *s, elf_span span, int escape) {
    const uint8_t *p = span.p, *end = p + span.n;
    uint8_t *out = elf_take(s, span.n), *q = out;
    int v;
    if (!out) return span;
    while (p < end) {
        uint8_t c = *p++;
        if (escape == E_PLUS) c = c == '+' ? ' ' : c;
        else if (escape == E_PERCENT && c == '%' && (v = elf_hex2(p, end)) >= 0) c = (uint8_t)v, p += 2;
        else if (escape == E_DOUBLED && c == '"' && p < end && *p == '"') p++;
        else if ((escape == E_BACKSLASH || escape == E_JSON) && c == '\\' && p < end) {
            uint32_t wide;
            size_t read;
            if (escape == E_BACKSLASH && *p == 'x' && (v = elf_hex2(p + 1, end)) >= 0) c = (uint8_t)v, p += 3;
            else if (escape == E_JSON && *p == 'u' && (read = elf_unicode_escape(p, end, &wide, &s->replaced))) {
                p += read;
                q = elf_put_utf8(q, wide);
                continue;
            } else if ((v = elf_simple_escape(*p)) >= 0) c = (uint8_t)v, p++;
        }
        *q++ = c;
    }
    span.p = out, span.n = (uint32_t)(q - out);
    return span;
}

static inline int elf_has_escape(const elf_state *s, elf_span span, int escape) {
    switch (escape) {
        case E_BACKSLASH: case E_JSON: return s->backslash && memchr(span.p, '\\', span.n) != NULL;
        case E_PLUS: return memchr(span.p, '+', span.n) != NULL;
        case E_PERCENT: return memchr(span.p, '%', span.n) != NULL;
        case E_DOUBLED: return memchr(span.p, '"', span.n) != NULL;
        default: return 0;
    }
}

/* The text as users see it: escapes decoded, valid UTF-8. `s->replaced` is set where bytes were not. */
static inline elf_span elf_cook(elf_state *s, elf_span span, int escape) {
    if (escape != E_NONE && elf_has_escape(s, span, escape)) return elf_repair(s, elf_unescape(s, span, escape));
    return s->high || s->backslash || s->replaced ? elf_repair(s, span) : span;
}
#endif
