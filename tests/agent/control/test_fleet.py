"""The notices about agents of other versions of elf."""

from __future__ import annotations

from elf.agent.control.fleet import unable
from elf.agent.control.protocol import HeldFeatures
from elf.jobmaster.plan.features import READING, known, own, packed

NEEDS = frozenset({"function upper"})


def test_agents_that_read_lines_otherwise_are_named_and_take_part() -> None:
    held = (
        HeldFeatures(own(), 2, ("a0", "a1")),
        HeldFeatures(packed((known() - {READING}) | {"reading 1"}), 1, ("a2",)),
        HeldFeatures(b"", 1, ("too-old-to-say",)),
    )
    assert unable(held[:1], NEEDS) == unable(held[2:], NEEDS) == ""
    assert unable(held, NEEDS) == (
        "1 of 4 agents read lines by the rules of another version of elf (a2): which lines they reject, texts that are not"
        " UTF-8 and sizes of - may differ in the same window, until all have one version"
    )


def test_an_agent_that_takes_no_part_is_named_for_that_alone() -> None:
    held = (HeldFeatures(own(), 1, ("a0",)), HeldFeatures(packed(known() - {READING, *NEEDS}), 1, ("a1",)))
    assert unable(held, NEEDS) == (
        "1 of 2 agents cannot run this query (a1): their version of elf does not know its function upper; windows count"
        " them as missing until their elf is upgraded"
    )
