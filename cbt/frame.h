/* Columns of a frame as byte planes; the layout is in frame.py. */
#ifndef ELF_FRAME_H
#define ELF_FRAME_H
#include "hash.h"
#include "rows.h"

enum { ELF_COLUMN_HEAD = 9 };

/* Append n values as kind (0: all are the base, else bytes of a value), base, planes; returns the end. */
static uint8_t *elf_pack_column(uint8_t *to, const int64_t *values, size_t n) {
    int64_t low = n ? values[0] : 0, high = low;
    for (size_t i = 1; i < n; i++) {
        if (values[i] < low) low = values[i];
        if (values[i] > high) high = values[i];
    }
    const uint64_t range = (uint64_t)high - (uint64_t)low;
    const int width = range ? (71 - __builtin_clzll(range)) / 8 : 0;
    *to++ = (uint8_t)width;
    memcpy(to, &low, 8);
    to += 8;
    for (int plane = 0; plane < width; plane++, to += n)
        for (size_t i = 0; i < n; i++) to[i] = (uint8_t)(((uint64_t)values[i] - (uint64_t)low) >> 8 * plane);
    return to;
}

/* The columns of some rows at `to`, which has room for 9 + 8 n bytes a column; `spare` for n values. Returns the end. */
static uint8_t *elf_pack_columns(uint8_t *to, const elf_rows *rows, size_t n_lanes, int64_t *spare) {
    const size_t n = rows->n;
    for (size_t i = 0; i < n; i++) spare[i] = (int64_t)((uint64_t)rows->pane[i] - (i ? (uint64_t)rows->pane[i - 1] : 0));
    to = elf_pack_column(to, spare, n);
    for (size_t i = 0; i < n; i++) spare[i] = rows->split[i];
    to = elf_pack_column(to, spare, n);
    for (size_t i = 0; i < n; i++) spare[i] = (int64_t)(rows->ends[i] - (i ? rows->ends[i - 1] : 0) - rows->split[i]);
    to = elf_pack_column(to, spare, n);
    for (size_t lane = 0; lane < n_lanes; lane++) to = elf_pack_column(to, rows->lanes + lane * rows->lane_step, n);
    return to;
}

static inline __attribute__((always_inline)) void elf_join_planes(int64_t *to, const uint8_t *planes, size_t n, int width, uint64_t base) {
    for (size_t i = 0; i < n; i++) {
        uint64_t value = 0;
        for (int plane = 0; plane < width; plane++) value |= (uint64_t)planes[(size_t)plane * n + i] << 8 * plane;
        to[i] = (int64_t)(value + base);
    }
}

static void elf_unpack_column(int64_t *to, const uint8_t *planes, size_t n, int width, int64_t base) {
    switch (width) {
    case 0: elf_join_planes(to, planes, n, 0, (uint64_t)base); break;
    case 1: elf_join_planes(to, planes, n, 1, (uint64_t)base); break;
    case 2: elf_join_planes(to, planes, n, 2, (uint64_t)base); break;
    case 3: elf_join_planes(to, planes, n, 3, (uint64_t)base); break;
    default: elf_join_planes(to, planes, n, width, (uint64_t)base);
    }
}

enum { ELF_UNPACKED, ELF_ENDS_EARLY, ELF_UNKNOWN_KIND, ELF_TOO_LONG, ELF_BAD_LENGTH, ELF_BAD_SUM };

/* The column at *at into `to`. */
static int elf_next_column(int64_t *to, size_t n, const uint8_t **at, const uint8_t *end) {
    if (end - *at < ELF_COLUMN_HEAD) return ELF_ENDS_EARLY;
    const int width = **at;
    int64_t base;
    memcpy(&base, *at + 1, 8);
    *at += ELF_COLUMN_HEAD;
    if (width > 8) return ELF_UNKNOWN_KIND;
    if ((size_t)(end - *at) / (width ? width : 1) < n && width) return ELF_ENDS_EARLY;
    elf_unpack_column(to, *at, n, width, base);
    *at += (size_t)width * n;
    return ELF_UNPACKED;
}

/* What elf_pack_columns wrote, with `key_bytes` of keys behind it, into `rows`, whose arrays have room for n rows; the keys
 * stay where they are. Lengths are checked, the order is not. Says what is wrong. */
static int elf_unpack_rows(elf_rows *rows, size_t n_lanes, const uint8_t *at, size_t size, size_t key_bytes) {
    const uint8_t *end = at + size;
    const size_t n = rows->n;
    int64_t *group = (int64_t *)rows->hash, *member = (int64_t *)rows->sub;
    int wrong = elf_next_column(rows->pane, n, &at, end);
    if (!wrong) wrong = elf_next_column(group, n, &at, end);
    if (!wrong) wrong = elf_next_column(member, n, &at, end);
    for (size_t lane = 0; lane < n_lanes && !wrong; lane++) wrong = elf_next_column(rows->lanes + lane * rows->lane_step, n, &at, end);
    if (wrong) return wrong;
    if ((size_t)(end - at) != key_bytes) return (size_t)(end - at) < key_bytes ? ELF_ENDS_EARLY : ELF_TOO_LONG;
    uint64_t pane = 0, last = 0;
    for (size_t i = 0; i < n; i++) {
        pane += (uint64_t)rows->pane[i];
        rows->pane[i] = (int64_t)pane;
    }
    for (size_t i = 0; i < n; i++) {
        const uint64_t g = (uint64_t)group[i], m = (uint64_t)member[i], left = key_bytes - last;
        if (g > left || m > left - g) return ELF_BAD_LENGTH;
        rows->split[i] = (uint32_t)g;
        rows->hash[i] = elf_hash64(at + last, g, ELF_ORDER_SEED);
        rows->sub[i] = m ? elf_hash64(at + last + g, m, ELF_ORDER_SEED) : 0;
        rows->ends[i] = last += g + m;
    }
    rows->keys = (uint8_t *)at;
    return last == key_bytes ? ELF_UNPACKED : ELF_BAD_SUM;
}
#endif
