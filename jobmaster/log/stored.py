"""A journal's records by key: which of them are valid, and their values, one at a time.

    records, in the order of the file -> `Needed`: the places of those that no later record has made obsolete
    places -> `Stored`: key -> values, each read and decoded on demand

So a starting process holds one record in memory at a time, however long the file is, and a rewrite of the file copies bytes by
their places. A place is (offset, length) in the file. No IO: the caller passes `read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from elf.jobmaster.log.log_order import InOrder
from elf.jobmaster.log.record_codec import RecordDecoder, head_of, part_in

Key = tuple[str, bytes]
Place = tuple[int, int]
Read = Callable[[int, int], bytes]


class Needed:
    """Places of the records that are needed. Memory: some 100 bytes for each."""

    def __init__(self) -> None:
        self.by_key: dict[Key, InOrder[Place]] = {}

    def note(self, at: int, data: bytes | memoryview) -> None:
        """Add the next record of the file, at offset `at`. Raises StateError for a record that this version cannot read."""
        key, replaces = head_of(data)
        if key not in self.by_key:
            self.by_key[key] = InOrder()
        self.by_key[key].note(part_in(data), (at, len(data)), replaces)

    def places(self) -> list[Place]:
        """All places, in the order of the file."""
        return sorted(place for places in self.by_key.values() for place in places.needed())


class Records(Sequence[Any]):
    """Values of one key, in order, each decoded on demand. Raises StateError for a damaged record."""

    def __init__(self, read: Read, places: Sequence[Place]) -> None:
        self._read, self._places = read, places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Any]:
        decoder = RecordDecoder()
        for place in self._places:
            yield decoder.decode(self._read(*place)).record

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        """O(all records of the key): decoding a record may need those before it."""
        return list(self)[index]


class Stored(Mapping[Key, Sequence[Any]]):
    """All values of a journal, by key. `close` releases the file. instead: values that replace those of a key, set at
    start-up."""

    def __init__(self, read: Read, needed: Needed, close: Callable[[], None] = lambda: None) -> None:
        self._read, self._needed, self.close = read, needed, close
        self.instead: dict[Key, Sequence[Any]] = {}

    def __getitem__(self, key: Key) -> Sequence[Any]:
        if key in self.instead:
            return self.instead[key]
        return Records(self._read, self._needed.by_key[key].counting())

    def __iter__(self) -> Iterator[Key]:
        return iter(self._needed.by_key | self.instead)

    def __len__(self) -> int:
        return len(self._needed.by_key | self.instead)
