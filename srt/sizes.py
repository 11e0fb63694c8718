"""What a message will take on the wire, estimated cheaply: for windows and bounds, which need not be exact."""

from __future__ import annotations

from elf.srt.messages import Append, Bundle, Commit, Install, Message, Resend, Split

MESSAGE_BYTES = 100
"""Most messages: a header, a job, a few numbers."""
CONTRIBUTION_BYTES = 40
"""A slot and a span."""
ROW_BYTES = 36
"""Pane, two hashes, length of the group's part of the key, end of the key."""
ID_BYTES = 32
"""A bundle's id."""
ENTRY_BYTES = 200
"""An entry of a log that does not tell its `nbytes`."""


def size_of(message: Message) -> int:
    """Bytes, roughly. O(parts of a bundle, entries of an Append); entries and states may tell their own `nbytes`."""
    match message:
        case Bundle():
            return bundle_bytes(message)
        case Append():
            return MESSAGE_BYTES + sum(
                int(getattr(entry, "nbytes", ENTRY_BYTES)) for entry in message.entries
            )
        case Commit() | Resend():
            return MESSAGE_BYTES + ID_BYTES * len(message.ids)
        case Split():
            plans = sum(len(line.plan) for line in message.schedule)
            return MESSAGE_BYTES + CONTRIBUTION_BYTES * len(message.positions) + plans
        case Install():
            return MESSAGE_BYTES + int(getattr(message.state, "nbytes", ENTRY_BYTES))
    return MESSAGE_BYTES


def bundle_bytes(bundle: Bundle) -> int:
    """Rows and contributions of a bundle. O(versions × trees)."""
    total = MESSAGE_BYTES + CONTRIBUTION_BYTES * len(bundle.contributions) + ID_BYTES * len(bundle.lagging)
    for part in bundle.parts.values():
        for rows in part.rows:
            total += ROW_BYTES * len(rows.pane) + rows.keys.nbytes + rows.lanes.nbytes
    return total
