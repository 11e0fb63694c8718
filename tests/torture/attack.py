"""Hostile clients: `python -m tests.torture.attack KIND SECONDS ADDRESS KEY SOCKET`, until the time is up.

ADDRESS is host:port of an agent, KEY its public key as seeds name it, SOCKET its control socket.
"""

from __future__ import annotations

import base64
import os
import random
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

SLOW_CONNECTIONS = 1_000
SLOW_BYTE_S = 0.01
"""How often a slow connection sends a byte."""
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""The greeting of ZMTP 3.1 (https://rfc.zeromq.org/spec/37/): signature, version, mechanism, not a server."""
LARGE_BYTES = 30 << 20
CONNECT_S = 2.0


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    key: bytes
    control: str
    until_s: float

    def goes_on(self) -> bool:
        return time.monotonic() < self.until_s

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), CONNECT_S)


def slow(target: Target) -> None:
    """A thousand connections, each of which sends its greeting a byte at a time, for ever. Closed ones are opened again."""
    draws = random.Random(1)
    open_: list[tuple[socket.socket, Iterator[int]]] = []
    while target.goes_on():
        while len(open_) < SLOW_CONNECTIONS and target.goes_on():
            try:
                connection = target.connect()
            except OSError:
                break
            connection.setblocking(False)
            open_.append((connection, iter(GREETING)))
        place = draws.randrange(len(open_)) if open_ else 0
        if open_ and not _says_a_byte(*open_[place]):
            open_.pop(place)[0].close()
        time.sleep(SLOW_BYTE_S)
    for connection, _ in open_:
        connection.close()


def _says_a_byte(connection: socket.socket, rest: Iterator[int]) -> bool:
    """False if the other end has closed the connection, or all is sent."""
    byte = next(rest, None)
    if byte is None:
        return False
    try:
        connection.send(bytes([byte]))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def garbage(target: Target) -> None:
    """Random bytes, as fast as they are taken, on sixteen connections; some begin like ZMTP."""
    draws = random.Random(2)
    with ExitStack() as stack:
        chosen = stack.enter_context(selectors.DefaultSelector())
        for _ in range(16):
            _add(chosen, target)
        while target.goes_on():
            for key, _ in chosen.select(0.1):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    connection.send((GREETING if draws.random() < 0.3 else b"") + os.urandom(65_536))
                except BlockingIOError:
                    continue
                except OSError:
                    chosen.unregister(connection)
                    connection.close()
                    _add(chosen, target)


def _add(chosen: selectors.BaseSelector, target: Target) -> None:
    with suppress(OSError):
        connection = target.connect()
        connection.setblocking(False)
        chosen.register(connection, selectors.EVENT_WRITE)


def churn(target: Target) -> None:
    """As many connections as possible, opened and closed."""
    while target.goes_on():
        with suppress(OSError), target.connect() as connection:
            connection.sendall(GREETING[:11])


def forged(target: Target) -> None:
    """Frames that claim 2^64 - 1 bytes, after a correct greeting; as a command, as a message, as one with more to come."""
    kinds = (b"\x06", b"\x02", b"\x03", b"\x04")
    while target.goes_on():
        for kind in kinds:
            with suppress(OSError), target.connect() as connection:
                connection.sendall(GREETING)
                connection.settimeout(0.2)
                with suppress(OSError):
                    connection.recv(64)
                connection.sendall(kind + struct.pack(">Q", 2**64 - 1) + os.urandom(4_096))
                with suppress(OSError):
                    connection.recv(64)


def strangers(target: Target) -> None:
    """CURVE with uncertified keys, and messages of 30 MB."""
    import zmq

    large = os.urandom(LARGE_BYTES)
    with zmq.Context() as context:
        while target.goes_on():
            public, secret = zmq.curve_keypair()
            with context.socket(zmq.DEALER) as dealer:
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.setsockopt(zmq.SNDTIMEO, 1_000)
                dealer.curve_serverkey = base64_85(target.key)
                dealer.curve_publickey, dealer.curve_secretkey = public, secret
                dealer.connect(f"tcp://{target.host}:{target.port}")
                for _ in range(3):
                    with suppress(zmq.ZMQError):
                        dealer.send(large)
                time.sleep(0.5)


def base64_85(key: bytes) -> bytes:
    """The key in Z85, as zmq expects it."""
    import zmq.utils.z85

    return bytes(zmq.utils.z85.encode(key))


def control(target: Target) -> None:
    """The control socket: random bytes, requests that claim to be huge, and huge ones that never end."""
    draws = random.Random(3)
    while target.goes_on():
        with suppress(OSError), ExitStack() as stack:
            for _ in range(32):
                connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                connection.settimeout(0.5)
                connection.connect(target.control)
                head = draws.choice(
                    (b"", b"\xff\xff\xff\xff", struct.pack("<I", 2 << 20), struct.pack("<I", 64))
                )
                with suppress(OSError):
                    connection.sendall(head + os.urandom(draws.choice((10, 70, 2 << 20, 4 << 20))))


KINDS: dict[str, Callable[[Target], None]] = {
    attack.__name__: attack for attack in (slow, garbage, churn, forged, strangers, control)
}


def main(kind: str, seconds: str, address: str, key: str, socket_path: str) -> None:
    host, _, port = address.partition(":")
    public = base64.b32decode(key.upper() + "=" * (-len(key) % 8))
    KINDS[kind](Target(host, int(port), public, socket_path, time.monotonic() + float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:6])
