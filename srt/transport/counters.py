"""What a transport counts, for `elf mesh status` and the metrics."""

from __future__ import annotations

from collections import Counter

import msgspec


class Counters(msgspec.Struct):
    """Since the start. refused: incoming, by reason; dropped: outgoing, by reason."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    connections_in: int = 0
    connections_out: int = 0
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    dropped: Counter[str] = msgspec.field(default_factory=Counter)
