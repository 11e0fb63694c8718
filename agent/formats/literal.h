/* Lines of shape LITERAL: fields divided by literal text. Included once per instruction set (V). */

/* Is the field's separator at q? */
static inline int V(after)(const elf_field *f, const uint8_t *q, const uint8_t *end) {
    if ((elf_word(q) & f->mask8) != f->after8 || (size_t)(end - q) < f->after_n) return 0;
    return f->after_n <= 8 || memcmp(q + 8, f->after + 8, f->after_n - 8) == 0;
}

/* The closing quote of the field at p. */
static inline const uint8_t *V(close)(const elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = p;
    int backslashes = s->backslash && (f->escape == E_BACKSLASH || f->escape == E_JSON);
    while ((q = V(find)(q, end, f->quote))) {
        if (backslashes) {
            const uint8_t *b = q;
            while (b > p && b[-1] == '\\') b--;
            if ((q - b) & 1) { q++; continue; }
        } else if (f->escape == E_DOUBLED && end - q > 1 && q[1] == f->quote) {
            q += 2;
            continue;
        }
        return q;
    }
    return NULL;
}

/* Does a list continue after the separator at q? nginx divides its upstreams by ", " and " : ". */
static inline int V(list_goes_on)(const elf_field *f, const uint8_t *p, const uint8_t *q, const uint8_t *end) {
    const uint8_t *next = q + f->after_n;
    if (q > p && q[-1] == ',') return 1;
    if (q - p > 1 && q[-1] == ':' && q[-2] == ' ') return 1;
    return end - next > 1 && next[0] == ':' && next[1] == ' ';
}

/* The first separator of the unquoted field at p, or NULL. */
static inline const uint8_t *V(separator)(const elf_field *f, const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = p;
    while ((q = V(find)(q, end, f->after[0]))) {
        if (V(after)(f, q, end) && !(f->list && V(list_goes_on)(f, p, q, end))) return q;
        q++;
    }
    return NULL;
}

/* The end of the time at p if its own text contains the separator ("17/May/2015:10:05:03 +0000 ..."), or NULL. */
static const uint8_t *V(time_end)(elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *end) {
    int64_t micros;
    int zoned;
    size_t n = 0;
    if (f->convert == C_TIME_CLF) n = elf_read_clf(s, p, end, &micros);
    else if (f->convert == C_TIME_ISO) n = elf_read_iso(s, p, end, &micros);
    else if (f->convert == C_TIME_STRPTIME) {
        const uint8_t *q = p;
        for (int tries = 0; tries < 8 && (q = V(separator)(f, q, end)); tries++, q++)
            if (s->strptime(s->owner, (int)(f - s->fields), p, (size_t)(q - p), &micros, &zoned)) return q;
    }
    return n && V(after)(f, p + n, end) && (f->after_n || p + n == end) ? p + n : NULL;
}

/* A rejected line whose separator is not at q: does the line end within it, or is there other text? */
static int V(no_separator)(elf_state *s, const elf_field *f, int i, const uint8_t *p, const uint8_t *q, const uint8_t *end) {
    size_t left = (size_t)(end - q);
    if (left < f->after_n && memcmp(q, f->after, left) == 0) return elf_bad(s, R_TRUNCATED, i, end);
    return elf_bad(s, R_LITERAL, i, p);
}

/* The field at *at by the general code; moves *at past its separator. */
static int V(field)(elf_state *s, const elf_field *f, int i, const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at, *q, *next;
    if (f->quote) {
        q = V(close)(s, f, p, end);
        if (!q) return elf_bad(s, R_UNTERMINATED, i, p);
        if (V(after)(f, q, end)) next = q + f->after_n;
        else if (f->next_optional && q + 1 == end) next = end;
        else return V(no_separator)(s, f, i, q + 1, q, end);
    } else if (f->after_n == 0) {
        next = q = end;
    } else {
        q = f->convert >= C_TIME_CLF ? V(time_end)(s, f, p, end) : NULL;
        if (!q) q = V(separator)(f, p, end);
        if (q) next = q + f->after_n;
        else if (f->next_optional) next = q = end;
        else {
            /* The line may end in the first part of the separator. */
            size_t part = f->after_n - 1 < (size_t)(end - p) ? f->after_n - 1 : (size_t)(end - p);
            while (part && memcmp(end - part, f->after, part)) part--;
            return part || p == end ? elf_bad(s, R_TRUNCATED, i, end) : elf_bad(s, R_LITERAL, i, p);
        }
    }
    *at = next;
    int reason = elf_convert_or_null(s, f, p, (size_t)(q - p), f->escape);
    return reason ? elf_bad(s, reason, i, p) : OK;
}

/* "GET /path?query HTTP/1.1", the same as elf_put_request for a request that looks like it and has no special bytes. */
static inline void V(request)(elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *end) {
    const uint8_t *uri = p + 4, *last = end - 9, *mark;
    if (end - p < 14 || f->convert != C_REQUEST || memcmp(last, " HTTP/", 6) || last[7] != '.' || !elf_digit(last[6]) || !elf_digit(last[8])) {
        elf_put_request(s, f, p, end, E_NONE);
        return;
    }
    if (memcmp(p, "GET ", 4)) {
        for (uri = p; elf_is_token(*uri); uri++) {}
        if (uri == p || *uri++ != ' ' || uri >= last) { elf_put_request(s, f, p, end, E_NONE); return; }
    }
    mark = V(find)(uri, last, '?');
    elf_put_plain(s, f, T_METHOD, p, uri - 1);
    elf_put_plain(s, f, T_PATH, uri, mark ? mark : last);
    if (mark) elf_put_plain(s, f, T_QUERY, mark + 1, last);
    elf_put_plain(s, f, T_PROTOCOL, last + 1, end);
}

/* The usual fields in the usual case, without a call: *at moves past the separator. 0 where the general code must decide. */
static inline int V(quick)(elf_state *s, const elf_field *f, const uint8_t **at, const uint8_t *end, uint32_t special) {
    const uint8_t *p = *at, *q = p;
    uint64_t v, others;
    switch (f->fast) {
        case FAST_TEXT:
            if (special) return 0;
            do {
                q = V(find)(q, end, f->after[0]);
                if (!q) return 0;
            } while (!V(after)(f, q, end) && !f->quote && q++);
            if (f->quote && !V(after)(f, q, end)) return 0;
            *at = q + f->after_n;
            if (!f->wanted || (f->dash ? q - p == 1 && *p == '-' : elf_is_null(f, p, (size_t)(q - p)))) return 1;
            if (f->convert == C_STRING) elf_put_plain(s, f, T_ONE, p, q);
            else V(request)(s, f, p, q);
            return 1;
        case FAST_DIGITS:
            v = elf_word(p) ^ 0x3030303030303030ull;
            others = (v | (v + 0x7676767676767676ull)) & 0x8080808080808080ull;
            if (others & 0x80) return 0;
            if (others) {
                q += __builtin_ctzll(others) >> 3;
                v = elf_eight_digits(v << (64 - 8 * (q - p)));
            } else {
                for (v = 0; elf_digit(*q); q++) v = v * 10 + (*q - '0');
            }
            if (q - p > 18 || q > end || !V(after)(f, q, end)) return 0;
            if ((!f->after_n && q != end) || (f->convert == C_STATUS && v > 999)) return 0;
            elf_put_number(s, f, (int64_t)v);
            *at = q + f->after_n;
            return 1;
        case FAST_CLF:
            if (end - p < 26 || !V(after)(f, p + 26, end) || (!f->after_n && end - p != 26)) return 0;
            if (elf_word(p) != elf_word(s->clf_text) || elf_word(p + 8) != elf_word(s->clf_text + 8) ||
                elf_word(p + 16) != elf_word(s->clf_text + 16) || memcmp(p + 24, s->clf_text + 24, 2)) {
                if (elf_read_clf(s, p, p + 26, &s->clf_value) != 26) { s->clf_text[0] = 0; return 0; }
                memcpy(s->clf_text, p, 26);
            }
            elf_put_time(s, f, s->clf_value);
            *at = p + 26 + f->after_n;
            return 1;
        default: return 0;
    }
}

static int V(literal_line)(elf_state *s, const uint8_t *p, const uint8_t *end, uint32_t special) {
    if (s->skip_prefix_n) {
        const uint8_t *mark = (const uint8_t *)memmem(p, (size_t)(end - p), s->skip_prefix, s->skip_prefix_n);
        if (mark) p = mark + s->skip_prefix_n;
    }
    if (s->prefix_n) {
        size_t n = (size_t)(end - p) < s->prefix_n ? (size_t)(end - p) : s->prefix_n;
        if (memcmp(p, s->prefix, n)) return elf_bad(s, R_LITERAL, -1, p);
        if (n < s->prefix_n) return elf_bad(s, R_TRUNCATED, -1, end);
        p += n;
    }
    for (int i = 0; i < s->n_fields; i++) {
        const elf_field *f = &s->fields[i];
        if (p == end && f->optional) {
            for (; i < s->n_fields; i++) elf_put_null(s, &s->fields[i]);
            break;
        }
        if (V(quick)(s, f, &p, end, special)) continue;
        int reason = V(field)(s, f, i, &p, end);
        if (reason) return reason;
    }
    if (p != end) return elf_bad(s, R_TRAILING, s->n_fields - 1, p);
    return elf_settle_time(s, end);
}
