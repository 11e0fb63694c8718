"""One edge of a tree: how much a node gets to its parent over TCP with CURVE, beside what libzmq alone does in the same run.

    python benchmarks/edge.py [--runs 5] [--large 1000] [--small 200000] [--smoke]

Two processes on loopback, one sends, one receives; figures are from the first to the last message at the receiver.

    libzmq   a DEALER sends packets as large as ours to a ROUTER, CURVE, no Python but the two loops
    sent     `Transport.send` of frames with a piece in each, as a link makes them: encoded, queued, decoded, delivered
    link     the same with a `Link` at both ends: numbered, acknowledged, within its window

Large frames have 512 KiB, small ones 100 bytes; small ones of one turn share a packet, for libzmq's too: it gets packets of
64 KiB. Every frame is counted and its number compared; payloads are random bytes of a fixed seed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from random import Random

import measure
import uvloop
import zmq

from elf.srt.link.link import Link
from elf.srt.messages.addresses import Address, parse_address
from elf.srt.messages.effects import Effect, Notice, Send
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import Frame, Message, Piece
from elf.srt.messages.parameters import Parameters
from elf.srt.security.certificates import Authority, Keys, Trust
from elf.srt.transport.transport import Transport

LARGE, SMALL = 512 << 10, 100
SMALL_PACKET = 64 << 10
TARGET_MB, TARGET_FRAMES, TARGET_SHARE = 400.0, 100_000.0, 0.8
MB = 1e6
NOW_S = int(time.time())
SEED = bytes(range(32))
_NUMBER = struct.Struct("<Q")
PARAMETERS = Parameters()


def keys_of(name: str) -> Keys:
    """Both processes make the authority from one seed; keys are new each time."""
    return Authority(SEED).issue(name, "agent", NOW_S)


def payloads(size: int) -> list[bytes]:
    """Sixteen different ones; the number goes in front."""
    rng = Random(1)
    return [rng.randbytes(size - _NUMBER.size) for _ in range(16)]


class Seen:
    """What the receiver counts. Raises ValueError when a frame is not the next one."""

    def __init__(self, count: int) -> None:
        self.count, self.next, self.begun_s, self.ended_s = count, 0, 0.0, 0.0

    def take(self, payload: bytes | memoryview) -> None:
        if not self.next:
            self.begun_s = time.perf_counter()
        if _NUMBER.unpack_from(payload)[0] != self.next:
            raise ValueError(f"frame {self.next} is not the next one")
        self.next += 1
        if self.next == self.count:
            self.ended_s = time.perf_counter()

    @property
    def is_done(self) -> bool:
        return self.next == self.count


# libzmq alone.


def bare_receive(count: int, size: int) -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    keys = keys_of("receiver")
    router.set(zmq.CURVE_SERVER, 1)
    router.set(zmq.CURVE_PUBLICKEY, keys.curve_public)
    router.set(zmq.CURVE_SECRETKEY, keys.curve_secret)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    print(Address(f"127.0.0.1:{port}", keys.curve_public), flush=True)
    seen = Seen(count)
    while not seen.is_done:
        packet = router.recv_multipart(copy=False)[-1].buffer
        for at in range(0, len(packet), size):
            seen.take(packet[at : at + _NUMBER.size])
    print(seen.ended_s - seen.begun_s)
    context.destroy(0)


def bare_send(address: Address, count: int, size: int) -> None:
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    keys = keys_of("sender")
    assert address.key is not None
    dealer.set(zmq.CURVE_SERVERKEY, address.key)
    dealer.set(zmq.CURVE_PUBLICKEY, keys.curve_public)
    dealer.set(zmq.CURVE_SECRETKEY, keys.curve_secret)
    dealer.set(zmq.SNDHWM, 16)
    dealer.connect(f"tcp://{address.endpoint}")
    some = payloads(size)
    packet: list[bytes] = []
    waiting = 0
    for number in range(count):
        packet += (_NUMBER.pack(number), some[number % 16])
        waiting += size
        if waiting >= min(LARGE, SMALL_PACKET) or number == count - 1:
            dealer.send(b"".join(packet))
            packet, waiting = [], 0
    dealer.close(30_000)
    context.term()


# The product.


class End:
    """One process's transport, with a link to the other."""

    def __init__(self, name: str, deliver: Callable[[Frame], None]) -> None:
        keys = keys_of(name)
        self.keys = keys
        self.peer: NodeId = b""
        self.address = ""
        self.is_over = False
        self._take = deliver
        self.transport = Transport(
            keys.id,
            1,
            PARAMETERS,
            keys=keys,
            trust=Trust(Authority(SEED).public),
            key=keys.curve_public,
            listen="127.0.0.1:0",
            address_of=lambda node: self.address or None,
            deliver=self._deliver,
            notice=self._notice,
            instance=1,
        )
        self.transport.start()

    def _notice(self, notice: Notice) -> None:
        if not self.is_over:  # the other end goes first
            print(notice.text, file=sys.stderr)

    def _deliver(self, source: NodeId, message: Message) -> None:
        self.peer = source
        assert isinstance(message, Frame)
        self._take(message)

    def send(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Send)
            self.transport.send(self.peer, effect.message)


async def receive(count: int, size: int, linked: bool) -> None:
    seen, done = Seen(count), asyncio.Event()
    link: Link | None = None

    def take(frame: Frame) -> None:
        nonlocal link
        pieces: list[Message] = [frame.message] if frame.message is not None else []
        if linked:
            if link is None:
                link = Link(end.peer, 2, 0, PARAMETERS)
            pieces, effects = link.step(frame, time.monotonic_ns() // 1_000)
            end.send(effects)
        for piece in pieces:
            assert isinstance(piece, Piece)
            seen.take(piece.payload)
        if seen.is_done:
            done.set()

    end = End("receiver", take)
    print(end.transport.address, flush=True)
    await done.wait()
    end.is_over = True
    print(seen.ended_s - seen.begun_s, flush=True)
    while True:  # the last acknowledgement, until the other side is done with us
        await asyncio.sleep(0.05)
        if link is not None:
            end.send(link.tick(time.monotonic_ns() // 1_000))


async def send(address: Address, count: int, size: int, linked: bool) -> None:
    some = payloads(size)
    link = Link(node_id(address.key or b""), 1, 2, PARAMETERS)
    end = End("sender", lambda frame: end.send(link.step(frame, time.monotonic_ns() // 1_000)[1]))
    end.address, end.peer = str(address), link.peer
    await end.transport.ask(str(address))
    number = 0
    while number < count:
        while number < count and (link.has_credit if linked else end.transport.has_room(end.peer)):
            piece = Piece(_NUMBER.pack(number) + some[number % 16])
            number += 1
            if linked:
                end.send(link.post(piece, time.monotonic_ns() // 1_000))
            else:
                end.transport.send(end.peer, Frame((1, 2), number, 0, PARAMETERS.link_bytes_max, piece))
            if number % 256 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0.0005)
        if linked:
            end.send(link.tick(time.monotonic_ns() // 1_000))
    while (not link.idle) if linked else end.transport.queued_bytes:
        await asyncio.sleep(0.001)
        if linked:
            end.send(link.tick(time.monotonic_ns() // 1_000))
    end.transport.close(30_000)


# Rounds.


def part(name: str, side: str, count: int, size: int, address: str) -> None:
    """What one of the two processes does."""
    linked = name == "link"
    if name == "libzmq":
        bare_receive(count, size) if side == "receive" else bare_send(parse_address(address), count, size)
    elif side == "receive":
        uvloop.run(receive(count, size, linked))
    else:
        uvloop.run(send(parse_address(address), count, size, linked))


def rate(name: str, count: int, size: int) -> float:
    """Frames a second."""
    command = [sys.executable, __file__, "--part", name, "--count", str(count), "--size", str(size)]
    receiver = subprocess.Popen([*command, "--side", "receive"], stdout=subprocess.PIPE, text=True)
    assert receiver.stdout is not None
    address = receiver.stdout.readline().strip()
    sender = subprocess.Popen([*command, "--side", "send", "--address", address])
    seconds = float(receiver.stdout.readline())
    failed = sender.wait()
    receiver.terminate()
    receiver.wait()
    if failed:
        raise SystemExit(f"{name}: a process failed")
    return count / seconds


def compare(what: str, count: int, size: int, runs: int) -> dict[str, list[float]]:
    """Frames a second, of each contender in turn."""
    found: dict[str, list[float]] = {"libzmq": [], "sent": [], "link": []}
    for _ in range(runs):
        for name, rates in found.items():
            rates.append(rate(name, count, size))
    print(f"{what}: {count:,} frames of {size:,} bytes")
    for name, rates in found.items():
        shares = [a / b for a, b in zip(rates, found["libzmq"], strict=True)]
        print(
            f"  {name:8} {measure.spread([each * size / MB for each in rates]):28} MB/s, "
            f"{measure.spread([each / 1e3 for each in rates]):28} thousand frames/s, of libzmq's {measure.spread(shares)}"
        )
    return found


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--large", type=int, default=1_000, help="large frames in a run")
    parser.add_argument("--small", type=int, default=200_000, help="small frames in a run")
    for internal in ("--part", "--side", "--address"):
        parser.add_argument(internal, default="", help=argparse.SUPPRESS)
    for internal in ("--count", "--size"):
        parser.add_argument(internal, type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        part(args.part, args.side, args.count, args.size, args.address)
        return
    print(
        f"{measure.machine()}\nlibzmq {zmq.zmq_version()}, pyzmq {zmq.__version__}, medians of {args.runs} runs"
    )
    large, small, runs = (50, 5_000, 1) if args.smoke else (args.large, args.small, args.runs)
    rates = compare("large", large, LARGE, runs)
    mb = statistics.median(rates["link"]) * LARGE / MB
    share = statistics.median(a / b for a, b in zip(rates["link"], rates["libzmq"], strict=True))
    rates = compare("small", small, SMALL, runs)
    small_link = statistics.median(rates["link"]) / 1e3
    print(f"  large frames on a link, of what libzmq alone does {share:.2f} (enough: {TARGET_SHARE})")
    print(measure.target("  or, MB/s", mb, min(TARGET_MB, TARGET_SHARE * mb / share)))
    print(measure.target("small frames on a link, thousand a second", small_link, 100))


if __name__ == "__main__":
    main()
