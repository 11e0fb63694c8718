"""Frames of others are refused before their content takes memory."""

from __future__ import annotations

import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from elf.cbt import zstd
from elf.cbt.zstd import KEPT_BYTES, compress, decompress
from elf.errors import PeerError

SIZED, UNSIZED = (zstandard.ZstdCompressor(write_content_size=sized) for sized in (True, False))


@given(st.binary(max_size=5_000))
def test_a_frame_within_the_bound_comes_back(data: bytes) -> None:
    assert decompress(SIZED.compress(data), len(data), "part") == data


def test_a_frame_above_the_bound_takes_no_memory() -> None:
    bomb = SIZED.compress(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(PeerError, match="part: 67108864 bytes are more than the 67108863 allowed"):
        decompress(bomb, (64 << 20) - 1, "part")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "packed",
    [
        *(UNSIZED.compress(b"a" * 100), SIZED.compress(b"a" * 100)[:-1], SIZED.compress(b"a" * 100) + b"a"),
        *(SIZED.compress(b"a") * 2, b"no frame", b""),
    ],
    ids=["states no size", "cut short", "more behind it", "two", "no frame", "nothing"],
)
def test_what_is_not_one_whole_frame_with_its_size_is_refused(packed: bytes) -> None:
    with pytest.raises(PeerError, match=r"^part: "):
        decompress(memoryview(packed), 1_000, "part")


@pytest.mark.parametrize("has_checksum", [False, True])
def test_a_compressor_of_long_data_is_not_kept(has_checksum: bool) -> None:
    for length, is_kept in ((KEPT_BYTES, True), (KEPT_BYTES + 1, False), (1, True), (0, True)):
        data = bytes(length)
        packed = compress(data, 3, has_checksum=has_checksum)
        assert zstandard.get_frame_parameters(packed).has_checksum is has_checksum
        assert decompress(packed, length, "part") == data
        assert ((3, has_checksum) in zstd._contexts.compressors) is is_kept
