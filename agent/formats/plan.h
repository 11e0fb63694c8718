/* The executable form of a field plan, and the state of one tokenizer. Filled by _tokenize.pyx, run by tokenize.h. */
#ifndef ELF_PLAN_H
#define ELF_PLAN_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"

#define ELF_STRIP 512      /* lines parsed before their strings are interned: the spans stay in the L1 and L2 cache */
#define ELF_PAD 64         /* readable bytes that must follow the last line */
#define ELF_SAMPLES 16     /* rejects kept whole, per block */
#define ELF_WORD_MAX 1024  /* bytes of a field that only a server writes: a bound for the search of a field's end */
#define ELF_NULLS 8
#define ELF_NULL_BYTES 15
#define ELF_DEPTH 64       /* nesting of a JSON line */

/* The members of elf.agent.formats.fields, by name (CONVERTS, ESCAPES, REASONS and SHAPES in _tokenize.pyx): texts first, then
 * numbers, then times, then columns by their keys' own names. */
enum {
    C_SKIP, C_STRING, C_REQUEST, C_REQUEST_URL, C_URI, C_URL, C_QUERY, C_HOST_PORT, C_HOST,
    C_INT, C_SIZE, C_STATUS, C_SECONDS, C_MILLISECONDS, C_MICROSECONDS, C_NANOSECONDS, C_SECONDS_LIST, C_DURATION, C_DURATION_MS, C_TAKEN,
    C_TIME_CLF, C_TIME_ISO, C_TIME_ANY, C_TIME_EPOCH, C_TIME_EPOCH_MS, C_TIME_EPOCH_US, C_DATE, C_TIME_OF_DAY, C_TIME_STRPTIME,
    C_OWN_TEXT, C_OWN_INT, C_OWN_DOUBLE, C_OWN_BOOL
};
/* What unquoted text must be; forms.h has the rules. */
enum { FORM_ANY, FORM_WORD, FORM_CLIENT, FORM_IDENT, FORM_USER };
enum { E_NONE, E_BACKSLASH, E_JSON, E_PLUS, E_PERCENT, E_DOUBLED };
enum {
    OK, R_EMPTY, R_TOO_LONG, R_NUL, R_LITERAL, R_UNTERMINATED, R_TRAILING, R_TRUNCATED, R_TIME, R_NUMBER, R_JSON,
    R_MISSING, R_PATTERN, R_FUTURE, R_TEXT, R_COUNT
};
enum { S_LITERAL, S_JSON, S_LTSV, S_LOGFMT, S_REGEX };
/* What was expected where JSON is broken; expected.py has the texts. */
enum { J_VALUE = 1, J_KEY, J_COLON, J_COMMA, J_STRING, J_NUMBER, J_DEPTH, J_OBJECT, J_END };
enum { FAST_NO, FAST_DIGITS, FAST_CLF, FAST_TEXT };
enum { DASH_NO, DASH_NULL, DASH_ZERO };
/* Targets of one field: where its parts go. Only REQUEST, REQUEST_URL and URI use more than the first. */
enum { T_ONE = 0, T_METHOD = 0, T_PATH, T_QUERY, T_PROTOCOL, T_SCHEME, T_HOST, T_COUNT };

typedef struct { const uint8_t *p; uint32_t n; } elf_span;  /* p == NULL: NULL */

typedef struct { uint8_t n, text[ELF_NULL_BYTES]; } elf_null;

typedef struct {
    uint8_t convert, escape, quote, fast, optional, required, sum, list, is_time;
    uint8_t next_optional, wanted, n_nulls, dash;  /* dash: "-" and "" are the NULL texts */
    uint8_t form, ahead;                           /* ahead: the fields after it that tell where it ends (V(split)) */
    uint8_t lone_dash;                             /* of a quick field: what "-" is, one of the DASH_… */
    uint8_t quotes;                                /* not 0: it ends at the last place where `ahead` fit, if the line has more quotes */
    uint64_t after8, mask8;                        /* the first eight bytes of `after` */
    const uint8_t *after;
    uint32_t after_n;
    int16_t target[T_COUNT];                       /* slot, or -1 */
    uint16_t index;
    int16_t chain;                                 /* JSON, LTSV, logfmt: the next field of the same name, or -1 */
    elf_null nulls[ELF_NULLS];
} elf_field;

typedef struct {  /* a requested column, within a strip */
    elf_span *spans;  /* text */
    int64_t *values;  /* else */
    uint8_t *state;   /* 0 NULL, 1 a value, 2 NULL for good (a part of a sum is missing), 3 NULL: did not convert */
} elf_slot;

typedef struct { const uint8_t *text; uint32_t n; int32_t node, child; } elf_edge;
typedef struct { int32_t edges, n_edges, field; } elf_node;  /* of the tree of keys; field: first of a chain */

enum { V_NULL, V_TEXT, V_STRING, V_BOOL, V_RAW };  /* V_RAW: a JSON object or array */
typedef struct { const uint8_t *p; uint32_t n; uint8_t type, escaped; } elf_value;

typedef struct {
    const uint8_t *line;
    uint32_t n, at;
    int32_t field, reason, detail;
} elf_sample;

typedef struct elf_chunk { struct elf_chunk *next; size_t size, used; } elf_chunk;

typedef struct elf_state {
    /* The plan. */
    const elf_field *fields;
    int n_fields, shape, has_header, needs_time, zoned, ambiguous;  /* ambiguous: some field has others ahead, or a list */
    const uint8_t *prefix, *skip_prefix, *comment;
    uint32_t prefix_n, skip_prefix_n, comment_n, line_max;
    elf_node *nodes;
    const elf_edge *edges;
    const int32_t *lookup;  /* (node, label) by hash -> edge, or -1; at least half empty */
    uint32_t lookup_mask;
    elf_value *found;       /* what the line has for each field, where its bit in `seen` is set */
    uint64_t *seen;
    uint64_t *ever;         /* the fields that were in any line of the block */
    const uint64_t *must;   /* fields that are checked even if absent: required, or part of a sum */
    const int32_t *spans;  /* REGEX: [lines of this block][n_fields][begin, end], begin -1 absent; NULL: no match at -2 */
    int n_slots;
    elf_slot *slots;
    /* One strip. */
    int row, at_header, out_of_memory;
    elf_chunk *arena;
    /* One block. */
    int64_t lines, invalid_utf8, base_row, line_index;
    int64_t rejects[R_COUNT];
    int32_t *reject_rows;
    size_t n_rejects, reject_room;
    elf_sample samples[ELF_SAMPLES];
    int n_samples;
    elf_sample lost[ELF_SAMPLES];  /* values that did not convert; detail: their bytes */
    int n_lost;
    /* One line. */
    int backslash, high, replaced, has_time, bad_field, bad_detail, ident, careful;
    const uint8_t *bad_at;
    int64_t time, date, clock;
    /* Memos across lines. */
    uint8_t clf_text[32], date_text[16];  /* clf_text: 26 bytes; of a day and an offset, with clf_midnight */
    int64_t clf_midnight, date_days, zone_quarter, zone_micros;
    /* Callbacks that take the GIL. */
    void *owner;
    int64_t (*zone)(void *owner, int64_t quarter);  /* of a zoneless local time: its offset, microseconds */
    int (*strptime)(void *owner, int field, const uint8_t *p, size_t n, int64_t *micros, int *zoned);
} elf_state;

/* Bytes that live until the strip has been interned; NULL when memory is out. */
static uint8_t *elf_take(elf_state *s, size_t n) {
    elf_chunk *c = s->arena;
    if (!c || c->size - c->used < n) {
        size_t size = n > 65536 ? n : 65536;
        c = (elf_chunk *)malloc(sizeof(elf_chunk) + size);
        if (!c) { s->out_of_memory = 1; return NULL; }
        c->next = s->arena, c->size = size, c->used = 0;
        s->arena = c;
    }
    c->used += n;
    return (uint8_t *)(c + 1) + c->used - n;
}

static void elf_release(elf_state *s) {
    while (s->arena && s->arena->next) {
        elf_chunk *c = s->arena;
        s->arena = c->next;
        free(c);
    }
    if (s->arena) s->arena->used = 0;
}

static inline int elf_is_null(const elf_field *f, const uint8_t *p, size_t n) {
    if (f->dash) return n <= 1 && (n == 0 || *p == '-');
    for (int i = 0; i < f->n_nulls; i++)
        if (f->nulls[i].n == n && memcmp(f->nulls[i].text, p, n) == 0) return 1;
    return 0;
}

static inline void elf_forget_line(elf_state *s) { memset(s->seen, 0, 8 * ((size_t)s->n_fields / 64 + 1)); }

static inline void elf_record_one(elf_state *s, int field, const uint8_t *p, const uint8_t *end, int type, int escaped) {
    elf_value v = {p, (uint32_t)(end - p), (uint8_t)type, (uint8_t)escaped};
    s->found[field] = v;
    s->seen[field >> 6] |= 1ull << (field & 63);
}

/* The value of a field and of those that share its name. */
static inline void elf_record(elf_state *s, int field, const uint8_t *p, const uint8_t *end, int type, int escaped) {
    for (; field >= 0; field = s->fields[field].chain) elf_record_one(s, field, p, end, type, escaped);
}

static inline void elf_forget(elf_state *s, int field) {
    for (; field >= 0; field = s->fields[field].chain) s->seen[field >> 6] &= ~(1ull << (field & 63));
}

/* The node below `node` by the label [p, p+n), or -1. */
static inline int elf_child(const elf_state *s, int node, const uint8_t *p, size_t n) {
    if (node < 0 || !s->nodes[node].n_edges) return -1;
    for (size_t at = elf_hash64(p, n, (uint64_t)node) & s->lookup_mask;; at = (at + 1) & s->lookup_mask) {
        int32_t e = s->lookup[at];
        if (e < 0) return -1;
        if (s->edges[e].node == node && s->edges[e].n == n && memcmp(s->edges[e].text, p, n) == 0) return s->edges[e].child;
    }
}

/* The first value that is not NULL wins; a sum is NULL as soon as one of its parts is. */
static inline void elf_put_number(elf_state *s, const elf_field *f, int64_t v) {
    int t = f->target[T_ONE];
    if (t < 0) return;
    uint8_t *state = &s->slots[t].state[s->row];
    int64_t *value = &s->slots[t].values[s->row];
    if (*state == 0) *value = v, *state = 1;
    else if (*state == 1 && f->sum && __builtin_add_overflow(*value, v, value)) *value = 0, *state = 2;
}

static inline void elf_put_null(elf_state *s, const elf_field *f) {
    int t = f->target[T_ONE];
    if (!f->sum || t < 0) return;
    s->slots[t].values[s->row] = 0;
    s->slots[t].state[s->row] = 2;
}

/* Make `rows` rows of every slot NULL from the current one on: before a strip is read, and where a line was read in part. */
static inline void elf_clear_rows(elf_state *s, size_t rows) {
    for (int i = 0; i < s->n_slots; i++) {
        if (s->slots[i].spans) memset(s->slots[i].spans + s->row, 0, rows * sizeof(elf_span));
        else {
            memset(s->slots[i].state + s->row, 0, rows);
            memset(s->slots[i].values + s->row, 0, rows * sizeof(int64_t));
        }
    }
}
#endif
