/* Rows in columns: comparison, folding, sorting, k-way merging. The order is (pane, hash, sub, key); see rows.py. */
#ifndef ELF_ROWS_H
#define ELF_ROWS_H
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __GLIBC__
#include <malloc.h>
static inline void elf_trim(void) { malloc_trim(0); }
#else
static inline void elf_trim(void) {}
#endif

enum { ELF_SUM64, ELF_SUM128, ELF_MIN, ELF_MAX };

typedef struct {
    int64_t *pane;
    uint64_t *hash, *sub;
    uint32_t *split;
    uint64_t *ends;
    uint8_t *keys;
    int64_t *lanes;      /* lane l of row i: lanes[l * lane_step + i] */
    size_t lane_step;
    size_t n;
} elf_rows;

/* ---- lanes ---- */

#define ELF_MAX128 ((__int128)(~(unsigned __int128)0 >> 1))

static inline __int128 elf_int128(int64_t low, int64_t high) {
    return (__int128)((unsigned __int128)(uint64_t)high << 64 | (uint64_t)low);
}

/* The largest int128 means "overflowed": it stays, whatever is added. */
static inline void elf_add128(int64_t *low, int64_t *high, __int128 more) {
    __int128 sum, have = elf_int128(*low, *high);
    if (__builtin_expect(have == ELF_MAX128 || more == ELF_MAX128 || __builtin_add_overflow(have, more, &sum), 0))
        sum = ELF_MAX128;
    *low = (int64_t)sum;
    *high = (int64_t)(sum >> 64);
}

static inline size_t elf_op_lanes(uint8_t op) { return op == ELF_SUM128 ? 2 : 1; }

static inline void elf_fold_lanes(int64_t *into, size_t into_step, const int64_t *from, size_t from_step, const uint8_t *ops, size_t n_ops) {
    for (size_t k = 0; k < n_ops; k++) {
        switch (ops[k]) {
        case ELF_SUM64: *into = (int64_t)((uint64_t)*into + (uint64_t)*from); break;
        case ELF_SUM128:
            elf_add128(into, into + into_step, elf_int128(*from, from[from_step]));
            into += into_step;
            from += from_step;
            break;
        case ELF_MIN: if (*from < *into) *into = *from; break;
        case ELF_MAX: if (*from > *into) *into = *from; break;
        }
        into += into_step;
        from += from_step;
    }
}

/* ---- order ---- */

static inline const uint8_t *elf_key(const elf_rows *rows, size_t i, size_t *length) {
    uint64_t start = i ? rows->ends[i - 1] : 0;
    *length = rows->ends[i] - start;
    return rows->keys + start;
}

static inline int elf_compare_keys(const elf_rows *a, size_t i, const elf_rows *b, size_t j) {
    size_t n, m;
    const uint8_t *p = elf_key(a, i, &n), *q = elf_key(b, j, &m);
    int order = memcmp(p, q, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

static inline int elf_compare(const elf_rows *a, size_t i, const elf_rows *b, size_t j) {
    if (a->pane[i] != b->pane[j]) return a->pane[i] < b->pane[j] ? -1 : 1;
    if (a->hash[i] != b->hash[j]) return a->hash[i] < b->hash[j] ? -1 : 1;
    if (a->sub[i] != b->sub[j]) return a->sub[i] < b->sub[j] ? -1 : 1;
    return elf_compare_keys(a, i, b, j);
}

/* First of rows [low, high) that is not before row i of `other`; else `high`. O(log n). */
static size_t elf_lower_bound_of(const elf_rows *rows, size_t low, size_t high, const elf_rows *other, size_t i) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (elf_compare(rows, middle, other, i) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* First row from `low` on that is not before (pane, hash, sub, key). O(log n). */
static size_t elf_lower_bound(const elf_rows *rows, size_t low, int64_t pane, uint64_t hash, uint64_t sub, uint8_t *key, size_t length) {
    uint64_t end = length;
    elf_rows one = {&pane, &hash, &sub, NULL, &end, key, NULL, 0, 1};
    return elf_lower_bound_of(rows, low, rows->n, &one, 0);
}

/* Index of the first row behind `after` that is not after the one before it; n if there is none. O(n). */
static size_t elf_first_disorder(const elf_rows *rows, size_t after) {
    for (size_t i = after + 1; i < rows->n; i++)
        if (elf_compare(rows, i - 1, rows, i) >= 0) return i;
    return rows->n;
}

/* memcpy of a few dozen bytes without the call; never touches a byte outside. */
static inline void elf_copy_key(uint8_t *to, const uint8_t *from, size_t n) {
    if (n > 96) memcpy(to, from, n);
    else if (n >= 16) {
        for (size_t i = 0; i + 16 < n; i += 16) memcpy(to + i, from + i, 16);
        memcpy(to + n - 16, from + n - 16, 16);
    } else if (n >= 8) {
        memcpy(to, from, 8);
        memcpy(to + n - 8, from + n - 8, 8);
    } else for (size_t i = 0; i < n; i++) to[i] = from[i];
}

/* ---- columns with a single value: counts of 1, no members, one pane. Reading them in random order would cost as much as reading
 * the others ---- */

enum { ELF_PANE = 1, ELF_SUB = 2, ELF_SPLIT = 4, ELF_LANE = 8, ELF_LANES_SEEN = 32 };

typedef struct {
    uint64_t columns; /* bits of the columns that are fixed: ELF_PANE, ELF_SUB, ELF_SPLIT, ELF_LANE << lane */
    int64_t pane;
    uint64_t sub;
    uint32_t split;
    int64_t lanes[ELF_LANES_SEEN];
} elf_fixed;

static int elf_all64(const void *column, uint64_t value, size_t start, size_t stop) {
    const uint64_t *values = (const uint64_t *)column;
    uint64_t differ = 0;
    if (start < stop && values[stop - 1] != value) return 0;
    for (size_t i = start; i < stop; i++) differ |= values[i] ^ value;
    return !differ;
}

static int elf_all32(const uint32_t *values, uint32_t value, size_t start, size_t stop) {
    uint32_t differ = 0;
    for (size_t i = start; i < stop; i++) differ |= values[i] ^ value;
    return !differ;
}

/* Which columns are the same in all rows [at, stop) of k runs. O(n). */
static void elf_find_fixed(elf_fixed *fixed, const elf_rows *runs, const size_t *at, const size_t *stop, size_t k, size_t n_lanes) {
    const size_t seen = n_lanes < ELF_LANES_SEEN ? n_lanes : ELF_LANES_SEEN;
    size_t first = 0;
    fixed->columns = 0;
    while (first < k && at[first] == stop[first]) first++;
    if (first == k) return;
    const elf_rows *run = runs + first;
    const size_t i = at[first];
    fixed->pane = run->pane[i], fixed->sub = run->sub[i], fixed->split = run->split[i];
    for (size_t lane = 0; lane < seen; lane++) fixed->lanes[lane] = run->lanes[lane * run->lane_step + i];
    uint64_t columns = ((uint64_t)ELF_LANE << seen) - 1;
    for (size_t r = first; r < k && columns; r++) {
        run = runs + r;
        if (columns & ELF_PANE && !elf_all64(run->pane, (uint64_t)fixed->pane, at[r], stop[r])) columns &= ~(uint64_t)ELF_PANE;
        if (columns & ELF_SUB && !elf_all64(run->sub, fixed->sub, at[r], stop[r])) columns &= ~(uint64_t)ELF_SUB;
        if (columns & ELF_SPLIT && !elf_all32(run->split, fixed->split, at[r], stop[r])) columns &= ~(uint64_t)ELF_SPLIT;
        for (size_t lane = 0; lane < seen; lane++) {
            const uint64_t bit = (uint64_t)ELF_LANE << lane;
            if (columns & bit && !elf_all64(run->lanes + lane * run->lane_step, (uint64_t)fixed->lanes[lane], at[r], stop[r])) columns &= ~bit;
        }
    }
    fixed->columns = columns;
}

static inline int elf_is_fixed_lane(const elf_fixed *fixed, size_t lane) {
    return lane < ELF_LANES_SEEN && fixed->columns & (uint64_t)ELF_LANE << lane;
}

/* Append row i of `from`, or fold it into the last row of `out` when the keys are equal. */
static inline void elf_emit(
    elf_rows *out, const elf_rows *from, size_t i, const elf_fixed *fixed, const uint8_t *ops, size_t n_ops, size_t n_lanes) {
    size_t n = out->n, length;
    if (n && out->hash[n - 1] == from->hash[i] && elf_compare(out, n - 1, from, i) == 0) {
        elf_fold_lanes(out->lanes + n - 1, out->lane_step, from->lanes + i, from->lane_step, ops, n_ops);
        return;
    }
    const uint8_t *key = elf_key(from, i, &length);
    uint64_t start = n ? out->ends[n - 1] : 0;
    elf_copy_key(out->keys + start, key, length);
    out->ends[n] = start + length;
    out->hash[n] = from->hash[i];
    out->pane[n] = fixed->columns & ELF_PANE ? fixed->pane : from->pane[i];
    out->sub[n] = fixed->columns & ELF_SUB ? fixed->sub : from->sub[i];
    out->split[n] = fixed->columns & ELF_SPLIT ? fixed->split : from->split[i];
    for (size_t lane = 0; lane < n_lanes; lane++)
        out->lanes[lane * out->lane_step + n] = elf_is_fixed_lane(fixed, lane) ? fixed->lanes[lane] : from->lanes[lane * from->lane_step + i];
    out->n = n + 1;
}

/* ---- sorting: radix on pane, then hash, then sub, each only as far as it differs; keys by merge sort ---- */

typedef struct { uint64_t word; uint32_t row, run; } elf_item;

enum { ELF_FEW = 24, ELF_DIGIT_MAX = 11, ELF_KEY_LEVEL = 3 };
enum { ELF_MANY = 4, ELF_PIECE = 1 << 13 }; /* runs and rows: see elf_merge_many */

static inline uint64_t elf_word(const elf_rows *runs, int level, elf_item item) {
    const elf_rows *rows = runs + item.run;
    const size_t i = item.row;
    if (level == 0) return (uint64_t)rows->pane[i] ^ 1ull << 63;
    return level == 1 ? rows->hash[i] : rows->sub[i];
}

static void elf_sort_few(elf_item *items, size_t n, const elf_rows *runs) {
    for (size_t i = 1; i < n; i++) {
        elf_item item = items[i];
        size_t j = i;
        for (; j && elf_compare(runs + items[j - 1].run, items[j - 1].row, runs + item.run, item.row) > 0; j--) items[j] = items[j - 1];
        items[j] = item;
    }
}

static void elf_sort_keys(elf_item *items, elf_item *spare, size_t n, const elf_rows *runs) {
    if (n <= ELF_FEW) {
        elf_sort_few(items, n, runs);
        return;
    }
    size_t half = n / 2, i = 0, j = half;
    elf_sort_keys(items, spare, half, runs);
    elf_sort_keys(items + half, spare, n - half, runs);
    memcpy(spare, items, half * sizeof *items);
    for (elf_item *out = items; i < half;)
        *out++ = j < n && elf_compare_keys(runs + items[j].run, items[j].row, runs + spare[i].run, spare[i].row) < 0 ? items[j++] : spare[i++];
}

static void elf_sort_level(elf_item *items, elf_item *spare, size_t n, const elf_rows *runs, int level);

/* The words are loaded and `differing` has the bits in which they are not all equal (not 0). */
static void elf_sort_words(elf_item *items, elf_item *spare, size_t n, const elf_rows *runs, int level, uint64_t differing) {
    int top = 64 - __builtin_clzll(differing), bits = 64 - __builtin_clzll(n) + 3;
    if (bits > top) bits = top;
    int passes = (bits + ELF_DIGIT_MAX - 1) / ELF_DIGIT_MAX, digit = (bits + passes - 1) / passes, shift;
    if (digit * passes > top) bits = top;
    else bits = digit * passes;
    shift = top - bits;
    elf_item *from = items, *to = spare;
    for (int pass = 0; pass < passes; pass++) {
        size_t counts[1 << ELF_DIGIT_MAX], sum = 0;
        int at = shift + pass * digit;
        const uint64_t mask = (1u << digit) - 1;
        memset(counts, 0, (mask + 1) * sizeof *counts);
        for (size_t i = 0; i < n; i++) counts[from[i].word >> at & mask]++;
        for (size_t c = 0; c <= mask; c++) {
            size_t here = counts[c];
            counts[c] = sum;
            sum += here;
        }
        for (size_t i = 0; i < n; i++) to[counts[from[i].word >> at & mask]++] = from[i];
        elf_item *swap = from;
        from = to;
        to = swap;
    }
    if (from != items) memcpy(items, from, n * sizeof *items);
    for (size_t start = 0, end; start < n; start = end) {
        uint64_t first = items[start].word, rest = 0;
        for (end = start + 1; end < n && (items[end].word ^ first) >> shift == 0; end++) rest |= items[end].word ^ first;
        if (end - start == 1) continue;
        if (end - start <= ELF_FEW) elf_sort_few(items + start, end - start, runs);
        else if (rest) elf_sort_words(items + start, spare, end - start, runs, level, rest);
        else elf_sort_level(items + start, spare, end - start, runs, level + 1);
    }
}

static void elf_sort_level(elf_item *items, elf_item *spare, size_t n, const elf_rows *runs, int level) {
    if (n <= ELF_FEW) {
        elf_sort_few(items, n, runs);
        return;
    }
    for (; level < ELF_KEY_LEVEL; level++) {
        uint64_t differing = 0, first = elf_word(runs, level, items[0]);
        for (size_t i = 0; i < n; i++) {
            items[i].word = elf_word(runs, level, items[i]);
            differing |= items[i].word ^ first;
        }
        if (differing) {
            elf_sort_words(items, spare, n, runs, level, differing);
            return;
        }
    }
    elf_sort_keys(items, spare, n, runs);
}

static inline void elf_fetch_columns(const elf_rows *rows, size_t i, const elf_fixed *fixed, size_t n_lanes) {
    __builtin_prefetch(rows->ends + i);
    __builtin_prefetch(rows->hash + i);
    if (!(fixed->columns & ELF_PANE)) __builtin_prefetch(rows->pane + i);
    if (!(fixed->columns & ELF_SUB)) __builtin_prefetch(rows->sub + i);
    if (!(fixed->columns & ELF_SPLIT)) __builtin_prefetch(rows->split + i);
    for (size_t lane = 0; lane < n_lanes; lane++)
        if (!elf_is_fixed_lane(fixed, lane)) __builtin_prefetch(rows->lanes + lane * rows->lane_step + i);
}

/* Append the rows of sorted items to `out`, equal keys folded. */
static void elf_emit_items(
    elf_rows *out, const elf_item *items, size_t n, const elf_rows *runs, const elf_fixed *fixed, const uint8_t *ops, size_t n_ops, size_t n_lanes) {
    for (size_t i = 0; i < n; i++) {
        if (i + 32 < n) elf_fetch_columns(runs + items[i + 32].run, items[i + 32].row, fixed, n_lanes);
        if (i + 12 < n) {
            const elf_rows *run = runs + items[i + 12].run;
            const uint32_t ahead = items[i + 12].row;
            const uint8_t *key = run->keys + (ahead ? run->ends[ahead - 1] : 0);
            __builtin_prefetch(key);
            __builtin_prefetch(key + 64);
        }
        elf_emit(out, runs + items[i].run, items[i].row, fixed, ops, n_ops, n_lanes);
    }
}

/* Rows of `from` into `out`, ordered and folded. -1 when memory is short. O(n) for spread hashes, O(n log n) at worst. */
static int elf_sort(const elf_rows *from, elf_rows *out, const uint8_t *ops, size_t n_ops, size_t n_lanes) {
    const size_t n = from->n, start = 0;
    elf_fixed fixed;
    elf_item *items = (elf_item *)malloc((2 * n + 1) * sizeof *items);
    if (!items) return -1;
    for (size_t i = 0; i < n; i++) items[i] = (elf_item){0, (uint32_t)i, 0};
    elf_sort_level(items, items + n, n, from, 0);
    elf_find_fixed(&fixed, from, &start, &n, 1, n_lanes);
    elf_emit_items(out, items, n, from, &fixed, ops, n_ops, n_lanes);
    free(items);
    return 0;
}

/* ---- merging: a tree of losers (Knuth, volume 3, 5.4.1) over the heads of the runs, without a branch to mispredict ---- */

typedef struct {
    uint64_t pane, hash; /* of the run's head, pane as unsigned; all ones when the run is at its end */
    size_t run;
} elf_head;

typedef struct {
    const elf_rows *runs;
    size_t *at, *stop; /* of each run: the next row, and where to stop */
    size_t k;
} elf_merger;

static inline void elf_load_head(elf_head *head, const elf_merger *merger) {
    const elf_rows *run = merger->runs + head->run;
    size_t i = merger->at[head->run], stop = merger->stop[head->run];
    head->pane = i < stop ? (uint64_t)run->pane[i] ^ 1ull << 63 : ~0ull;
    head->hash = i < stop ? run->hash[i] : ~0ull;
}

/* Which of two heads with equal (pane, hash) comes first. */
static int elf_tie_before(const elf_merger *merger, size_t a, size_t b) {
    if (merger->at[a] == merger->stop[a]) return 0;
    if (merger->at[b] == merger->stop[b]) return 1;
    int order = elf_compare(merger->runs + a, merger->at[a], merger->runs + b, merger->at[b]);
    return order ? order < 0 : a < b;
}

static inline int elf_head_before(const elf_merger *merger, const elf_head *a, const elf_head *b) {
    if (__builtin_expect(a->pane == b->pane && a->hash == b->hash, 0)) return elf_tie_before(merger, a->run, b->run);
    return ((__uint128_t)a->pane << 64 | a->hash) < ((__uint128_t)b->pane << 64 | b->hash);
}

/* Ask for the next lines of a run's columns: more streams than a processor follows by itself. */
static inline void elf_fetch_run(const elf_rows *run, size_t i, const elf_fixed *fixed, size_t n_lanes) {
    const size_t ahead = 16;
    if (i + ahead >= run->n) return;
    __builtin_prefetch(run->keys + run->ends[i] + 256);
    if (i % 8) return;
    elf_fetch_columns(run, i + ahead, fixed, n_lanes);
}

/* Stop every run before (pane, hash, sub, key), or at its end where key is NULL. Rows and key bytes up to there. */
static void elf_merger_until(
    elf_merger *merger, int64_t pane, uint64_t hash, uint64_t sub, uint8_t *key, size_t length, size_t *rows, size_t *key_bytes) {
    *rows = *key_bytes = 0;
    for (size_t r = 0; r < merger->k; r++) {
        const elf_rows *run = merger->runs + r;
        size_t at = merger->at[r], stop = key ? elf_lower_bound(run, at, pane, hash, sub, key, length) : run->n;
        merger->stop[r] = stop;
        *rows += stop - at;
        if (stop > at) *key_bytes += run->ends[stop - 1] - (at ? run->ends[at - 1] : 0);
    }
}

/* Few runs: O(n log k), -1 when memory is short. */
static int elf_merge_few(elf_merger *merger, elf_rows *out, const uint8_t *ops, size_t n_ops, size_t n_lanes) {
    const size_t k = merger->k;
    const elf_fixed none = {0}; /* the columns are read in order */
    size_t left = 0;
    elf_head *losers = (elf_head *)malloc((k + 1) * sizeof *losers);
    elf_head *winners = (elf_head *)malloc((2 * k + 1) * sizeof *winners); /* at each node; leaves are k .. 2k-1 */
    if (!losers || !winners) {
        free(losers);
        free(winners);
        return -1;
    }
    for (size_t r = 0; r < k; r++) {
        left += merger->stop[r] - merger->at[r];
        winners[k + r].run = r;
        elf_load_head(winners + k + r, merger);
    }
    for (size_t node = k; node-- > 1;) {
        int first = elf_head_before(merger, winners + 2 * node, winners + 2 * node + 1);
        winners[node] = winners[2 * node + !first];
        losers[node] = winners[2 * node + first];
    }
    elf_head winner = winners[1];
    while (left--) {
        const elf_rows *run = merger->runs + winner.run;
        size_t i = merger->at[winner.run]++;
        elf_emit(out, run, i, &none, ops, n_ops, n_lanes);
        elf_fetch_run(run, i, &none, n_lanes);
        elf_load_head(&winner, merger);
        for (size_t node = (winner.run + k) / 2; node >= 1; node /= 2) {
            elf_head *loser = losers + node;
            const uint64_t swap = -(uint64_t)elf_head_before(merger, loser, &winner);
            uint64_t pane = (loser->pane ^ winner.pane) & swap, hash = (loser->hash ^ winner.hash) & swap;
            size_t other = (loser->run ^ winner.run) & (size_t)swap;
            loser->pane ^= pane, winner.pane ^= pane;
            loser->hash ^= hash, winner.hash ^= hash;
            loser->run ^= other, winner.run ^= other;
        }
    }
    free(losers);
    free(winners);
    return 0;
}

/* Many runs: cut by rows of the longest one into pieces that stay in a cache, each sorted. Costs less than a tree of losers,
 * whose every step waits for the one before, and the same whatever k is. -1 when memory is short. */
static int elf_merge_many(elf_merger *merger, elf_rows *out, const uint8_t *ops, size_t n_ops, size_t n_lanes) {
    const size_t k = merger->k;
    size_t left = 0, longest = 0, room = 0;
    size_t *last = (size_t *)malloc((k + 1) * sizeof *last);
    elf_item *items = NULL;
    elf_fixed fixed;
    if (!last) return -1;
    elf_find_fixed(&fixed, merger->runs, merger->at, merger->stop, k, n_lanes);
    for (size_t r = 0; r < k; r++) {
        last[r] = merger->stop[r];
        left += last[r] - merger->at[r];
        if (last[r] - merger->at[r] > last[longest] - merger->at[longest]) longest = r;
    }
    const size_t pieces = left / ELF_PIECE + 1, first = merger->at[longest], length = last[longest] - first;
    for (size_t piece = 1; piece <= pieces; piece++) {
        const size_t pivot = first + length * piece / pieces;
        size_t n = 0, filled = 0, present = 0;
        for (size_t r = 0; r < k; r++) {
            merger->stop[r] = piece == pieces ? last[r] : elf_lower_bound_of(merger->runs + r, merger->at[r], last[r], merger->runs + longest, pivot);
            n += merger->stop[r] - merger->at[r];
            present += merger->stop[r] > merger->at[r];
        }
        if (n > room) {
            free(items);
            items = (elf_item *)malloc(2 * (room = n + n / 4) * sizeof *items);
            if (!items) {
                free(last);
                return -1;
            }
        }
        for (size_t r = 0; r < k; r++)
            for (; merger->at[r] < merger->stop[r]; merger->at[r]++) items[filled++] = (elf_item){0, (uint32_t)merger->at[r], (uint32_t)r};
        if (present > 1) elf_sort_level(items, items + n, n, merger->runs, 0);
        elf_emit_items(out, items, n, merger->runs, &fixed, ops, n_ops, n_lanes);
    }
    free(items);
    free(last);
    return 0;
}

/* The rows up to where the runs stop, into `out` one run after the other, as they are. O(bytes). */
static void elf_gather(elf_merger *merger, elf_rows *out, size_t n_lanes) {
    for (size_t r = 0; r < merger->k; r++) {
        const elf_rows *run = merger->runs + r;
        const size_t at = merger->at[r], count = merger->stop[r] - at, n = out->n;
        if (!count) continue;
        const uint64_t from = at ? run->ends[at - 1] : 0, to = n ? out->ends[n - 1] : 0;
        memcpy(out->keys + to, run->keys + from, run->ends[at + count - 1] - from);
        for (size_t i = 0; i < count; i++) out->ends[n + i] = run->ends[at + i] - from + to;
        memcpy(out->pane + n, run->pane + at, count * sizeof *out->pane);
        memcpy(out->hash + n, run->hash + at, count * sizeof *out->hash);
        memcpy(out->sub + n, run->sub + at, count * sizeof *out->sub);
        memcpy(out->split + n, run->split + at, count * sizeof *out->split);
        for (size_t lane = 0; lane < n_lanes; lane++)
            memcpy(out->lanes + lane * out->lane_step + n, run->lanes + lane * run->lane_step + at, count * sizeof *out->lanes);
        merger->at[r] = merger->stop[r];
        out->n = n + count;
    }
}

/* The rows up to where the runs stop, into `out`, ordered and folded. -1 when memory is short. */
static int elf_merge(elf_merger *merger, elf_rows *out, const uint8_t *ops, size_t n_ops, size_t n_lanes) {
    return (merger->k < ELF_MANY ? elf_merge_few : elf_merge_many)(merger, out, ops, n_ops, n_lanes);
}
#endif
