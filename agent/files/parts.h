/* Lines that a container's runtime wrote in parts, each on a line of its own.
 *
 * CRI (containerd, CRI-O): "TIME stdout P text", the last part with F. Docker's json-file: {"log":"text","stream":"stdout",…}, where
 * only the last part's text ends with \n. The parts of stdout and of stderr may be interleaved.
 *
 * A place between two lines is *clean* if no line is open there, of either stream. Blocks are cut at clean places only, so
 * that all parts of a line are in one block, and positions lie at clean places. Where what is open does not end within
 * line_max bytes, it is let go: it ends before the line that would pass line_max. All this depends on the bytes after a clean
 * place alone, so that any cuts give the same lines. */
#ifndef ELF_PARTS_H
#define ELF_PARTS_H
#include <stdint.h>
#include <string.h>

#define ELF_LOOKS 8  /* lines of a block that are looked at, but for one */

enum { PART_NONE, PART_MORE, PART_LAST };

typedef struct {
    unsigned open;         /* a bit for each stream */
    const uint8_t *since;  /* the first line of what is open */
} elf_parts;

static inline int elf_is_digit(uint8_t c) { return (uint8_t)(c - '0') < 10; }

/* The end of a time like 2022-01-28T16:04:05.4Z or …+01:00 at p, or NULL. Its numbers are not checked. */
static inline const uint8_t *elf_iso_end(const uint8_t *p, const uint8_t *end) {
    static const char shape[] = "0000-00-00T00:00:00";
    if (end - p < 20) return NULL;
    for (int i = 0; i < 19; i++)
        if (shape[i] == '0' ? !elf_is_digit(p[i]) : p[i] != (uint8_t)shape[i]) return NULL;
    p += 19;
    if (*p == '.' || *p == ',')
        for (p++; p < end && elf_is_digit(*p);) p++;
    if (p < end && *p == 'Z') return p + 1;
    if (p < end && (*p == '+' || *p == '-'))
        for (p++; p < end && (elf_is_digit(*p) || *p == ':');) p++;
    return p;
}

/* "stdout" or "stderr" at p: its number; else -1. */
static inline int elf_stream_at(const uint8_t *p, const uint8_t *end) {
    if (end - p < 6) return -1;
    return memcmp(p, "stdout", 6) == 0 ? 0 : memcmp(p, "stderr", 6) == 0 ? 1 : -1;
}

/* The closing quote of the JSON string whose text begins at p, or NULL. */
static inline const uint8_t *elf_quote_end(const uint8_t *p, const uint8_t *end) {
    for (const uint8_t *q = p; q < end && (q = (const uint8_t *)memchr(q, '"', (size_t)(end - q))); q++) {
        const uint8_t *b = q;
        while (b > p && b[-1] == '\\') b--;
        if ((q - b) % 2 == 0) return q;
    }
    return NULL;
}

/* Whether the line [p, end) is a part, and of which stream. The text of a CRI line begins at *text. */
static inline int elf_part(const uint8_t *p, const uint8_t *end, int *stream, const uint8_t **text) {
    if (end - p < 20) return PART_NONE;
    if (elf_is_digit(*p)) {
        const uint8_t *q = elf_iso_end(p, end);
        if (!q || end - q < 9 || *q != ' ' || (*stream = elf_stream_at(q + 1, end)) < 0 || q[7] != ' ') return PART_NONE;
        const uint8_t *tag = q + 8;
        if ((*tag != 'P' && *tag != 'F') || (tag + 1 < end && tag[1] != ' ' && tag[1] != ':')) return PART_NONE;
        q = (const uint8_t *)memchr(tag, ' ', (size_t)(end - tag));
        *text = q ? q + 1 : end;
        return *tag == 'P' ? PART_MORE : PART_LAST;
    }
    if (memcmp(p, "{\"log\":\"", 8)) return PART_NONE;
    const uint8_t *q = elf_quote_end(p + 8, end);
    if (!q || end - q < 19 || memcmp(q, "\",\"stream\":\"", 12) || (*stream = elf_stream_at(q + 12, end)) < 0) return PART_NONE;
    const uint8_t *b = q - 1;
    if (q - p < 10 || *b != 'n') return PART_MORE;
    while (b > p + 8 && b[-1] == '\\') b--;
    return (q - 1 - b) % 2 ? PART_LAST : PART_MORE;
}

/* Whether what is open ends before the line that ends at `next`, since its end did not come in time. */
static inline int elf_parts_end(const elf_parts *g, const uint8_t *next, size_t line_max) {
    return g->open && (size_t)(next - g->since) > line_max;
}

static inline void elf_parts_follow(elf_parts *g, const uint8_t *line, int part, int stream) {
    if (part == PART_MORE) {
        if (!g->open) g->since = line;
        g->open |= 1u << stream;
    } else if (part == PART_LAST) g->open &= ~(1u << stream);
}

/* Whether some of the whole lines [p, end) are parts, by the first, the last and a few between them: in a log of parts nearly all
 * lines are, so a few lines of something else do not matter. */
static int elf_has_parts(const uint8_t *p, const uint8_t *end) {
    const uint8_t *text, *last = end - 1;
    int stream;
    for (int i = 0; i <= ELF_LOOKS; i++) {
        const uint8_t *line = p + (size_t)(end - p) * (size_t)i / ELF_LOOKS;
        if (i == ELF_LOOKS) {
            while (last > p && last[-1] != '\n') last--;
            line = last;
        } else if (i && !(line = (const uint8_t *)memchr(line, '\n', (size_t)(end - line)))) continue;
        else if (i && ++line == end) continue;
        const uint8_t *newline = (const uint8_t *)memchr(line, '\n', (size_t)(end - line));
        if (elf_part(line, newline ? newline : end, &stream, &text)) return 1;
    }
    return 0;
}

/* The last clean place in the whole lines [p, end), which begin at a clean place. stop: the end of an incomplete line after
 * them. */
static const uint8_t *elf_clean_end(const uint8_t *p, const uint8_t *end, const uint8_t *stop, size_t line_max) {
    const uint8_t *text;
    int stream = 0;
    if (p == end || !elf_has_parts(p, end)) return end;
    elf_parts g = {0, p};
    const uint8_t *clean = p;
    for (const uint8_t *line = p, *next; line < end; line = next) {
        const uint8_t *newline = (const uint8_t *)memchr(line, '\n', (size_t)(end - line));
        next = newline ? newline + 1 : end;
        if (elf_parts_end(&g, next, line_max)) g.open = 0, clean = line;
        int part = elf_part(line, newline ? newline : end, &stream, &text);
        elf_parts_follow(&g, line, part, stream);
        if (!g.open) clean = next;
    }
    return elf_parts_end(&g, stop, line_max) ? end : clean;
}
#endif
