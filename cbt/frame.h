/* Columns of a frame as byte planes; the layout is in frame.py. */
#ifndef ELF_FRAME_H
#define ELF_FRAME_H
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
#endif
