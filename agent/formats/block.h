/* Lines of a block, one strip at a time. Once per instruction set (V). */

/* The special bytes of the line; only called where there are any. */
static int V(look_closer)(elf_state *s, const uint8_t *p, const uint8_t *end) {
    if (memchr(p, 0, (size_t)(end - p))) return R_NUL;
    s->backslash = memchr(p, '\\', (size_t)(end - p)) != NULL;
    for (const uint8_t *q = p; q < end && !s->high; q++) s->high = *q >> 7;
    if (s->high && !elf_utf8_valid(p, (size_t)(end - p))) s->replaced = 1;
    return OK;
}

/* REGEX: the groups were found by the caller. */
static int V(regex_line)(elf_state *s, const uint8_t *line, const uint8_t *end) {
    const int32_t *span = s->spans + 2 * (size_t)s->n_fields * (size_t)s->line_index;
    if (s->n_fields && span[0] == -2) return elf_bad(s, R_PATTERN, -1, line);
    elf_forget_line(s);
    for (int i = 0; i < s->n_fields; i++, span += 2)
        if (span[0] >= 0) elf_record_one(s, i, line + span[0], line + span[1], V_TEXT, 0);
    return elf_convert_found(s, end);
}

static int V(line)(elf_state *s, const uint8_t *p, const uint8_t *end, uint32_t special) {
    s->bad_field = -1;
    s->bad_at = p;
    s->bad_detail = 0;
    if (p == end) return R_EMPTY;
    if ((size_t)(end - p) > s->line_max) return elf_bad(s, R_TOO_LONG, -1, p + s->line_max);
    s->backslash = s->high = s->replaced = s->has_time = s->ident = 0;
    s->date = INT64_MIN;
    s->clock = -1;
    if (special && V(look_closer)(s, p, end)) return elf_bad(s, R_NUL, -1, (const uint8_t *)memchr(p, 0, (size_t)(end - p)));
    if (!s->n_fields) return R_MISSING;
    switch (s->shape) {
        case S_LITERAL: return V(literal_line)(s, p, end, special);
        case S_JSON: return V(json_line)(s, p, end);
        case S_LTSV: return V(ltsv_line)(s, p, end);
        case S_LOGFMT: return V(logfmt_line)(s, p, end);
        default: return V(regex_line)(s, p, end);
    }
}

static void V(reject)(elf_state *s, int reason, const uint8_t *p, const uint8_t *end) {
    s->rejects[reason]++;
    elf_clear_rows(s, 1);
    if (s->n_rejects == s->reject_room) {
        size_t room = s->reject_room * 2 + 64;
        int32_t *rows = (int32_t *)realloc(s->reject_rows, room * sizeof(int32_t));
        if (!rows) { s->out_of_memory = 1; return; }
        s->reject_rows = rows, s->reject_room = room;
    }
    s->reject_rows[s->n_rejects++] = (int32_t)(s->base_row + s->row);
    if (s->n_samples == ELF_SAMPLES) return;
    elf_sample *sample = &s->samples[s->n_samples++];
    sample->line = p;
    sample->n = (uint32_t)(end - p);
    sample->at = (uint32_t)(s->bad_at - p);
    sample->field = s->bad_field;
    sample->reason = reason;
    sample->detail = s->bad_detail;
}

/* Lines from p on, each ended by a newline before `stop`, until the strip is full, a header line, or `stop`. Returns where
 * the next line begins. ELF_PAD bytes after `stop` must be readable. */
static const uint8_t *V(tokenize)(elf_state *s, const uint8_t *p, const uint8_t *stop) {
    size_t lines_max = (size_t)(stop - p) / 2;  /* an empty line is none */
    s->row = 0;
    s->at_header = 0;
    elf_clear_rows(s, lines_max < ELF_STRIP ? lines_max : ELF_STRIP);
    while (p < stop && s->row < ELF_STRIP && !s->out_of_memory) {
        uint32_t special;
        const uint8_t *newline = V(line_end)(p, &special), *end = newline - (newline > p && newline[-1] == '\r');
        if (special && end - p >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) p += 3;  /* a byte order mark is no part of a line */
        if (s->comment_n && (size_t)(end - p) >= s->comment_n && !memcmp(p, s->comment, s->comment_n)) {
            if (s->has_header && end - p >= 8 && !memcmp(p, "#Fields:", 8)) { s->at_header = 1; return p; }
            p = newline + 1;
            continue;
        }
        s->lines++;
        int reason = V(line)(s, p, end, special);
        s->line_index++;
        if (reason == OK) s->row++, s->invalid_utf8 += s->replaced;
        else V(reject)(s, reason, p, end);
        p = newline + 1;
    }
    return p;
}
