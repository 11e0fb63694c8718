"""Key bytes and their hashes, against an encoding in plain Python."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt._keys import concat_keys, decode_keys, encode_keys, hash64, hash_keys
from elf.cbt._strings import Strings
from elf.cbt.rows import KeyColumn
from elf.errors import PeerError
from tests.cbt.cbt_model import colliding_key, int64s, model_hash

NULL, INT, STRING, DOUBLE = range(4)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def model_value(kind: str, value: Any) -> bytes:
    if value is None:
        return b"\x00"
    if kind == "int":
        return b"\x01" + varint(value * 2 if value >= 0 else -value * 2 - 1)
    if kind == "string":
        return b"\x02" + varint(len(value)) + bytes(value)
    if math.isnan(value):
        return b"\x03" + struct.pack("<Q", 0x7FF8000000000000)
    return b"\x03" + struct.pack("<d", value + 0.0)


def column(kind: str, values: list[Any], strings: Strings) -> KeyColumn:
    valid = (
        None if all(v is not None for v in values) else np.array([v is not None for v in values], np.bool_)
    )
    if kind == "string":
        return KeyColumn(kind, strings.intern_all(values), None, strings)
    if kind == "double":
        return KeyColumn(kind, np.array([v or 0.0 for v in values], np.float64), valid)
    return KeyColumn(kind, np.array([v or 0 for v in values], np.int64), valid)


def lengths_of(ends: np.ndarray[Any, Any]) -> list[int]:
    return [int(n) for n in np.diff(ends, prepend=np.uint64(0))]


def cut(keys: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> list[bytes]:
    data, starts = keys.tobytes(), [0, *ends.tolist()]
    return [data[a:b] for a, b in zip(starts, ends.tolist(), strict=False)]


kinds = {
    "int": st.none() | int64s,
    "double": st.none() | st.floats(),
    "string": st.none() | st.binary(max_size=200),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]]]:
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=4))
    return chosen, draw(st.lists(st.tuples(*(kinds[kind] for kind in chosen)), max_size=20))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(tables())
def test_keys_are_the_models_and_decode_to_the_values(table: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    chosen, rows = table
    columns = [column(kind, [row[i] for row in rows], Strings()) for i, kind in enumerate(chosen)]
    keys, ends = encode_keys(columns)
    model = [b"".join(model_value(kind, v) for kind, v in zip(chosen, row, strict=True)) for row in rows]
    assert cut(keys, ends) == model
    hashes, subs = hash_keys(keys, ends)
    assert [int(h) for h in hashes] == [model_hash(key) for key in model]
    assert not subs.any()
    for i, (kind, (tags, values, codes, strings)) in enumerate(
        zip(chosen, decode_keys(keys, ends, len(chosen)), strict=True)
    ):
        for r, row in enumerate(rows):
            tag = NULL if row[i] is None else {"int": INT, "string": STRING, "double": DOUBLE}[kind]
            assert tags[r] == tag
            assert codes[r] == -1 or tag == STRING
            if tag == INT:
                assert values[r] == row[i]
            elif tag == STRING:
                assert strings[int(codes[r])] == row[i]
            elif tag == DOUBLE:
                assert struct.pack("<q", values[r]) == model_value("double", row[i])[1:]


def test_hash_golden_values() -> None:
    """Part of the wire format: these never change."""
    golden = {
        b"": 0x2D1E673A8D4EA611,
        b"a": 0x60D33E59491D38CE,
        b"abcd": 0x0060E33D9D8BBACC,
        b"/index.html": 0x9DBD92D012D4D5CB,
        b"0123456789abcdef": 0x77D4BC961D2DD0A8,
        bytes(range(100)): 0x36DAECA464650CDE,
    }
    assert {data: hash64(data) for data in golden} == golden


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.binary(max_size=150))
def test_hash_is_the_models(data: bytes) -> None:
    assert hash64(data) == model_hash(data)


def test_colliding_keys_collide() -> None:
    assert len({hash64(colliding_key(i)) for i in range(100)}) == 1


def test_constants_and_rows_without_columns() -> None:
    keys, ends = encode_keys([("int", np.array([7]), None, None), ("int", np.arange(3), None, None)])
    assert cut(keys, ends) == [b"\x01\x0e\x01\x00", b"\x01\x0e\x01\x02", b"\x01\x0e\x01\x04"]
    keys, ends = encode_keys([("int", np.array([7]), None, None), ("int", np.arange(0), None, None)])
    assert (len(keys), len(ends)) == (0, 0)
    keys, ends = encode_keys([], rows=2)
    assert (len(keys), ends.tolist()) == (0, [0, 0])
    flags = encode_keys([("int", np.array([True, False]), None, None)])[0]
    assert flags.tobytes() == b"\x01\x02\x01\x00"
    bits = np.array([-0.0, math.nan]).view(np.int64)
    assert encode_keys([("double", bits, None, None)])[0].tobytes() == (
        model_value("double", 0.0) + model_value("double", math.nan)
    )


def test_a_code_outside_the_dictionary_is_refused() -> None:
    strings = Strings()
    strings.intern(b"x")
    for code in (1, -2, 1 << 30):
        with pytest.raises(IndexError):
            encode_keys([("string", np.array([code], np.int32), None, strings)])


def test_family_keys() -> None:
    a = encode_keys([("int", np.array([1, 300]), None, None)])
    b = encode_keys([("int", np.array([5, 6, 7]), None, None)])
    keys, ends, split = concat_keys(*a, np.array([1, 0, 1], np.int32), *b)
    assert cut(keys, ends) == [b"\x01\xd8\x04\x01\x0a", b"\x01\x02\x01\x0c", b"\x01\xd8\x04\x01\x0e"]
    assert split.tolist() == [3, 2, 3]
    hashes, subs = hash_keys(keys, ends, split)
    assert [int(h) for h in hashes] == [hash64(b"\x01\xd8\x04"), hash64(b"\x01\x02"), hash64(b"\x01\xd8\x04")]
    assert int(subs[0]) == hash64(b"\x01\x0a")
    assert decode_keys(keys, ends, 1, split)[0][1].tolist() == [5, 6, 7]
    assert decode_keys(keys, ends, 1)[0][1].tolist() == [300, 1, 300]
    with pytest.raises(IndexError):
        concat_keys(*a, np.array([2, 0, 1], np.int32), *b)


def test_decoding_into_given_dictionaries() -> None:
    strings = Strings()
    strings.intern(b"before")
    keys, ends = encode_keys([column("string", [b"x", b"before"], Strings())])
    ((_, _, codes, same),) = decode_keys(keys, ends, 1, into=[strings])
    assert same is strings
    assert codes.tolist() == [1, 0]


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\x04",
        b"\x01",
        b"\x01\x80",
        b"\x01\x80\x00",
        b"\x01" + b"\xff" * 9 + b"\x02",
        b"\x01" + b"\xff" * 11,
        b"\x02\x05abcd",
        b"\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a",
        b"\x03abcdefg",
    ],
)
def test_bad_keys_are_the_peers_fault(key: bytes) -> None:
    good = b"\x01\x02"
    keys = np.frombuffer(good + key, np.uint8)
    with pytest.raises(PeerError):
        decode_keys(keys, np.array([len(good), len(good) + len(key)], np.uint64), 1)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 3), st.integers(0, 50))
def test_any_bytes_decode_or_are_refused(key: bytes, fields: int, start: int) -> None:
    try:
        out = decode_keys(
            np.frombuffer(key, np.uint8),
            np.array([len(key)], np.uint64),
            fields,
            np.array([start], np.uint32),
        )
    except PeerError:
        return
    assert len(out) == fields
