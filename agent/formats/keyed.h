/* Values that lines name, beyond the fields of their format: columns by the keys' own names, and numbers in any of JSON's
 * spellings. Scalar code, shared by the keyed shapes and instruction sets. */
#ifndef ELF_KEYED_H
#define ELF_KEYED_H
#include <math.h>

#include "convert.h"

/* The end of the JSON number at p, or NULL. */
static inline const uint8_t *elf_json_number(const uint8_t *p, const uint8_t *end) {
    if (p < end && *p == '-') p++;
    if (p == end || !elf_digit(*p)) return NULL;
    if (*p == '0') p++;
    else while (p < end && elf_digit(*p)) p++;
    if (p < end && *p == '.') {
        if (++p == end || !elf_digit(*p)) return NULL;
        while (p < end && elf_digit(*p)) p++;
    }
    if (p < end && (*p | 0x20) == 'e') {
        if (++p < end && (*p == '+' || *p == '-')) p++;
        if (p == end || !elf_digit(*p)) return NULL;
        while (p < end && elf_digit(*p)) p++;
    }
    return p;
}

/* The exponent "e+2" at p, at most a billion either way; 0 where there is none. */
static inline int64_t elf_exponent(const uint8_t *p, const uint8_t *end) {
    int64_t e = 0;
    if (p == end) return 0;
    int negative = *++p == '-';
    for (p += negative || *p == '+'; p < end; p++) e = e < 100000000 ? e * 10 + (*p - '0') : e;
    return negative ? -e : e;
}

/* A JSON number that is whole and within int64, exactly, however it is spelled: 200, 200.0, 2e2, 0.2e3. */
static int elf_whole_number(const uint8_t *p, size_t n, int64_t *out) {
    const uint8_t *end = p + n;
    if (elf_json_number(p, end) != end) return 0;
    int negative = *p == '-', point = 0;
    uint64_t v = 0;            /* the digits up to the last that is not 0 */
    int64_t zeros = 0, ten = 0; /* those behind it; the power of ten of the last digit */
    for (p += negative; p < end && (elf_digit(*p) || *p == '.'); p++) {
        if (*p == '.') { point = 1; continue; }
        ten -= point;
        zeros++;
        if (*p == '0') continue;
        for (; zeros; zeros--)
            if (v && __builtin_mul_overflow(v, 10, &v)) return 0;
        if (__builtin_add_overflow(v, (uint64_t)(*p - '0'), &v)) return 0;
    }
    ten += zeros + elf_exponent(p, end);
    if (!v) { *out = 0; return 1; }
    if (ten < 0) return 0;
    for (; ten; ten--)
        if (__builtin_mul_overflow(v, 10, &v)) return 0;
    if (v > (uint64_t)INT64_MAX + negative) return 0;
    *out = (int64_t)(negative ? 0 - v : v);
    return 1;
}

/* The double nearest to a JSON number; 0 for a text that is none, and for a number beyond the largest double. -0 is read as 0. */
static int elf_double(elf_state *s, const uint8_t *p, size_t n, double *out) {
    static const double tens[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
                                  1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    elf_decimal d;
    if (elf_json_number(p, p + n) != p + n) return 0;
    elf_read_decimal(p, p + n, &d, 1);
    if (d.mantissa >> 53 == 0 && d.exponent >= -22 && d.exponent <= 22) {  /* both are exact, so one rounding (Clinger, 1990) */
        double v = (double)(uint64_t)d.mantissa;
        v = d.exponent < 0 ? v / tens[-d.exponent] : v * tens[d.exponent];
        *out = d.negative && v != 0 ? -v : v;
        return 1;
    }
    char *text = (char *)elf_take(s, n + 1);
    if (!text) return 0;
    memcpy(text, p, n);
    text[n] = 0;
    double v = strtod(text, NULL);  /* the agent never sets a locale, so the point is a point */
    *out = v == 0 ? 0 : v;
    return isfinite(v);
}

/* A list of exactly one scalar stands for that scalar; other lists and objects stay as they are. The text was checked before. */
static void elf_only_element(elf_value *v) {
    const uint8_t *p = v->p, *end = p + v->n - 1, *q;
    int escaped = 0;
    if (*p != '[') return;
    for (p++; *p == ' ' || *p == '\t' || *p == '\r'; p++) {}
    if (*p == '{' || *p == '[' || *p == ']') return;
    if (*p == '"') {
        for (q = p + 1; *q != '"'; q++)
            if (*q == '\\') q++, escaped = 1;
        q++;
    } else {
        for (q = p; *q != ',' && *q != ']' && *q != ' ' && *q != '\t' && *q != '\r'; q++) {}
    }
    const uint8_t *rest = q;
    for (; *rest == ' ' || *rest == '\t' || *rest == '\r'; rest++) {}
    if (rest != end) return;
    v->escaped = (uint8_t)escaped;
    v->type = *p == '"' ? V_STRING : *p == 'n' ? V_NULL : *p == 't' || *p == 'f' ? V_BOOL : V_TEXT;
    if (v->type == V_STRING) p++, q--;
    v->p = p, v->n = (uint32_t)(q - p);
}

/* The value of a column that is named by a key: by the column's type, or state 3 where it does not convert. It never rejects
 * the line, so that acceptance does not depend on the columns asked for. While a line is read, `bad_at` is its beginning. */
static void elf_convert_own(elf_state *s, const elf_field *f, elf_value v) {
    int t = f->target[T_ONE], escape = E_NONE, replaced = s->replaced, good = 0;
    int64_t number = 0;
    double real = 0;
    elf_span text;
    if (t < 0) return;
    if (v.type == V_RAW) elf_only_element(&v);
    if (v.type == V_NULL || elf_is_null(f, v.p, v.n)) return;
    text.p = v.p, text.n = v.n;
    if (s->shape != S_JSON) escape = s->shape == S_LOGFMT && !v.escaped ? E_NONE : f->escape;
    else if (v.escaped) text = elf_unescape(s, text, E_JSON);
    switch (f->convert) {
        case C_OWN_INT: good = v.type != V_BOOL && elf_whole_number(text.p, text.n, &number); break;
        case C_OWN_DOUBLE:
            good = v.type != V_BOOL && elf_double(s, text.p, text.n, &real);
            if (good) memcpy(&number, &real, sizeof number);
            break;
        case C_OWN_BOOL:
            number = text.n == 4 && !memcmp(text.p, "true", 4);
            good = number || (text.n == 5 && !memcmp(text.p, "false", 5));
            break;
        default:
            elf_put_text(s, f, T_ONE, text.p, text.p + text.n, escape);
            s->replaced = replaced;
            return;
    }
    s->replaced = replaced;
    if (good) { elf_put_number(s, f, number); return; }
    s->slots[t].state[s->row] = 3;
    if (s->n_lost == ELF_SAMPLES) return;
    elf_sample *sample = &s->lost[s->n_lost++];
    memset(sample, 0, sizeof *sample);
    sample->line = s->bad_at;
    sample->at = (uint32_t)(v.p - s->bad_at);
    sample->field = (int32_t)(f - s->fields);
    sample->detail = (int32_t)v.n;
}

/* Respell a whole number in digits ("2e2" as "200"), where the field takes digits only. Returns 1 if it did. */
static int elf_respell(elf_state *s, const elf_field *f, elf_span *text) {
    int64_t v;
    if (s->shape == S_REGEX || (f->convert != C_INT && f->convert != C_SIZE && f->convert != C_STATUS
        && f->convert != C_MICROSECONDS && f->convert != C_NANOSECONDS))
        return 0;
    if (!elf_whole_number(text->p, text->n, &v)) return 0;
    uint64_t left = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    uint8_t *out = elf_take(s, 20), *q;
    if (!out) return 0;
    q = out + 20;
    do *--q = (uint8_t)('0' + left % 10), left /= 10;
    while (left);
    if (v < 0) *--q = '-';
    text->p = q, text->n = (uint32_t)(out + 20 - q);
    return 1;
}
#endif
