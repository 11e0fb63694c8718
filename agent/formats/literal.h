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

/* The same where the field is the client's list of addresses: "1.2.3.4, 5.6.7.8". */
static inline const uint8_t *V(clients_end)(const elf_field *f, const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = p;
    while ((q = V(find)(q, end, f->after[0]))) {
        if (V(after)(f, q, end) && !(q > p && q[-1] == ',')) return q;
        q++;
    }
    return NULL;
}

/* The end of the time at p if its own text contains the separator ("17/May/2015:10:05:03 +0000 ..."), or NULL. */
static __attribute__((noinline)) const uint8_t *V(time_end)(elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *end) {
    int64_t micros;
    int zoned;
    size_t n = 0;
    if (f->convert == C_TIME_CLF) n = elf_read_clf(s, p, end, &micros);
    else if (f->convert == C_TIME_ISO) n = elf_read_iso(s, p, end, &micros);
    else if (f->convert == C_TIME_STRPTIME) {
        const uint8_t *q = p;
        for (int tries = 0; tries < 8 && (q = V(separator)(f, q, end)); tries++, q++)
            if (s->strptime(s->owner, f->index, p, (size_t)(q - p), &micros, &zoned)) return q;
    }
    return n && V(after)(f, p + n, end) && (f->after_n || p + n == end) ? p + n : NULL;
}

static int V(field)(elf_state *s, const elf_field *f, int i, const uint8_t **at, const uint8_t *end);

/* Do the fields from i on, `count` of them, have their forms and separators at p? Nothing is kept. */
static __attribute__((noinline)) int V(fits)(elf_state *s, int i, int count, const uint8_t *p, const uint8_t *end) {
    int date = s->date == INT64_MIN, ident = s->ident, good = 1;
    int64_t clock = s->clock;
    for (int last = i + count; good && i < last; i++) {
        elf_field probe = s->fields[i];
        const uint8_t *stop = end - p > ELF_WORD_MAX ? p + ELF_WORD_MAX : end;
        memset(probe.target, 0xff, sizeof(probe.target));
        probe.is_time = probe.wanted = probe.ahead = 0;
        if (probe.convert < C_INT && probe.convert != C_HOST_PORT) probe.convert = C_SKIP;
        good = (probe.after_n || stop == end) && V(field)(s, &probe, i, &p, stop) == OK;
    }
    if (date) s->date = INT64_MIN;
    s->clock = clock, s->ident = ident;
    return good;
}

/* Where the text at p ends whose content a client controls, such as a user name: at the first separator behind which the next
 * fields fit, up to a quote (which servers escape within a field) or the line's end. So content that looks like a separator, or
 * like a time, moves no other field. Text between quotes that are not escaped ends at the last such place. */
static __attribute__((noinline)) const uint8_t *V(split)(elf_state *s, const elf_field *f, int i, const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = p, *found = NULL;
    while ((q = V(find)(q, end, f->after[0]))) {
        if (V(after)(f, q, end) && V(fits)(s, i + 1, f->ahead, q + f->after_n, end)) {
            if (!f->quote && !f->quotes) return q;
            found = q;
        }
        q++;
    }
    return found;
}

/* A rejected line whose separator is not at q: does the line end within it, or is there other text? */
static __attribute__((noinline)) int V(no_separator)(elf_state *s, const elf_field *f, int i, const uint8_t *p, const uint8_t *q, const uint8_t *end) {
    size_t left = (size_t)(end - q);
    if (left < f->after_n && memcmp(q, f->after, left) == 0) return elf_bad(s, R_TRUNCATED, i, end);
    return elf_bad(s, R_LITERAL, i, p);
}

/* The field at *at by the general code; moves *at past its separator. */
static __attribute__((noinline)) int V(field)(elf_state *s, const elf_field *f, int i, const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at, *next, *q = (s->careful || f->quotes) && f->ahead ? V(split)(s, f, i, p, end) : NULL;
    if (q) {
        next = q + f->after_n;
    } else if (f->quote) {
        q = V(close)(s, f, p, end);
        if (!q && f->convert == C_REQUEST_URL && f->next_optional) {  /* HAProxy cuts a line at 1,024 bytes */
            *at = end;
            return OK;
        }
        if (!q) return elf_bad(s, R_UNTERMINATED, i, p);
        if (V(after)(f, q, end)) next = q + f->after_n;
        else if (f->next_optional && (q + 1 == end || (q + 2 == end && q[1] == ' '))) next = end;
        else return V(no_separator)(s, f, i, q + 1, q, end);
    } else if (f->after_n == 0) {
        next = q = end;
    } else {
        q = f->convert >= C_TIME_CLF ? V(time_end)(s, f, p, end) : NULL;
        if (!q) q = s->careful && f->form == FORM_CLIENT && !f->index ? V(clients_end)(f, p, end) : V(separator)(f, p, end);
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
    if (*uri == ' ' || last[-1] == ' ') { elf_put_request(s, f, p, end, E_NONE); return; }
    mark = V(find)(uri, last, '?');
    elf_put_plain(s, f, T_METHOD, p, uri - 1);
    elf_put_plain(s, f, T_PATH, uri, mark ? mark : last);
    if (mark) elf_put_plain(s, f, T_QUERY, mark + 1, last);
    elf_put_plain(s, f, T_PROTOCOL, last + 1, end);
}

/* elf_is_ipv4 without branches or loops: one bit for each of its bytes. */
static inline int V(ipv4)(const uint8_t *p, const uint8_t *end) {
#if defined(__SSE2__)
#define ELF_BITS(m) ((unsigned)_mm_movemask_epi8(m))
    unsigned n = (unsigned)(end - p), all = (1u << (n & 15)) - 1;
    if (n - 7 > 8) return 0;
    __m128i v = _mm_loadu_si128((const __m128i *)p), d = _mm_sub_epi8(v, _mm_set1_epi8('0'));
    unsigned points = ELF_BITS(_mm_cmpeq_epi8(v, _mm_set1_epi8('.'))) & all;
    unsigned digits = ELF_BITS(_mm_cmpeq_epi8(_mm_min_epu8(d, _mm_set1_epi8(9)), d)) & all;
    unsigned second = points & (points - 1), third = second & (second - 1);
    if ((points | digits) != all || !third || (third & (third - 1))) return 0;
    unsigned three = digits & digits >> 1 & digits >> 2, above2 = ELF_BITS(_mm_cmpgt_epi8(v, _mm_set1_epi8('2')));
    unsigned two = ELF_BITS(_mm_cmpeq_epi8(v, _mm_set1_epi8('2'))), five = ELF_BITS(_mm_cmpeq_epi8(v, _mm_set1_epi8('5')));
    unsigned above5 = ELF_BITS(_mm_cmpgt_epi8(v, _mm_set1_epi8('5')));
    unsigned empty = (points & (points << 1 | 1)) | points >> (n - 1), long4 = three & digits >> 3;
    return !(empty | long4 | (three & (above2 | (two & (above5 >> 1 | (five >> 1 & above5 >> 2))))));
#undef ELF_BITS
#else
    return elf_is_ipv4(p, end);
#endif
}

/* The form of a field that is not "-" in the usual case; 0 where the general code must decide. */
static inline int V(quick_form)(const elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *q) {
    if (f->form == FORM_CLIENT) return V(ipv4)(p, q);
    if (f->form == FORM_USER) return p < q && !s->ident;
    return f->form == FORM_WORD && elf_is_word(p, q);
}

/* Is the separator of a quick field at q? It holds no end of a line, so that the line's own end need not be compared. */
static inline int V(follows)(const elf_field *f, const uint8_t *q) {
    if ((elf_word(q) & f->mask8) != f->after8) return 0;
    return f->after_n <= 8 || memcmp(q + 8, f->after + 8, f->after_n - 8) == 0;
}

/* A whole number that begins with a digit: its end, or NULL where the general code must decide. */
static inline const uint8_t *V(quick_digits)(const elf_field *f, const uint8_t *p, const uint8_t *end, uint64_t *value) {
    uint64_t v = elf_word(p) ^ 0x3030303030303030ull, others = (v | (v + 0x7676767676767676ull)) & 0x8080808080808080ull;
    const uint8_t *q = p;
    if (others & 0x80) return NULL;
    if (others) {
        q += __builtin_ctzll(others) >> 3;
        v = elf_eight_digits(v << (64 - 8 * (q - p)));
    } else {
        for (v = 0; elf_digit(*q); q++) v = v * 10 + (*q - '0');
        if (q - p > 18) return NULL;
    }
    *value = v;
    return (f->after_n ? V(follows)(f, q) : q == end) && (f->convert != C_STATUS || q - p == 3) ? q : NULL;
}

static inline unsigned V(count)(const uint8_t *p, const uint8_t *end, uint8_t c) {
    unsigned n = 0;
    while ((p = V(find)(p, end, c))) n++, p++;
    return n;
}

/* The text of a field of a line without special bytes: its end, or NULL where the general code must decide. */
static inline const uint8_t *V(quick_text)(elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = p;
    for (;; q++) {
        q = V(find)(q, end, f->after[0]);
        if (!q) return NULL;
        if (V(follows)(f, q)) break;
        if (f->quote) return NULL;
    }
    if (f->quotes && V(count)(p, end, '"') != f->quotes) return NULL;
    if (f->form && !(q - p == 1 && *p == '-') && !V(quick_form)(s, f, p, q)) return NULL;
    if (!f->wanted || elf_is_null(f, p, (size_t)(q - p))) return q;
    if (f->convert == C_STRING) elf_put_plain(s, f, T_ONE, p, q);
    else V(request)(s, f, p, q);
    return q;
}

/* The usual fields in the usual case, without a call: *at moves past the separator. 0 where the general code must decide. */
static inline int V(quick)(elf_state *s, const elf_field *f, const uint8_t **at, const uint8_t *end, uint32_t special) {
    const uint8_t *p = *at, *q;
    uint64_t v;
    int64_t micros;
    if (*p == '-' && f->lone_dash && V(follows)(f, p + 1) && (f->after_n || p + 1 == end)) {
        if (f->lone_dash == DASH_ZERO) elf_put_number(s, f, 0);
        *at = p + 1 + f->after_n;
        return 1;
    }
    switch (f->fast) {
        case FAST_TEXT:
            if (special || !(q = V(quick_text)(s, f, p, end))) return 0;
            break;
        case FAST_DIGITS:
            if (!(q = V(quick_digits)(f, p, end, &v))) return 0;
            elf_put_number(s, f, (int64_t)v);
            break;
        case FAST_CLF:
            q = p + 26;
            if (!elf_quick_clf(s, p, end, &micros) || !(f->after_n ? V(follows)(f, q) : q == end)) return 0;
            elf_put_time(s, f, micros);
            break;
        default: return 0;
    }
    *at = q + f->after_n;
    return 1;
}

/* Skip "Mar  7 10:05:03 host haproxy[12]: ", but nothing past the time's bracket: behind it a client may have written the mark. */
static __attribute__((noinline)) const uint8_t *V(skip_prefix)(const elf_state *s, const uint8_t *p, const uint8_t *end) {
    const uint8_t *stop = p;
    while ((stop = V(find)(stop, end, '[')) && !(end - stop > 3 && elf_digit(stop[1]) && elf_digit(stop[2]) && stop[3] == '/')) stop++;
    if (!stop) stop = end;
    const uint8_t *mark = (const uint8_t *)memmem(p, (size_t)(stop - p), s->skip_prefix, s->skip_prefix_n);
    return mark ? mark + s->skip_prefix_n : p;
}

static inline __attribute__((always_inline)) int V(literal_fields)(
    elf_state *s, const uint8_t *p, const uint8_t *end, uint32_t special, const int careful) {
    if (s->skip_prefix_n) p = V(skip_prefix)(s, p, end);
    if (s->prefix_n) {
        size_t n = (size_t)(end - p) < s->prefix_n ? (size_t)(end - p) : s->prefix_n;
        if (memcmp(p, s->prefix, n)) return elf_bad(s, R_LITERAL, -1, p);
        if (n < s->prefix_n) return elf_bad(s, R_TRUNCATED, -1, end);
        p += n;
    }
    for (const elf_field *f = s->fields, *last = f + s->n_fields; f < last; f++) {
        if (!careful && V(quick)(s, f, &p, end, special)) continue;  /* never at the line's end */
        if (p == end && f->optional) {
            for (; f < last; f++) elf_put_null(s, f);
            break;
        }
        const uint8_t *at = p;  /* so that p itself may stay in a register */
        int reason = V(field)(s, f, (int)(f - s->fields), &at, end);
        p = at;
        if (reason) return reason;
    }
    if (p != end) return elf_bad(s, R_TRAILING, s->n_fields - 1, p);
    return elf_settle_time(s, end);
}

/* Again, with a look at what follows a field before its end is settled. The reason is that of the first attempt. */
static __attribute__((noinline)) int V(look_again)(elf_state *s, const uint8_t *p, const uint8_t *end, uint32_t special, int reason) {
    const uint8_t *at = s->bad_at;
    int field = s->bad_field;
    elf_clear_rows(s, 1);
    s->has_time = s->ident = 0, s->date = INT64_MIN, s->clock = -1, s->careful = 1;
    int again = V(literal_fields)(s, p, end, special, 1);
    s->careful = 0;
    if (again == OK) return OK;
    s->bad_at = at, s->bad_field = field;
    return reason;
}

/* Each field up to its first separator; if that fails, with more care. */
static int V(literal_line)(elf_state *s, const uint8_t *p, const uint8_t *end, uint32_t special) {
    int reason = V(literal_fields)(s, p, end, special, 0);
    return reason == OK || !s->ambiguous ? reason : V(look_again)(s, p, end, special, reason);
}
