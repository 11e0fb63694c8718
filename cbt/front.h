/* The hash table in front of a tree: groups keyed by integers, lanes updated in place. See Front in _kernel.pyx. */
#ifndef ELF_FRONT_H
#define ELF_FRONT_H
#include "hash.h"
#include "rows.h"

enum { ELF_CHUNK = 256, ELF_FIRST_GROUPS = 128, ELF_CACHED_GROUPS = 8192 };

typedef struct { uint32_t tag; int32_t slot; } elf_entry; /* slot -1: empty */

typedef struct {
    elf_entry *table;
    size_t mask;
    int64_t *words;     /* per group: pane, null bits, atoms */
    size_t width;
    int64_t *lanes;     /* per group: lanes, side by side */
    size_t n_lanes;
    int64_t *empty;     /* lanes of a new group */
    size_t count, size; /* groups held, groups with room */
    uint64_t seed;
} elf_front;

typedef struct {
    const void *values;
    int wide;             /* int64, else int32 */
    size_t step;          /* 0: one constant for all rows */
    const uint8_t *valid; /* or NULL */
    size_t valid_step;
} elf_column;

static inline int64_t elf_value(const elf_column *column, size_t i) {
    i *= column->step;
    return column->wide ? ((const int64_t *)column->values)[i] : ((const int32_t *)column->values)[i];
}

static inline int elf_is_valid(const elf_column *column, size_t i) {
    return !column->valid || column->valid[i * column->valid_step];
}

static inline __attribute__((always_inline)) uint64_t elf_hash_words(const int64_t *words, size_t width, uint64_t seed) {
    uint64_t h = seed;
    size_t i = 0;
    for (; i + 1 < width; i += 2)
        h ^= elf_fold((uint64_t)words[i] ^ (seed + i * 0x9e3779b97f4a7c15ull), (uint64_t)words[i + 1] ^ (0xe7037ed1a0b428dbull - seed - i));
    if (i < width) h ^= elf_fold((uint64_t)words[i] ^ (seed << 1), seed ^ 0xa0761d6478bd642full);
    return elf_fold(h, 0xd6e8feb86659fd93ull);
}

static inline __attribute__((always_inline)) int elf_equal_words(const int64_t *a, const int64_t *b, size_t width) {
    uint64_t differ = 0;
    for (size_t i = 0; i < width; i++) differ |= (uint64_t)(a[i] ^ b[i]);
    return differ == 0;
}

static int elf_front_table(elf_front *front, size_t entries) {
    elf_entry *table = (elf_entry *)malloc(entries * sizeof *table);
    if (!table) return -1;
    memset(table, 0xFF, entries * sizeof *table);
    for (size_t slot = 0; slot < front->count; slot++) {
        uint64_t h = elf_hash_words(front->words + slot * front->width, front->width, front->seed);
        size_t at = h & (entries - 1);
        while (table[at].slot >= 0) at = (at + 1) & (entries - 1);
        table[at].tag = (uint32_t)(h >> 32);
        table[at].slot = (int32_t)slot;
    }
    free(front->table);
    front->table = table;
    front->mask = entries - 1;
    return 0;
}

/* Room for one more group; -1 when memory is short. */
static int elf_front_grow(elf_front *front) {
    size_t size = front->size;
    if (front->count == size) {
        size = size ? size + size / 2 : ELF_FIRST_GROUPS;
        void *moved = realloc(front->words, size * front->width * sizeof(int64_t));
        if (!moved) return -1;
        front->words = (int64_t *)moved;
        moved = realloc(front->lanes, (size * front->n_lanes + 1) * sizeof(int64_t));
        if (!moved) return -1;
        front->lanes = (int64_t *)moved;
        front->size = size;
    }
    if (!front->table || 2 * (front->count + 1) > front->mask + 1)
        return elf_front_table(front, front->table ? 2 * (front->mask + 1) : 2 * ELF_FIRST_GROUPS);
    return front->count < 0x7FFFFFFF ? 0 : -1;
}

static int elf_front_insert(elf_front *front, const int64_t *words, uint64_t h) {
    if (elf_front_grow(front)) return -1;
    size_t at = h & front->mask, slot = front->count;
    while (front->table[at].slot >= 0) at = (at + 1) & front->mask;
    front->table[at].tag = (uint32_t)(h >> 32);
    front->table[at].slot = (int32_t)slot;
    memcpy(front->words + slot * front->width, words, front->width * sizeof *words);
    memcpy(front->lanes + slot * front->n_lanes, front->empty, front->n_lanes * sizeof(int64_t));
    front->count++;
    return (int)slot;
}

/* Slots of the n staged rows: hash all and fetch ahead, then look up. */
static inline __attribute__((always_inline)) int elf_front_probe(
    elf_front *front, const int64_t *staged, size_t n, size_t width, const uint8_t *where, int32_t *slots) {
    uint64_t hashes[ELF_CHUNK];
    for (size_t i = 0; i < n; i++) {
        hashes[i] = elf_hash_words(staged + i * width, width, front->seed);
        __builtin_prefetch(front->table + (hashes[i] & front->mask));
    }
    int far = front->count > ELF_CACHED_GROUPS;
    for (size_t i = 0; i < n; i++) {
        if (far && i + 8 < n) {
            int32_t ahead = front->table[hashes[i + 8] & front->mask].slot;
            if (ahead >= 0) __builtin_prefetch(front->words + (size_t)ahead * width);
        }
        if (where && !where[i]) {
            slots[i] = -1;
            continue;
        }
        const uint32_t tag = (uint32_t)(hashes[i] >> 32);
        const int64_t *words = staged + i * width;
        size_t at = hashes[i] & front->mask;
        int32_t slot;
        for (;; at = (at + 1) & front->mask) {
            slot = front->table[at].slot;
            if (slot < 0 || (front->table[at].tag == tag && elf_equal_words(front->words + (size_t)slot * width, words, width))) break;
        }
        if (slot < 0 && (slot = elf_front_insert(front, words, hashes[i])) < 0) return -1;
        slots[i] = slot;
    }
    return 0;
}

/* Find or make the group of each row. columns[0] is the pane, the rest the atoms; staged: ELF_CHUNK * width words. */
static int elf_front_slots(elf_front *front, const elf_column *columns, size_t n, const uint8_t *where, int32_t *slots, int64_t *staged) {
    const size_t width = front->width;
    if (!front->table && elf_front_grow(front)) return -1;
    for (size_t start = 0; start < n; start += ELF_CHUNK) {
        size_t chunk = n - start < ELF_CHUNK ? n - start : ELF_CHUNK;
        for (size_t i = 0; i < chunk; i++) {
            staged[i * width] = elf_value(columns, start + i);
            staged[i * width + 1] = 0;
        }
        for (size_t c = 2; c < width; c++) {
            const elf_column *column = columns + c - 1;
            int64_t *to = staged + c;
            if (column->step && !column->wide) {
                const int32_t *values = (const int32_t *)column->values + start;
                for (size_t i = 0; i < chunk; i++) to[i * width] = values[i];
            } else {
                const int64_t *values = (const int64_t *)column->values + start * column->step;
                int64_t one = column->step ? 0 : elf_value(column, 0);
                if (column->step) for (size_t i = 0; i < chunk; i++) to[i * width] = values[i];
                else for (size_t i = 0; i < chunk; i++) to[i * width] = one;
            }
            if (!column->valid) continue;
            for (size_t i = 0; i < chunk; i++)
                if (!column->valid[(start + i) * column->valid_step]) {
                    to[i * width] = 0;
                    staged[i * width + 1] |= (int64_t)(1ull << (c - 2));
                }
        }
        const uint8_t *mask = where ? where + start : NULL;
        int32_t *out = slots + start;
        int failed;
        switch (width) {
        case 2: failed = elf_front_probe(front, staged, chunk, 2, mask, out); break;
        case 3: failed = elf_front_probe(front, staged, chunk, 3, mask, out); break;
        case 4: failed = elf_front_probe(front, staged, chunk, 4, mask, out); break;
        case 5: failed = elf_front_probe(front, staged, chunk, 5, mask, out); break;
        default: failed = elf_front_probe(front, staged, chunk, width, mask, out);
        }
        if (failed) return -1;
    }
    return 0;
}

/* ---- accumulators: `lanes` points at the accumulator's lane of group 0 ---- */

#define ELF_EACH_ROW(body) \
    for (size_t i = 0; i < n; i++) { \
        if (slots[i] < 0 || !elf_is_valid(in, i)) continue; \
        int64_t *lane = lanes + (size_t)slots[i] * step; \
        body; \
    }

static void elf_front_count(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *in) {
    if (!in->valid) {
        for (size_t i = 0; i < n; i++) if (slots[i] >= 0) lanes[(size_t)slots[i] * step]++;
    } else {
        ELF_EACH_ROW((*lane)++)
    }
}

static inline void elf_sum128(int64_t *lane, int64_t value) {
    uint64_t low = (uint64_t)lane[0] + (uint64_t)value;
    int64_t high = lane[1];
    if (__builtin_expect((high ^ high >> 63) == INT64_MAX, 0)) { /* near the end, where it must stick */
        elf_add128(lane, lane + 1, value);
        return;
    }
    lane[1] = high + (value >> 63) + (low < (uint64_t)value);
    lane[0] = (int64_t)low;
}

static void elf_front_add(int64_t *lanes, size_t step, int wide, const int32_t *slots, size_t n, const elf_column *in) {
    if (wide) {
        ELF_EACH_ROW(elf_sum128(lane, elf_value(in, i)))
    } else {
        ELF_EACH_ROW(*lane = (int64_t)((uint64_t)*lane + (uint64_t)elf_value(in, i)))
    }
}

static void elf_front_add_squares(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *in) {
    ELF_EACH_ROW(__int128 value = elf_value(in, i); elf_add128(lane, lane + 1, value * value))
}

static void elf_front_add_wide(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *in, const int64_t *high) {
    ELF_EACH_ROW(elf_add128(lane, lane + 1, elf_int128(elf_value(in, i), high[i * in->step])))
}

static void elf_front_minimum(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *in) {
    ELF_EACH_ROW(int64_t value = elf_value(in, i); if (value < *lane) *lane = value)
}

static void elf_front_maximum(int64_t *lanes, size_t step, const int32_t *slots, size_t n, const elf_column *in) {
    ELF_EACH_ROW(int64_t value = elf_value(in, i); if (value > *lane) *lane = value)
}
#endif
