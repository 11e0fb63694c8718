/* A 64-bit hash by folded 64x64->128 multiplication, little-endian, never reading past the input.
 *
 * With the seed ORDER_SEED it is the order of PAO rows in trees, frames and between nodes: part of the wire format,
 * golden values in tests/cbt/test_keys.py. With a random seed it keys tables in memory, so that a hostile log cannot
 * choose collisions there. Equal hashes are always followed by a comparison of the keys themselves.
 */
#ifndef ELF_HASH_H
#define ELF_HASH_H
#include <stdint.h>
#include <string.h>

#define ELF_ORDER_SEED 0x9e3779b97f4a7c15ull

static inline uint64_t elf_fold(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t elf_load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint64_t elf_load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

static inline uint64_t elf_hash64(const void *bytes, size_t n, uint64_t seed) {
    const uint8_t *p = (const uint8_t *)bytes;
    const uint64_t k1 = seed ^ 0xa0761d6478bd642full, k2 = (seed << 29 | seed >> 35) ^ 0xe7037ed1a0b428dbull;
    uint64_t h = seed ^ (n * 0x8ebc6af09c88c6e3ull), a, b;
    if (n >= 16) {
        size_t left = n;
        while (left > 32) {
            h = elf_fold(elf_load64(p) ^ k1, elf_load64(p + 8) ^ h) ^ elf_fold(elf_load64(p + 16) ^ k2, elf_load64(p + 24) ^ (h + k1));
            p += 32;
            left -= 32;
        }
        if (left > 16) h = elf_fold(elf_load64(p) ^ k2, elf_load64(p + 8) ^ h), p += 16, left -= 16;
        a = elf_load64(p + left - 16);
        b = elf_load64(p + left - 8);
    } else if (n >= 8) {
        a = elf_load64(p);
        b = elf_load64(p + n - 8);
    } else if (n >= 4) {
        a = elf_load32(p);
        b = elf_load32(p + n - 4);
    } else if (n) {
        a = (uint64_t)p[0] << 16 | (uint64_t)p[n >> 1] << 8 | p[n - 1];
        b = n;
    } else {
        a = b = 0;
    }
    h = elf_fold(a ^ k1 ^ h, b ^ k2);
    return elf_fold(h ^ k2, 0xd6e8feb86659fd93ull ^ h >> 32);
}
#endif
