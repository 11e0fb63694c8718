"""The body of a revocation. `elf.srt.security.items` verifies its signature; this module loads no cryptography."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elf.errors import PeerError
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Item, MaybeId
from elf.srt.messages.typed import parse


class Revocation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Body of a "revoked" item. `name`: of the holder, for people. `agent`: the node's id if the keys are an agent's. With it, a
    node that never knew the agent, or has restarted, learns which agent will not come back."""

    name: Annotated[str, Meta(max_length=64)]
    revoked_s: Annotated[int, Meta(ge=0, lt=253_402_300_800)]
    agent: MaybeId = b""


def revoked_agent(item: Item) -> NodeId:
    """The agent that a verified item of kind "revoked" excludes from the mesh; b"" for none. O(1)."""
    try:
        return parse(item.body, Revocation).agent
    except PeerError:
        return b""
