"""A link's messages as pieces: however they are cut they come out once, whole and in order; and through a real link."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import PeerError
from elf.jobmaster.log.log_codec import LOG
from elf.srt.codec.pieces import LinkCodec, Stream
from elf.srt.codec.wire import MAGIC, decode, encode
from elf.srt.link.coded_links import CodedLinks
from elf.srt.link.link import Link
from elf.srt.messages import messages as m
from elf.srt.messages.effects import Send
from elf.srt.messages.messages import Message, Piece
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.partial import Part
from tests.rigs.wire_values import LINK_MESSAGES, message, same

KINDS: tuple[type[Message], ...] = (*(kind for kind in LINK_MESSAGES if kind is not Piece), m.Hold, m.Path)


def some(rng: Random, count: int) -> list[Message]:
    return [message(rng.choice(KINDS), rng) for _ in range(count)]


def stream_of(sent: list[Message]) -> bytes:
    codec = LinkCodec(1 << 30, LOG)
    return b"".join(piece.payload for each in sent for piece in codec.pieces(each))


def test_whole() -> None:
    sent = some(Random(1), 20)
    came = LinkCodec(100, LOG).take(Piece(stream_of(sent)))
    assert all(map(same, came, sent))
    assert len(came) == len(sent)


def test_byte_by_byte() -> None:
    sent = some(Random(2), 8)
    codec = LinkCodec(100, LOG)
    came = [each for byte in stream_of(sent) for each in codec.take(Piece(bytes((byte,))))]
    assert all(map(same, came, sent))
    assert len(came) == len(sent)


def test_with_a_tail() -> None:
    sent = some(Random(3), 2)
    first, whole = stream_of(sent[:1]), stream_of(sent)
    for at in range(len(first), len(whole)):
        stream = Stream()
        assert len(stream.step(whole[:at])) == 1
        assert stream.held_bytes == at - len(first)
        assert len(stream.step(whole[at:])) == 1
        assert stream.held_bytes == 0


@settings(derandomize=True, max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), bytes_max=st.sampled_from([1, 7, 64, 1_000, 1 << 19]))
def test_pieces_of_any_size(seed: int, bytes_max: int) -> None:
    sent = some(Random(seed), 6)
    sender, receiver = LinkCodec(bytes_max, LOG), LinkCodec(bytes_max, LOG)
    came = []
    for each in sent:
        pieces = sender.pieces(each)
        assert all(0 < len(piece.payload) <= bytes_max for piece in pieces)
        for piece in pieces[:-1]:
            assert receiver.take(piece) == []
        came += receiver.take(pieces[-1])
    assert all(map(same, came, sent))


@pytest.mark.parametrize("length", [0, 5, (64 << 10) + 1, (1 << 32) - 1])
def test_a_length_that_no_such_message_has_is_refused_at_once(length: int) -> None:
    with pytest.raises(PeerError, match=f"a length of {length} bytes"):
        Stream().step(struct.pack("<I", length) + MAGIC + bytes((1, 44)))


def test_what_is_no_message_is_refused_at_its_head() -> None:
    with pytest.raises(PeerError, match="first bytes"):
        Stream().step(struct.pack("<I", 1 << 20) + b"GET / ")


def test_random_streams_are_refused() -> None:
    rng = Random(4)
    refused = 0
    for _ in range(200):
        spoiled = bytearray(stream_of(some(rng, 4)))
        for _ in range(3):
            spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
        codec = LinkCodec(100, LOG)
        try:
            for at in range(0, len(spoiled), 97):
                codec.take(Piece(bytes(spoiled[at : at + 97])))
        except PeerError:
            refused += 1
    assert refused > 100


class End:
    """One side of a link over bytes, as a transport would drive it."""

    def __init__(self, peer: bytes) -> None:
        self.p = Parameters()
        self.link = Link(peer, 1, 1, self.p)
        self.codec = LinkCodec(200, LOG)
        self.came: list[Message] = []
        self.refused = 0

    def post(self, sent: Message, now: int) -> list[bytes]:
        return [
            encode(effect.message)
            for piece in self.codec.pieces(sent)
            for effect in self.link.post(piece, now)
            if isinstance(effect, Send)
        ]

    def receive(self, datagram: bytes, now: int) -> list[bytes]:
        frame = decode(datagram)
        assert isinstance(frame, m.Frame)
        restarts = self.link.restarts
        ready, effects = self.link.step(frame, now)
        if self.link.restarts != restarts:
            self.codec = LinkCodec(200, LOG)
        try:
            for piece in ready:
                assert isinstance(piece, Piece)
                self.came += self.codec.take(piece)
        except PeerError:
            self.refused += 1
            self.link.hang_up()
            self.codec = LinkCodec(200, LOG)
        return [encode(effect.message) for effect in effects if isinstance(effect, Send)]

    def tick(self, now: int) -> list[bytes]:
        return [encode(effect.message) for effect in self.link.tick(now) if isinstance(effect, Send)]


def exchange(rng: Random, loss: float, sent: list[Message], now: int, ends: tuple[End, End]) -> int:
    """Post all on one side, and let time pass until nothing is left to deliver."""
    left, right = ends
    under_way: list[tuple[End, bytes]] = []
    for each in sent:
        under_way += [(right, data) for data in left.post(each, now)]
    for _ in range(400):
        now += 10_000
        rng.shuffle(under_way)
        arriving, under_way = under_way, []
        for end, data in arriving:
            if rng.random() >= loss:
                other = left if end is right else right
                under_way += [(other, answer) for answer in end.receive(data, now)]
        under_way += [(right, data) for data in left.tick(now)] + [(left, data) for data in right.tick(now)]
    return now


def test_through_a_link_that_loses_and_reorders() -> None:
    rng = Random(5)
    sent = some(rng, 25)
    left, right = End(b"R" * 16), End(b"L" * 16)
    exchange(rng, 0.2, sent, 0, (left, right))
    assert len(right.came) == len(sent)
    assert all(map(same, right.came, sent))


class Unfit(dict[str, Part]):
    """Rows that raise when they become bytes."""

    def items(self) -> Any:
        raise ZeroDivisionError


def test_the_messages_of_a_job_on_a_link_have_no_gaps() -> None:
    """After a message that could not be encoded, none of that job is sent before `Away`, or before the link begins anew; messages
    of other jobs are."""
    peer, ours, others = b"P" * 16, b"j" * 16, b"o" * 16
    sender, receiver = CodedLinks(50, LOG), CodedLinks(50, LOG)

    def delivered(*sent: Message) -> list[Message]:
        return [
            came
            for each in sent
            for piece in sender.pieces(peer, each)
            for came in receiver.take(peer, piece)
        ]

    def bundle(job: bytes, n: int, parts: dict[str, Part] | None = None) -> m.Bundle:
        files = [(b"w" * 16, file, 0) for file in range(9)]
        spans = dict.fromkeys(files, (10 * n, 10 * n + 10, 0))
        return m.Bundle(job, (b"w" * 16, 1, n), 1, spans, 5, {}, parts or {})

    def fail(n: int) -> None:
        unfit = Unfit()
        unfit["never read"] = Part((), ())
        with pytest.raises(ZeroDivisionError):
            sender.pieces(peer, bundle(ours, n, unfit))

    first: list[Message] = [bundle(ours, 0), bundle(others, 0)]
    assert delivered(*first) == first
    fail(1)
    assert delivered(bundle(ours, 2), bundle(others, 1), m.Size(ours, 1, 1)) == [bundle(others, 1)]
    assert sender.pieces(b"Q" * 16, m.Size(ours, 1, 1))
    again: list[Message] = [m.Away(ours, True), m.Away(ours, False), bundle(ours, 1), bundle(others, 2)]
    assert delivered(*again) == again
    fail(2)
    sender.forget(peer)
    receiver.forget(peer)
    assert delivered(*first) == first


def test_two_sides_that_came_apart_begin_anew() -> None:
    """The side that refuses hangs up; the other side sees a restart, and its resent messages arrive."""
    rng = Random(6)
    left, right = End(b"R" * 16), End(b"L" * 16)
    files = [(b"w" * 16, file, 0) for file in range(9)]
    bundles: list[Message] = [
        m.Bundle(b"j" * 16, (b"w" * 16, 1, n), 1, dict.fromkeys(files, (10 * n, 10 * n + 10, 0)), 5, {}, {})
        for n in range(3)
    ]
    now = exchange(rng, 0, bundles[:1], 0, (left, right))
    left.codec.pieces(bundles[1])  # encoded, and never posted
    now = exchange(rng, 0, bundles[2:], now, (left, right))
    assert (right.refused, right.came) == (1, bundles[:1])
    assert left.link.restarts == 1
    exchange(rng, 0, bundles[1:], now, (left, right))
    assert right.came == bundles
