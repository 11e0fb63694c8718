"""A slow and lossy wire in user space, for kernels without netem: two TAP devices, and this process between them.

    python slow_wire.py NEAR FAR DELAY_MS LOSS_PERCENT

Makes the two devices, says "ready", and moves every Ethernet frame from one to the other, in order, so much later; of a hundred
so many are lost, by a fixed seed. It ends with its standard input, and the devices with it.
"""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX = 64 << 10
FRAMES_MAX = 10_000
"""On their way in one direction, as many as netem would take ten times over; a frame more is lost."""


def tap(name: str) -> int:
    """A new device. Its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def carry(near: int, far: int, delay_s: float, loss: float) -> None:
    """Until there is nothing more on standard input."""
    rng = random.Random(1)
    way: deque[tuple[float, int, bytes]] = deque()
    """When a frame arrives, where, and what it is; the delay is always the same, so they stand in order."""
    selector = selectors.DefaultSelector()
    for device, other in ((near, far), (far, near)):
        selector.register(device, selectors.EVENT_READ, other)
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        wait_s = max(0.0, way[0][0] - time.monotonic()) if way else None
        for key, _ in selector.select(wait_s):
            if key.fileobj is sys.stdin:
                return
            frame = os.read(key.fd, FRAME_BYTES_MAX)
            if rng.random() >= loss and len(way) < FRAMES_MAX:
                way.append((time.monotonic() + delay_s, key.data, frame))
        while way and way[0][0] <= time.monotonic():
            _, other, frame = way.popleft()
            deliver(other, frame)


def deliver(device: int, frame: bytes) -> None:
    """A device that is down, or whose queue is full, loses it."""
    try:
        os.write(device, frame)
    except OSError:
        return


if __name__ == "__main__":
    near_name, far_name, delay_ms, loss_percent = sys.argv[1:]
    devices = tap(near_name), tap(far_name)
    print("ready", flush=True)
    carry(*devices, float(delay_ms) / 1_000, float(loss_percent) / 100)
