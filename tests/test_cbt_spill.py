"""The spill file against a dict of bytes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt.budget import Budget
from elf.cbt.spill import Extent, SpillFile


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20_000), st.integers(0, 99)), max_size=40))
def test_what_is_written_is_read_until_it_is_freed(steps: list[tuple[bool, int, int]]) -> None:
    file = SpillFile(None)
    held: list[tuple[Extent, bytes]] = []
    for write, size, which in steps:
        if write:
            data = bytes([which]) * (size + 1)
            held.append((file.write(data), data))
        elif held:
            extent, _ = held.pop(which % len(held))
            file.free(extent)
        file.check()
        assert [file.read(extent) for extent, _ in held] == [data for _, data in held]
    for extent, _ in held:
        file.free(extent)
    assert (file.used, file.size) == (0, 0)
    file.close()


def test_freed_space_is_used_again() -> None:
    file = SpillFile(None)
    extents = [file.write(b"x" * 10_000) for _ in range(10)]
    size = file.size
    for extent in extents[2:8]:
        file.free(extent)
    for _ in range(6):
        file.write(b"y" * 10_000)
    assert file.size == size
    file.close()


def test_a_failed_write_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    kept = file.write(b"kept")

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            file.write(b"lost")
    file.check()
    assert file.read(kept) == b"kept"
    assert file.size == 4096
    file.close()


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(OSError, match="No such file"):
        SpillFile(Path("/nonexistent/elf")).write(b"x")


def test_reservations_make_fragments_give_way() -> None:
    budget = Budget(12_600)
    fragments = [budget.keep(bytes([i]) * 1000, 1, 1000) for i in range(7)]
    assert (budget.used, budget.spilled) == (7 * 1320, 0)
    budget.reserve("front", 4_000)
    assert budget.used <= budget.cap_bytes == 10_500, "a sixth of 12,600 is the allocator's"
    assert [fragment.extent is None for fragment in fragments] == [False] * 3 + [True] * 4, "the coldest go"
    assert [budget.read(fragment) for fragment in fragments] == [bytes([i]) * 1000 for i in range(7)]
    budget.reserve("front", 0)
    budget.check()
    for fragment in fragments:
        budget.free(fragment)
    assert (budget.used, budget.spilled) == (0, 0)
    budget.close()
