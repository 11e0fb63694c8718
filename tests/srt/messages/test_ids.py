"""Ids on the ring, held against plain arithmetic on numbers and hexadecimal text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elf.srt.messages import ids

CASES = settings(derandomize=True, max_examples=200, deadline=None)
near = st.integers(0, 40).map(lambda number: number.to_bytes(16))
anywhere = st.binary(min_size=16, max_size=16)
some_id = near | near.map(lambda node: bytes(255 - byte for byte in node)) | anywhere


@CASES
@given(some_id, some_id)
def test_distance_is_the_shorter_way_round(a: bytes, b: bytes) -> None:
    one, other = int(a.hex(), 16), int(b.hex(), 16)
    assert ids.distance(a, b) == min(abs(one - other), 2**128 - abs(one - other)) == ids.distance(b, a)


@CASES
@given(some_id, some_id)
def test_shared_digits_are_those_of_the_hexadecimal_text(a: bytes, b: bytes) -> None:
    same = 0
    while same < 32 and a.hex()[same] == b.hex()[same]:
        same += 1
    assert ids.shared_digits(a, b) == same


@CASES
@given(some_id, st.integers(0, 31))
def test_digit_is_that_of_the_hexadecimal_text(node: bytes, at: int) -> None:
    assert ids.digit(node, at) == int(node.hex()[at], 16)


@CASES
@given(some_id, some_id, some_id)
def test_exactly_one_of_two_nodes_is_closer(target: bytes, a: bytes, b: bytes) -> None:
    assert (a == b) == (ids.closeness(target, a) == ids.closeness(target, b))


def test_ids_do_not_change() -> None:
    # By `b2sum -l 128` of coreutils.
    assert ids.node_id(bytes(32)).hex() == "ff0f22492f44bac4c4b30ae58d0e8daa"
    assert ids.job_id("errors").hex() == "5f4412814e3bce3b7d88c81efd35f54e"
    assert ids.short(bytes.fromhex("bb5ab4e75c4263ce59a9c16aa37c9dd9")) == "bb5ab4"
