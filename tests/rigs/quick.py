"""Parameters of simulated meshes in tests."""

from __future__ import annotations

from elf.srt.messages.parameters import MS, SECOND, Parameters

QUICK = Parameters(
    flush_us=300 * MS,
    emit_us=400 * MS,
    park_us=1_700 * MS,
    hold_us_max=4 * SECOND,
    unsent_us_max=1_300 * MS,
    link_dead_us=2 * SECOND,
    suspect_us=1 * SECOND,
    life_us=2 * SECOND,
    parent_timeout_us=5 * SECOND,
    dead_us=15 * SECOND,
    transfer_us_max=3 * SECOND,
    disk_us_max=6 * SECOND,
    snapshot_entries=200,
    seat_retry_us=200 * MS,
    seat_retry_us_max=3 * SECOND,
)
"""Timeouts short enough to expire within twenty virtual seconds."""
