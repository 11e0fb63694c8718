/* Key bytes: writing values. Tags and layout in rows.py. */
#ifndef ELF_KEYS_H
#define ELF_KEYS_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { ELF_NULL, ELF_INT, ELF_STRING, ELF_DOUBLE };

typedef struct {
    int tag;
    const void *values;
    int width;            /* bytes of a value: 1, 4 or 8 */
    size_t step;          /* 0: one constant for all rows */
    const uint8_t *valid; /* or NULL */
    size_t valid_step;
    const uint8_t *text;  /* of a string column */
    const uint32_t *text_ends;
    size_t text_count;
} elf_key_column;

static inline int64_t elf_key_value(const elf_key_column *column, size_t i) {
    i *= column->step;
    if (column->width == 8) return ((const int64_t *)column->values)[i];
    return column->width == 4 ? ((const int32_t *)column->values)[i] : ((const uint8_t *)column->values)[i];
}

static inline uint64_t elf_zigzag(int64_t value) { return (uint64_t)value << 1 ^ (uint64_t)(value >> 63); }

static inline size_t elf_varint_size(uint64_t value) { return (63 - __builtin_clzll(value | 1)) / 7 + 1; }

static inline uint8_t *elf_put_varint(uint8_t *to, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *to++ = (uint8_t)(value | 0x80);
    *to++ = (uint8_t)value;
    return to;
}

/* The first byte after a varint that is canonical and of 64 bits at most, or NULL. */
static inline const uint8_t *elf_get_varint(const uint8_t *from, const uint8_t *end, uint64_t *value) {
    uint64_t got = 0;
    for (int shift = 0; from < end && shift < 64; shift += 7) {
        uint8_t byte = *from++;
        if (shift == 63 && byte > 1) return NULL;
        got |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            if (!byte && shift) return NULL;
            *value = got;
            return from;
        }
    }
    return NULL;
}

/* One key per value: -0.0 is 0.0, every NaN is the same one. */
static inline int64_t elf_same_double(int64_t bits) {
    if (bits == INT64_MIN) return 0;
    return (bits & INT64_MAX) > 0x7FF0000000000000ll ? 0x7FF8000000000000ll : bits;
}

static inline int elf_key_is_null(const elf_key_column *column, size_t i, int64_t value) {
    return (column->valid && !column->valid[i * column->valid_step]) || (column->tag == ELF_STRING && value == -1);
}

/* Bytes of value i, or 0 for a string code outside the dictionary. */
static inline size_t elf_key_size(const elf_key_column *column, size_t i) {
    int64_t value = elf_key_value(column, i);
    if (elf_key_is_null(column, i, value)) return 1;
    if (column->tag == ELF_DOUBLE) return 9;
    if (column->tag == ELF_INT) return 1 + elf_varint_size(elf_zigzag(value));
    if (value < 0 || (uint64_t)value >= column->text_count) return 0;
    size_t length = column->text_ends[value] - (value ? column->text_ends[value - 1] : 0);
    return 1 + elf_varint_size(length) + length;
}

static inline uint8_t *elf_put_key(uint8_t *to, const elf_key_column *column, size_t i) {
    int64_t value = elf_key_value(column, i);
    if (elf_key_is_null(column, i, value)) {
        *to++ = ELF_NULL;
        return to;
    }
    *to++ = (uint8_t)column->tag;
    if (column->tag == ELF_INT) return elf_put_varint(to, elf_zigzag(value));
    if (column->tag == ELF_DOUBLE) {
        value = elf_same_double(value);
        memcpy(to, &value, 8);
        return to + 8;
    }
    size_t start = value ? column->text_ends[value - 1] : 0, length = column->text_ends[value] - start;
    to = elf_put_varint(to, length);
    memcpy(to, column->text + start, length);
    return to + length;
}

/* End offset of each row's key; the index of the first row with a bad code, or n. */
static size_t elf_keys_measure(const elf_key_column *columns, size_t k, size_t n, uint64_t *ends) {
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < k; c++) {
            size_t size = elf_key_size(columns + c, i);
            if (!size) return i;
            end += size;
        }
        ends[i] = end;
    }
    return n;
}

static void elf_keys_write(const elf_key_column *columns, size_t k, size_t n, uint8_t *to) {
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < k; c++) to = elf_put_key(to, columns + c, i);
}
#endif
