/* One field's text to the columns that it fills. Scalar code, shared by all shapes and instruction sets. */
#ifndef ELF_CONVERT_H
#define ELF_CONVERT_H
#include "forms.h"
#include "numbers.h"
#include "text.h"
#include "times.h"

static inline void elf_put_text(elf_state *s, const elf_field *f, int part, const uint8_t *p, const uint8_t *end, int escape) {
    int t = f->target[part];
    if (t < 0) return;
    elf_span *slot = &s->slots[t].spans[s->row];
    if (slot->p) return;
    elf_span span = {p, (uint32_t)(end - p)};
    *slot = s->high || s->backslash || s->replaced || escape != E_NONE ? elf_cook(s, span, escape) : span;
}

/* Text of a line without special bytes, in a field without escapes or whose escape is a backslash. */
static inline void elf_put_plain(elf_state *s, const elf_field *f, int part, const uint8_t *p, const uint8_t *end) {
    int t = f->target[part];
    if (t < 0) return;
    elf_span *slot = &s->slots[t].spans[s->row];
    if (slot->p) return;
    slot->p = p;
    slot->n = (uint32_t)(end - p);
}

/* path[?query] */
static inline void elf_put_uri(elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *end, int escape) {
    const uint8_t *mark = (const uint8_t *)memchr(p, '?', (size_t)(end - p));
    elf_put_text(s, f, T_PATH, p, mark ? mark : end, escape);
    if (mark) elf_put_text(s, f, T_QUERY, mark + 1, end, escape);
}

/* An address or host name without its port and brackets. The port is optional (it follows the only colon, or "]"), or
 * else always there (it follows the last colon: "::1:5678"). */
static inline elf_span elf_host(const uint8_t *p, const uint8_t *end, int port_optional) {
    elf_span host = {p, (uint32_t)(end - p)};
    const uint8_t *first = (const uint8_t *)memchr(p, ':', host.n), *last = end;
    if (p < end && *p == '[') {
        const uint8_t *close = (const uint8_t *)memchr(p, ']', host.n);
        if (close) host.p = p + 1, host.n = (uint32_t)(close - p - 1);
        return host;
    }
    if (!first) return host;
    while (last[-1] != ':') last--;
    if (!port_optional || last == first + 1) host.n = (uint32_t)(last - 1 - p);
    return host;
}

static inline void elf_put_host(elf_state *s, const elf_field *f, int part, const uint8_t *p, const uint8_t *end, int escape) {
    elf_span host = elf_host(p, end, f->convert != C_HOST_PORT);
    elf_put_text(s, f, part, host.p, host.p + host.n, escape);
}

/* scheme://host[:port]/path?query; without a scheme it is a path */
static inline void elf_put_url(elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *end, int escape) {
    static const uint8_t root[] = "/";
    const uint8_t *q = p;
    while (q < end && ((*q | 0x20) >= 'a' && (*q | 0x20) <= 'z')) q++;
    if (q == p || end - q < 3 || memcmp(q, "://", 3)) {
        elf_put_uri(s, f, p, end, escape);
        return;
    }
    const uint8_t *host = q + 3, *path = host;
    while (path < end && *path != '/' && *path != '?') path++;
    elf_put_text(s, f, T_SCHEME, p, q, escape);
    elf_put_host(s, f, T_HOST, host, path, escape);
    if (path < end && *path == '/') { elf_put_uri(s, f, path, end, escape); return; }
    elf_put_text(s, f, T_PATH, root, root + 1, E_NONE);
    if (path < end) elf_put_text(s, f, T_QUERY, path + 1, end, escape);
}

/* RFC 9110's token characters */
static inline int elf_is_token(uint8_t c) {
    static const uint64_t low = 0x03ff6cfa00000000ull, high = 0x57ffffffc7fffffeull;
    return c < 64 ? (int)(low >> c & 1) : c < 128 ? (int)(high >> (c - 64) & 1) : 0;
}

/* "HTTP/1.1": capitals, a slash, digits with at most one point between */
static inline int elf_is_protocol(const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = p;
    if (end - p == 8 && !memcmp(p, "HTTP/", 5) && elf_digit(p[5]) && p[6] == '.' && elf_digit(p[7])) return 1;
    while (q < end && *q >= 'A' && *q <= 'Z') q++;
    if (q == p || q == end || *q++ != '/' || q == end || !elf_digit(*q)) return 0;
    while (q < end && elf_digit(*q)) q++;
    if (q == end) return 1;
    if (*q++ != '.' || q == end) return 0;
    while (q < end && elf_digit(*q)) q++;
    return q == end;
}

/* METHOD URI PROTOCOL: the method ends at the first space, the protocol begins after the last; a URI may hold spaces, but not at
 * its ends (nginx and others accept and log more of them). */
static inline void elf_put_request(elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *end, int escape) {
    const uint8_t *uri = p, *protocol = end;
    while (uri < end && elf_is_token(*uri)) uri++;
    if (uri == p || uri == end || *uri != ' ') return;
    while (protocol > uri && protocol[-1] != ' ') protocol--;
    if (protocol - uri < 3 || !elf_is_protocol(protocol, end)) return;
    const uint8_t *method = uri, *last = protocol - 1;
    if (f->convert == C_REQUEST_URL && method == p + 1 && *p == '-') return;  /* Varnish: "- http://localhost HTTP/1.0", there was none */
    for (uri++; uri < last && *uri == ' '; uri++) {}
    while (last > uri && last[-1] == ' ') last--;
    if (uri == last) return;
    elf_put_text(s, f, T_METHOD, p, method, escape);
    elf_put_text(s, f, T_PROTOCOL, protocol, end, escape);
    if (f->convert != C_REQUEST_URL) elf_put_uri(s, f, uri, last, escape);
    else elf_put_url(s, f, uri, last, escape);
}

static inline int elf_put_time(elf_state *s, const elf_field *f, int64_t micros) {
    if (f->is_time && !s->has_time) s->time = micros, s->has_time = 1;
    elf_put_number(s, f, micros);
    return OK;
}

static int elf_strptime_text(elf_state *s, const elf_field *f, const uint8_t *p, size_t n) {
    int64_t micros = 0;
    int zoned = 0;
    if (!s->strptime(s->owner, f->index, p, n, &micros, &zoned)) return R_TIME;
    if (!zoned) micros = elf_local(s, micros);
    return elf_in_range(micros) ? elf_put_time(s, f, micros) : R_TIME;
}

/* A number is unix time, dd/Mon/... CLF, else ISO; brackets around are skipped. */
static int elf_any_time(elf_state *s, const uint8_t *p, size_t n, int64_t *v) {
    if (n > 1 && *p == '[' && p[n - 1] == ']') p++, n -= 2;
    if (n > 2 && p[2] == '/') return elf_read_clf(s, p, p + n, v) == n;
    if (n > 4 && p[4] == '-') return elf_read_iso(s, p, p + n, v) == n;
    return elf_epoch(p, n, -1, v);
}

static int elf_convert_time(elf_state *s, const elf_field *f, const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    int64_t v = 0;
    int good = 0;
    switch (f->convert) {
        case C_TIME_ANY: good = elf_any_time(s, p, n, &v); break;
        case C_TIME_CLF: good = n && elf_read_clf(s, p, end, &v) == n; break;
        case C_TIME_ISO: good = n && elf_read_iso(s, p, end, &v) == n; break;
        case C_TIME_EPOCH: good = elf_epoch(p, n, -1, &v); break;
        case C_TIME_EPOCH_MS: good = elf_epoch(p, n, 3, &v); break;
        case C_TIME_EPOCH_US: good = elf_epoch(p, n, 0, &v); break;
        case C_DATE:
            v = n == 10 ? elf_iso_date(p) : INT64_MIN;
            if (v == INT64_MIN) return R_TIME;
            if (s->date == INT64_MIN) s->date = v;
            return OK;
        case C_TIME_OF_DAY:
            if (!n || elf_read_clock(p, end, &v) != n) return R_TIME;
            if (s->clock < 0) s->clock = v;
            return OK;
        default: return elf_strptime_text(s, f, p, n);
    }
    return good ? elf_put_time(s, f, v) : R_TIME;
}

/* Whether a line counts as holding bytes that are not UTF-8 must not depend on the requested columns, so escaped text is always decoded. */
static inline void elf_try_text(elf_state *s, const elf_field *f, const uint8_t *p, size_t n, int escape) {
    elf_span span = {p, (uint32_t)n};
    if ((s->backslash && (escape == E_BACKSLASH || escape == E_JSON)) || escape == E_PERCENT)
        if (f->convert != C_SKIP) elf_cook(s, span, escape);
}

/* The text of one field, not one of its NULLs. Returns OK or the reason to reject the line. */
static int elf_convert(elf_state *s, const elf_field *f, const uint8_t *p, size_t n, int escape) {
    const uint8_t *end = p + n;
    int64_t v = 0;
    int good;
    if (f->form) {
        if (f->form == FORM_CLIENT && f->convert != C_STRING) {
            elf_span host = elf_host(p, end, f->convert != C_HOST_PORT);
            if (!elf_is_client(host.p, host.p + host.n)) return R_TEXT;
        } else if (!elf_has_form(s, f, p, end)) {
            return R_TEXT;
        }
        if (f->form == FORM_CLIENT && f->convert == C_STRING) end = elf_first_client(p, end), n = (size_t)(end - p);
    }
    switch (f->convert) {
        case C_SKIP: return OK;
        case C_STRING: elf_put_text(s, f, T_ONE, p, end, escape); break;
        case C_REQUEST: case C_REQUEST_URL: if (f->wanted) elf_put_request(s, f, p, end, escape); break;
        case C_URI: if (f->wanted) elf_put_uri(s, f, p, end, escape); break;
        case C_QUERY: elf_put_text(s, f, T_ONE, p + (n && *p == '?'), end, escape); break;
        case C_URL: if (f->wanted) elf_put_url(s, f, p, end, escape); break;
        case C_HOST_PORT: case C_HOST: elf_put_host(s, f, T_ONE, p, end, escape); break;
        case C_INT: if (!elf_int(p, n, &v)) return R_NUMBER; elf_put_number(s, f, v); return OK;
        case C_SIZE:
            if (n == 1 && *p == '-') v = 0;
            else if (!n || !elf_digit(*p) || !elf_int(p, n, &v)) return R_NUMBER;
            elf_put_number(s, f, v);
            return OK;
        case C_STATUS:
            if (!n || !elf_digit(*p) || !elf_int(p, n, &v) || v > 999 || (s->shape == S_LITERAL && n != 3)) return R_NUMBER;
            elf_put_number(s, f, v);
            return OK;
        case C_SECONDS: if (!elf_micros(p, n, 6, &v)) return R_NUMBER; elf_put_number(s, f, v); return OK;
        case C_MILLISECONDS: if (!elf_micros(p, n, 3, &v)) return R_NUMBER; elf_put_number(s, f, v); return OK;
        case C_MICROSECONDS: if (!elf_whole(p, n, 1, &v)) return R_NUMBER; elf_put_number(s, f, v); return OK;
        case C_NANOSECONDS: if (!elf_whole(p, n, 1000, &v)) return R_NUMBER; elf_put_number(s, f, v); return OK;
        case C_DURATION: if (!elf_duration(p, n, 6, &v)) return R_NUMBER; elf_put_number(s, f, v); return OK;
        case C_DURATION_MS: if (!elf_duration(p, n, 3, &v)) return R_NUMBER; elf_put_number(s, f, v); return OK;
        case C_TAKEN: if (!elf_micros(p, n, memchr(p, '.', n) ? 6 : 3, &v)) return R_NUMBER; elf_put_number(s, f, v); return OK;
        case C_SECONDS_LIST:
            good = elf_seconds_list(p, n, &v);
            if (!good) return R_NUMBER;
            if (good == 1) elf_put_number(s, f, v); else elf_put_null(s, f);
            return OK;
        default: return elf_convert_time(s, f, p, n);
    }
    elf_try_text(s, f, p, n, escape);
    return OK;
}

static inline int elf_convert_or_null(elf_state *s, const elf_field *f, const uint8_t *p, size_t n, int escape) {
    if (elf_is_null(f, p, n)) { elf_put_null(s, f); return OK; }
    return elf_convert(s, f, p, n, escape);
}

static inline int elf_bad(elf_state *s, int reason, int field, const uint8_t *at) {
    s->bad_field = field;
    s->bad_at = at;
    return reason;
}

/* After the last field: the line must have a time. */
static inline __attribute__((always_inline)) int elf_settle_time(elf_state *s, const uint8_t *at) {
    if (s->has_time || !s->needs_time) return OK;
    int field = 0;
    while (field < s->n_fields && !s->fields[field].is_time) field++;
    if (s->date == INT64_MIN || s->clock < 0) return elf_bad(s, s->shape == S_LITERAL ? R_TIME : R_MISSING, field, at);
    int64_t micros = s->date * ELF_DAY + s->clock;
    if (!s->zoned) micros = elf_local(s, micros);
    if (!elf_in_range(micros)) return elf_bad(s, R_TIME, field, at);
    elf_put_time(s, &s->fields[field], micros);
    return OK;
}

/* In keyed.h. */
static void elf_convert_own(elf_state *s, const elf_field *f, elf_value v);
static int elf_respell(elf_state *s, const elf_field *f, elf_span *text);

/* Keyed shapes and REGEX: every field of the plan from the values found in the line, in the plan's order. */
static int elf_convert_found(elf_state *s, const uint8_t *end) {
    int word = 0;
    for (int i = 0; i <= s->n_fields / 64; i++) s->ever[i] |= s->seen[i];
    for (uint64_t bits = s->seen[0] | s->must[0];;) {
        while (!bits) {
            if (++word > s->n_fields / 64) return elf_settle_time(s, end);
            bits = s->seen[word] | s->must[word];
        }
        int i = 64 * word + __builtin_ctzll(bits), seen = s->seen[word] >> (i & 63) & 1;
        const elf_field *f = &s->fields[i];
        const elf_value *v = &s->found[i];
        bits &= bits - 1;
        if (f->convert >= C_OWN_TEXT) { elf_convert_own(s, f, *v); continue; }
        if (!seen && f->required) return elf_bad(s, R_MISSING, i, end);
        if (!seen || v->type == V_NULL || elf_is_null(f, v->p, v->n)) { elf_put_null(s, f); continue; }
        int escape = f->escape;
        elf_span text = {v->p, v->n};
        if (s->shape == S_JSON) {
            if (f->convert >= C_INT && v->type == V_BOOL)
                return elf_bad(s, f->convert >= C_TIME_CLF ? R_TIME : R_NUMBER, i, v->p);
            if (escape == E_JSON || escape == E_BACKSLASH) escape = E_NONE;
            if (v->escaped) text = elf_unescape(s, text, E_JSON);
        } else if (s->shape == S_LOGFMT && !v->escaped) {
            escape = E_NONE;
        }
        int reason = elf_convert(s, f, text.p, text.n, escape);
        if (reason == R_NUMBER && elf_respell(s, f, &text)) reason = elf_convert(s, f, text.p, text.n, E_NONE);
        if (reason) return elf_bad(s, reason, i, v->p);
    }
}
#endif
