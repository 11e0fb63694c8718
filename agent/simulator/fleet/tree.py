"""A job's tree as SVG: the root in the middle, a ring for each level, every subtree in its own sector.

Each subtree gets an angle in proportion to its leaves (radial trees, Eades 1992): a thousand agents are drawn apart, ten thousand
form a thin rim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from html import escape
from math import cos, pi, sin, sqrt

import msgspec

from elf.srt.messages.ids import NodeId

SIZE = 960
RIM = 24
Parents = Mapping[NodeId, NodeId | None]
LEAF_TITLES_MAX = 3_000
"""In a tree with more nodes, leaves have no titles: they are too small to point at."""


class Place(msgspec.Struct, frozen=True):
    """depth: 0 at the root. turn: [0, 1) around the middle. leaves: of the subtree, at least one."""

    depth: int
    turn: float
    leaves: int


def places(parents: Parents) -> dict[NodeId, Place]:
    """The place of each node below the root. O(n log n)."""
    children: dict[NodeId, list[NodeId]] = {}
    roots = sorted(node for node, parent in parents.items() if parent is None)
    for node, parent in parents.items():
        if parent is not None:
            children.setdefault(parent, []).append(node)
    order = [(root, 0) for root in roots[:1]]
    for node, depth in order:  # grows while it is walked: parents come before their children
        order += [(child, depth + 1) for child in sorted(children.get(node, ()))]
    leaves: dict[NodeId, int] = {}
    for node, _ in reversed(order):
        leaves[node] = sum(leaves[child] for child in children.get(node, ())) or 1
    first: dict[NodeId, int] = {node: 0 for node, depth in order if not depth}
    for node, _ in order:
        at = first[node]
        for child in sorted(children.get(node, ()), key=lambda child: (-leaves[child], child)):
            first[child], at = at, at + leaves[child]
    total = leaves[order[0][0]] if order else 1
    return {
        node: Place(depth, (first[node] + leaves[node] / 2) / total, leaves[node]) for node, depth in order
    }


def drawing(
    parents: Parents, names: Mapping[NodeId, str], masters: Collection[NodeId], killed: Collection[NodeId]
) -> str:
    """The tree with inner nodes, masters and killed nodes marked; a legend above. O(n log n)."""
    found = places(parents)
    levels = max((place.depth for place in found.values()), default=0) or 1
    step = (SIZE / 2 - RIM) / levels
    points = {node: _point(place.depth * step, place.turn) for node, place in found.items()}
    inner = {parents[node] for node in found}
    links, dots = [], {"leaf": [], "inner": [], "serves": [], "killed": []}  # type: ignore[var-annotated]
    dot = max(0.8, min(4.0, 1_400 / (len(found) + 1)))
    for node, place in found.items():
        parent = parents[node]
        if parent is not None:
            links.append(_link(found[parent], place, step))
        style = "serves" if node in masters else "inner" if node in inner else "leaf"
        radius = dot if style == "leaf" else max(1.6 * dot, min(11.0, 2 + 0.8 * sqrt(place.leaves)))
        label = _label(names[node], place, node in masters, node in killed)
        title = f"<title>{escape(label)}</title>" if style != "leaf" or len(found) <= LEAF_TITLES_MAX else ""
        x, y = points[node]
        dots[style].append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">{title}</circle>')
        if node in killed:
            dots["killed"].append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius + 3:.1f}"/>')
    rings = "".join(
        f'<circle cx="{SIZE / 2}" cy="{SIZE / 2}" r="{level * step:.1f}"/>' for level in range(1, levels + 1)
    )
    marks = "".join(f'<g class="{style}">{"".join(some)}</g>' for style, some in dots.items() if some)
    keys = (
        ("inner", "merges its children's bundles"),
        ("leaf", "leaf"),
        ("serves", "master of a job"),
        ("killed", "was killed"),
    )
    legend = "".join(f'<span><i class="{style}"></i>{text}</span>' for style, text in keys if dots[style])
    return (
        f'<div class="legend">{legend}</div><svg class="tree" viewBox="0 0 {SIZE} {SIZE}" role="img">'
        f'<g class="rings">{rings}</g><path class="links" d="{"".join(links)}"/>{marks}</svg>'
    )


def _point(radius: float, turn: float) -> tuple[float, float]:
    angle = 2 * pi * turn - pi / 2
    return SIZE / 2 + radius * cos(angle), SIZE / 2 + radius * sin(angle)


def _link(parent: Place, child: Place, step: float) -> str:
    """A curve that leaves the parent straight outwards and meets the child's ring at a right angle."""
    x, y = _point(parent.depth * step, parent.turn)
    if not parent.depth:
        to = _point(step, child.turn)
        return f"M{x:.1f} {y:.1f}L{to[0]:.1f} {to[1]:.1f}"
    half = (parent.depth + child.depth) / 2 * step
    bends = (_point(half, parent.turn), _point(half, child.turn), _point(child.depth * step, child.turn))
    return f"M{x:.1f} {y:.1f}C" + " ".join(f"{a:.1f} {b:.1f}" for a, b in bends)


def _label(name: str, place: Place, serves: bool, was_killed: bool) -> str:
    below = f", {place.leaves:,} leaves below" if place.leaves > 1 else ""
    return (
        f"{name}: level {place.depth}{below}"
        + (", master of a job" if serves else "")
        + (", was killed" if was_killed else "")
    )
