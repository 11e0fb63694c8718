"""The plan of a simulated fleet and the figures of its run: plain values, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan. lines_per_s: of each agent. loss: probability for each datagram. kill: how many agents die."""

    nodes: int = 100
    jobs: int = 1
    seconds: int = 30
    seed: int = 1
    kill: int = 0
    loss: float = 0.0
    lines_per_s: float = 2.0


class Spread(msgspec.Struct, frozen=True):
    """Median, 99th percentile and maximum of many figures; zeros if there were none."""

    median: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float] | NDArray[Any], digits: int = 1) -> Spread:
        if not len(values):
            return cls(0.0, 0.0, 0.0)
        found = np.percentile(values, (50, 99, 100), method="higher").tolist()
        return cls(*(round(float(value), digits) for value in found))


class Trees(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of the jobs' trees, measured each second. depth: links from the lowest node to its root; fan_in: children."""

    depth_max: int
    depth_end: int
    """At the end: a tree that lost an inner node may be too deep until it is repaired."""
    depth_limit: int
    """The bound for a tree that has formed."""
    fan_in_max: int
    fan_in_limit: int
    fan_in_mean: float
    """Of nodes that have children."""
    masters_per_node_max: int


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """What the root of a job's tree receives, per second of each job, compared with flat collection: every worker sends to it.

    Messages of replicas and sinks to the master are left out: they are the same for both.
    """

    messages: Spread
    """Messages of that job, and link acknowledgements of its children."""
    bytes: Spread
    flat_messages: float
    flat_bytes: float
    messages_saved: float
    """`flat_messages` / median of `messages`; 0 if that median is 0."""
    bytes_saved: float


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """The recovery from a master's death. seconds: until its job published again; None if it did not."""

    job: str
    node: str
    at_s: float
    seconds: float | None


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """All times are virtual. Figures of nodes and roots: what they receive in a second, after the trees have formed. Figures of
    lines: all lines."""

    plan: Plan
    exact: bool | None
    """Every window's last revision equals one pass over all lines. None: stopped before the end."""
    wrong: str
    windows: int
    covered: float
    """Fraction of windows whose first final revision had every agent's lines."""
    revisions: int
    final_after_s: float
    """Seconds from the end of traffic and faults until every window was final and whole."""
    trees: Trees
    node_messages: Spread
    node_bytes: Spread
    root: Root
    latency_ms: Spread
    """From writing a line until a sink had a window with it; includes lines written before the trees had formed."""
    recoveries: tuple[Recovery, ...]
    detection_s: float
    """The longest time for failure detection, by the parameters; part of each recovery."""
    lines: int
    messages: dict[str, int]
    """Delivered messages, by kind."""

    @property
    def recovery_s(self) -> Spread:
        return Spread.of([each.seconds for each in self.recoveries if each.seconds is not None], 2)


def as_json(report: FleetReport) -> str:
    """The report as one line."""
    return msgspec.json.encode(report).decode()


def as_table(report: FleetReport) -> list[str]:
    """Lines for a terminal: the plan, then one figure a line."""
    plan = report.plan
    rows: list[tuple[str, ...]] = [("", "median", "p99", "max")]
    for name, spread in (
        ("messages to a node, per second", report.node_messages),
        ("bytes to a node, per second", report.node_bytes),
        ("messages to a root, per second", report.root.messages),
        ("bytes to a root, per second", report.root.bytes),
        ("latency to a visible line, ms", report.latency_ms),
        ("recovery from a master's death, s", report.recovery_s),
    ):
        shown = [number(value) for value in (spread.median, spread.p99, spread.max)]
        rows.append((name, *shown) if name[:8] != "recovery" or report.recoveries else (name, "-", "-", "-"))
    trees, root = report.trees, report.root
    return [
        described(plan),
        "",
        *_aligned(rows),
        "",
        f"tree depth              {depth(trees)}",
        f"children of a node      at most {trees.fan_in_max} (limit {trees.fan_in_limit}), mean {number(trees.fan_in_mean)}",
        f"jobs served by a node   at most {trees.masters_per_node_max} of {plan.jobs}",
        f"flat collection, root   {flat(root)}",
        f"masters killed          {len(report.recoveries)}; detection may take {number(report.detection_s)} s of a recovery",
        f"windows                 {report.windows:,}; final with all agents at once: {report.covered:.1%}; "
        f"{report.revisions:,} revised later",
        f"exact                   {verdict(report)}",
    ]


def depth(trees: Trees) -> str:
    """The limit holds for a tree that has formed: one that lost an inner node may be deeper until it is repaired."""
    before = f"; {trees.depth_max} for a while, as trees formed or agents died"
    limited = f"{trees.depth_end} in the end (limit {trees.depth_limit}, for trees that have formed)"
    return limited + before * (trees.depth_max > trees.depth_end)


def flat(root: Root) -> str:
    """The load of flat collection, with the factor saved; without the factor for a root without messages (a mesh of one)."""
    messages, nbytes = f"{number(root.flat_messages)} messages/s", f"{number(root.flat_bytes)} bytes/s"
    if not root.messages_saved:
        return f"{messages}, {nbytes}"
    return f"{messages} ({number(root.messages_saved)} times as many), {nbytes} ({number(root.bytes_saved)} times)"


def described(plan: Plan) -> str:
    """The fleet in a sentence."""
    misfortunes = [f"{counted(plan.kill, 'agent')} killed"] if plan.kill else []
    misfortunes += [f"{plan.loss:.2%} of datagrams lost"] if plan.loss else []
    return (
        f"{counted(plan.nodes, 'agent')}, {counted(plan.jobs, 'job')}, {plan.seconds:,} s of "
        f"{counted(plan.lines_per_s, 'line')}/s at each agent, seed {plan.seed}; {' and '.join(misfortunes) or 'no faults'}"
    )


def verdict(report: FleetReport) -> str:
    if report.exact is None:
        return "not known: stopped before every window was final"
    after = f" {number(report.final_after_s)} s after the last line"
    return (
        f"true: every window equals one pass over {report.lines:,} lines,{after}"
        if report.exact
        else f"false: {report.wrong}"
    )


def counted(count: float, noun: str) -> str:
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
