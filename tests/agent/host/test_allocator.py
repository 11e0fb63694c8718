"""Calls of the C library's allocator, as often as an agent makes them."""

from __future__ import annotations

import gc

from elf.agent.host.allocator import free_bytes, give_back


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


def _ask() -> None:
    free_bytes()
    give_back()
