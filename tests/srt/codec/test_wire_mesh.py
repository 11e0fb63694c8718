"""Whole meshes under faults, with every datagram, posted message and record as bytes: all messages of cores fit the formats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.world.disk import Disk, Key
from elf.agent.simulator.world.world import World
from elf.jobmaster.log.log_codec import LOG
from elf.jobmaster.log.record_codec import RecordDecoder, RecordEncoder
from elf.srt.codec.wire import Decoder, Encoder, decode, encode
from elf.srt.link.link import Link
from elf.srt.messages.effects import Effect, Write
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Message
from elf.srt.messages.results import Put
from tests.rigs.wire_values import same
from tests.soak.drawn import random_scenario


class Bytes:
    """Stands between cores and the virtual network and disks. wrong: what did not come back as it was."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.messages = self.posted = self.records = 0
        self.wrong: list[str] = []
        self._transmit, self._post = World._transmit, Link.post
        self._write, self._crash = Disk.write, Disk.crash
        self._links: dict[int, tuple[Link, Encoder, Decoder]] = {}
        self._disks: dict[int, tuple[RecordEncoder, RecordDecoder]] = {}
        # lambdas, since a bound method in a class would not be given the world or disk
        patch.setattr(World, "_transmit", lambda world, *letter: self.transmit(world, *letter))  # noqa: PLW0108
        patch.setattr(Link, "post", lambda link, *posted: self.post(link, *posted))  # noqa: PLW0108
        patch.setattr(Disk, "write", lambda disk, *write: self.write(disk, *write))  # noqa: PLW0108
        patch.setattr(Disk, "crash", lambda disk, rng: self.crash(disk, rng))  # noqa: PLW0108

    def transmit(
        self,
        world: World,
        source: NodeId,
        to: NodeId,
        message: Message,
        where: bytes = b"",
        sender: Any = None,
    ) -> None:
        came = decode(encode(message, LOG), LOG)
        self.messages += 1
        if isinstance(message, Put):
            message = msgspec.structs.replace(message, rows=tuple(message.rows))
        self.compare(came, message)
        self._transmit(world, source, to, came, where, sender)

    def post(self, link: Link, message: Message, now: int, nbytes: int | None = None) -> list[Effect]:
        """Through the rosters of the link: the order of posting is that of delivery."""
        _, encoder, decoder = self._links.setdefault(id(link), (link, Encoder(LOG), Decoder(LOG)))
        came = decoder.decode(encoder.encode(message))
        self.posted += 1
        self.compare(came, message)
        return self._post(link, came, now, nbytes)

    def write(self, disk: Disk, key: Key, record: Any, replace: bool) -> None:
        encoder, decoder = self._disks.setdefault(id(disk), (RecordEncoder(), RecordDecoder()))
        came = decoder.decode(encoder.encode(Write(key, record, replace)))
        self.records += 1
        self.compare(came, Write(key, record, replace))
        self._write(disk, came.key, came.record, came.replace)

    def crash(self, disk: Disk, rng: Any) -> None:
        """Later records are written by another encoder, after the same records."""
        if id(disk) in self._disks:
            self._disks[id(disk)] = RecordEncoder(), self._disks[id(disk)][1]
        self._crash(disk, rng)

    def compare(self, came: Any, sent: Any) -> None:
        if not same(came, sent) and len(self.wrong) < 3:
            self.wrong.append(f"{sent!r:.2000}\n{came!r:.2000}")


def no_inspection(run: Run) -> None:
    """The simulator's invariants compare entries of two nodes by identity, which bytes do not keep."""
    run.world.inspect = None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4])
def test_a_mesh_over_bytes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    between = Bytes(monkeypatch)
    outcome = simulate(random_scenario(seed), prepare=no_inspection)
    assert between.wrong == []
    assert between.messages > 1_000
    assert between.posted > 400
    assert between.records > 20
    assert outcome.violation == ""
