"""Calls of the C library's allocator, as often as an agent makes them."""

from __future__ import annotations

import gc
import os

import pytest

from elf.agent.host.allocator import free_bytes, give_back, resident_bytes


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


def _ask() -> None:
    free_bytes()
    give_back()
