"""Counters of one source that is read for the mesh."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct):
    """Counts since the start. scans: blocks parsed; front_bytes: bytes read once for all jobs; parsed_bytes: those of them that
    were parsed; again_bytes: bytes read again for a job behind the front; beyond: positions in the mesh past the log's end."""

    scans: int = 0
    front_bytes: int = 0
    parsed_bytes: int = 0
    again_bytes: int = 0
    gaps: int = 0
    beyond: int = 0

    @property
    def read_bytes(self) -> int:
        """All that was read, at the fronts and again."""
        return self.front_bytes + self.again_bytes
