/* Byte searches, 32 bytes at a time. Included once per instruction set, with V(name) naming the variant and ELF_AVX2 set
 * or not. All may read up to 32 bytes past the given end (ELF_PAD), and ignore those bytes. */

#if defined(ELF_AVX2)
static inline uint32_t V(eq32)(const uint8_t *p, uint8_t c) {
    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)p), _mm256_set1_epi8((char)c)));
}
/* One bit for each newline, backslash, NUL and byte over 0x7f: the low half of a byte selects which of the first three it may be. */
static inline uint32_t V(mark32)(const uint8_t *p) {
    const __m256i low = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '\n', 0, '\\', 0, 0, 0));
    __m256i v = _mm256_loadu_si256((const __m256i *)p);
    return (uint32_t)_mm256_movemask_epi8(_mm256_or_si256(_mm256_cmpeq_epi8(_mm256_shuffle_epi8(low, v), v), v));
}
/* One bit for each quote, backslash and control character. */
static inline uint32_t V(string32)(const uint8_t *p) {
    __m256i v = _mm256_loadu_si256((const __m256i *)p);
    __m256i odd = _mm256_or_si256(_mm256_cmpeq_epi8(v, _mm256_set1_epi8('\\')), _mm256_cmpeq_epi8(v, _mm256_set1_epi8('"')));
    __m256i low = _mm256_cmpeq_epi8(_mm256_min_epu8(v, _mm256_set1_epi8(0x1f)), v);
    return (uint32_t)_mm256_movemask_epi8(_mm256_or_si256(odd, low));
}
#elif defined(__SSE2__)
static inline uint32_t V(eq32)(const uint8_t *p, uint8_t c) {
    __m128i k = _mm_set1_epi8((char)c);
    uint32_t low = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)p), k));
    return low | (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(p + 16)), k)) << 16;
}
static inline uint32_t V(mark16)(const uint8_t *p) {
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    __m128i odd = _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('\\')), _mm_cmpeq_epi8(v, _mm_setzero_si128()));
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(odd, v), _mm_cmpeq_epi8(v, _mm_set1_epi8('\n'))));
}
static inline uint32_t V(mark32)(const uint8_t *p) { return V(mark16)(p) | V(mark16)(p + 16) << 16; }
static inline uint32_t V(string16)(const uint8_t *p) {
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    __m128i odd = _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('\\')), _mm_cmpeq_epi8(v, _mm_set1_epi8('"')));
    __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(0x1f)), v);
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(odd, low));
}
static inline uint32_t V(string32)(const uint8_t *p) { return V(string16)(p) | V(string16)(p + 16) << 16; }
#else
/* Eight bytes in a word: the high bit of each byte that is zero, exactly; then the eight bits side by side. */
static inline uint64_t V(zero8)(uint64_t x) {
    return ~(((x & 0x7f7f7f7f7f7f7f7full) + 0x7f7f7f7f7f7f7f7full) | x) & 0x8080808080808080ull;
}
static inline uint32_t V(pack8)(uint64_t high) { return (uint32_t)((high >> 7) * 0x0102040810204080ull >> 56); }
static inline uint64_t V(word)(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint64_t V(same8)(uint64_t x, uint8_t c) { return V(zero8)(x ^ 0x0101010101010101ull * c); }
static inline uint32_t V(eq32)(const uint8_t *p, uint8_t c) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= V(pack8)(V(same8)(V(word)(p + 8 * i), c)) << 8 * i;
    return bits;
}
static inline uint32_t V(mark32)(const uint8_t *p) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t x = V(word)(p + 8 * i), odd = V(same8)(x, '\\') | V(same8)(x, '\n') | V(zero8)(x);
        bits |= V(pack8)(odd | (x & 0x8080808080808080ull)) << 8 * i;
    }
    return bits;
}
static inline uint32_t V(string32)(const uint8_t *p) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t x = V(word)(p + 8 * i);
        bits |= V(pack8)(V(same8)(x, '\\') | V(same8)(x, '"') | V(zero8)(x & 0xe0e0e0e0e0e0e0e0ull)) << 8 * i;
    }
    return bits;
}
#endif

/* The newline that ends the line at p (there is one), and whether a byte before it is special. */
static inline const uint8_t *V(line_end)(const uint8_t *p, uint32_t *special) {
    uint32_t odd = 0;
    for (;; p += 32) {
        uint32_t bits = V(mark32)(p);
        if (!bits) continue;
        uint32_t newline = V(eq32)(p, '\n');
        if (newline) {
            *special = odd | (bits & (newline - 1) & ~newline);
            return p + __builtin_ctz(newline);
        }
        odd |= bits;
    }
}

/* The first `c` in [p, end), or NULL. */
static inline const uint8_t *V(find)(const uint8_t *p, const uint8_t *end, uint8_t c) {
    for (; p < end; p += 32) {
        uint32_t bits = V(eq32)(p, c);
        if (bits) {
            p += __builtin_ctz(bits);
            return p < end ? p : NULL;
        }
    }
    return NULL;
}
