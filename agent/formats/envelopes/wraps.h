/* JSON objects that hold a line: its key is found, and its text decoded. The object's other keys are the JSON parser's business. */
#ifndef ELF_WRAPS_H
#define ELF_WRAPS_H
#include "heads.h"

static const uint8_t *elf_blank(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r')) p++;
    return p;
}

/* The end of the JSON value at p, or NULL: brackets and quotes are paired, no more. */
static const uint8_t *elf_value_end(const uint8_t *p, const uint8_t *end) {
    int depth = 0;
    while (p < end) {
        if (*p == '"') {
            p = elf_quote_end(p + 1, end);
            if (!p) return NULL;
            p++;
        } else if (*p == '{' || *p == '[') depth++, p++;
        else if (*p == '}' || *p == ']') {
            if (depth-- == 0) return p;
            p++;
        } else if (depth == 0 && *p == ',') return p;
        else p++;
        if (depth == 0 && p[-1] != ' ' && (p[-1] == '"' || p[-1] == '}' || p[-1] == ']')) return p;
    }
    return NULL;
}

static inline int elf_key_is(const uint8_t *p, const uint8_t *end, const char *key) {
    size_t n = strlen(key);
    return (size_t)(end - p) == n && !memcmp(p, key, n);
}

/* The rank of a key that may hold the line, the lowest first; -1: another key. */
static int elf_message_key(int kind, const uint8_t *p, const uint8_t *end) {
    static const char *const names[] = {"log", "message", "MESSAGE", "msg"};
    if (end - p > 7) return -1;
    for (int i = 0; i < 4; i++)
        if (elf_key_is(p, end, names[i])) return kind == K_DOCKER && i != 0 ? -1 : kind == K_JOURNALD && i != 2 ? -1 : i;
    return -1;
}

/* h->message: the value's first byte, a quote, or for journald a bracket (bytes that are no UTF-8). */
static int elf_json_head(int kind, const uint8_t *p, const uint8_t *end, elf_head *h) {
    const char *program = kind == K_JOURNALD ? "SYSLOG_IDENTIFIER" : "stream";
    int best = 4;
    if (*p != '{') return 0;
    for (p = elf_blank(p + 1, end); p < end && *p == '"';) {
        const uint8_t *key = p + 1, *quote = elf_quote_end(key, end);
        if (!quote) return 0;
        p = elf_blank(quote + 1, end);
        if (p == end || *p != ':') return 0;
        const uint8_t *value = elf_blank(p + 1, end);
        p = elf_value_end(value, end);
        if (!p) return 0;
        int rank = elf_message_key(kind, key, quote);
        if (rank >= 0 && rank < best && (*value == '"' || (*value == '[' && kind == K_JOURNALD))) best = rank, h->message = value;
        else if (*value == '"' && elf_key_is(key, quote, program)) h->program = elf_between(value + 1, p - 1);
        p = elf_blank(p, end);
        if (p < end && *p == ',') p = elf_blank(p + 1, end);
    }
    if (p == end || *p != '}' || elf_blank(p + 1, end) != end) return 0;
    return best < 4;
}

static int elf_hex4(const uint8_t *p, const uint8_t *end, uint32_t *code) {
    *code = 0;
    if (end - p < 4) return 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i], low = c | 0x20;
        uint32_t digit = elf_is_digit(c) ? (uint32_t)(c - '0') : low >= 'a' && low <= 'f' ? (uint32_t)(low - 'a' + 10) : 16;
        if (digit == 16) return 0;
        *code = *code * 16 + digit;
    }
    return 1;
}

static uint8_t *elf_put_utf8(uint8_t *out, uint32_t c) {
    if (c < 0x80) { *out++ = (uint8_t)c; return out; }
    if (c < 0x800) { *out++ = (uint8_t)(0xc0 | c >> 6); *out++ = (uint8_t)(0x80 | (c & 63)); return out; }
    if (c < 0x10000) *out++ = (uint8_t)(0xe0 | c >> 12);
    else { *out++ = (uint8_t)(0xf0 | c >> 18); *out++ = (uint8_t)(0x80 | (c >> 12 & 63)); }
    *out++ = (uint8_t)(0x80 | (c >> 6 & 63));
    *out++ = (uint8_t)(0x80 | (c & 63));
    return out;
}

/* The character of \uXXXX, p behind the u, perhaps a pair. Half a pair becomes U+FFFD. Returns the place behind it, or NULL. */
static const uint8_t *elf_unicode(const uint8_t *p, const uint8_t *end, uint32_t *code) {
    uint32_t low;
    if (!elf_hex4(p, end, code)) return NULL;
    p += 4;
    if (*code < 0xd800 || *code > 0xdfff) return p;
    if (*code < 0xdc00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u' && elf_hex4(p + 2, end, &low) && low >= 0xdc00 && low <= 0xdfff) {
        *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
        return p + 6;
    }
    *code = 0xfffd;
    return p;
}

/* Decode the JSON string whose text is [p, end) to `out`, which has room for it. Returns the end, or NULL for a bad escape. */
static uint8_t *elf_decode(const uint8_t *p, const uint8_t *end, uint8_t *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    while (p < end) {
        const uint8_t *q = elf_until(p, end, '\\');
        memcpy(out, p, (size_t)(q - p));
        out += q - p;
        if (q == end) break;
        if (q + 1 == end) return NULL;
        if (q[1] == 'u') {
            uint32_t code;
            if (!(p = elf_unicode(q + 2, end, &code))) return NULL;
            out = elf_put_utf8(out, code);
            continue;
        }
        const char *found = (const char *)memchr(from, q[1], 8);
        if (!found) return NULL;
        *out++ = (uint8_t)to[found - from];
        p = q + 2;
    }
    return out;
}

/* Decode journald's array of bytes, p behind its bracket. */
static uint8_t *elf_decode_bytes(const uint8_t *p, const uint8_t *end, uint8_t *out) {
    for (;;) {
        unsigned value = 0;
        p = elf_blank(p, end);
        if (p == end || !elf_is_digit(*p)) return NULL;
        while (p < end && elf_is_digit(*p) && value < 1000) value = value * 10 + (unsigned)(*p++ - '0');
        if (value > 255) return NULL;
        *out++ = (uint8_t)value;
        p = elf_blank(p, end);
        if (p == end || (*p != ',' && *p != ']')) return NULL;
        if (*p++ == ']') return out;
    }
}

/* The text of the message at `value` to `out`, without the line's end. NULL: no text, or one of several lines. */
static uint8_t *elf_wrapped_text(const uint8_t *value, const uint8_t *end, uint8_t *out) {
    uint8_t *start = out;
    if (*value == '[') out = elf_decode_bytes(value + 1, end, out);
    else {
        const uint8_t *quote = elf_quote_end(value + 1, end);
        out = quote ? elf_decode(value + 1, quote, out) : NULL;
    }
    if (!out) return NULL;
    if (out > start && out[-1] == '\n') out--;
    return memchr(start, '\n', (size_t)(out - start)) ? NULL : out;
}
#endif
