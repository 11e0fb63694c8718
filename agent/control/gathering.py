"""Collects windows that come in parts, at a sink, until each is whole.

    part                                     | then
    -----------------------------------------+-----------------------------------------------------------
    of a window larger than `bytes_max`      | PartReply with `room`, to each part
    of a new window, or a higher revision    | room is reserved for the whole window, and a gathering begins; PartReply
    of a new window, and no room             | gatherings without a new part for `IDLE_US` are dropped; else no answer
    of a lower revision than is gathered     | dropped
    any other part                           | kept; PartReply
    the last missing part                    | the window is whole and is delivered, once; PartReply
    of a window that is whole                | PartReply; the ledger sends the final answer
    invalid, or contradicting other parts    | PeerError; the gathering is dropped

A part belongs to one revision; parts of two revisions are never joined. A gathering that was lost, with its process or for lack
of room, starts again under a higher `begun`, by which the sender knows that it has to send all parts again.

Invariants (`check`): at most twice `bytes_max` is reserved, or room for a single window.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, overload

import msgspec
from msgspec.structs import replace

from elf.errors import PeerError
from elf.jobmaster.delivery.chunks import PARTS_MAX, fragment_of
from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import Micros, Revision
from elf.srt.messages.results import PaneParts, PartReply, Put, PutPart

IDLE_US = 10_000_000
"""A master repeats its parts within a second."""
WINDOWS_MAX = 64
BEGUN_LIFE = 1 << 24
"""Gatherings in one life of a process, at most."""

Window = tuple[JobId, str, Micros, str]
"""(job, version, start, name of the sink)."""


class PartStore(Protocol):
    """Holds the parts of one window."""

    def put(self, data: bytes) -> Any:
        """Raises OSError when there is no room."""

    def get(self, place: Any) -> bytes:
        """Raises OSError."""


class InMemory:
    """Keeps parts in memory."""

    def put(self, data: bytes) -> bytes:
        return data

    def get(self, place: bytes) -> bytes:
        return place


class OnDisk:
    """Keeps parts in a file without a name, which goes with the process or with the last reference to its parts."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        import tempfile

        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._end = 0

    def put(self, data: bytes) -> tuple[int, int]:
        at, left = self._end, memoryview(data)
        while left:
            written = os.pwrite(self._file.fileno(), left, self._end)
            self._end, left = self._end + written, left[written:]
        return at, len(data)

    def get(self, place: tuple[int, int]) -> bytes:
        return os.pread(self._file.fileno(), place[1], place[0])


class StoredParts(Sequence[tuple[bytes, bool]]):
    """A pane's parts, each read from its store when it is needed."""

    def __init__(self, store: PartStore, places: Sequence[tuple[Any, bool]], sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self._store, self._places = store, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> tuple[bytes, bool]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[bytes, bool]]: ...
    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        place, more = self._places[at]
        return self._store.get(place), more

    def __iter__(self) -> Iterator[tuple[bytes, bool]]:
        return ((self._store.get(place), more) for place, more in self._places)


class _Pane(msgspec.Struct):
    head: PaneParts
    places: list[tuple[Any, bool]]
    sizes: list[int]


class _Gathered(msgspec.Struct):
    revision: Revision
    of: int
    nbytes: int
    begun: int
    store: Any
    touched_us: int
    heads: dict[int, Put] = {}  # with rows, without panes
    panes: dict[int, list[_Pane]] = {}
    held_bytes: int = 0
    is_whole: bool = False

    @property
    def aside_bytes(self) -> int:
        return 0 if self.is_whole else max(self.nbytes, self.held_bytes)


class Gathering:
    """The parts of all windows at one sink. life: of the process. new_store: makes a store for the parts of a window."""

    def __init__(self, bytes_max: int, life: int = 0, new_store: Callable[[], PartStore] = InMemory) -> None:
        self.bytes_max, self._new_store = bytes_max, new_store
        self._windows: dict[Window, _Gathered] = {}
        self._begun = life * BEGUN_LIFE

    def step(self, part: PutPart, now: int) -> tuple[Put | None, PartReply | None]:
        """Take a part. Returns the window if it is whole now, and the answer. Raises PeerError, OSError if the store is full."""
        if part.nbytes > self.bytes_max or part.of > PARTS_MAX:
            return None, self._reply(part, 0, self.bytes_max)
        key = (part.job, part.version, part.start, part.sink)
        gathered = self._gathered(key, part, now)
        if gathered is None:
            return None, None
        gathered.touched_us = now
        if not gathered.is_whole and part.at not in gathered.heads:
            try:
                self._keep(gathered, part)
            except (PeerError, OSError):
                del self._windows[key]
                raise
        put = None
        if not gathered.is_whole and len(gathered.heads) == gathered.of:
            put = _join(gathered)
            gathered.is_whole, gathered.heads, gathered.panes, gathered.store = True, {}, {}, None
        return put, self._reply(part, gathered.begun)

    def forget(self, put: Put) -> None:
        """Drop a window that its sink's ledger has."""
        self._windows.pop((put.job, put.version, put.start, put.sink), None)

    @property
    def aside_bytes(self) -> int:
        """The room reserved for windows that are not whole."""
        return sum(each.aside_bytes for each in self._windows.values())

    def _reply(self, part: PutPart, begun: int, room: int = 0) -> PartReply:
        return PartReply(part.job, part.version, part.start, part.revision, part.at, begun, room, part.sink)

    def _gathered(self, key: Window, part: PutPart, now: int) -> _Gathered | None:
        """Rule Parts*: parts of one revision only; a higher revision drops the parts of a lower one."""
        found = self._windows.get(key)
        if found is not None and found.revision > part.revision:
            return None
        if found is None or found.revision < part.revision:
            self._windows.pop(key, None)
            if not self._make_room(part.nbytes, now):
                return None
            self._begun += 1
            found = self._windows[key] = _Gathered(
                part.revision, part.of, part.nbytes, self._begun, self._new_store(), now
            )
        if (found.of, found.nbytes) != (part.of, part.nbytes) or part.at >= part.of:
            del self._windows[key]
            raise PeerError("parts of a window that do not fit together")
        return found

    def _make_room(self, nbytes: int, now: int) -> bool:
        """Make room for a window. Returns whether there is room; a single window always has room."""
        while self.aside_bytes and (
            self.aside_bytes + nbytes > self.bytes_max or len(self._windows) >= WINDOWS_MAX
        ):
            idle = min(self._windows, key=lambda key: self._windows[key].touched_us)
            if 0 <= now - self._windows[idle].touched_us < IDLE_US:
                return False
            del self._windows[idle]
        while len(self._windows) >= WINDOWS_MAX:  # all of them whole
            del self._windows[next(iter(self._windows))]
        return True

    def _keep(self, gathered: _Gathered, part: PutPart) -> None:
        fragment = fragment_of(part.payload)
        about = (
            fragment.job,
            fragment.version,
            fragment.start,
            fragment.revision,
            fragment.ballot,
            fragment.sink,
        )
        if about != (part.job, part.version, part.start, part.revision, part.ballot, part.sink):
            raise PeerError("a part whose payload belongs to another window")
        panes = []
        for pane in fragment.panes:
            places = [(gathered.store.put(data), more) for data, more in pane.parts]
            sizes = [len(data) for data, _ in pane.parts]
            gathered.held_bytes += sum(sizes)
            panes.append(_Pane(replace(pane, parts=()), places, sizes))
        gathered.held_bytes += len(part.payload) if fragment.rows else 0
        if self.aside_bytes > max(self.bytes_max, 2 * gathered.nbytes):
            raise PeerError(
                f"a window of {gathered.held_bytes} bytes that was announced with {gathered.nbytes}"
            )
        gathered.heads[part.at] = replace(fragment, panes=())
        gathered.panes[part.at] = panes

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        aside = [each.aside_bytes for each in self._windows.values() if not each.is_whole]
        assert sum(aside) <= 2 * self.bytes_max or len(aside) <= 1
        assert all(len(each.heads) < each.of for each in self._windows.values() if not each.is_whole)


def _join(gathered: _Gathered) -> Put:
    panes: list[_Pane] = []
    rows: list[Any] = []
    for at in range(gathered.of):
        rows += gathered.heads[at].rows
        for pane in gathered.panes[at]:
            if panes and panes[-1].head.start == pane.head.start:
                panes[-1].places += pane.places
                panes[-1].sizes += pane.sizes
            else:
                panes.append(pane)
    made: list[PaneParts] = [
        replace(pane.head, parts=StoredParts(gathered.store, pane.places, pane.sizes)) for pane in panes
    ]
    return replace(gathered.heads[0], rows=tuple(rows), panes=tuple(made))
