/* Lines of shape JSON: one object, RFC 8259, checked whole; only the values that a field names are kept (the last of equal
 * keys). A field's path is found however its dots divide it: "a.b" is {"a": {"b": 1}} as well as {"a.b": 1}; array elements
 * are counted from 0. An object or array where a field of the format names a value counts as absent; a column by its key's own
 * name gets its text. ELF_DEPTH bounds nesting. Included once per instruction set (V). */

static inline int V(bad_json)(elf_state *s, int detail, const uint8_t *at) {
    s->bad_detail = detail;
    return elf_bad(s, R_JSON, -1, at);
}

static inline const uint8_t *V(space)(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r')) p++;
    return p;
}

/* The closing quote of the string whose text begins at p; if it is no string, NULL, and *bad is the place of the mismatch. */
static const uint8_t *V(json_string)(elf_state *s, const uint8_t *p, const uint8_t *end, int *escaped, const uint8_t **bad) {
    *escaped = 0;
    while (p < end) {
        uint32_t bits = V(string32)(p), wide;
        if (!bits) { p += 32; continue; }
        p += __builtin_ctz(bits);
        if (p >= end) break;
        if (*p == '"') return p;
        *bad = p;
        if (*p != '\\' || p + 1 >= end) return NULL;
        *escaped = 1;
        p++;
        if (*p == 'u') {
            size_t read = elf_unicode_escape(p, end, &wide, &s->replaced);
            if (!read) return NULL;
            p += read;
        } else {
            if (!memchr("\"\\/bfnrt", *p, 8)) return NULL;
            p++;
        }
    }
    *bad = end;
    return NULL;
}

/* The node of the tree of keys for the key text at [p, end) below `node`. */
static inline int V(json_child)(elf_state *s, int node, const uint8_t *p, const uint8_t *end, int escaped) {
    elf_span key = {p, (uint32_t)(end - p)};
    if (node < 0) return -1;
    if (escaped) key = elf_unescape(s, key, E_JSON);
    return elf_child(s, node, key.p, key.n);
}

static inline int V(json_index)(elf_state *s, int node, uint32_t index) {
    uint8_t text[10];
    int n = 10;
    if (node < 0) return -1;
    do text[--n] = (uint8_t)('0' + index % 10), index /= 10;
    while (index);
    return elf_child(s, node, text + n, (size_t)(10 - n));
}

/* A value that is neither an object nor an array; its end, or NULL. */
static inline const uint8_t *V(json_scalar)(elf_state *s, int node, const uint8_t *p, const uint8_t *end, int *reason) {
    const uint8_t *q, *bad = p;
    int escaped;
    if (*p == '"') {
        q = V(json_string)(s, p + 1, end, &escaped, &bad);
        if (!q) { *reason = V(bad_json)(s, J_STRING, bad); return NULL; }
        V(record)(s, node, p + 1, q, V_STRING, escaped);
        return q + 1;
    }
    if (*p == '-' || elf_digit(*p)) {
        q = elf_json_number(p, end);
        if (!q) { *reason = V(bad_json)(s, J_NUMBER, p); return NULL; }
        V(record)(s, node, p, q, V_TEXT, 0);
        return q;
    }
    size_t left = (size_t)(end - p);
    if (left >= 4 && !memcmp(p, "null", 4)) { V(record)(s, node, p, p + 4, V_NULL, 0); return p + 4; }
    if (left >= 4 && !memcmp(p, "true", 4)) { V(record)(s, node, p, p + 4, V_BOOL, 0); return p + 4; }
    if (left >= 5 && !memcmp(p, "false", 5)) { V(record)(s, node, p, p + 5, V_BOOL, 0); return p + 5; }
    *reason = V(bad_json)(s, J_VALUE, p);
    return NULL;
}

/* The value of a repeated key replaces all values that were found below its earlier one. */
static void V(json_forget)(elf_state *s, int node) {
    for (int e = 0; e < s->nodes[node].n_edges; e++) {
        int child = s->edges[s->nodes[node].edges + e].child;
        elf_forget(s, s->nodes[child].field);
        V(json_forget)(s, child);
    }
}

/* An object or array, for the columns by their keys' own names. */
static inline void V(json_whole)(elf_state *s, int field, const uint8_t *p, const uint8_t *end) {
    for (; field >= 0; field = s->fields[field].chain)
        if (s->fields[field].convert >= C_OWN_TEXT) elf_record_one(s, field, p, end, V_RAW, 0);
}

static int V(json_line)(elf_state *s, const uint8_t *p, const uint8_t *end) {
    struct { const uint8_t *from; int32_t node; uint32_t index; uint8_t array; } stack[ELF_DEPTH];
    int depth = 0, node = 0, escaped, reason = 0;
    const uint8_t *q, *bad = p;
    elf_forget_line(s);
    p = V(space)(p, end);
    if (p == end || *p != '{') return V(bad_json)(s, J_OBJECT, p);
    for (;;) {
        /* A value begins at p, for the node `node`. */
        if (p == end) return V(bad_json)(s, J_VALUE, p);
        int opens = *p == '{' || *p == '[';
        if (node > 0) {
            if (opens) elf_forget(s, s->nodes[node].field);
            if (s->nodes[node].n_edges) V(json_forget)(s, node);
        }
        if (opens) {
            if (depth == ELF_DEPTH) return V(bad_json)(s, J_DEPTH, p);
            stack[depth].from = p;
            stack[depth].node = node;
            stack[depth].index = 0;
            stack[depth].array = *p == '[';
            depth++;
            p = V(space)(p + 1, end);
        } else {
            p = V(json_scalar)(s, node, p, end, &reason);
            if (!p) return reason;
        }
        /* Close what ends here, then go to the next value. */
        for (;;) {
            if (!opens) p = V(space)(p, end);
            if (p < end && *p == (stack[depth - 1].array ? ']' : '}')) {
                depth--;
                p++;
                if (stack[depth].node > 0) V(json_whole)(s, s->nodes[stack[depth].node].field, stack[depth].from, p);
                if (depth == 0) {
                    p = V(space)(p, end);
                    return p == end ? elf_convert_found(s, end) : V(bad_json)(s, J_END, p);
                }
                opens = 0;
                continue;
            }
            if (!opens) {
                if (p == end || *p != ',') return V(bad_json)(s, J_COMMA, p);
                p = V(space)(p + 1, end);
            }
            break;
        }
        if (stack[depth - 1].array) {
            node = V(json_index)(s, stack[depth - 1].node, stack[depth - 1].index++);
            continue;
        }
        if (p == end || *p != '"') return V(bad_json)(s, J_KEY, p);
        q = V(json_string)(s, p + 1, end, &escaped, &bad);
        if (!q) return V(bad_json)(s, J_STRING, bad);
        node = V(json_child)(s, stack[depth - 1].node, p + 1, q, escaped);
        p = V(space)(q + 1, end);
        if (p == end || *p != ':') return V(bad_json)(s, J_COLON, p);
        p = V(space)(p + 1, end);
    }
}
