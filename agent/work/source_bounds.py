"""Bounds of what a source of the mesh holds, and what it reports when its state folder is lost."""

from __future__ import annotations

RESCANS_MAX = 4
"""Files open for reading again, with a buffer of 256 KiB each."""
NOTICES_MAX = 256
UNSENT_BYTES = 512 << 10
"""Rows of one job that are cut before they are due: one frame."""
FULL = 2
"""So many times as much ends a turn in the middle: a cut at the log's end needs no second one for the lines behind it."""
PUBLISH_S, PUBLISH_BYTES = 1.0, 256 << 10
"""After a read that answers nobody, figures are published for other threads once in this time, or when as much was read."""
BUDGET_DIVISOR = 4
"""Rows gathered between cuts take at most the budget divided by this."""
STRINGS_DIVISOR, CUT_DIVISOR, BLOCK_DIVISOR = 16, 32, 128
"""Divisors of the budget: the quotients bound the dictionaries, the bytes of one cut, and the bytes of one block. If all paths
differ, rows are twice as large as their lines, and several copies of a cut exist at once: fronts, rows, entries that wait for the
log, records, a tree's fragments; and a restart reads entries back uncompressed."""
STATE_LOST = (
    "state_dir was empty, though the mesh knows this agent: of lines logged before this start a job counts only those in files "
    "that it knows already; windows that lack such lines do not count this agent; keep state_dir"
)
