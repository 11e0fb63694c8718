"""The contract of a network, on which every core relies: checked against the simulator's network and the real one.

A message may be lost, repeated or overtaken; it is never changed, its sender is authentic, and it arrives after `send` has
returned. A node that is down gets nothing, and no other node is affected. Over that, links deliver each message once, in order,
between two lives. Nodes connected to a process are notified when it has ended, with the life that is gone, or when a later life
answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol

import pytest

from elf.agent.simulator.world.calendar import Calendar
from elf.agent.simulator.world.network import Network, Weather
from elf.jobmaster.log.log_codec import LOG
from elf.srt.codec.wire import KINDS, decode, encode
from elf.srt.link.link import Link
from elf.srt.link.rights import check_datagram
from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import Contact, Frame, Message, Piece, Ping
from tests.rigs import wire_values as values
from tests.rigs.transport_rig import PARAMETERS, PATIENCE_S, End, Rig, until

pytestmark = pytest.mark.process

MS = 1_000
Take = Callable[[NodeId, Message], None]
Gone = Callable[[NodeId, int], None]


def ignore(node: NodeId, life: int) -> None:
    """Does not ask."""


class Net(Protocol):
    """Nodes 0, 1, … of a network under test."""

    def id(self, node: int) -> NodeId: ...
    def start(self, node: int, take: Take, gone: Gone = ..., restarted: Gone = ...) -> None:
        """A life of the node begins, from 1 up: `take` gets its messages; the other two callbacks get lives of others that are
        gone, and those that answer in their place."""

    def stop(self, node: int) -> None:
        """Its process ends."""

    def send(self, node: int, to: NodeId, message: Message) -> None: ...
    def now_us(self) -> int: ...
    async def until(self, holds: Callable[[], object]) -> None:
        """Let time pass until the condition holds."""


class Simulated:
    """The simulator's network and calendar; messages are sent as bytes, as in a coded world."""

    def __init__(self, weather: Weather) -> None:
        self._network, self._calendar = Network(Random(1), weather), Calendar()
        self._taking: dict[NodeId, Take] = {}
        self._seeing: dict[NodeId, tuple[Gone, Gone]] = {}
        self._connected: set[tuple[NodeId, NodeId]] = set()
        self._lives: dict[NodeId, int] = {}
        self._now = 0

    def id(self, node: int) -> NodeId:
        return node_id(node.to_bytes(32))

    def start(self, node: int, take: Take, gone: Gone = ignore, restarted: Gone = ignore) -> None:
        me = self.id(node)
        self._taking[me], self._seeing[me] = take, (gone, restarted)
        self._lives[me] = self._lives.get(me, 0) + 1

    def stop(self, node: int) -> None:
        """As `World.crash` does it."""
        me = self.id(node)
        del self._taking[me]
        for other in [source for source, to in self._connected if to == me and source in self._taking]:
            delay = self._network.end_is_seen(me, other)
            assert delay is not None
            self._calendar.add(self._now + delay, self._see, other, (me, self._lives[me]))
        self._connected = {pair for pair in self._connected if me not in pair}

    def _see(self, by: NodeId, about: tuple[NodeId, int]) -> None:
        node, life = about
        if by in self._taking:
            gone, restarted = self._seeing[by]
            gone(node, life) if node not in self._taking else restarted(node, self._lives[node])

    def send(self, node: int, to: NodeId, message: Message) -> None:
        letter = self.id(node), encode(message, LOG)
        for delay in self._network.delays(letter[0], to):
            self._calendar.add(self._now + delay, self._deliver, to, letter)

    def _deliver(self, to: NodeId, letter: tuple[NodeId, bytes]) -> None:
        message = decode(letter[1], LOG)
        check_datagram(message, letter[0])
        if to in self._taking:
            self._connected.add((letter[0], to))
            self._taking[to](letter[0], message)

    def now_us(self) -> int:
        return self._now

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():
            assert self._now < 600_000 * MS, "it did not come about"
            for event in self._calendar.upto(self._now + MS):
                self._now = event[0]
                event[2](event[3], event[4])
            self._now += MS


class Real:
    """Transports with keys, on loopback. Loss is made at the receiver."""

    def __init__(self, rig: Rig, loss: float) -> None:
        self._rig, self._loss, self._rng = rig, loss, Random(2)
        self._keys = [rig.keys() for _ in range(3)]
        self._ends: dict[int, End] = {}
        self._lives = [0, 0, 0]

    def id(self, node: int) -> NodeId:
        return self._keys[node].id

    def start(self, node: int, take: Take, gone: Gone = ignore, restarted: Gone = ignore) -> None:
        self._lives[node] += 1
        former = self._ends.get(node)
        listen = "127.0.0.1:0" if former is None else f"127.0.0.1:{former.transport.port}"
        end = self._ends[node] = self._rig.end(self._keys[node], life=self._lives[node], listen=listen)
        end.transport._refused = gone
        end.transport._restarted = lambda contact: restarted(contact.id, contact.incarnation)

        def deliver(source: NodeId, message: Message) -> None:
            if self._rng.random() >= self._loss:
                take(source, message)

        end.transport._hub._deliver = deliver
        end.transport._hub.log = LOG

    def stop(self, node: int) -> None:
        self._ends[node].transport.close()

    def send(self, node: int, to: NodeId, message: Message) -> None:
        self._ends[node].transport.send(to, message)

    def now_us(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e6)

    async def until(self, holds: Callable[[], object]) -> None:
        await until(holds)


Test = Callable[[Net], Coroutine[Any, Any, None]]
Network_ = Callable[[Test, float], None]


@pytest.fixture(params=["simulated", "real"])
def network(request: pytest.FixtureRequest) -> Network_:
    def run(test: Test, loss: float) -> None:
        async def real() -> None:
            rig = Rig()
            try:
                await asyncio.wait_for(test(Real(rig, loss)), 2 * PATIENCE_S)
            finally:
                rig.close()

        if request.param == "real":
            asyncio.run(real())
        else:
            asyncio.run(test(Simulated(Weather(loss=loss, duplicate=loss, straggle=loss))))

    return run


def ping(net: Net, node: int, number: int) -> Ping:
    return Ping(Contact(net.id(node), 1), number)


def test_messages_of_all_kinds_arrive_unchanged_with_their_sender(network: Network_) -> None:
    rng = Random(7)

    def of(kind: type[Message], me: NodeId) -> Message:
        message = values.message(kind, rng)
        sender = getattr(message, "sender", None)
        if isinstance(sender, Contact):
            message = type(message)(
                *(Contact(me, 1) if f == "sender" else getattr(message, f) for f in message.__struct_fields__)
            )
        return message

    async def test(net: Net) -> None:
        got: list[tuple[NodeId, Message]] = []
        net.start(0, lambda source, message: None)
        net.start(1, lambda source, message: got.append((source, message)))
        sent: list[Message] = []
        for kind in (kind.type for kind in KINDS if kind.type not in (Piece, Frame)):
            message = of(kind, net.id(0))
            try:
                check_datagram(message, net.id(0))
            except Exception:  # no node sends such a message
                continue
            sent.append(message)
            net.send(0, net.id(1), message)
        await net.until(lambda: len(got) >= len(sent))
        assert {source for source, _ in got} == {net.id(0)}
        for message in sent:
            assert any(values.same(message, other) for _, other in got), type(message).__name__
        assert len(got) == len(sent) > 30

    network(test, 0.0)


def test_sending_delivers_nothing_before_it_returns(network: Network_) -> None:
    async def test(net: Net) -> None:
        got: list[Message] = []
        net.start(0, lambda source, message: None)
        net.start(1, lambda source, message: got.append(message))
        for number in range(10):
            net.send(0, net.id(1), ping(net, 0, number))
            assert not got
        await net.until(lambda: len(got) == 10)

    network(test, 0.0)


def test_messages_to_absent_nodes_affect_no_others(network: Network_) -> None:
    async def test(net: Net) -> None:
        got: list[Message] = []
        net.start(0, lambda source, message: None)
        net.start(1, lambda source, message: got.append(message))
        net.send(0, b"?" * 16, ping(net, 0, 1))
        net.send(0, net.id(2), ping(net, 0, 2))
        net.send(0, net.id(1), ping(net, 0, 3))
        await net.until(lambda: got)
        assert got == [ping(net, 0, 3)]

    network(test, 0.0)


def test_a_node_that_stops_gets_nothing_and_its_next_life_does(network: Network_) -> None:
    async def test(net: Net) -> None:
        first: list[Message] = []
        second: list[Message] = []
        net.start(0, lambda source, message: None)
        net.start(1, lambda source, message: first.append(message))
        net.send(0, net.id(1), ping(net, 0, 1))
        await net.until(lambda: first)
        net.stop(1)
        net.send(0, net.id(1), ping(net, 0, 2))
        net.start(1, lambda source, message: second.append(message))

        def reported() -> bool:
            net.send(0, net.id(1), ping(net, 0, 3))
            return bool(second)

        await net.until(reported)
        assert first == [ping(net, 0, 1)]
        assert ping(net, 0, 3) in second

    network(test, 0.0)


def test_the_end_of_a_process_is_reported_to_connected_nodes_and_to_no_others(network: Network_) -> None:
    async def test(net: Net) -> None:
        reported: list[tuple[int, NodeId, int]] = []
        got: list[NodeId] = []
        for node in range(3):
            net.start(
                node,
                lambda source, message: got.append(source),
                lambda gone, life, node=node: reported.append((node, gone, life)),  # type: ignore[misc]
            )
        net.send(0, net.id(1), ping(net, 0, 1))
        net.send(2, net.id(0), ping(net, 2, 1))
        await net.until(lambda: len(got) == 2)
        net.stop(1)
        await net.until(lambda: reported)
        net.stop(0)
        await net.until(lambda: len(reported) == 2)
        assert reported == [(0, net.id(1), 1), (2, net.id(0), 1)]

    network(test, 0.0)


def test_a_later_life_that_answers_is_reported_instead_of_the_end(
    network: Network_, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elf.srt.transport.dialer.STOOD_S", 0.0)

    async def test(net: Net) -> None:
        gone: list[int] = []
        restarted: list[tuple[NodeId, int]] = []
        got: list[NodeId] = []
        net.start(
            0,
            lambda source, message: None,
            lambda node, life: gone.append(life),
            lambda node, life: restarted.append((node, life)),
        )
        net.start(1, lambda source, message: got.append(source))
        net.send(0, net.id(1), ping(net, 0, 1))
        await net.until(lambda: got)
        net.stop(1)
        net.start(1, lambda source, message: None)
        await net.until(lambda: restarted)
        assert restarted == [(net.id(1), 2)]
        assert gone == []

    network(test, 0.0)


class Linked:
    """A node with a link to another: counts what it delivers."""

    def __init__(self, net: Net, node: int, peer: int, life: int) -> None:
        self.net, self.node = net, node
        self.link = Link(net.id(peer), life, 0, PARAMETERS)
        self.got: list[bytes] = []
        net.start(node, self.take)

    def take(self, source: NodeId, message: Message) -> None:
        assert isinstance(message, Frame)
        pieces, effects = self.link.step(message, self.net.now_us())
        self.got += [piece.payload for piece in pieces if isinstance(piece, Piece)]
        self.send(effects)

    def post(self, payload: bytes) -> None:
        self.send(self.link.post(Piece(payload), self.net.now_us()))

    def tick(self) -> None:
        deadline = self.link.deadline
        if deadline is not None and deadline <= self.net.now_us():
            self.send(self.link.tick(self.net.now_us()))

    def send(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Send)
            self.net.send(self.node, effect.to, effect.message)


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_links_deliver_each_message_once_and_in_order(network: Network_, loss: float) -> None:
    async def test(net: Net) -> None:
        a, b = Linked(net, 0, 1, 1), Linked(net, 1, 0, 1)
        rng = Random(3)
        there = [rng.randbytes(rng.choice((1, 100, 20_000))) for _ in range(15)]
        back = [rng.randbytes(50) for _ in range(15)]
        for one, other in zip(there, back, strict=True):
            a.post(one)
            b.post(other)

        def done() -> bool:
            a.tick()
            b.tick()
            return a.link.idle and b.link.idle

        await net.until(done)
        assert b.got == there
        assert a.got == back

    network(test, loss)
