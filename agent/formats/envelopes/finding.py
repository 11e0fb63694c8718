"""Finds the envelope of a sample of lines, and the format inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from elf.agent.formats.envelopes._unwrap import BARE, Unwrapper
from elf.agent.formats.envelopes.kinds import KINDS, OBJECTS, wrapped
from elf.agent.formats.fields import Format
from elf.agent.formats.parser import LINE_MAX, Parser
from elf.errors import FormatError

GROUPS_MAX = 16
"""Programs of a sample whose lines are tried, those with the most lines first: the web server may be one of many. Most formats
quote the request, so programs that write quotes come before all others."""

Groups = dict[str, list[bytes]]
"""The lines inside, by the program (container, stream) that wrote them."""


def find_wrapped(
    lines: Sequence[bytes], inner: Callable[[list[bytes]], Format], only: str = ""
) -> Format | None:
    """The format of wrapped lines; None if there is no envelope, or one that formats of their own have, too.

    inner: the format of plain lines; it raises FormatError. only: the one kind that may be. The most frequent program whose lines
    are of a known format decides, so lines of other programs do not matter.

    Raises FormatError where an envelope is certain but no program's lines are of a known format.
    """
    objects = sum(line.startswith(b"{") for line in lines) * 2 > len(lines)
    problem = ""
    for kind in (only,) if only else KINDS:
        if not only and (kind in OBJECTS) != objects:
            continue
        groups, bare = _inside(kind, lines)
        if sum(map(len, groups.values())) < max(bare, 1):
            continue
        try:
            return _of(kind, groups, inner)
        except FormatError as error:
            if only or _is_certain(kind, lines):
                problem = (
                    problem or f"format {kind}+auto: the lines are wrapped by {kind}, and inside: {error}"
                )
    if problem:
        raise FormatError(problem)
    if only:
        raise FormatError(f"format {only}+auto: most of the lines are not wrapped by {only}")
    return None


def _is_certain(kind: str, lines: Sequence[bytes]) -> bool:
    """Whether no format of its own has such lines."""
    if kind == "docker":
        return sum(line.startswith(b'{"log":"') and b'","stream":"std' in line for line in lines) * 2 > len(
            lines
        )
    return kind in ("cri", "syslog")


def _inside(kind: str, lines: Sequence[bytes]) -> tuple[Groups, int]:
    """The lines inside, and how many lines are not wrapped."""
    unwrapper = Unwrapper(kind, LINE_MAX, (), True)
    unwrapper.unwrap(b"\n".join(lines) + b"\n")
    inner, heads = bytes(unwrapper.lines()).split(b"\n"), bytes(unwrapper.heads()).split(b"\n")
    groups: Groups = {}
    flags = unwrapper.flags()
    for at in np.flatnonzero(flags != BARE).tolist():
        groups.setdefault(_program(kind, heads[at]), []).append(inner[at])
    return groups, int(np.count_nonzero(flags == BARE))


def _program(kind: str, head: bytes) -> str:
    """What the unwrapper compares with the programs of a format; "" if there is none."""
    if kind not in OBJECTS:
        name = head.split(b"\t")[4 if kind == "cri" else 2]
        return "" if name == b"-" else name.decode("utf-8", "replace")
    try:
        found = msgspec.json.decode(head).get("SYSLOG_IDENTIFIER" if kind == "journald" else "stream")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _of(kind: str, groups: Groups, inner: Callable[[list[bytes]], Format]) -> Format:
    """Requests come before what has no status, as an error log. Raises FormatError, that of the most frequent program, if none of
    them is of a known format."""
    first: FormatError | None = None
    plans: list[Format] = []
    ordered = sorted(groups.items(), key=lambda item: (not _quotes(item[1]), -len(item[1])))[:GROUPS_MAX]
    for _, lines in ordered:
        try:
            plan = inner(lines)
            wrapped(kind, plan)
        except FormatError as error:
            first = first or error
        else:
            plans.append(plan)
    if not plans:
        assert first is not None
        raise first
    found = next((plan for plan in plans if "status" in plan.columns()), plans[0])
    programs = [name for name, group in ordered if _fits(found, group)]
    return wrapped(kind, found, () if "" in programs else tuple(sorted(programs)))


def _quotes(lines: Sequence[bytes]) -> bool:
    return sum(b'"' in line for line in lines) * 2 >= len(lines)


def _fits(format: Format, lines: Sequence[bytes]) -> bool:
    batch = Parser(format, ()).parse(b"\n".join(lines) + b"\n")
    return batch.rows * 2 >= len(lines)
