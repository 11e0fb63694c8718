# cython: boundscheck=False, wraparound=False, cdivision=True
"""`Timers` of elf.agent.node.timers, compiled: it is used several times for each message of a mesh.

Each core has a slot while any entry of it is in the heap: its earliest moment, its owner, and how many entries there are. Entries
are plain numbers, so the heap of a node is a few cache lines.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport free, realloc

cdef int64_t NEVER = INT64_MAX


cdef struct Entry:
    int64_t at
    int64_t made
    Py_ssize_t slot


cdef struct Slot:
    int64_t at  # the earliest entry that counts; NEVER: none does
    Py_ssize_t entries


cdef inline bint earlier(Entry one, Entry other) noexcept:
    return one.at < other.at or (one.at == other.at and one.made < other.made)


cdef class Timers:
    cdef dict _places  # core -> its slot
    cdef list _cores  # slot -> core, None where it is free
    cdef list _owners
    cdef list _vacant
    cdef Entry* _heap
    cdef Slot* _slots
    cdef Py_ssize_t _size, _heap_room, _slot_room
    cdef int64_t _made

    def __cinit__(self):
        self._places, self._cores, self._owners, self._vacant = {}, [], [], []

    def __dealloc__(self):
        free(self._heap)
        free(self._slots)

    @property
    def next_us(self):
        while self._size:
            if self._slots[self._heap[0].slot].at == self._heap[0].at:
                return self._heap[0].at
            self._pop()
        return None

    def watch(self, core, owner=None):
        deadline = core.deadline
        if deadline is None:
            return
        cdef int64_t at = deadline
        place = self._places.get(core)
        cdef Py_ssize_t slot
        if place is None:
            slot = self._settle(core, owner)
        else:
            slot = place
            if at >= self._slots[slot].at:
                return
        self._slots[slot].at = at
        self._slots[slot].entries += 1
        self._push(at, slot)

    def forget(self, core):
        place = self._places.pop(core, None)
        if place is None:
            return
        cdef Py_ssize_t slot = place
        self._slots[slot].at = NEVER
        self._cores[slot] = self._owners[slot] = None

    def refresh(self):
        cdef int64_t at
        while self._size:
            at = self._heap[0].at
            if self._slots[self._heap[0].slot].at != at:
                self._pop()
                continue
            deadline = self._cores[self._heap[0].slot].deadline
            if deadline is None:
                self._slots[self._heap[0].slot].at = NEVER
                self._pop()
            elif deadline > at:
                self._put_off(deadline)
            else:
                break

    def is_watched(self, core):
        deadline = core.deadline
        if deadline is None:
            return True
        place = self._places.get(core)
        return place is not None and self._slots[<Py_ssize_t>place].at <= <int64_t>deadline

    def due(self, int64_t now):
        cdef list out = []
        cdef int64_t at
        cdef Py_ssize_t slot
        while self._size:
            at, slot = self._heap[0].at, self._heap[0].slot
            if self._slots[slot].at != at:  # an earlier one took its place
                self._pop()
                continue
            if at > now:
                break
            core = self._cores[slot]
            deadline = core.deadline
            if deadline is not None and deadline > now:
                self._put_off(deadline)
                continue
            if deadline is not None:
                out.append((core, self._owners[slot]))
            self._slots[slot].at = NEVER
            self._pop()
        return out

    cdef Py_ssize_t _settle(self, core, owner) except -1:
        cdef Py_ssize_t slot
        if self._vacant:
            slot = self._vacant.pop()
            self._cores[slot], self._owners[slot] = core, owner
        else:
            slot = len(self._cores)
            if slot == self._slot_room:
                self._slots = <Slot*>grown(self._slots, &self._slot_room, sizeof(Slot))
            self._cores.append(core)
            self._owners.append(owner)
        self._slots[slot].entries = 0
        self._slots[slot].at = NEVER
        self._places[core] = slot
        return slot

    cdef int _push(self, int64_t at, Py_ssize_t slot) except -1:
        if self._size == self._heap_room:
            self._heap = <Entry*>grown(self._heap, &self._heap_room, sizeof(Entry))
        self._made += 1
        cdef Entry entry = Entry(at, self._made, slot)
        cdef Py_ssize_t place = self._size, above
        self._size += 1
        while place:
            above = (place - 1) >> 1
            if not earlier(entry, self._heap[above]):
                break
            self._heap[place] = self._heap[above]
            place = above
        self._heap[place] = entry
        return 0

    cdef int _put_off(self, deadline) except -1:
        """The first entry counts later."""
        cdef Entry entry = Entry(deadline, self._made + 1, self._heap[0].slot)
        self._made += 1
        self._slots[entry.slot].at = entry.at
        self._sink(entry)
        return 0

    cdef int _pop(self) except -1:
        """The first entry is over; a core without any is forgotten."""
        cdef Py_ssize_t slot = self._heap[0].slot
        self._size -= 1
        if self._size:
            self._sink(self._heap[self._size])
        self._slots[slot].entries -= 1
        if not self._slots[slot].entries:
            if self._cores[slot] is not None:
                del self._places[self._cores[slot]]
            self._cores[slot] = self._owners[slot] = None
            self._vacant.append(slot)
        return 0

    cdef void _sink(self, Entry entry) noexcept:
        """Into the first place, and down from there."""
        cdef Py_ssize_t place = 0, below = 1
        while below < self._size:
            if below + 1 < self._size and earlier(self._heap[below + 1], self._heap[below]):
                below += 1
            if not earlier(self._heap[below], entry):
                break
            self._heap[place] = self._heap[below]
            place, below = below, 2 * below + 1
        self._heap[place] = entry


cdef void* grown(void* memory, Py_ssize_t* room, size_t width) except NULL:
    """The same with more room."""
    cdef Py_ssize_t wanted = 2 * room[0] if room[0] else 8
    cdef void* larger = realloc(memory, wanted * width)
    if larger is NULL:
        raise MemoryError
    room[0] = wanted
    return larger
