"""Frames: packed rows are unpacked unchanged, and arbitrary bytes do no harm."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt.frame import MAGIC, pack, unpack, unpack_scattered
from elf.cbt.rows import concat
from elf.errors import PeerError
from tests.cbt.cbt_model import OPS, Record, model_of, read, records, rows_of
from tests.rigs import paths

GOLDEN = paths.GOLDEN / "rows-v1.elfr"
GOLDEN_RECORDS: list[Record] = [
    (pane, key, (pane + 3, -(1 << 90) * pane, i - 7, 1 << i))
    for i, (pane, key) in enumerate(
        [(-1, b""), (0, b"\x00"), (0, b"\x01\x04"), (0, b"\x02\x03abc\x01\x02"), (600_000_000, b"\x02\x00")]
    )
]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.lists(records, max_size=40))
def test_round_trip(some: list[Record]) -> None:
    rows, ops = unpack(pack(rows_of(some), OPS))
    assert ops == OPS
    assert read([rows]) == model_of(some)


def test_only_unpack_scattered_returns_rows_out_of_order() -> None:
    runs = [rows_of([(0, b"%d" % i, (1, i, i, i)) for i in range(at, 90, 3)]) for at in range(3)]
    frame = pack(concat(runs, 5), OPS)
    rows = unpack_scattered(frame)
    assert [read([rows.slice(at, at + 30)]) for at in (0, 30, 60)] == [read([run]) for run in runs]
    with pytest.raises(PeerError, match="row 30 is out of order"):
        unpack(frame)


def test_rows_keep_nothing_of_their_frame() -> None:
    """The bytes that an owner of rows accounts for are all that there are."""
    rows, _ = unpack(pack(rows_of([(0, b"some key", (1, 2, 3, 4))]), OPS))
    for array in (rows.pane, rows.hash, rows.sub, rows.split, rows.ends, rows.keys, rows.lanes):
        assert array.base is None or array.base.nbytes == array.nbytes


def test_old_frames_stay_readable() -> None:
    rows, ops = unpack(GOLDEN.read_bytes())
    assert ops == OPS
    assert read([rows]) == model_of(GOLDEN_RECORDS)


def test_constant_columns_cost_nothing() -> None:
    some = [(0, b"\x01" + i.to_bytes(2, "little"), (1, i % 200, 0, 0)) for i in range(5000)]
    size = len(pack(rows_of(some), OPS))
    assert size < 5000 * 4, "two key bytes and one of the sum"


def rows_body(body: bytes) -> bytes:
    return MAGIC + b"\x01" + zstandard.ZstdCompressor(level=1).compress(body)


def body_of(frame: bytes) -> bytearray:
    return bytearray(zstandard.ZstdDecompressor().decompress(frame[5:]))


def test_any_change_of_a_frame_is_found() -> None:
    frame = pack(rows_of(GOLDEN_RECORDS), OPS)
    for at in range(len(frame)):
        changed = bytearray(frame)
        changed[at] ^= 1 << at % 8
        try:
            rows, _ = unpack(bytes(changed))
        except PeerError:
            continue
        assert read([rows]) == model_of(GOLDEN_RECORDS), "zstd ignores a bit of its header"
    for size in range(len(frame)):
        with pytest.raises(PeerError):
            unpack(frame[:size])
    with pytest.raises(PeerError):
        unpack(frame + b"\0")


def test_hostile_bodies_are_refused_or_right() -> None:
    """Bodies with valid checksums around altered bytes."""
    rng = random.Random(1)
    body = body_of(pack(rows_of(GOLDEN_RECORDS), OPS))
    refused = 0
    for _ in range(3000):
        changed = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(body))] = rng.choice([0, 1, 2, 8, 9, 0x7F, 0x80, 0xFF])
        if rng.random() < 0.2:
            changed = changed[: rng.randrange(len(changed))]
        try:
            rows, ops = unpack(rows_body(bytes(changed)), 1 << 20)
        except PeerError:
            refused += 1
            continue
        assert rows.lanes.shape == (sum(op.lanes for op in ops), len(rows))
        assert int(rows.ends[-1]) == len(rows.keys)
    assert refused > 1000


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "wrong magic"),
        (b"ELFX\x01\0\0\0", "wrong magic"),
        (b"ELFR\x02\0\0\0", "version 2"),
        (b"ELFR\x01nonsense", "rows frame"),
        (rows_body(b""), "ends too early"),
        (rows_body(struct.pack("<IBQ", 1 << 31, 0, 0)), "more than"),
        (rows_body(struct.pack("<IBBQ", 1, 1, 77, 0)), "unknown operation"),
        (rows_body(struct.pack("<IBQ", 1, 0, 0) + struct.pack("<Bq", 9, 0) * 3), "column kind"),
        (rows_body(struct.pack("<IBQ", 1, 0, 0) + struct.pack("<BqBqBq", 0, 0, 0, -1, 0, 1)), "out of range"),
        (rows_body(struct.pack("<IBQ", 1, 0, 2) + struct.pack("<Bq", 0, 0) * 3 + b"xy"), "add up"),
        (rows_body(struct.pack("<IBQ", 2, 0, 0) + struct.pack("<Bq", 0, 0) * 3), "out of order"),
        (rows_body(struct.pack("<IBQ", 0, 0, 0) + struct.pack("<Bq", 0, 0) * 3 + b"x"), "too many"),
    ],
)
def test_errors_name_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(PeerError, match=reason):
        unpack(data)


def test_the_readers_bound_holds() -> None:
    frame = pack(rows_of([(0, bytes(1000) + b"%d" % i, (1, 1, 1, 1)) for i in range(100)]), OPS)
    assert len(unpack(frame, 200_000)[0]) == 100
    with pytest.raises(PeerError, match="more than"):
        unpack(frame, 50_000)


def test_rows_without_lanes_and_no_rows() -> None:
    rows, ops = unpack(pack(rows_of([]), OPS))
    assert (len(rows), rows.lanes.shape, ops) == (0, (5, 0), OPS)
    some = rows_of(GOLDEN_RECORDS)
    some.lanes = np.empty((0, len(some)), np.int64)
    assert len(unpack(pack(some, []))[0]) == len(some)
    assert unpack(pack(some, []))[1] == ()
