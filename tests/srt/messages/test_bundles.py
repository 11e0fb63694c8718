"""Joining bundles: the times of which no line could be parsed stay with their workers."""

from __future__ import annotations

from elf.srt.messages.bundles import OpenBundle, spanned
from elf.srt.messages.messages import Bundle, Period

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
JOB = b"j" * 16


def bundle(worker: bytes, start: int, end: int, unparsed: Period | None) -> Bundle:
    spans = {(worker, 1, 0): (start, end, 0)}
    return Bundle(
        JOB, (worker, 1, start), 1, spans, 7, {}, {}, unparsed={worker: unparsed} if unparsed else {}
    )


def test_a_joined_bundle_names_the_unparsed_time_of_each_worker() -> None:
    open_bundle = OpenBundle(1 << 20)
    bundles = [
        bundle(A, 0, 10, (20, 30)),
        bundle(B, 0, 10, (50, 60)),
        bundle(C, 0, 10, None),
        bundle(A, 10, 20, (5, 8)),
    ]
    for each in bundles:
        assert not open_bundle or open_bundle.joins(each)
        open_bundle.add(each.id[0], each, 0)
    joined = open_bundle.close(JOB, (C, 1, 2))
    assert joined.unparsed == {A: (5, 30), B: (50, 60)}
    assert [each.unparsed for each in bundles] == [{A: (20, 30)}, {B: (50, 60)}, {}, {A: (5, 8)}]
    open_bundle.empty()
    open_bundle.add(C, bundles[2], 0)
    assert open_bundle.close(JOB, (C, 1, 4)).unparsed == {}


def test_the_hull_of_several_tables() -> None:
    assert spanned([{A: (5, 8)}, {}, {B: (1, 2), A: (1, 2)}]) == {A: (1, 8), B: (1, 2)}
