"""What a revocation says, apart from whether to believe it (`elf.srt.security.items`): no cryptography is loaded here."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elf.errors import PeerError
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Item, MaybeId
from elf.srt.messages.typed import parse


class Revocation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Body of a "revoked" item. `name`: of the holder, for people. `agent`: the node's id where the keys are an agent's; so a
    node that has never heard of the agent, or starts anew, knows who will not come back."""

    name: Annotated[str, Meta(max_length=64)]
    revoked_s: Annotated[int, Meta(ge=0, lt=253_402_300_800)]
    agent: MaybeId = b""


def revoked_agent(item: Item) -> NodeId:
    """Whom a believed item of kind "revoked" takes out of the mesh; b"" if nobody. O(1)."""
    try:
        return parse(item.body, Revocation).agent
    except PeerError:
        return b""
