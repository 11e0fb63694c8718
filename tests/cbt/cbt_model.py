"""The group-by as a dict of Python integers, and the order hash in Python: the models of the trees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from hypothesis import strategies as st

from elf.cbt._kernel import first_disorder, make_rows
from elf.cbt.rows import Op, Rows

OPS = (Op.SUM64, Op.SUM128, Op.MIN, Op.MAX)
Record = tuple[int, bytes, tuple[int, int, int, int]]
"""(pane, key, (count, sum, minimum, maximum))"""
Model = dict[tuple[int, bytes], tuple[int, int, int, int]]

MASK = (1 << 64) - 1
SEED = 0x9E3779B97F4A7C15


def _mix(a: int, b: int) -> int:
    product = a * b
    return (product & MASK) ^ (product >> 64)


def model_hash(data: bytes) -> int:
    """hash.h, line by line."""
    k1 = SEED ^ 0xA0761D6478BD642F
    k2 = ((SEED << 29 | SEED >> 35) & MASK) ^ 0xE7037ED1A0B428DB

    def word(at: int, size: int = 8) -> int:
        return int.from_bytes(data[at : at + size], "little")

    n = len(data)
    h = SEED ^ (n * 0x8EBC6AF09C88C6E3 & MASK)
    if n >= 16:
        at = 0
        while n - at > 32:
            first = _mix(word(at) ^ k1, word(at + 8) ^ h)
            h = first ^ _mix(word(at + 16) ^ k2, word(at + 24) ^ (h + k1 & MASK))
            at += 32
        if n - at > 16:
            h = _mix(word(at) ^ k2, word(at + 8) ^ h)
        a, b = word(n - 16), word(n - 8)
    elif n >= 8:
        a, b = word(0), word(n - 8)
    elif n >= 4:
        a, b = word(0, 4), word(n - 4, 4)
    elif n:
        a, b = data[0] << 16 | data[n >> 1] << 8 | data[n - 1], n
    else:
        a = b = 0
    h = _mix(a ^ k1 ^ h, b ^ k2)
    return _mix(h ^ k2, 0xD6E8FEB86659FD93 ^ h >> 32)


def colliding_key(i: int) -> bytes:
    """16 bytes, of which the first eight make the hash a product with zero: all of these have one hash."""
    k1 = SEED ^ 0xA0761D6478BD642F
    h = SEED ^ (16 * 0x8EBC6AF09C88C6E3 & MASK)
    return (k1 ^ h).to_bytes(8, "little") + i.to_bytes(8, "little")


def split_of(key: bytes) -> int:
    """The group's part of a key in tests: of keys that start with an even byte a part; the colliding ones stay whole."""
    return len(key) // 2 if key and len(key) < 16 and key[0] % 2 == 0 else len(key)


def rows_of(records: Sequence[Record]) -> Rows:
    """`make_rows` of records in any order."""
    keys = [key for _, key, _ in records]
    lanes = np.array(
        [[c, s & MASK, (s >> 64) & MASK, low & MASK, high & MASK] for _, _, (c, s, low, high) in records],
        np.uint64,
    )
    return make_rows(
        np.array([pane for pane, _, _ in records], np.int64),
        np.frombuffer(b"".join(keys), np.uint8),
        np.cumsum([len(key) for key in keys], dtype=np.uint64) if keys else np.empty(0, np.uint64),
        np.array([split_of(key) for key in keys], np.uint32),
        lanes.reshape(-1, 5).T.view(np.int64) if len(records) else np.empty((5, 0), np.int64),
        OPS,
    )


def add(model: Model, records: Iterable[Record]) -> None:
    for pane, key, (count, total, low, high) in records:
        have = model.get((pane, key))
        if have is not None:
            count, total = count + have[0], total + have[1]
            low, high = min(low, have[2]), max(high, have[3])
        model[pane, key] = count, total, low, high


def model_of(records: Iterable[Record]) -> Model:
    model: Model = {}
    add(model, records)
    return model


def read(chunks: Iterable[Rows]) -> Model:
    """Chunks as a model, after a check that they are ordered throughout, with the right hashes, and no key twice."""
    model: Model = {}
    last: tuple[int, int, int, bytes] | None = None
    for rows in chunks:
        assert first_disorder(rows) == len(rows)
        assert rows.lanes.shape == (5, len(rows))
        assert len(rows.keys) == (int(rows.ends[-1]) if len(rows) else 0)
        for i in range(len(rows)):
            key, split = rows.key(i), int(rows.split[i])
            place = int(rows.pane[i]), int(rows.hash[i]), int(rows.sub[i]), key
            assert last is None or last < place
            last = place
            assert split == split_of(key)
            assert place[1] == model_hash(key[:split])
            assert place[2] == (model_hash(key[split:]) if split < len(key) else 0)
            count, low_half, high_half, low, high = (int(lane) for lane in rows.lanes[:, i])
            model[place[0], key] = count, (high_half << 64) + (low_half & MASK), low, high
    return model


int64s = st.integers(-(1 << 63), (1 << 63) - 1)
keys = st.one_of(
    st.binary(max_size=3),
    st.integers(0, 40).map(colliding_key),
    st.integers(0, 60).map(lambda i: b"/shop/item/%03d" % i + b"x" * (i % 25)),
)
records = st.tuples(
    st.integers(-2, 4),
    keys,
    st.tuples(st.integers(0, 1 << 40), st.integers(-(1 << 100), 1 << 100), int64s, int64s),
)
