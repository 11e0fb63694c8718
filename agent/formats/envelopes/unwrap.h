/* Blocks of wrapped lines to the lines inside, each ended by a newline, parts joined.
 *
 * A line whose envelope is not recognised gives an empty line and a flag, so that the lines out correspond to the lines in, in the
 * order in which they end. `heads` gets for each line its envelope in one form for all text envelopes (TIME, HOST, PROGRAM, CONTAINER,
 * STREAM, divided by tabs; "-" is absent), or the JSON object, for a parser of its own. */
#ifndef ELF_UNWRAP_H
#define ELF_UNWRAP_H
#include <stdlib.h>

#include "wraps.h"

enum { F_NONE, F_BARE, F_OTHER };  /* flags: no such envelope; another program's line */

typedef struct { uint8_t *p; size_t n, room; } elf_bytes;

/* A line out: its first raw line is [begin, begin+size) of the block; its text, as written there, begins `at` bytes behind.
 * end: of the line in `out`. */
typedef struct { int64_t begin, end; uint32_t size, at; uint8_t flag; } elf_line;

typedef struct { elf_bytes text, head; elf_line line; } elf_pending;

/* A further part of a line: where it begins in the block, and where the line's first part does. */
typedef struct { int64_t begin, first; } elf_further;

typedef struct {
    int kind, with_heads, out_of_memory;
    size_t line_max;
    const elf_text *programs;
    int n_programs;
    elf_bytes out, heads;
    elf_pending pending[2];
    elf_line *lines;
    size_t n_lines, room;
    elf_bytes further;  /* of elf_further, in the order of the block */
} elf_unwrapper;

/* Room for n more bytes, at the end; NULL when memory is out. */
static uint8_t *elf_room(elf_unwrapper *u, elf_bytes *b, size_t n) {
    if (b->room - b->n < n) {
        size_t room = b->room * 2 + n + 256;
        uint8_t *moved = (uint8_t *)realloc(b->p, room);
        if (!moved) { u->out_of_memory = 1; return NULL; }
        b->p = moved, b->room = room;
    }
    return b->p + b->n;
}

static void elf_append(elf_unwrapper *u, elf_bytes *b, const void *text, size_t n) {
    if (!n) return;
    uint8_t *to = elf_room(u, b, n);
    if (to) memcpy(to, text, n), b->n += n;
}

static void elf_emit(elf_unwrapper *u, const elf_line *line) {
    elf_append(u, &u->out, "\n", 1);
    if (u->n_lines == u->room) {
        size_t room = u->room * 2 + 1024;
        elf_line *moved = (elf_line *)realloc(u->lines, room * sizeof(elf_line));
        if (!moved) { u->out_of_memory = 1; return; }
        u->lines = moved, u->room = room;
    }
    u->lines[u->n_lines] = *line;
    u->lines[u->n_lines++].end = (int64_t)u->out.n;
}

static void elf_emit_pending(elf_unwrapper *u, elf_pending *one) {
    if (one->line.flag != F_BARE) elf_append(u, &u->out, one->text.p, one->text.n);
    elf_append(u, &u->heads, one->head.p, one->head.n);
    elf_emit(u, &one->line);
    one->text.n = one->head.n = 0;
}

/* Let go of what is open, in the order of its beginning. */
static void elf_let_go(elf_unwrapper *u, elf_parts *g) {
    int first = g->open == 3 && u->pending[1].line.begin < u->pending[0].line.begin;
    for (int i = 0; i < 2; i++) {
        int stream = i ^ first;
        if (g->open >> stream & 1) elf_emit_pending(u, &u->pending[stream]);
    }
    g->open = 0;
}

static int elf_head_of(elf_unwrapper *u, const uint8_t *p, const uint8_t *end, elf_head *h) {
    const uint8_t *text;
    memset(h, 0, sizeof *h);
    if (p == end) return 0;
    switch (u->kind) {
        case K_CRI: return elf_cri_head(p, end, h);
        case K_SYSLOG: return elf_syslog_head(p, end, h);
        case K_KUBECTL: return elf_kubectl_head(p, end, h);
        case K_COMPOSE: return elf_compose_head(p, end, h);
        case K_STERN: return elf_stern_head(p, end, h);
        case K_DOCKER: h->part = elf_part(p, end, &h->stream_number, &text); break;
        default: break;
    }
    return elf_json_head(u->kind, p, end, h);
}

static int elf_is_other(const elf_unwrapper *u, const elf_head *h) {
    const elf_text *program = u->kind == K_CRI ? &h->stream : &h->program;
    for (int i = 0; i < u->n_programs; i++)
        if (u->programs[i].n == program->n && !memcmp(u->programs[i].p, program->p, program->n)) return 0;
    return u->n_programs > 0;
}

static void elf_append_time(elf_unwrapper *u, elf_bytes *to, const elf_head *h) {
    static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const uint8_t *t = h->time.p;
    if (!h->yearless) { elf_append(u, to, t, h->time.n); return; }
    uint8_t date[11] = "0004-mm-ddT";  /* a leap year that no log is of; the reader of the column finds the true one */
    int month = 0;
    while (month < 11 && memcmp(names + 3 * month, t, 3)) month++;
    month++;
    date[5] = (uint8_t)('0' + month / 10), date[6] = (uint8_t)('0' + month % 10);
    date[8] = t[4] == ' ' ? '0' : t[4], date[9] = t[5];
    elf_append(u, to, date, 11);
    elf_append(u, to, t + 7, h->time.n - 7);
    elf_append(u, to, "Z", 1);
}

/* The envelope in the form that the parser of its columns reads. h: NULL for a line without one. */
static void elf_write_head(elf_unwrapper *u, elf_bytes *to, const uint8_t *p, const uint8_t *end, const elf_head *h) {
    if (!u->with_heads) return;
    if (h && u->kind >= K_DOCKER) elf_append(u, to, p, (size_t)(end - p));
    else if (h) {
        const elf_text *all[] = {&h->time, &h->host, &h->program, &h->container, &h->stream};
        for (int i = 0; i < 5; i++) {
            if (i) elf_append(u, to, "\t", 1);
            if (!all[i]->n) elf_append(u, to, "-", 1);
            else if (i == 0) elf_append_time(u, to, h);
            else elf_append(u, to, all[i]->p, all[i]->n);
        }
    }
    elf_append(u, to, "\n", 1);
}

/* The text inside of the line to `to`. 0: it has none. */
static int elf_write_text(elf_unwrapper *u, elf_bytes *to, const uint8_t *end, const elf_head *h) {
    size_t n = (size_t)(end - h->message);
    uint8_t *at = elf_room(u, to, n);
    if (!at) return 0;
    if (u->kind < K_DOCKER) { memcpy(at, h->message, n); to->n += n; return 1; }
    at = elf_wrapped_text(h->message, end, at);
    if (at) to->n = (size_t)(at - to->p);
    return at != NULL;
}

static void elf_unwrap_line(elf_unwrapper *u, const uint8_t *block, const uint8_t *p, const uint8_t *end, elf_parts *g) {
    elf_head h;
    int ok = elf_head_of(u, p, end, &h), stream = h.stream_number;
    elf_line line = {p - block, 0, (uint32_t)(end - p), ok ? (uint32_t)(h.message - p) + (u->kind >= K_DOCKER) : 0, F_NONE};
    if (ok && u->n_programs && elf_is_other(u, &h)) line.flag = F_OTHER;
    int joins = ok && h.part && (h.part == PART_MORE || g->open >> stream & 1);
    if (joins) {
        elf_pending *one = &u->pending[stream];
        if (!(g->open >> stream & 1)) {
            one->line = line;
            elf_write_head(u, &one->head, p, end, &h);
        } else {
            elf_further more = {line.begin, one->line.begin};
            elf_append(u, &u->further, &more, sizeof more);
        }
        if (!elf_write_text(u, &one->text, end, &h)) one->line.flag = F_BARE;
        if (h.part == PART_LAST) elf_emit_pending(u, one);
    } else {
        ok = ok && elf_write_text(u, &u->out, end, &h);
        if (!ok && p < end && !(end - p == 1 && *p == '\r')) line.flag = F_BARE;
        elf_write_head(u, &u->heads, p, end, ok ? &h : NULL);
        elf_emit(u, &line);
    }
    if (ok && h.part) elf_parts_follow(g, p, h.part, stream);
}

/* The whole lines of a block, which begins and ends at clean places, unless what is open there has no end. */
static void elf_unwrap(elf_unwrapper *u, const uint8_t *block, size_t n) {
    elf_parts g = {0, block};
    const uint8_t *end = block + n, *next;
    u->out.n = u->heads.n = u->further.n = u->n_lines = 0;
    u->out_of_memory = 0;
    for (const uint8_t *p = block; p < end && !u->out_of_memory; p = next) {
        const uint8_t *newline = (const uint8_t *)memchr(p, '\n', (size_t)(end - p));
        next = newline ? newline + 1 : end;
        if (elf_parts_end(&g, next, u->line_max)) elf_let_go(u, &g);
        elf_unwrap_line(u, block, p, newline ? newline : end, &g);
    }
    elf_let_go(u, &g);
}
#endif
