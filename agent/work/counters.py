"""Counters of one source that is read for the mesh."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct):
    """Counts since the start. scans: blocks parsed; front_bytes: bytes read once for all jobs; again_bytes: bytes read again for
    a job behind the front; beyond: positions in the mesh past the end of the log."""

    scans: int = 0
    front_bytes: int = 0
    again_bytes: int = 0
    gaps: int = 0
    beyond: int = 0
