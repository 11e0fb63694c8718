# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The tokenizer's kernel for Python: a block of lines in, columns out; the work is in tokenize.h and its includes.

`Tokenizer` holds the requested columns (slots), each with its dictionary or its numbers, and one plan at a time (`load`). The
C code parses a strip of lines into spans; then the strings of these columns are interned here, column by column, so that the
dictionary's cache misses overlap.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import numpy as np

from elf.cbt._strings cimport Entry, Strings, elf_hash64



cdef extern from "tokenize.h":
    enum:
        ELF_STRIP
        ELF_PAD
        ELF_SAMPLES
        ELF_NULLS
        ELF_NULL_BYTES
        R_COUNT
        T_COUNT
        FAST_NO
        FAST_DIGITS
        FAST_CLF
        FAST_TEXT
        DASH_NO
        DASH_NULL
        DASH_ZERO
    ctypedef struct elf_span:
        const uint8_t *p
        uint32_t n
    ctypedef struct elf_null:
        uint8_t n
        uint8_t text[15]
    ctypedef struct elf_field:
        uint8_t convert, escape, quote, fast, optional, required, sum, list, is_time, next_optional, wanted, n_nulls, dash
        uint8_t form, ahead, lone_dash, quotes
        uint16_t index
        uint64_t after8, mask8
        const uint8_t *after
        uint32_t after_n
        int16_t target[6]
        int16_t chain
        elf_null nulls[8]
    ctypedef struct elf_slot:
        elf_span *spans
        int64_t *values
        uint8_t *state
    ctypedef struct elf_edge:
        const uint8_t *text
        uint32_t n
        int32_t node, child
    ctypedef struct elf_node:
        int32_t edges, n_edges, field
    ctypedef struct elf_value:
        pass
    ctypedef struct elf_sample:
        const uint8_t *line
        uint32_t n, at
        int32_t field, reason, detail
    ctypedef struct elf_state:
        const elf_field *fields
        int n_fields, shape, has_header, needs_time, zoned, ambiguous
        const uint8_t *prefix
        const uint8_t *skip_prefix
        const uint8_t *comment
        uint32_t prefix_n, skip_prefix_n, comment_n, line_max
        elf_node *nodes
        const elf_edge *edges
        const int32_t *lookup
        uint32_t lookup_mask
        elf_value *found
        uint64_t *seen
        uint64_t *ever
        const uint64_t *must
        const int32_t *spans
        int n_slots
        elf_slot *slots
        int row, at_header, out_of_memory
        void *arena
        int64_t lines, invalid_utf8, base_row, line_index
        int64_t rejects[15]
        int32_t *reject_rows
        size_t n_rejects, reject_room
        elf_sample samples[16]
        int n_samples
        elf_sample lost[16]
        int n_lost
        int64_t zone_quarter
        void *owner
        int64_t (*zone)(void *owner, int64_t quarter) noexcept nogil
        int (*strptime)(void *owner, int field, const uint8_t *p, size_t n, int64_t *micros, int *zoned) noexcept nogil

    const uint8_t *elf_tokenize(elf_state *s, const uint8_t *p, const uint8_t *stop, int wide) noexcept nogil
    void elf_release(elf_state *s) noexcept nogil
    int elf_wide_registers() noexcept nogil
    int elf_same(const uint8_t *a, const uint8_t *b, size_t n) noexcept nogil

cdef extern from *:
    """
    #define elf_prefetch(p) __builtin_prefetch(p)
    """
    void elf_prefetch(const void *p) noexcept nogil

# The C code's numbers for the members of the enums in elf.agent.formats.fields, by name.
CONVERTS = (
    "SKIP", "STRING", "REQUEST", "REQUEST_URL", "URI", "URL", "QUERY", "HOST_PORT", "HOST",
    "INT", "SIZE", "STATUS", "SECONDS", "MILLISECONDS", "MICROSECONDS", "NANOSECONDS", "SECONDS_LIST", "DURATION", "DURATION_MS", "TAKEN",
    "TIME_CLF", "TIME_ISO", "TIME_ANY", "TIME_EPOCH", "TIME_EPOCH_MS", "TIME_EPOCH_US", "DATE", "TIME_OF_DAY", "TIME_STRPTIME",
    "OWN_TEXT", "OWN_INT", "OWN_DOUBLE", "OWN_BOOL",
)
ESCAPES = ("NONE", "BACKSLASH", "JSON", "PLUS", "PERCENT", "DOUBLED")
REASONS = (
    "", "EMPTY", "TOO_LONG", "NUL", "LITERAL", "UNTERMINATED", "TRAILING", "TRUNCATED", "TIME", "NUMBER", "JSON",
    "MISSING", "PATTERN", "FUTURE", "TEXT",
)
FORMS = ("ANY", "WORD", "CLIENT", "IDENT", "USER")
SHAPES = ("LITERAL", "JSON", "LTSV", "LOGFMT", "REGEX")
NULLS_MAX = ELF_NULLS
NULL_BYTES_MAX = ELF_NULL_BYTES


cdef struct elf_column:  # what a slot gave in the block, `room` rows
    void *strings       # a dictionary, borrowed from `dictionaries`; NULL for numbers
    int32_t *codes
    int64_t *values
    uint8_t *states     # 0 NULL, 1 a value, 2 NULL, 3 NULL because the value did not convert


cdef int64_t _zone(void *owner, int64_t quarter) noexcept with gil:
    return (<Tokenizer> owner)._zone_offset(quarter)


cdef int _strptime(void *owner, int field, const uint8_t *p, size_t n, int64_t *micros, int *zoned) noexcept with gil:
    return (<Tokenizer> owner)._parse_time(field, p, n, micros, zoned)


cdef int _intern(void *strings, const elf_span *spans, int n, uint64_t *hashes, int32_t *out) except -1 nogil:
    """Codes of n spans. Most values are known, so each memory access of a lookup (table entry, then text) is prefetched in a
    pass of its own: the cache misses of a strip overlap."""
    cdef int i
    cdef Entry *table = (<Strings> strings).table
    cdef uint32_t *ends = (<Strings> strings).ends
    cdef size_t mask = (<Strings> strings).mask, at
    cdef uint32_t start
    cdef int32_t code
    for i in range(n):
        if spans[i].p != NULL:
            hashes[i] = elf_hash64(spans[i].p, spans[i].n, (<Strings> strings).seed)
            elf_prefetch(&table[(hashes[i] >> 32) & mask])
    for i in range(n):
        out[i] = -1
        if spans[i].p != NULL:
            at = (hashes[i] >> 32) & mask
            while table[at].code >= 0 and table[at].tag != <uint32_t> (hashes[i] >> 32):
                at = (at + 1) & mask
            code = out[i] = table[at].code
            if code >= 0:
                elf_prefetch((<Strings> strings).text + (ends[code - 1] if code else 0))
    for i in range(n):
        if spans[i].p != NULL:
            code = out[i]
            if code >= 0:
                ends = (<Strings> strings).ends
                start = ends[code - 1] if code else 0
                if ends[code] - start == spans[i].n and elf_same((<Strings> strings).text + start, spans[i].p, spans[i].n):
                    continue
            out[i] = (<Strings> strings).put_hashed(spans[i].p, spans[i].n, hashes[i])
    return 0


cdef class Tokenizer:
    """Parses blocks by one plan at a time. Not for use by two threads at once.

    zone(quarter) gives the offset of a local time from UTC in microseconds, `quarter` being the local time in quarters of an
    hour since 1970. strptime(field, text) gives (microseconds, has a zone) or None. wide=False: only the base instruction set.
    """

    cdef elf_state s
    cdef elf_field *fields
    cdef elf_node *nodes
    cdef elf_edge *edges
    cdef int32_t *lookup
    cdef uint64_t *must
    cdef list dictionaries
    cdef object zone, strptime, kept
    cdef int wide
    cdef uint64_t *hashes
    cdef elf_column *columns
    cdef size_t rows, room
    cdef uint8_t *tail      # the last lines of a block, padded
    cdef size_t tail_room

    def __cinit__(self, uint32_t line_max, zone, strptime, wide=True):
        self.dictionaries = []
        self.zone, self.strptime = zone, strptime
        self.wide = wide and elf_wide_registers()
        self.s.line_max = line_max
        self.s.owner = <void *> self
        self.s.zone = _zone
        self.s.strptime = _strptime
        self.s.zone_quarter = INT64_MIN
        self.hashes = <uint64_t *> malloc(ELF_STRIP * sizeof(uint64_t))
        if not self.hashes:
            raise MemoryError

    def add(self, bint text):
        """Add a slot, for strings or for numbers; it is NULL in the existing rows. Returns its number. Raises MemoryError."""
        cdef int slot = self.s.n_slots
        cdef void *moved = realloc(self.s.slots, (slot + 1) * sizeof(elf_slot))
        if not moved:
            raise MemoryError
        self.s.slots = <elf_slot *> moved
        memset(&self.s.slots[slot], 0, sizeof(elf_slot))
        moved = realloc(self.columns, (slot + 1) * sizeof(elf_column))
        if not moved:
            raise MemoryError
        self.columns = <elf_column *> moved
        memset(&self.columns[slot], 0, sizeof(elf_column))
        self.dictionaries.append(Strings() if text else None)
        self.s.n_slots += 1
        if text:
            self.columns[slot].strings = <void *> <PyObject *> self.dictionaries[slot]
            self.s.slots[slot].spans = <elf_span *> calloc(ELF_STRIP, sizeof(elf_span))
            if not self.s.slots[slot].spans:
                raise MemoryError
        else:
            self.s.slots[slot].values = <int64_t *> calloc(ELF_STRIP, sizeof(int64_t))
            self.s.slots[slot].state = <uint8_t *> calloc(ELF_STRIP, 1)
            if not (self.s.slots[slot].values and self.s.slots[slot].state):
                raise MemoryError
        self._reserve(slot, self.room)
        if text and self.rows:
            memset(self.columns[slot].codes, 0xFF, self.rows * sizeof(int32_t))
        elif self.rows:
            memset(self.columns[slot].values, 0, self.rows * sizeof(int64_t))
            memset(self.columns[slot].states, 0, self.rows)
        return slot

    def __dealloc__(self):
        cdef int i
        for i in range(self.s.n_slots):
            free(self.s.slots[i].spans)
            free(self.s.slots[i].values)
            free(self.s.slots[i].state)
            free(self.columns[i].codes)
            free(self.columns[i].values)
            free(self.columns[i].states)
        self._unload()
        elf_release(&self.s)
        free(self.s.arena)
        free(self.hashes)
        free(self.s.slots)
        free(self.columns)
        free(self.tail)
        free(self.s.reject_rows)

    cdef void _unload(self) noexcept:
        free(self.fields)
        free(self.nodes)
        free(self.edges)
        free(self.lookup)
        free(self.must)
        free(self.s.found)
        free(self.s.seen)
        free(self.s.ever)
        self.fields = NULL
        self.lookup = NULL
        self.must = NULL
        self.s.seen = NULL
        self.s.ever = NULL
        self.nodes = NULL
        self.edges = NULL
        self.s.found = NULL
        self.s.n_fields = 0

    def load(self, plan):
        """Execute `plan` (elf.agent.formats.steps.Plan) from now on. Raises MemoryError."""
        cdef int i, j, n = len(plan.steps)
        cdef bytes text
        cdef elf_field *f
        self._unload()
        self.kept = plan
        self.fields = <elf_field *> calloc(n + 1, sizeof(elf_field))
        self.s.found = <elf_value *> calloc(n + 1, sizeof(elf_value))
        self.nodes = <elf_node *> calloc(len(plan.nodes) + 1, sizeof(elf_node))
        self.edges = <elf_edge *> calloc(len(plan.edges) + 1, sizeof(elf_edge))
        self.must = <uint64_t *> calloc(n // 64 + 1, sizeof(uint64_t))
        self.s.seen = <uint64_t *> calloc(n // 64 + 1, sizeof(uint64_t))
        self.s.ever = <uint64_t *> calloc(n // 64 + 1, sizeof(uint64_t))
        if not (self.fields and self.s.found and self.nodes and self.edges and self.must and self.s.seen and self.s.ever):
            raise MemoryError
        for i, step in enumerate(plan.steps):
            f = &self.fields[i]
            f.convert, f.escape, f.quote = step.convert, step.escape, step.quote
            f.optional, f.required, f.sum, f.list = step.optional, step.required, step.sum, step.list
            f.is_time, f.next_optional, f.chain = step.is_time, step.next_optional, step.chain
            f.form, f.ahead, f.index, f.quotes = step.form, step.ahead, i, step.quotes
            f.fast = {"": FAST_NO, "digits": FAST_DIGITS, "clf": FAST_CLF, "text": FAST_TEXT}[step.fast]
            f.lone_dash = {"": DASH_NO, "null": DASH_NULL, "zero": DASH_ZERO}[step.dash]
            text = step.after
            f.after, f.after_n = <const uint8_t *> <const char *> text, <uint32_t> len(text)
            memcpy(&f.after8, f.after, min(f.after_n, 8))
            memset(&f.mask8, 0xFF, min(f.after_n, 8))
            for j in range(T_COUNT):
                f.target[j] = step.targets[j]
                f.wanted |= f.target[j] >= 0
            f.dash = step.nulls == (b"-", b"")
            f.n_nulls = len(step.nulls)
            for j in range(f.n_nulls):
                text = step.nulls[j]
                f.nulls[j].n = len(text)
                memcpy(f.nulls[j].text, <const char *> text, len(text))
            if f.required or f.sum:
                self.must[i // 64] |= <uint64_t> 1 << (i % 64)
        self._load_tree(plan)
        self.s.fields, self.s.nodes, self.s.edges, self.s.must = self.fields, self.nodes, self.edges, self.must
        self.s.n_fields = n
        self.s.shape, self.s.has_header = plan.shape, plan.has_header
        self.s.needs_time, self.s.zoned = plan.needs_time, plan.zoned
        self.s.ambiguous = any(step.ahead or step.form == FORMS.index("CLIENT") for step in plan.steps)
        self._load_texts(plan)

    cdef int _load_tree(self, plan) except -1:
        """The tree of keys, and the table that finds an edge by its node and label."""
        cdef int i
        cdef size_t at, size = 2
        cdef bytes text
        while size < 2 * <size_t> len(plan.edges):
            size *= 2
        self.lookup = <int32_t *> malloc(size * sizeof(int32_t))
        if not self.lookup:
            raise MemoryError
        memset(self.lookup, 0xFF, size * sizeof(int32_t))
        for i, (first, count, field) in enumerate(plan.nodes):
            self.nodes[i].edges, self.nodes[i].n_edges, self.nodes[i].field = first, count, field
            for j in range(first, first + count):
                self.edges[j].node = i
        for i, (label, child) in enumerate(plan.edges):
            text = label
            self.edges[i].text, self.edges[i].n = <const uint8_t *> <const char *> text, <uint32_t> len(text)
            self.edges[i].child = child
            at = elf_hash64(self.edges[i].text, self.edges[i].n, <uint64_t> self.edges[i].node) & (size - 1)
            while self.lookup[at] >= 0:
                at = (at + 1) & (size - 1)
            self.lookup[at] = i
        self.s.lookup, self.s.lookup_mask = self.lookup, <uint32_t> (size - 1)
        return 0

    cdef void _load_texts(self, plan):
        cdef bytes text = plan.prefix
        self.s.prefix, self.s.prefix_n = <const uint8_t *> <const char *> text, len(text)
        text = plan.skip_prefix
        self.s.skip_prefix, self.s.skip_prefix_n = <const uint8_t *> <const char *> text, len(text)
        text = plan.comment
        self.s.comment, self.s.comment_n = <const uint8_t *> <const char *> text, len(text)

    def strings(self, int slot):
        """The dictionary of a string slot."""
        return self.dictionaries[slot]

    @property
    def nbytes(self):
        """Bytes of the buffers, without the dictionaries."""
        cdef size_t row = 0
        cdef int i
        for i in range(self.s.n_slots):
            row += sizeof(int32_t) if self.columns[i].strings else sizeof(int64_t) + 1
        return row * self.room + self.tail_room + self.s.n_slots * ELF_STRIP * sizeof(elf_span)

    def begin(self):
        """Drop the results of the last block."""
        self.rows = 0
        self.s.lines = self.s.invalid_utf8 = self.s.base_row = self.s.line_index = 0
        self.s.n_rejects = 0
        self.s.n_samples = self.s.n_lost = self.s.out_of_memory = 0
        if self.s.ever:
            memset(self.s.ever, 0, (self.s.n_fields // 64 + 1) * sizeof(uint64_t))
        memset(self.s.rejects, 0, sizeof(self.s.rejects))

    def feed(self, const uint8_t[::1] block, size_t at, spans=None):
        """Parse the lines of `block` from offset `at` on, to its end or to a header line. Returns where that line begins, or
        the block's length. spans: for REGEX, int32 (lines, fields, 2): begin and end within the line of each group. O(bytes).
        """
        cdef const int32_t[::1] flat
        cdef size_t n = block.shape[0], safe, left
        cdef const uint8_t *start
        cdef size_t done
        if at >= n:
            return n
        if spans is not None and spans.size:
            flat = spans.reshape(-1)
            self.s.spans = &flat[0]
        start = &block[0]
        # Whole lines that end well before the block does are read in place; the last are copied, to be padded.
        safe = n - ELF_PAD if n - at > ELF_PAD else at
        while safe > at and start[safe - 1] != 10:
            safe -= 1
        left = n - safe
        if self.tail_room < left + ELF_PAD + 1:
            free(self.tail)
            self.tail_room = 0
            self.tail = <uint8_t *> malloc(left + ELF_PAD + 1)
            if not self.tail:
                raise MemoryError
            self.tail_room = left + ELF_PAD + 1
        memcpy(self.tail, start + safe, left)
        memset(self.tail + left, 10, ELF_PAD + 1)
        if start[n - 1] != 10:
            left += 1
        with nogil:
            done = at + self._run(start + at, start + safe)
            if done == safe and not self.s.at_header:
                done = safe + self._run(self.tail, self.tail + left)
        return min(done, n)

    cdef size_t _run(self, const uint8_t *p, const uint8_t *stop) except? 0xFFFFFFFFFFFFFFFF nogil:
        """Parse the lines in [p, stop), each with its newline, strip by strip. Returns the bytes read."""
        cdef const uint8_t *start = p
        self.s.at_header = 0
        while p < stop and not self.s.at_header:
            self.s.base_row = <int64_t> self.rows
            p = elf_tokenize(&self.s, p, stop, self.wide)
            if self.s.out_of_memory:
                with gil:
                    raise MemoryError
            self._keep()
        return p - start

    cdef int _keep(self) except -1 nogil:
        """Move a strip to the columns."""
        cdef int i, n = self.s.row
        if n == 0:
            elf_release(&self.s)
            return 0
        if self.rows + n > self.room:
            self._widen(self.rows + n)
        for i in range(self.s.n_slots):
            if self.columns[i].strings:
                _intern(self.columns[i].strings, self.s.slots[i].spans, n, self.hashes, self.columns[i].codes + self.rows)
            else:
                memcpy(self.columns[i].values + self.rows, self.s.slots[i].values, n * sizeof(int64_t))
                memcpy(self.columns[i].states + self.rows, self.s.slots[i].state, n)
        self.rows += n
        elf_release(&self.s)
        return 0

    cdef int _widen(self, size_t rows) except -1 nogil:
        cdef size_t room = max(rows, self.room * 2, <size_t> 4 * ELF_STRIP)
        cdef int i
        for i in range(self.s.n_slots):
            self._reserve(i, room)
        self.room = room
        return 0

    cdef int _reserve(self, int slot, size_t room) except -1 nogil:
        cdef elf_column *column = &self.columns[slot]
        cdef void *moved
        if room == 0:
            return 0
        if column.strings:
            moved = realloc(column.codes, room * sizeof(int32_t))
            if moved:
                column.codes = <int32_t *> moved
        else:
            moved = realloc(column.values, room * sizeof(int64_t))
            if moved:
                column.values = <int64_t *> moved
                moved = realloc(column.states, room)
                if moved:
                    column.states = <uint8_t *> moved
        if not moved:
            with gil:
                raise MemoryError
        return 0

    def codes(self, int slot):
        """The codes of a string slot in the block: int32 (rows,), a copy."""
        out = np.empty(self.rows, dtype=np.int32)
        cdef int32_t[::1] view = out
        if self.rows:
            memcpy(&view[0], self.columns[slot].codes, self.rows * sizeof(int32_t))
        return out

    def numbers(self, int slot):
        """The values of a slot of numbers, int64 (rows,), and which are not NULL, bool (rows,) or None if all; copies."""
        out = np.empty(self.rows, dtype=np.int64)
        state = np.empty(self.rows, dtype=np.uint8)
        cdef int64_t[::1] values = out
        cdef uint8_t[::1] states = state
        if self.rows:
            memcpy(&values[0], self.columns[slot].values, self.rows * sizeof(int64_t))
            memcpy(&states[0], self.columns[slot].states, self.rows)
        valid = state == 1
        return out, None if valid.all() else valid

    def lost_rows(self, int slot):
        """The rows of the block whose value did not convert: int64, of a slot of numbers."""
        state = np.empty(self.rows, dtype=np.uint8)
        cdef uint8_t[::1] states = state
        if self.rows:
            memcpy(&states[0], self.columns[slot].states, self.rows)
        return np.flatnonzero(state == 3)

    def lost_samples(self):
        """(field, line, offset, length) of the first values since `feed` that did not convert; the block must still be valid."""
        cdef int i
        out = []
        for i in range(self.s.n_lost):
            line = self.s.lost[i].line
            end = line
            while end[0] != 10 and end - line < 4096:
                end += 1
            out.append((self.s.lost[i].field, PyBytes_FromStringAndSize(<const char *> line, end - line),
                        self.s.lost[i].at, self.s.lost[i].detail))
        self.s.n_lost = 0
        return out

    def present(self, fields):
        """Whether any line of the block had one of these fields, by their numbers in the plan."""
        for field in fields:
            if self.s.ever[field // 64] >> <uint64_t> (field % 64) & 1:
                return True
        return False

    def counts(self):
        """(rows, lines, lines with invalid UTF-8, {reason's number: lines}) of the block."""
        rejects = {i: self.s.rejects[i] for i in range(R_COUNT) if self.s.rejects[i]}
        return self.rows, self.s.lines, self.s.invalid_utf8, rejects

    def reject_rows(self):
        """For each rejected line of the block the index of the next parsed row: int32."""
        out = np.empty(self.s.n_rejects, dtype=np.int32)
        cdef int32_t[::1] view = out
        if self.s.n_rejects:
            memcpy(&view[0], self.s.reject_rows, self.s.n_rejects * sizeof(int32_t))
        return out

    def samples(self):
        """(reason, line, offset, field or -1, detail) of the rejects sampled since `feed`; the block must still be valid."""
        cdef int i
        out = []
        for i in range(self.s.n_samples):
            line = PyBytes_FromStringAndSize(<const char *> self.s.samples[i].line, min(self.s.samples[i].n, 4096))
            out.append((self.s.samples[i].reason, line, self.s.samples[i].at, self.s.samples[i].field, self.s.samples[i].detail))
        self.s.n_samples = 0
        return out

    cdef int64_t _zone_offset(self, int64_t quarter) noexcept:
        try:
            return self.zone(quarter)
        except Exception:
            return 0

    cdef int _parse_time(self, int field, const uint8_t *p, size_t n, int64_t *micros, int *zoned) noexcept:
        try:
            found = self.strptime(field, PyBytes_FromStringAndSize(<const char *> p, n))
            if found is None:
                return 0
            micros[0], zoned[0] = found
            return 1
        except Exception:
            return 0
