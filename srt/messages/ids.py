"""Ids on the ring: 128 bits, as 16 big-endian bytes, so that bytes sort as numbers do, and are fast keys of a dict."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated

from msgspec import Meta

ID_BYTES = 16
NodeId = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
JobId = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
RING = 1 << (8 * ID_BYTES)
INSTANCE_BYTES = 8
MAKER_BYTES = ID_BYTES + INSTANCE_BYTES
DIGITS = 2 * ID_BYTES
"""Hexadecimal digits of an id: Pastry with base 16."""


def node_id(public_key: bytes) -> NodeId:
    """The id of the node that holds this key (CURVE, 32 bytes)."""
    return blake2b(public_key, digest_size=ID_BYTES).digest()


def maker(node: NodeId, instance: int) -> bytes:
    """The maker of a ballot: a node, and which of the processes with its key; only the node where `instance` is unknown (0)."""
    return node + instance.to_bytes(INSTANCE_BYTES) if instance else node


def job_id(name: str) -> JobId:
    """The id of a job: the live node closest to it is the job's master."""
    return blake2b(name.encode(), digest_size=ID_BYTES).digest()


def distance(a: bytes, b: bytes) -> int:
    """Steps between two ids along the shorter way round the ring."""
    gap = (int.from_bytes(a) - int.from_bytes(b)) % RING
    return min(gap, RING - gap)


def closeness(target: bytes, node: NodeId) -> tuple[int, NodeId]:
    """Sorts nodes by distance from `target`; of two equally far the smaller id comes first, so that one node is the closest."""
    return distance(target, node), node


def shared_digits(a: bytes, b: bytes) -> int:
    """How many leading hexadecimal digits two ids have in common."""
    different = int.from_bytes(a) ^ int.from_bytes(b)
    return (RING.bit_length() - 1 - different.bit_length()) // 4


def digit(node: bytes, at: int) -> int:
    """The hexadecimal digit at position `at`, 0 the highest."""
    byte = node[at >> 1]
    return byte & 15 if at & 1 else byte >> 4


def short(node: bytes) -> str:
    """An id as transcripts and messages to users show it."""
    return node.hex()[:6]
