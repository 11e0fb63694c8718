"""Peers that break the rules: they are refused, counted and logged once, and others are not affected."""

from __future__ import annotations

import asyncio
import struct
from random import Random
from typing import Any

import pytest

from elf.errors import PeerError
from elf.srt.codec.pieces import Stream
from elf.srt.codec.wire import encode
from elf.srt.link.rights import check_datagram, check_linked
from elf.srt.messages.addresses import key_text
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import (
    Contact,
    Frame,
    Goodbye,
    JoinMesh,
    Piece,
    Ping,
    Pong,
    ProbeFor,
    Routed,
)
from elf.srt.security.certificates import Keys
from elf.srt.transport import handshake, hub, listener
from elf.srt.transport.address_book import KNOWN_MAX, AddressBook, address_for
from tests.rigs.transport_rig import NOW_S, Rig, goes_on, proven, run, stretch, until

pytestmark = pytest.mark.process

STRETCH = handshake.head(handshake.STRETCH)
DAY_S = 86_400


# Before the proof.


def test_nothing_is_read_before_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[NodeId] = []
    take = hub.Hub.take

    def noting(self: hub.Hub, source: NodeId, stream: Stream, packet: memoryview) -> None:
        read.append(source)
        take(self, source, stream, packet)

    monkeypatch.setattr(hub.Hub, "take", noting)

    async def test(rig: Rig) -> None:
        b = rig.end()
        client = rig.client(b)
        client.send(stretch(Ping(Contact(b"x" * 16, 1), 1)))
        kind, packet = await client.answer()
        assert kind == handshake.REFUSAL
        assert "before it has proven its identity" in handshake.refusal_of(packet).text
        client.send(client.proof())  # too late
        assert (await client.answer())[0] == handshake.REFUSAL
        assert not read
        assert b.refused["proof"] == b.refused["not proven"] == 1
        await goes_on(rig, b)

    run(test)


def test_certificates_that_do_not_count() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        other_authority = Rig().authority
        cases: dict[str, tuple[Keys, dict[str, Any]]] = {
            "not signed by this mesh": (other_authority.issue("x", "agent", NOW_S), {}),
            "expired": (rig.keys(now_s=NOW_S - 10 * DAY_S, days=5), {}),
            "not valid before": (rig.keys(now_s=NOW_S + 10 * DAY_S), {}),
            "operator": (rig.keys(role="operator"), {}),
            "reader": (rig.keys(role="reader"), {}),
            "for another key": (rig.keys(), {"certificate": rig.keys().proof}),
            "another key than the one of its connection": (rig.keys(), {"key": rig.keys().curve_public}),
            "no certificate": (rig.keys(), {"certificate": b"garbage"}),
            "another key than its own": (rig.keys(), {"address": "127.0.0.1:1/" + key_text(bytes(32))}),
            "not of the form": (rig.keys(), {"address": "tcp://*:*"}),
        }
        for text, (keys, other) in cases.items():
            client = rig.client(b, keys)
            client.send(client.proof(**other))
            kind, packet = await client.answer()
            assert kind == handshake.REFUSAL
            assert text in handshake.refusal_of(packet).text
            assert any(text in notice.text for notice in b.notices)
        assert b.refused["proof"] == len(cases)
        assert not b.got
        await goes_on(rig, b)

    run(test)


def test_a_revoked_certificate_ends_a_connection() -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        a.ping(b, 1)
        b.ping(a, 1)
        await until(lambda: a.got and b.got)
        assert a.keys is not None
        assert b.trust is not None
        b.trust.revoke(a.keys.certificate.serial)
        b.transport.recheck()
        await until(lambda: a.refused.get("refused there"))
        refused = b.refused["proof"]
        await until(
            lambda: (a.ping(b, 2), b.refused["proof"] > refused)[1]
        )  # it is dialled again after a pause
        await goes_on(rig, b)
        assert [source for source, _ in b.got].count(a.id) == 1

    run(test)


def test_a_reached_peer_without_a_good_certificate_is_not_spoken_to() -> None:
    async def test(rig: Rig) -> None:
        a = rig.end()
        stranger = rig.end(rig.keys(now_s=NOW_S - 10 * DAY_S, days=5))
        with pytest.raises(PeerError):
            await a.transport.ask(stranger.transport.address)
        assert not stranger.got

    run(test)


def test_what_was_proven_on_one_connection_counts_for_no_other() -> None:
    """A client may choose its routing id: that of an earlier client gives it nothing."""

    async def test(rig: Rig) -> None:
        b = rig.end()
        first = rig.client(b, routing_id=b"chosen")
        first.send(first.proof())
        await first.answer()
        first.close()
        second = rig.client(b, routing_id=b"chosen")
        assert first.keys is not None
        victim = node_id(first.keys.curve_public)

        async def refused() -> bool:
            second.send(stretch(Ping(Contact(victim, 1), 1)))
            await asyncio.sleep(0.01)
            return bool(b.refused.get("proof"))

        while not await refused():
            pass
        assert not b.got

    run(test)


def test_a_proof_cannot_be_replayed_by_another() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        honest = await proven(rig, b)
        thief = rig.client(b)
        thief.send(honest.proof())
        assert (await thief.answer())[0] == handshake.REFUSAL

    run(test)


def test_hosts_that_connect_too_often_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BURST", 3.0)
    monkeypatch.setattr(listener, "RATE", 0.001)

    async def test(rig: Rig) -> None:
        b = rig.end()
        for _ in range(3):
            await proven(rig, b)
        late = rig.client(b)
        late.send(late.proof())
        await until(lambda: b.refused.get("too many handshakes"))
        assert b.transport.counters.connections_in == 3

    run(test)


def test_a_silent_connection_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", -1)

    async def test(rig: Rig) -> None:
        b = rig.end()
        rig.client(b)
        await until(lambda: b.refused.get("no proof in time"))
        assert not b.transport._listener._connections

    run(test)


def test_other_protocols_get_nowhere() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        for first in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64, b"\xff" + bytes(8) + b"\x7f\x03"):
            _, writer = await asyncio.open_connection("127.0.0.1", b.transport.port)
            writer.write(first)
            await writer.drain()
            writer.close()
        await goes_on(rig, b)
        assert len(b.got) == 1

    run(test)


# After the proof.


def test_garbage_after_the_proof_ends_the_connection() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        whole = stretch(Ping(Contact(b"x" * 16, 1), 1))
        rng = Random(5)
        kinds = [
            b"",
            b"\x00",
            b"ELFT",
            rng.randbytes(100),
            b"ELFT\x02\x02" + whole[6:],
            handshake.head(9),
            STRETCH + struct.pack("<I", 1 << 31) + encode(Ping(Contact(b"x" * 16, 1), 1)),
            STRETCH + struct.pack("<I", 20) + rng.randbytes(20),
            whole,  # names another sender than the connection's
            stretch(Piece(b"loose")),
        ]
        for packet in kinds:
            client = await proven(rig, b)
            client.send(packet)
            assert (await client.answer())[0] == handshake.REFUSAL, packet
        assert b.refused["garbage"] == len(kinds)
        assert not b.got
        assert any("upgrade the older one" in notice.text for notice in b.notices)
        await goes_on(rig, b)

    run(test)


def test_oversized_packets_never_arrive() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        client = await proven(rig, b)
        client.send(STRETCH + bytes(hub.PACKET_BYTES_MAX))
        await goes_on(rig, b)
        assert b.transport.counters.bytes_in < hub.PACKET_BYTES_MAX

    run(test)


def test_one_notice_for_each_peer_and_interval() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        keys = rig.keys()
        for _ in range(5):
            client = rig.client(b, keys)
            client.send(client.proof())
            await client.answer()
            client.send(b"garbage")
            await client.answer()
        assert b.refused["garbage"] == 5
        assert len(b.notices) == 1
        assert b.notices[0].peer == node_id(keys.curve_public)

    run(test)


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_are_refused_or_ignored(seed: int) -> None:
    async def test(rig: Rig) -> None:
        rng = Random(seed)
        b = rig.end()
        for _ in range(8):
            client = rig.client(b)
            valid = bytearray(rng.choice((client.proof(), stretch(Ping(Contact(b"x" * 16, 1), 1)))))
            if rng.random() < 0.5:
                client.send(client.proof())
            for _ in range(rng.randrange(1, 4)):
                valid[rng.randrange(len(valid))] = rng.randrange(256)
            client.send(
                bytes(valid[: rng.randrange(len(valid) + 1)]), *([b"more"] if rng.random() < 0.2 else [])
            )
            await client.answer()
        await goes_on(rig, b)
        assert all(isinstance(message, Ping) and message.number == 77 for _, message in b.got)

    run(test)


# What may come from whom.

A, B = b"A" * 16, b"B" * 16


def test_only_its_own_name_and_what_is_sent_by_itself() -> None:
    check_datagram(Ping(Contact(A, 1), 1), A)
    check_datagram(Routed(B, B, Goodbye(B, B, 1)), A)
    check_datagram(JoinMesh(Contact(B, 1)), A)
    check_datagram(Frame((1, 1), 1, 0, 0, Piece(b"x")), A)
    for message in (
        Ping(Contact(B, 1), 1),
        Pong(Contact(B, 1), 1, A),
        ProbeFor(Contact(B, 1), 1, Contact(A, 1)),
        Routed(B, A, Ping(Contact(A, 1), 1)),
        Frame((1, 1), 1, 0, 0, Ping(Contact(A, 1), 1)),
        Frame((1, 1), 1, 0, 0, None),
        Frame((1, 1), 0, 0, 0, Piece(b"x")),
        Piece(b"x"),
    ):
        with pytest.raises(PeerError):
            check_datagram(message, A)
    check_linked(Goodbye(B, B, 1))
    with pytest.raises(PeerError):
        check_linked(Ping(Contact(A, 1), 1))


def test_addresses_heard_in_passing() -> None:
    where = AddressBook()
    where.hear(Ping(Contact(A, 2, "a:2"), 1))
    where.hear(JoinMesh(Contact(B, 1, "b:1"), (Contact(A, 1, "a:1"),)))
    assert (where.of(A), where.of(B), where.of(b"C" * 16)) == ("a:2", "b:1", None)
    where.learn(A, 3, "a:3")
    assert where.of(A) == "a:3"
    for number in range(KNOWN_MAX):
        where.learn(number.to_bytes(16), 1, "x:1")
    assert where.of(A) is None


def test_an_address_counts_only_for_the_node_of_its_key() -> None:
    key = bytes(32)
    text = f"a:1/{key_text(key)}"
    assert str(address_for(node_id(key), text, needs_key=True)) == text
    assert address_for(A, text, needs_key=True) is None
    assert address_for(A, "a:1", needs_key=True) is None
    assert address_for(A, "a:1", needs_key=False) is not None
    assert address_for(A, "nonsense", needs_key=False) is None
