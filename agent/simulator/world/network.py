"""The virtual network: delay, loss, duplication, reordering and partitions, all from one seed."""

from __future__ import annotations

from random import Random

import msgspec

from elf.srt.messages.ids import NodeId

MS = 1_000
REPEAT_US = 200 * MS
"""A kernel resends unacknowledged data after this long, then after twice that, and so on."""


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of the network for every datagram, in microseconds and probabilities."""

    delay_us: int = 500
    jitter_us: int = 500
    loss: float = 0.0
    duplicate: float = 0.0
    straggle: float = 0.0  # fraction of datagrams that take up to `straggle_us` longer, and so are overtaken
    straggle_us: int = 50 * MS


class Network:
    """Decides when, how often and whether a datagram arrives. O(1) per datagram.

    Cuts are directed pairs of groups: a datagram from a node of the first to one of the second is lost while the cut lasts.
    """

    def __init__(self, rng: Random, weather: Weather) -> None:
        self.sent = self.lost = 0
        self._random = rng.random
        self._cuts: dict[int, tuple[frozenset[NodeId], frozenset[NodeId]]] = {}
        self._slow: dict[NodeId, int] = {}
        self.weather = weather

    @property
    def weather(self) -> Weather:
        """May change at any time."""
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._weather = weather
        self._is_fair = not (weather.loss or weather.straggle or weather.duplicate)

    def cut(self, name: int, senders: frozenset[NodeId], receivers: frozenset[NodeId]) -> None:
        """From now on no datagram from `senders` reaches `receivers`. Both directions need two cuts."""
        self._cuts[name] = senders, receivers

    def heal(self, name: int) -> None:
        self._cuts.pop(name, None)

    def slow(self, node: NodeId, extra_us: int) -> None:
        """Datagrams from and to the node take `extra_us` longer; 0 ends that."""
        if extra_us:
            self._slow[node] = extra_us
        else:
            self._slow.pop(node, None)

    @property
    def is_whole(self) -> bool:
        return not self._cuts

    def separates(self, source: NodeId, to: NodeId) -> bool:
        return any(source in senders and to in receivers for senders, receivers in self._cuts.values())

    def end_is_seen(self, ended: NodeId, by: NodeId) -> int | None:
        """The time until a connected neighbour knows that a process has ended whose host lives; None if the two are separated.
        The host closes the connection, the neighbour tries to connect, and the host refuses."""
        if self.separates(ended, by) or self.separates(by, ended):
            return None
        weather, random = self._weather, self._random
        taken = 3 * (self._slow.get(ended, 0) + self._slow.get(by, 0))
        for _ in range(3):
            taken += weather.delay_us + int(random() * weather.jitter_us)
            repeat = REPEAT_US
            while weather.loss and random() < weather.loss:
                taken += repeat
                repeat *= 2
        return taken

    def delays(self, source: NodeId, to: NodeId) -> tuple[int, ...]:
        """The delay of each copy that arrives: none, one or two."""
        self.sent += 1
        weather, random = self._weather, self._random
        if self._is_fair and not (self._cuts or self._slow):
            return (weather.delay_us + int(random() * weather.jitter_us),)
        if (self._cuts and self.separates(source, to)) or (weather.loss and random() < weather.loss):
            self.lost += 1
            return ()
        delay = weather.delay_us + int(random() * weather.jitter_us)
        if self._slow:
            delay += self._slow.get(source, 0) + self._slow.get(to, 0)
        if weather.straggle and random() < weather.straggle:
            delay += int(random() * weather.straggle_us)
        if weather.duplicate and random() < weather.duplicate:
            return delay, delay + int(random() * weather.straggle_us)
        return (delay,)
