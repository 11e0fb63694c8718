"""The spill file against a dict of bytes."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt._kernel import make_rows
from elf.cbt.budget import FRAGMENT_OVERHEAD_BYTES, Budget
from elf.cbt.rows import Op, Rows
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

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            file.write(b"lost")
    file.check()
    assert file.read(kept) == b"kept"
    assert file.size == 4096
    file.close()


def test_what_is_freed_once_the_file_is_closed_was_gone_with_it() -> None:
    """The holder of a window may free it last."""
    file = SpillFile(None)
    extent = file.write(b"x" * 100)
    file.close()
    file.free(extent)
    assert (file.used, file.size) == (0, 0)


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(OSError, match="No such file"):
        SpillFile(Path("/nonexistent/elf")).write(b"x")


def full(fd: int, data: bytes, offset: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def random_row(seed: int) -> Rows:
    keys = np.frombuffer(random.Random(seed).randbytes(1000), dtype=np.uint8).copy()
    return make_rows(
        0, keys, np.array([1000], dtype=np.uint64), None, np.ones((1, 1), dtype=np.int64), [Op.SUM64]
    )


def test_fragments_are_packed_when_they_are_no_longer_new_and_spilled_when_memory_is_short() -> None:
    # A fifth is the allocator's; the newest stay as they are, up to a sixteenth of the rest.
    budget = Budget(50_000)
    fragments = [budget.keep(random_row(i), [Op.SUM64]) for i in range(18)]
    assert [fragment.rows is not None for fragment in fragments] == [False] * 17 + [True]
    assert budget.spilled == 0
    budget.check()
    budget.reserve("front", 28_000)
    assert budget.used <= budget.cap_bytes == 40_000
    assert [fragment.rows for fragment in fragments] == [None] * 18
    spilled = [fragment.extent is not None for fragment in fragments]
    assert spilled == sorted(spilled, reverse=True), "the coldest go first"
    assert 0 < sum(spilled) < 18
    budget.check()
    for i, fragment in enumerate(fragments):
        assert budget.read(fragment).keys.tobytes() == random_row(i).keys.tobytes()
    budget.reserve("front", 0)
    for fragment in fragments:
        budget.free(fragment)
    assert (budget.used, budget.spilled) == (0, 0)
    budget.close()


def test_what_is_cold_goes_to_disk_and_stays_in_memory_while_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Budget(1 << 20)
    cold, hot = (budget.keep(random_row(i), [Op.SUM64]) for i in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        budget.cool(cold)
    assert (cold.rows, cold.extent) == (None, None)
    assert budget.spilled == 0
    budget.check()
    budget.cool(cold)
    assert (cold.frame, budget.used) == (None, FRAGMENT_OVERHEAD_BYTES + hot.nbytes)
    assert budget.spilled == 4096
    budget.cool(cold)
    assert budget.spilled == 4096, "once"
    assert budget.read(cold).keys.tobytes() == random_row(0).keys.tobytes()
    budget.check()
    for fragment in (cold, hot):
        budget.free(fragment)
    assert (budget.used, budget.spilled) == (0, 0)
    budget.close()


def test_the_file_has_no_name_and_nobody_else_reads_it(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    file.write(b"x")
    assert list(tmp_path.iterdir()) == []
    opened = [
        os.stat(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_spill(int(fd), tmp_path)
    ]
    assert [(each.st_mode & 0o777, each.st_nlink) for each in opened] == [(0o600, 0)]
    file.close()


def is_spill(fd: int, folder: Path) -> bool:
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/elf-spill-")
    return False


def test_unaccounted_memory_counts_up_to_a_half() -> None:
    """The process has more memory than is accounted for: holes, code. What it had before the budget was created does not
    count."""
    resident = [1_000_000]
    budget = Budget(25_000, resident=lambda: resident[0])
    budget.reserve("front", 10_000)
    assert budget.used == 10_000
    resident[0] += 13_000
    budget.reserve("front", 10_000)
    assert budget.used == 13_000
    resident[0] += 1_000_000
    budget.settle()
    assert budget.used == 10_000 + budget.cap_bytes // 2
    resident[0] -= 1_000_000
    assert budget.used == 10_000 + budget.cap_bytes // 2  # until somebody looks again
    budget.settle()
    assert budget.used == 13_000
    budget.close()
