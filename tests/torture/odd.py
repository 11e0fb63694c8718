"""Visitors unlike any browser: `python -m tests.torture.odd SEED PER_SECOND`, to port 80 of this host, for ever."""

from __future__ import annotations

import random
import socket
import sys
import time
from contextlib import suppress

ODD: tuple[bytes, ...] = (
    b'GET /odd/%22quoted%22?a="b" HTTP/1.1\r\nHost: a\r\nUser-Agent: "x\\" y\r\nConnection: close\r\n\r\n',
    b"HEAD /page.html HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"POST /odd HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
    b"GET /page.html\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"\x00\xff\xfe\r\n\r\n",
    b"BREW /pot HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /odd/\xc3\xa4\xff HTTP/1.1\r\nHost: a\r\nUser-Agent: \xf0\x9f\x98\x80 \x1b[31m\r\nConnection: close\r\n\r\n",
    b"GET /" + b"a" * 6_000 + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /" + b"b" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b'GET /old HTTP/1.0\r\nReferer: [x] "-" - -\r\n\r\n',
    b"GET /busy HTTP/1.1\r\nHost: a\r\n\r\nGET /page.html HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET  /two  spaces  HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /page.html HTTP/9.9\r\n\r\n",
    b"GET /unfinished HTTP/1.1\r\nHost:",
)


def visit(request: bytes, waits: bool) -> None:
    """One connection; some close it before they are answered."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", 80), 2) as connection:
        connection.settimeout(0.5)
        connection.sendall(request)
        while waits and connection.recv(65_536):
            pass


def main(seed: str, per_second: str) -> None:
    draws = random.Random(int(seed))
    while True:
        visit(draws.choice(ODD), draws.random() < 0.8)
        time.sleep(draws.expovariate(float(per_second)))


if __name__ == "__main__":
    main(*sys.argv[1:3])
