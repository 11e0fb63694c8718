"""As `canary_rules`: rules about agents of different versions, and about operators whose certificates are revoked."""

from __future__ import annotations

from elf.agent.node.abilities import NOBODY, Abilities
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.jobmaster.log.positions import Positions
from elf.jobmaster.master.amendments import Amendments
from elf.jobmaster.master.roster import Roster
from elf.srt.messages.ids import NodeId
from tests.rigs.canaries import meshes
from tests.rigs.canaries.breaks import always
from tests.rigs.canaries.rules import Canary


def forgotten(self: Roster, worker: NodeId, advert: AgentAdvert) -> None:
    """As one whose certificate was revoked."""
    self.forget(worker)


FLEET_CANARIES = (
    Canary(
        "Features: who cannot decode a job's plans serves it not, and is no hop of its tree",
        "all nodes count as able",
        *(Abilities, "unable", always(NOBODY)),
        *(meshes.mixed, range(2)),
    ),
    Canary(
        "Features: who cannot take part is missing in coverage",
        "windows expect it no longer",
        *(Roster, "_note_unable", forgotten),
        *(meshes.mixed, range(2)),
    ),
    Canary(
        "Revoked: a job falls back to the newest version whose signer holds",
        "the log's version stays in force",
        *(Amendments, "falls_back", property(always(False))),
        *(meshes.revoked, range(4)),
    ),
    Canary(
        "Revoked: the newest spec of each operator who signed one is kept",
        "only the newest of all",
        *(Directory, "_former", always(None)),
        *(meshes.revoked, range(4)),
    ),
    Canary(
        "Schedule: rows that were cut under a line which the log lacks are not accepted",
        "if the log has the version",
        *(Positions, "is_of_another_log", always(False)),
        *(meshes.revoked, range(90, 91)),
    ),
)
