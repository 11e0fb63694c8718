"""What is used twice, though it should not be: a key by two processes, a state folder that was copied or restored, logs by two
agents. Handlers of these faults for `elf.agent.simulator.run.Run`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from elf.agent.simulator import scenario as s
from elf.agent.simulator.disk import Disk
from elf.agent.simulator.oracle import ALWAYS, Server
from elf.agent.simulator.sources import VirtualSource
from elf.agent.simulator.world import EPOCH_US, Actor

if TYPE_CHECKING:
    from elf.agent.simulator.run import Run


class Doubles:
    """Makes what such faults need before a run begins, and lets them happen."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._sources: dict[int, VirtualSource] = {}  # by the fault's number
        self._copies: dict[int, tuple[Disk, frozenset[int]]] = {}
        run.world.doors.admitted.append(self._admitted)
        for number, fault in enumerate(run.scenario.faults):
            if isinstance(fault, s.Twin):
                self._make_source(number, fault)
            elif isinstance(fault, s.Share):
                self._share(fault)

    def _admitted(self, who: Actor) -> None:
        """Until a twin is let in anywhere nothing may be different for it."""
        self._run.oracle.double(self._run.number_of(who))

    def _make_source(self, number: int, fault: s.Twin) -> None:
        """The logs of the twin's machine, which are gone with it."""
        run = self._run
        host, server = run.hosts[fault.host], run.servers[fault.host]
        source = VirtualSource(
            host.id,
            run.scenario.seed,
            run.scenario.traffic,
            fault.at_us,
            fault.until_us,
            host.clock_us,
            salt=bytes([number]),
        )
        source.files = source.files if fault.logs else []
        for file in source.files:
            file.gone_us = file.given_up_us = fault.until_us
        self._sources[number] = source
        if source.files:
            run.servers.append(Server(server.number, source, ALWAYS, server.ahead_us))

    def _share(self, fault: s.Share) -> None:
        servers = self._run.servers
        mine, theirs = servers[fault.host], servers[fault.other]
        mine.source.files = theirs.source.files
        servers[fault.host] = msgspec.structs.replace(
            mine,
            known_us=max(mine.known_us, theirs.known_us),
            ahead_us=max(mine.ahead_us, theirs.ahead_us, EPOCH_US),
        )

    def plan(self) -> None:
        """Copies of state folders are made at their times."""
        for number, fault in enumerate(self._run.scenario.faults):
            if isinstance(fault, s.Restore):
                self._run.world.at(fault.from_us, partial(self._copy, number, fault.host))

    def _copy(self, number: int, host: int) -> None:
        actor = self._run.hosts[host]
        assert actor.source is not None
        self._copies[number] = actor.disk.copy(), actor.source.notes

    def twin(self, number: int, fault: s.Twin) -> None:
        run, actor = self._run, self._run.hosts[fault.host]
        if actor.id in run.world.twins:
            return
        run.world.tell("twin", actor, fault)
        disk = actor.disk.copy()
        if fault.keeps == "nothing":
            disk.wipe()
        if not fault.beside and actor.node is not None:
            run.take_down(actor, fault.back_us)
        run.world.start_twin(actor, disk, self._sources[number], run.seeds)

    def twin_ends(self, number: int, fault: s.Twin) -> None:
        run, actor = self._run, self._run.hosts[fault.host]
        twin = run.world.twins.get(actor.id)
        if twin is not None and twin.source is self._sources[number]:
            run.world.end_twin(twin)

    def restore(self, number: int, fault: s.Restore) -> None:
        run, actor = self._run, self._run.hosts[fault.host]
        if actor.node is None or number not in self._copies:
            return
        run.take_down(actor, fault.until_us)
        disk, notes = self._copies[number]
        disk.is_full = actor.disk.is_full
        actor.disk = disk
        assert actor.source is not None
        actor.source.restart(notes)
        run.world.tell("restore", actor, fault)
