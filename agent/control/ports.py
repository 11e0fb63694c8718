"""What the control service needs of the process around a node, and of the cores that it drives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from elf.agent.node.linked_node import Outer
from elf.agent.node.mesh_node import MeshNode
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Item
from elf.srt.messages.reports import AlertTest, EstimateRequest, StatusReport
from elf.srt.security.certificates import TrustError


class Estimating(Protocol):
    """Estimates what plans would cost this agent."""

    def take(self, source: NodeId, request: EstimateRequest) -> None:
        """A request of that node."""


class Testing(Protocol):
    """Sends test notifications of alerts."""

    def test_alert(self, source: NodeId, test: AlertTest) -> None:
        """Another agent asks for a test of a sink here."""


class Host(Protocol):
    """What the control service needs of the process around a node."""

    @property
    def node(self) -> MeshNode: ...

    @property
    def is_signed(self) -> bool:
        """Whether the mesh has keys, so that a job must be signed by an operator."""

    @property
    def estimates(self) -> Estimating: ...

    @property
    def sinks(self) -> Testing | None:
        """None without sinks."""

    def refusal(self, item: Item) -> TrustError | None:
        """Why this agent does not accept the signature of an item; None: it does."""

    def clock_us(self) -> int:
        """The node's clock."""

    def submit(self, item: Item) -> None:
        """Put an item into the directory, and perform the effects."""

    def announce(self, item: Item) -> None:
        """Sign an item as this agent, and put it into the directory."""

    def perform(self, effects: Sequence[Outer]) -> None:
        """Perform effects that the node returned."""

    async def leave(self) -> bool:
        """Leave the mesh for good. Returns whether the mesh had all its lines in time."""

    def describe(self, report: StatusReport) -> StatusReport:
        """Add the figures that only the process knows."""


class Asking(Protocol):
    """A core that asks other agents."""

    def step(self, source: NodeId, message: Any, now: int) -> None: ...

    def tick(self, now: int) -> list[Effect]: ...

    @property
    def deadline(self) -> int | None: ...
