"""Messages over real sockets: what arrives, what shares a packet, what is bounded, and the traps of libzmq."""

from __future__ import annotations

import asyncio

import pytest
import zmq

from elf.errors import ConfigError, PeerError
from elf.srt.codec.pieces import Stream
from elf.srt.link.outbox import STRETCH_BYTES
from elf.srt.messages.addresses import key_of, key_text, parse_address
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import Frame, GossipItems, Item, Message, Piece, Ping
from elf.srt.transport import dialer, handshake, listener, sockets
from elf.srt.transport.hub import Hub
from tests.rigs.transport_rig import PARAMETERS, Client, End, Rig, run, until

pytestmark = pytest.mark.process


@pytest.mark.parametrize("secure", [True, False])
def test_a_message_arrives_with_its_sender(secure: bool) -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        sent = a.ping(b, 7)
        await until(lambda: b.got)
        assert b.got == [(a.id, sent)]
        back = b.ping(a, 8)
        await until(lambda: a.got)
        assert a.got == [(b.id, back)]
        assert a.transport.counters.messages_out == b.transport.counters.messages_in == 1

    run(test, secure=secure)


def test_messages_of_one_turn_share_a_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    packets: list[int] = []
    take = Hub.take

    def counting(self: Hub, source: NodeId, stream: Stream, packet: memoryview) -> None:
        packets.append(len(packet))
        take(self, source, stream, packet)

    monkeypatch.setattr(Hub, "take", counting)

    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        await a.transport.ask(b.transport.address)
        for number in range(100):
            a.ping(b, number)
        await until(lambda: len(b.got) == 100)
        assert b.numbers == list(range(100))
        assert len(packets) == 1

    run(test)


def test_large_and_small_messages_arrive_whole() -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        sizes = [0, 1, 255, 256, 65_535, 65_536, 512 << 10, 10]
        frames = [Frame((1, 2), n + 1, 0, 9, Piece(bytes([n]) * size)) for n, size in enumerate(sizes)]
        item = Item("job", b"x", (1,), bytes(1_900_000))
        for frame in frames:
            a.transport.send(b.id, frame)
        a.transport.send(b.id, GossipItems(1, (item,)))
        await until(lambda: len(b.got) == len(frames) + 1)
        assert [message for _, message in b.got] == [*frames, GossipItems(1, (item,))]

    run(test)


def test_probes_overtake_the_load_of_links() -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        for number in range(4):
            a.transport.send(b.id, Frame((1, 2), number + 1, 0, 9, Piece(bytes(400_000))))
        a.ping(b, 1)
        await until(lambda: len(b.got) == 5)
        assert isinstance(b.got[0][1], Ping)

    run(test)


def test_no_edge_is_lost_while_both_sides_send() -> None:
    """A send may consume the descriptor's edge for messages received meanwhile: if that is lost, a side waits for ever."""

    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        rounds, burst = 60, 50
        for round_ in range(rounds):
            for number in range(burst):
                a.ping(b, round_ * burst + number)
                b.ping(a, round_ * burst + number)
            if round_ % 7 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(a.got) == len(b.got) == rounds * burst)
        assert a.numbers == b.numbers == list(range(rounds * burst))

    run(test)


def test_a_full_pipe_empties_by_itself() -> None:
    """Only the descriptor shows that there is room again: code that reads the events must not lose what it read."""

    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        await a.transport.ask(b.transport.address)
        for round_ in range(12):
            for number in range(15):
                a.transport.send(b.id, Frame((1, 2), number + 1, 0, 9, Piece(bytes(512 << 10))))
                await asyncio.sleep(0)
            await until(lambda: len(b.got) == 15 * (round_ + 1))  # noqa: B023
        assert not a.dropped

    run(test)


def test_more_than_a_turn_takes_is_read_without_another_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "TURN_MESSAGES", 2)

    async def test(rig: Rig) -> None:
        b = rig.end()
        client = rig.client(b)
        client.send(client.proof())
        await client.answer()
        ping = handshake.head(handshake.STRETCH)
        for _ in range(12):
            client.send(ping)
        await until(lambda: b.transport.counters.bytes_in == 12 * len(ping))

    run(test)


def test_a_receiver_that_raises_does_not_stop_others() -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))

        def fail(source: NodeId, message: Message) -> None:
            raise RuntimeError("a core failed")

        b.transport._hub._deliver = fail
        a.ping(b)
        await until(lambda: failures)
        b.transport._hub._deliver = lambda source, message: b.got.append((source, message))
        a.ping(b, 2)
        await until(lambda: b.numbers == [2])

    run(test)


# Queues.


def stopped(end: End) -> None:
    """Like a stopped process: it no longer reads."""
    router = end.transport._listener._router
    assert router is not None
    asyncio.get_running_loop().remove_reader(router._fd)
    router.turn = lambda: None  # type: ignore[method-assign]


def test_the_queue_of_a_neighbour_is_bounded_and_reported() -> None:
    async def test(rig: Rig) -> None:
        a, b, c = rig.end(), rig.end(), rig.end()
        await a.transport.ask(b.transport.address)
        stopped(b)
        assert a.transport.has_room(b.id)
        for number in range(200):
            a.transport.send(b.id, Frame((1, 2), number + 1, 0, 9, Piece(bytes(512 << 10))))
            await asyncio.sleep(0)
        assert not a.transport.has_room(b.id)
        assert a.dropped["queue full"] > 0
        assert a.transport.queued_bytes[b.id] <= 2 * PARAMETERS.link_bytes_max + STRETCH_BYTES + 6
        a.ping(c, 1)
        await until(lambda: c.numbers == [1])

    run(test)


def test_a_router_with_a_full_pipe_keeps_the_reply_and_serves_others() -> None:
    """A mandatory ROUTER reports EAGAIN: no message that it has taken is lost, and no peer waits for one that does not read."""

    async def test(rig: Rig) -> None:
        b = rig.end()
        deaf, other = rig.client(b), rig.client(b)
        for client in (deaf, other):
            client.send(client.proof())
            await client.answer()
        deaf_id, other_id = (node_id(client.keys.curve_public) for client in (deaf, other) if client.keys)
        for number in range(100):
            b.transport.send(deaf_id, Frame((1, 2), number + 1, 0, 9, Piece(bytes(512 << 10))))
            await asyncio.sleep(0)
        assert b.dropped["queue full"] > 0
        b.ping(other_id, 5)
        assert (await other.answer())[0] == handshake.STRETCH
        taken = 0
        while taken < 16:  # it reads again: what was kept for it comes
            assert (await deaf.answer())[0] == handshake.STRETCH
            taken += 1

    run(test)


def test_a_router_drops_replies_to_peers_that_are_gone() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        client = rig.client(b)
        client.send(client.proof())
        await client.answer()
        assert client.keys is not None
        client.close()

        def gone() -> bool:
            b.ping(node_id(client.keys.curve_public))  # type: ignore[union-attr]
            return bool(b.dropped.get("no address"))

        await until(gone)
        assert b.dropped["connection lost"] >= 1

    run(test)


def test_the_address_is_unknown() -> None:
    async def test(rig: Rig) -> None:
        a = rig.end()
        a.ping(b"?" * 16)
        assert a.dropped == {"no address": 1}

    run(test)


def test_a_neighbour_without_an_address_is_answered_over_its_own_connection() -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(is_listed=False), rig.end()
        a.transport._hub.advertised = ""
        a.contact = a.contact.__class__(a.id, 1)
        a.ping(b)
        await until(lambda: b.got)
        b.ping(a, 4)
        await until(lambda: a.numbers == [4])

    run(test)


# Connections come and go.


def test_a_neighbour_that_restarts_is_found_again() -> None:
    async def test(rig: Rig) -> None:
        a = rig.end()
        keys = rig.keys()
        b = rig.end(keys)
        port = b.transport.port
        a.ping(b, 1)
        await until(lambda: b.numbers == [1])
        b.transport.close()
        again = rig.end(keys, life=2, listen=f"127.0.0.1:{port}")

        def reported() -> bool:
            a.ping(again, 2)
            return bool(again.numbers)

        await until(reported)
        assert set(again.numbers) == {2}

    run(test)


def test_another_address_is_another_connection() -> None:
    async def test(rig: Rig) -> None:
        a = rig.end()
        keys = rig.keys()
        b = rig.end(keys)
        a.ping(b, 1)
        await until(lambda: b.numbers == [1])
        b.transport.close()
        moved = rig.end(keys, life=2)
        a.ping(moved, 2)
        await until(lambda: moved.numbers == [2])
        assert b.numbers == [1]

    run(test)


def test_an_unreachable_neighbour_is_dialled_with_pauses_and_reported_once() -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        b.transport.close()
        await until(lambda: (a.ping(b), a.refused.get("no connection", 0) >= 2)[1])
        assert len([notice for notice in a.notices if notice.peer == b.id]) == 1
        assert "nothing listens there" in a.notices[0].text
        assert a.dropped["unreachable"] > 0

    run(test)


def test_an_idle_connection_is_closed_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "IDLE_S", -1)

    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        a.ping(b, 1)
        await until(lambda: b.numbers == [1])
        await until(lambda: not a.transport.counters.connections_out)
        a.ping(b, 2)
        await until(lambda: b.numbers == [1, 2])
        assert not a.refused

    run(test)


def test_what_was_sent_before_a_close_with_linger_arrives() -> None:
    """Otherwise LINGER is 0, which drops unsent messages."""

    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        await a.transport.ask(b.transport.address)
        a.ping(b, 9)
        a.transport.close(linger_ms=5_000)
        await until(lambda: b.numbers == [9])

    run(test)


def test_ask_returns_the_node_at_an_address() -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end(life=5)
        assert await a.transport.ask(f"127.0.0.1:{b.transport.port}") == b.contact
        assert await a.transport.ask(b.transport.address) == b.contact
        assert (await a.transport.ask(a.transport.address)).id == a.id
        with pytest.raises(PeerError, match="loopback"):
            await a.transport.ask("10.0.0.1:9000")
        b.transport.close()
        free = f"127.0.0.1:{b.transport.port}"
        with pytest.raises(PeerError, match=r"nothing listens|lost"):
            await a.transport.ask(free)

    run(test, secure=False)


def test_without_keys_only_loopback_is_served() -> None:
    async def test(rig: Rig) -> None:
        with pytest.raises(ConfigError, match="not a loopback address"):
            rig.end(listen="0.0.0.0:0")

    run(test, secure=False)


def test_a_port_that_is_taken() -> None:
    async def test(rig: Rig) -> None:
        a = rig.end()
        with pytest.raises(ConfigError, match="free the port or name another"):
            rig.end(listen=f"127.0.0.1:{a.transport.port}")

    run(test)


# Addresses.


def test_addresses() -> None:
    key = bytes(range(32))
    text = f"web1.example.org:7946/{key_text(key)}"
    address = parse_address(text)
    assert (address.host, address.port, address.key, str(address)) == ("web1.example.org", 7946, key, text)
    assert key_of(key_text(key)) == key
    assert len(key_text(key)) == 52
    assert parse_address("[::1]:9").is_loopback
    assert parse_address("127.9.9.9:9").is_loopback
    assert not parse_address("10.0.0.1:9").is_loopback


@pytest.mark.parametrize(
    "text",
    ["", "a", "a:", "a:b", "a:70000", "tcp://a:1", "a:1;b:2", "*:1", "a b:1", "a:1/short", "a:1/" + "A" * 52],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(PeerError, match=r"address|key"):
        parse_address(text)


def test_high_water_marks_and_sizes_are_set() -> None:
    async def test(rig: Rig) -> None:
        a = rig.end()
        router = a.transport._listener._router
        assert router is not None
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.MAXMSGSIZE, zmq.TCP_MAXRT, zmq.HANDSHAKE_IVL):
            assert int(router.socket.get(option)) > 0
        assert router.socket.get(zmq.TCP_KEEPALIVE) == 1
        # libzmq's own heartbeat ends the process ("!_io_error") when it is due on a connection that broke unread.
        assert router.socket.get(zmq.HEARTBEAT_IVL) == 0
        assert router.socket.get(zmq.LINGER) == 0
        assert isinstance(rig.client(a), Client)
        assert listener.CONNECTIONS_MAX > 0
