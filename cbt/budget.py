"""The memory budget: one cap for all memory of a process, and the order in which holders free memory when it is reached.

Every holder reports its memory: trees through `charge` and `release`, all others (fronts, dictionaries) through `reserve`;
fragments are kept here. Above the cap, the largest uncompressed root buffers are first compressed into their trees, and then the
coldest compressed fragments are written to the spill file. Fragments that will seldom be read go there at once (`cool`).
One thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from elf.cbt._kernel import trim_memory
from elf.cbt.frame import FAST, SMALL, pack, unpack_scattered
from elf.cbt.rows import Op, Rows
from elf.cbt.spill import Extent, SpillFile

FRAGMENT_OVERHEAD_BYTES = 320
"""Memory of a fragment besides its frame: the objects, lists and tables that refer to it."""
ROWS_OVERHEAD_BYTES = 900
"""Memory of an unpacked fragment's seven arrays besides their data: more than the rows of a small one."""


ALLOCATOR_PARTS = 5
"""One part in so many of the cap is reserved for allocations that are too short-lived to be charged."""
UNACCOUNTED_PARTS = 2
"""Memory that no holder has reported (data in transit, holes in the heap, code loaded meanwhile) counts too, up to one part in so
many of the cap: other uses of the process must not starve its trees."""
TRIM_PARTS = 16
"""Freed memory is returned to the system when memory is short and one part in so many of the cap was freed since the last
time."""


RAW_PARTS, RAW_BYTES_MAX = 16, 64 << 20
"""The newest fragments stay unpacked, up to one part in so many of the cap and this many bytes: they are soon split or merged
again, and packing them each time would cost more than all else."""


class Buffered(Protocol):
    """A holder of uncompressed rows that can compress them."""

    @property
    def buffer_bytes(self) -> int: ...

    def compress(self) -> None: ...


class Fragment:
    """Rows of a node: unpacked while they are new, then packed in a frame, then in the spill file. Made by `Budget.keep`, or, of
    packed bytes, by `Budget.keep_packed`."""

    __slots__ = ("count", "extent", "frame", "ops", "raw_bytes", "rows", "shared")

    def __init__(self, rows: Rows | None, ops: Sequence[Op], frame: bytes | None = None) -> None:
        self.rows, self.ops, self.frame = rows, ops, frame
        self.extent: Extent | None = None
        self.shared = 0  # number of holders beyond the first
        self.count, self.raw_bytes = (len(rows), rows.nbytes) if rows is not None else (0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        if self.rows is not None:
            return FRAGMENT_OVERHEAD_BYTES + ROWS_OVERHEAD_BYTES + self.raw_bytes
        return FRAGMENT_OVERHEAD_BYTES + (len(self.frame) if self.frame is not None else 0)

    @property
    def spilled_bytes(self) -> int:
        return self.extent.length if self.extent is not None else 0


class Budget:
    """`cap_bytes` of memory, shared by all trees of a process. `spill_dir`: folder of the spill file (default TMPDIR).
    `resident`: returns the process's memory in bytes. Memory that it had at the start does not count (`bare_bytes`; by default,
    what it has when this is created).

    The attribute `cap_bytes` is the part that holders may use: the cap without the allocator's part.
    """

    def __init__(
        self,
        cap_bytes: int,
        spill_dir: Path | None = None,
        resident: Callable[[], int] | None = None,
        bare_bytes: int | None = None,
    ) -> None:
        self.cap_bytes, self.spill_dir = cap_bytes - cap_bytes // ALLOCATOR_PARTS, spill_dir
        self._charged = 0
        self._reserved: dict[str, int] = {}
        self._in_memory: OrderedDict[Fragment, None] = OrderedDict()  # coldest first
        self._raw: OrderedDict[Fragment, None] = OrderedDict()  # the unpacked ones, coldest first
        self._raw_bytes = 0
        self._spill = SpillFile(spill_dir)
        self._trees: WeakSet[Buffered] = WeakSet()
        self._settling = False
        self._freed = 0
        self._orphans: deque[tuple[Sequence[Fragment], int]] = deque()
        self._resident = resident
        self._bare = bare_bytes if bare_bytes is not None else resident() if resident is not None else 0
        self._unaccounted = 0
        self.spilled_total = 0

    @property
    def used(self) -> int:
        """Bytes of memory of all holders, and memory that no holder has reported."""
        return self._held + self._unaccounted

    @property
    def _held(self) -> int:
        return self._charged + sum(self._reserved.values())

    def by_owner(self) -> dict[str, int]:
        """Bytes of memory held by trees and fragments ("panes"), and by each other holder."""
        return {"panes": self._charged} | self._reserved

    @property
    def spilled(self) -> int:
        """Bytes of disk in use."""
        return self._spill.used

    @property
    def short(self) -> bool:
        """Whether more than half of the cap is in use, so that saving memory is worth time."""
        return self.used > self.cap_bytes // 2

    def register(self, tree: Buffered) -> None:
        self._trees.add(tree)

    def reserve(self, name: str, size: int) -> None:
        """Report that the holder `name` now holds `size` bytes. May compress and spill. Raises OSError."""
        if size:
            self._reserved[name] = size
        else:
            self._reserved.pop(name, None)
        self.settle()

    def reserve_all(self, sizes: Mapping[str, int]) -> None:
        """The same for several holders at once."""
        self._reserved = {name: size for name, size in {**self._reserved, **sizes}.items() if size}
        self.settle()

    def charge(self, size: int) -> None:
        self._charged += size

    def release(self, size: int) -> None:
        self._charged -= size

    @contextmanager
    def scratch(self, size: int) -> Iterator[None]:
        """Reserve memory within a `with` block. Fragments are spilled for it; trees are not compressed, because the caller may
        be a tree."""
        self._update()
        # A full disk must not stop the caller, which is moving rows; `settle` raises later.
        with suppress(OSError):
            self._spill_until(self.cap_bytes - size)
        self._charged += size
        try:
            yield
        finally:
            self._charged -= size

    def settle(self) -> None:
        """Free memory until the cap holds, if holders can. Raises OSError; all trees stay intact then.

        Root buffers keep a quarter of the cap at first, so that they are not emptied when they are nearly empty.
        """
        self._update()
        if self._settling or self.used <= self.cap_bytes:
            return
        self._settling = True
        try:
            self._compress_until(self.cap_bytes // 4)
            self._spill_until(self.cap_bytes)
            if self.used > self.cap_bytes:
                self._compress_until(0)
                self._spill_until(self.cap_bytes)
        finally:
            self._settling = False

    def give_back(self, freed: int) -> None:
        """`freed` bytes were freed: return them to the system if memory is or was short; the allocator would keep them."""
        self._freed += freed
        if self._freed > self.cap_bytes and (self.short or self.spilled):
            self._trim()

    def _trim(self) -> None:
        self._freed = 0
        trim_memory()

    def _update(self) -> None:
        """Measure the memory of the process that no holder has reported."""
        self._collect()
        if self._resident is None:
            return
        if self._measure() > self.cap_bytes and self._freed > self.cap_bytes // TRIM_PARTS:
            self._trim()
            self._measure()

    def _measure(self) -> int:
        assert self._resident is not None
        grown = self._resident() - self._bare
        self._unaccounted = min(max(grown - self._held, 0), self.cap_bytes // UNACCOUNTED_PARTS)
        return grown

    def _compress_until(self, buffers_bytes_max: int) -> None:
        for tree in sorted(self._trees, key=lambda tree: -tree.buffer_bytes):
            if self.used <= self.cap_bytes or sum(t.buffer_bytes for t in self._trees) <= buffers_bytes_max:
                return
            tree.compress()

    def _pack_until(self, used_bytes_max: int) -> None:
        while self._raw and self.used > used_bytes_max:
            self._pack(next(iter(self._raw)))

    def cool(self, fragment: Fragment) -> None:
        """Pack the rows of a fragment and write them to the spill file: they will seldom be read. On a full disk they stay in
        memory, packed."""
        if fragment.rows is not None:
            self._pack(fragment, is_cold=True)
        if fragment.extent is None:
            with suppress(OSError):
                self._write(fragment)

    def _pack(self, fragment: Fragment, *, is_cold: bool = False) -> None:
        assert fragment.rows is not None
        self._drop_raw(fragment)
        self._charged -= fragment.nbytes
        fragment.frame = pack(fragment.rows, fragment.ops, SMALL if is_cold or self.short else FAST)
        fragment.rows = None
        self._charged += fragment.nbytes

    def _drop_raw(self, fragment: Fragment) -> None:
        del self._raw[fragment]
        self._raw_bytes -= fragment.nbytes

    def _spill_until(self, used_bytes_max: int) -> None:
        self._pack_until(used_bytes_max)
        while self._in_memory and self.used > used_bytes_max:
            self._write(next(iter(self._in_memory)))

    def _write(self, fragment: Fragment) -> None:
        """Move the frame of a packed fragment to the spill file. Raises OSError, and then moves nothing."""
        assert fragment.frame is not None
        fragment.extent = self._spill.write(fragment.frame)
        del self._in_memory[fragment]
        self._charged -= len(fragment.frame)
        self.spilled_total += len(fragment.frame)
        self._freed += len(fragment.frame)
        fragment.frame = None

    def keep(self, rows: Rows, ops: Sequence[Op]) -> Fragment:
        """Hold rows, which may be several ordered runs. Packs the coldest unpacked fragments; never spills: see `settle`."""
        if rows.pane.base is not None:
            rows = rows.copy()  # a view would keep all of its base array
        fragment = Fragment(rows, ops)
        self._charged += fragment.nbytes
        self._in_memory[fragment] = None
        self._raw[fragment] = None
        self._raw_bytes += fragment.nbytes
        while self._raw_bytes > min(self.cap_bytes // RAW_PARTS, RAW_BYTES_MAX):
            self._pack(next(iter(self._raw)))
        return fragment

    def keep_packed(self, frame: bytes) -> Fragment:
        """Hold bytes that the caller has packed; the coldest fragments are spilled to make room.

        Raises OSError if the disk is full, and then holds nothing.
        """
        self._spill_until(self.cap_bytes - len(frame) - FRAGMENT_OVERHEAD_BYTES)
        fragment = Fragment(None, (), frame)
        self._charged += fragment.nbytes
        self._in_memory[fragment] = None
        return fragment

    def read(self, fragment: Fragment) -> Rows:
        """The fragment's rows, from memory or disk; not to be modified. Raises OSError."""
        if fragment.rows is not None:
            return fragment.rows
        return unpack_scattered(self.read_packed(fragment), 2 * fragment.raw_bytes)

    def read_packed(self, fragment: Fragment) -> bytes:
        """The packed bytes of a fragment. Raises OSError."""
        if fragment.frame is not None:
            return fragment.frame
        assert fragment.extent is not None
        return self._spill.read(fragment.extent)

    def share(self, fragment: Fragment) -> None:
        """Add a holder, which calls `free` too. The rows of a fragment never change."""
        fragment.shared += 1

    def free(self, fragment: Fragment) -> None:
        """Release a fragment; the last holder's call frees its memory."""
        if fragment.shared:
            fragment.shared -= 1
            return
        self._charged -= fragment.nbytes
        self._freed += fragment.nbytes
        if fragment.extent is not None:
            self._spill.free(fragment.extent)
        else:
            del self._in_memory[fragment]
            if fragment in self._raw:
                self._drop_raw(fragment)

    def abandon(self, fragments: Sequence[Fragment], charged: int = 0) -> None:
        """`free` fragments and `release` charged bytes later, for a holder that is being destroyed. Callable in any thread."""
        self._orphans.append((fragments, charged))

    def _collect(self) -> None:
        while self._orphans:
            fragments, charged = self._orphans.popleft()
            self._charged -= charged
            for fragment in fragments:
                self.free(fragment)

    def close(self) -> None:
        """Remove the spill file. Close the trees first."""
        self._spill.close()

    def check(self) -> None:
        """Raise AssertionError unless the counted bytes are right."""
        assert self._charged >= sum(fragment.nbytes for fragment in self._in_memory)
        for fragment in self._in_memory:
            assert fragment.extent is None
            assert (fragment.rows is None) == (fragment.frame is not None) == (fragment not in self._raw)
        assert self._raw_bytes == sum(fragment.nbytes for fragment in self._raw)
        self._spill.check()
