/* The tokenizer's kernel: lines of bytes to columns. `elf_tokenize` runs the variant for this processor.
 *
 * Three steps for each line (block.h): find its end, and with the same loads whether it holds special bytes (a backslash, NUL, a
 * byte over 0x7f), so that the next steps need not look for them in a line without; split it into fields by its shape (literal.h,
 * pairs.h, json.h); convert each field (convert.h, forms.h, keyed.h, numbers.h, times.h, text.h). Every field is checked, so that a
 * line's acceptance does not depend on the requested columns; only these are kept, as spans into the block (or into an arena,
 * where an escape was decoded) and as numbers, for a strip of lines.
 *
 * The code that scans bytes is compiled twice, for AVX2 and for the base instruction set, by including it twice with another
 * V(name). Scans may read up to ELF_PAD bytes past a line's end: the caller makes sure that they are readable.
 */
#ifndef ELF_TOKENIZE_H
#define ELF_TOKENIZE_H
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static inline uint64_t elf_word(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }

/* Are the n bytes equal? Without a call, for texts of some tens of bytes. */
static inline int elf_same(const uint8_t *a, const uint8_t *b, size_t n) {
    if (n < 8) return memcmp(a, b, n) == 0;
    for (size_t i = 0; i + 8 < n; i += 8)
        if (elf_word(a + i) != elf_word(b + i)) return 0;
    return elf_word(a + n - 8) == elf_word(b + n - 8);
}

#include "plan.h"
#include "convert.h"
#include "keyed.h"

#define V(name) elf_base_##name
#include "scan.h"
#include "literal.h"
#include "pairs.h"
#include "json.h"
#include "block.h"
#undef V

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi")
#endif
#define ELF_AVX2
#define V(name) elf_avx2_##name
#include "scan.h"
#include "literal.h"
#include "pairs.h"
#include "json.h"
#include "block.h"
#undef V
#undef ELF_AVX2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

static int elf_wide_registers(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi");
#else
    return 0;
#endif
}

static const uint8_t *elf_tokenize(elf_state *s, const uint8_t *p, const uint8_t *stop, int wide) {
#if defined(__x86_64__)
    if (wide) return elf_avx2_tokenize(s, p, stop);
#endif
    (void)wide;
    return elf_base_tokenize(s, p, stop);
}
#endif
