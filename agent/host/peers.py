"""Other nodes as an agent's process looks them up: address, process and name, by the overlay or else by their adverts."""

from __future__ import annotations

from elf.agent.node.mesh_node import MeshNode
from elf.agent.node.rivals import contact_of
from elf.jobmaster.directory.job_spec import decode_agent
from elf.srt.messages.ids import NodeId, short
from elf.srt.messages.messages import Contact


class Peers:
    """Reads the overlay and the directory of `node`; before the node is made, no other node is known."""

    def __init__(self) -> None:
        self.node: MeshNode | None = None

    def address_of(self, node: NodeId) -> str | None:
        """A node's address, from the overlay or else from its advert."""
        if self.node is None:
            return None
        address = self.node.overlay.address_of(node)
        if address is not None:
            return address
        item = self.node.directory.get("agent", node)
        return (decode_agent(item).address or None) if item is not None else None

    def contact_of(self, node: NodeId) -> Contact | None:
        """See `elf.agent.node.rivals.contact_of`."""
        return contact_of(node, self.node.overlay, self.node.directory) if self.node is not None else None

    def name_of(self, node: NodeId) -> str:
        """An agent's name and short id, for operators."""
        item = self.node.directory.get("agent", node) if self.node is not None else None
        return f"{decode_agent(item).name} ({short(node)})" if item is not None else short(node)
