"""Calls of the C library's allocator, as often as an agent makes them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from mmap import PROT_READ, mmap
from pathlib import Path

import pytest

from elf.agent.host.allocator import PAGE_BYTES, free_bytes, give_back, own_bytes, resident_bytes


def test_asking_each_second_for_what_is_free_leaves_nothing_behind() -> None:
    """An agent asks for months: 4 KB of types a time, in cycles, are 14 MiB an hour until they are collected."""
    _ask()
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(50):
            _ask()
        assert len(gc.get_objects()) - before < 10
    finally:
        gc.enable()


UNMAPPED = """
from elf.agent.host.startup import light_imports
light_imports()
import re, threading, numpy as np
from pathlib import Path
from elf.agent.host.allocator import unmap_libraries, _unwritten
def kib(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before, written, spans = kib("RssFile"), kib("RssAnon"), _unwritten()
unmap_libraries()
after = kib("RssFile")
assert after < before * 3 // 4 and abs(kib("RssAnon") - written) < 500, (before, after)
assert np.sort(np.arange(9)[::-1]).tolist() == list(range(9)) and float(np.linalg.det(np.eye(3))) == 1
maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
kinds = {line[1] for line in maps if tuple(int(at, 16) for at in line[0].split("-")) in spans}
assert len(spans) > 50 and kinds == {"r-xp", "r--p"}, kinds
relocated = [line for line in maps if line[1] == "r--p" and "numpy" in line[-1]]
assert any(tuple(int(at, 16) for at in line[0].split("-")) not in spans for line in relocated), "written, then read-only"
ended = threading.Event()
thread = threading.Thread(target=ended.wait)
thread.start()
mapped = kib("RssFile")
unmap_libraries()
assert kib("RssFile") >= mapped
ended.set()
print("done")
"""


@pytest.mark.process
def test_libraries_are_unmapped_and_come_back_while_the_process_has_no_threads() -> None:
    done = subprocess.run([sys.executable, "-c", UNMAPPED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.process
def test_a_forked_process_counts_its_own_memory() -> None:
    before, (out, into) = resident_bytes(), os.pipe()
    child = os.fork()
    if not child:
        taken = b"x" * (64 << 20)
        os.write(into, str(resident_bytes() + len(taken) % 2).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(out, 99)) > (64 << 20)
    assert abs(resident_bytes() - before) < 32 << 20
    os.close(out)
    os.close(into)


def test_pages_of_files_are_no_own_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(16 << 20))
    before, own = resident_bytes(), own_bytes()
    assert 0 < own < before
    with path.open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as mapped:
        assert sum(mapped[at] for at in range(0, 16 << 20, PAGE_BYTES)) == 0
        assert resident_bytes() - before > 12 << 20
        assert abs(own_bytes() - own) < 4 << 20


def _ask() -> None:
    free_bytes()
    give_back()
