# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Finds the group of each row of a family, and sorts the members of each group. Both release the GIL."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcmp

import numpy as np

cnp.import_array()

cdef enum:
    FEW = 24  # members that are sorted by insertion


def group_index(groups, rows):
    """Which group each family row belongs to: (index int64 (rows,), bounds int64 (groups + 1,), ascending bool).

    Both inputs are in (pane, hash) order, so this is a merge. Groups that share a hash are distinguished by their keys; only then
    can the index not be ascending. Once the rows are ordered by group, those of group g are [bounds[g], bounds[g + 1]).
    O(groups + rows). Raises ValueError for a row without a group.
    """
    cdef const int64_t[::1] group_pane = groups.pane
    cdef const uint64_t[::1] group_hash = groups.hash
    cdef const uint64_t[::1] group_ends = groups.ends
    cdef const uint8_t[::1] group_keys = groups.keys
    cdef const int64_t[::1] pane = rows.pane
    cdef const uint64_t[::1] hashes = rows.hash
    cdef const uint64_t[::1] ends = rows.ends
    cdef const uint8_t[::1] keys = rows.keys
    cdef const uint32_t[::1] split = rows.split
    cdef size_t n = len(group_pane), m = len(pane), at = 0, found, j, start, group_start
    cdef size_t last = 0
    cdef bint ascending = True
    index, bounds = np.empty(m, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    cdef int64_t[::1] to = index
    cdef int64_t[::1] bound = bounds
    with nogil:
        for j in range(m):
            while at < n and (
                group_pane[at] < pane[j] or (group_pane[at] == pane[j] and group_hash[at] < hashes[j])
            ):
                at += 1
            found = at
            if at + 1 < n and group_pane[at + 1] == pane[j] and group_hash[at + 1] == hashes[j]:
                start = ends[j - 1] if j else 0
                while found < n and group_pane[found] == pane[j] and group_hash[found] == hashes[j]:
                    group_start = group_ends[found - 1] if found else 0
                    if group_ends[found] - group_start == split[j] and (
                        split[j] == 0 or memcmp(&group_keys[group_start], &keys[start], split[j]) == 0
                    ):
                        break
                    found += 1
            if found >= n or group_pane[found] != pane[j] or group_hash[found] != hashes[j]:
                with gil:
                    raise ValueError(f"row {j} of a family has no group")
            ascending = ascending and found >= last
            last = found
            to[j] = found
            bound[found + 1] += 1
        for j in range(n):
            bound[j + 1] += bound[j]
    return index, bounds, ascending


cdef struct Member:
    int64_t number
    int64_t count


cdef int _compare(const void *a, const void *b) noexcept nogil:
    cdef int64_t left = (<const Member *> a).number, right = (<const Member *> b).number
    return (left > right) - (left < right)


def sorted_members(const int64_t[::1] bounds, const int64_t[::1] numbers, const int64_t[::1] counts):
    """Each group's members by their number: (numbers, counts), of which group g has [bounds[g], bounds[g + 1]).

    O(rows log rows of a group). A number occurs once in a group.
    """
    cdef size_t groups = len(bounds) - 1, m = len(numbers), g, i, j, start, stop
    cdef Member held
    out_numbers, out_counts = np.empty(m, dtype=np.int64), np.empty(m, dtype=np.int64)
    cdef int64_t[::1] to_number = out_numbers
    cdef int64_t[::1] to_count = out_counts
    cdef Member *members = <Member *> malloc((m + 1) * sizeof(Member))
    if members == NULL:
        raise MemoryError
    with nogil:
        for i in range(m):
            members[i].number = numbers[i]
            members[i].count = counts[i]
        for g in range(groups):
            start, stop = bounds[g], bounds[g + 1]
            if stop - start > FEW:
                qsort(members + start, stop - start, sizeof(Member), _compare)
                continue
            for i in range(start + 1, stop):
                held = members[i]
                j = i
                while j > start and members[j - 1].number > held.number:
                    members[j] = members[j - 1]
                    j -= 1
                members[j] = held
        for i in range(m):
            to_number[i] = members[i].number
            to_count[i] = members[i].count
    free(members)
    return out_numbers, out_counts
