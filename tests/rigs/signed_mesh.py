"""A simulated mesh with keys: each agent signs its directory items, and accepts only correctly signed ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from elf.agent.config.authority_folder import AuthorityFolder
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.agent.simulator.world.sources import VirtualSource
from elf.agent.simulator.world.world import World
from elf.jobmaster.directory.job_spec import jobs_of
from elf.sinks.spec import Broker
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact, Item
from elf.srt.messages.parameters import Parameters
from elf.srt.security.certificates import Keys, Trust, TrustError
from elf.srt.security.items import Notary
from tests.rigs.hosted import SECOND, TRAFFIC, Hosted, Mesh

EPOCH_S = EPOCH_US // SECOND


class SignedWorld(World):
    """Hosts whose ids are those of their keys."""

    def __init__(self, seed: int, parameters: Parameters) -> None:
        super().__init__(seed, parameters)
        self.notaries: dict[NodeId, Notary] = {}
        self.keys: dict[NodeId, Keys] = {}
        self.serving: tuple[str, ...] = ()

    def add_signer(self, keys: Keys, seconds: int) -> Actor:
        traffic = VirtualSource(keys.id, 1, TRAFFIC, 0, seconds * SECOND, EPOCH_US)
        actor = self.add_host(keys.certificate.name, traffic)
        self.actors[keys.id] = self.actors.pop(actor.id)
        actor.id = keys.id
        self.keys[keys.id] = keys
        return actor

    def _signing(self, actor: Actor) -> dict[str, Any]:
        keys = self.keys[actor.id]
        trust, grace_us = Trust(keys.authority), self.parameters.revoked_grace_us
        notary = Notary(keys, trust, lambda: self.clock(actor) / SECOND, jobs_of, grace_us)
        self.notaries[actor.id] = notary
        return {"sign": notary.sign, "verify": notary.verify, "signers": notary.signers}


class SignedHosted(Hosted):
    is_signed = True

    def refusal(self, item: Item) -> TrustError | None:
        assert isinstance(self.world, SignedWorld)
        return self.world.notaries[self.actor.id].refusal(item)


class SignedMesh(Mesh):
    """`tests.rigs.hosted.Mesh` with keys of that authority, and those of the operator ann. brokers: of sinks of web1."""

    def __init__(
        self,
        folder: Path,
        authority: AuthorityFolder,
        nodes: int = 3,
        grace_us: int = 0,
        brokers: Mapping[str, Broker] = MappingProxyType({}),
    ) -> None:
        super().__init__(folder, nodes, brokers=brokers)
        self.signed = SignedWorld(1, Parameters(revoked_grace_us=grace_us))
        self.signed.serving = ("web1",) if brokers else ()
        self.world = self.signed  # type: ignore[assignment]
        self.authority = authority
        self.operator = authority.issue("ann", "operator", EPOCH_S, 365, "")
        self.agents = [authority.issue(f"web{n}", "agent", EPOCH_S, 365, "") for n in range(nodes)]

    @property
    def notaries(self) -> list[Notary]:
        return list(self.signed.notaries.values())

    def _start(self) -> None:
        seeds: list[Contact] = []
        for keys in self.agents:
            actor = self.signed.add_signer(keys, self._seconds)
            self.world.start(actor, seeds)
            assert actor.node is not None
            seeds = seeds or [actor.node.overlay.me]
            self.hosts.append(SignedHosted(self.world, actor))
        self.world.run_until(5_000_000)

    def __enter__(self) -> SignedMesh:
        super().__enter__()
        return self
