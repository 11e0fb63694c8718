/* Lines of shape LTSV and LOGFMT: labelled values in any order; of equal labels the last wins. Once per instruction set (V). */

/* The edge of a node that is labelled [p, p+n), tried first where the last line had it; -1 if there is none. */
static inline int V(edge)(elf_state *s, int node, const uint8_t *p, size_t n) {
    elf_node *at = &s->nodes[node];
    for (int i = 0, e = at->hint; i < at->n_edges; i++, e++) {
        if (e >= at->n_edges) e = 0;
        const elf_edge *edge = &s->edges[at->edges + e];
        if (edge->n == n && memcmp(edge->text, p, n) == 0) {
            at->hint = e + 1 < at->n_edges ? e + 1 : 0;
            return edge->child;
        }
    }
    return -1;
}

static inline void V(record)(elf_state *s, int node, const uint8_t *p, const uint8_t *end, int type, int escaped) {
    if (node < 0) return;
    for (int f = s->nodes[node].field; f >= 0; f = s->fields[f].chain) {
        elf_value v = {p, (uint32_t)(end - p), (uint8_t)type, (uint8_t)escaped};
        s->found[f] = v;
    }
}

static int V(ltsv_line)(elf_state *s, const uint8_t *p, const uint8_t *end) {
    memset(s->found, 0, sizeof(elf_value) * (size_t)s->n_fields);
    for (;;) {
        const uint8_t *tab = V(find)(p, end, '\t'), *stop = tab ? tab : end;
        if (stop > p) {
            const uint8_t *colon = V(find)(p, stop, ':');
            if (!colon || colon == p) return elf_bad(s, R_LITERAL, -1, p);
            V(record)(s, V(edge)(s, 0, p, (size_t)(colon - p)), colon + 1, stop, V_TEXT, 0);
        }
        if (!tab) break;
        p = tab + 1;
    }
    return elf_convert_found(s, end);
}

static int V(logfmt_line)(elf_state *s, const uint8_t *p, const uint8_t *end) {
    memset(s->found, 0, sizeof(elf_value) * (size_t)s->n_fields);
    for (;;) {
        while (p < end && (*p == ' ' || *p == '\t')) p++;
        if (p == end) break;
        const uint8_t *key = p;
        while (p < end && *p > ' ' && *p != '=' && *p != '"') p++;
        if (p == key || (p < end && *p != '=' && *p != ' ' && *p != '\t')) return elf_bad(s, R_LITERAL, -1, p);
        int node = V(edge)(s, 0, key, (size_t)(p - key));
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
