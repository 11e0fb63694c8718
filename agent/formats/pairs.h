/* Lines of shape LTSV and LOGFMT: labelled values in any order; of equal labels the last wins. Once per instruction set (V). */

static inline void V(record)(elf_state *s, int node, const uint8_t *p, const uint8_t *end, int type, int escaped) {
    if (node >= 0) elf_record(s, s->nodes[node].field, p, end, type, escaped);
}

static int V(ltsv_line)(elf_state *s, const uint8_t *p, const uint8_t *end) {
    elf_forget_line(s);
    for (;;) {
        const uint8_t *tab = V(find)(p, end, '\t'), *stop = tab ? tab : end;
        if (stop > p) {
            const uint8_t *colon = V(find)(p, stop, ':');
            if (!colon || colon == p) return elf_bad(s, R_LITERAL, -1, p);
            V(record)(s, elf_child(s, 0, p, (size_t)(colon - p)), colon + 1, stop, V_TEXT, 0);
        }
        if (!tab) break;
        p = tab + 1;
    }
    return elf_convert_found(s, end);
}

static int V(logfmt_line)(elf_state *s, const uint8_t *p, const uint8_t *end) {
    elf_forget_line(s);
    for (;;) {
        while (p < end && (*p == ' ' || *p == '\t')) p++;
        if (p == end) break;
        const uint8_t *key = p;
        while (p < end && *p > ' ' && *p != '=' && *p != '"') p++;
        if (p == key || (p < end && *p != '=' && *p != ' ' && *p != '\t')) return elf_bad(s, R_LITERAL, -1, p);
        int node = elf_child(s, 0, key, (size_t)(p - key));
        if (p == end || *p != '=') { V(record)(s, node, p, p, V_NULL, 0); continue; }
        const uint8_t *value = ++p;
        if (p < end && *p == '"') {
            for (p++; (p = V(find)(p, end, '"')); p++) {
                const uint8_t *b = p;
                while (b > value + 1 && b[-1] == '\\') b--;
                if (!((p - b) & 1)) break;
            }
            if (!p) return elf_bad(s, R_UNTERMINATED, node < 0 ? -1 : s->nodes[node].field, value);
            V(record)(s, node, value + 1, p, V_TEXT, 1);
            if (++p < end && *p != ' ' && *p != '\t') return elf_bad(s, R_LITERAL, node < 0 ? -1 : s->nodes[node].field, p);
            continue;
        }
        while (p < end && *p != ' ' && *p != '\t') p++;
        V(record)(s, node, value, p, V_TEXT, 0);
    }
    return elf_convert_found(s, end);
}
