"""A simulated fleet as one HTML file: main figures, a job's tree, latency with the kills, load of the roots. It opens offline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np

from elf.agent.simulator.fleet.report import FleetReport, counted, depth, described, number
from elf.agent.simulator.fleet.tree import drawing
from elf.sinks.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Series, compact, size
from elf.sinks.report.page import document
from elf.srt.messages.parameters import SECOND

if TYPE_CHECKING:
    from elf.agent.simulator.fleet.fleet import Fleet
    from elf.agent.simulator.fleet.measure import Killed, Measure

STYLE = """
svg.tree{max-width:900px;margin:0 auto}.rings circle{fill:none;stroke:var(--rule);stroke-dasharray:2 4}
.links{fill:none;stroke:var(--c1);stroke-opacity:.4;stroke-width:.8}
.leaf{fill:var(--c1);background:var(--c1)}.inner{fill:var(--main);background:var(--main)}
.serves{fill:var(--c4);background:var(--c4)}
.killed{fill:none;stroke:var(--c5);stroke-width:2}.legend i.killed{border:2px solid var(--c5);border-radius:50%}
.legend i.leaf,.legend i.inner,.legend i.serves{border-radius:50%}
g.main .line{stroke:var(--main)}g.s1 .line{stroke:var(--c1);stroke-dasharray:6 4}g.s2 .line{stroke:var(--c2)}
g.s1 circle{display:none}
.death{stroke:var(--c1);stroke-opacity:.55}.death.was-master{stroke:var(--c5);stroke-opacity:1;stroke-dasharray:4 3}
.legend i.death{background:var(--c1);width:2px;height:12px}.legend i.was-master{background:var(--c5)}
"""
Format = Callable[[float], str]


def fleet_page(fleet: Fleet, report: FleetReport) -> str:
    """The whole document. O(nodes log nodes + lines)."""
    measure, plan = fleet.measure, report.plan
    tree = measure.tree()
    names = {host.id: host.name for host in fleet.hosts}
    masters = {host.id for hosts in measure.masters().values() for host in hosts}
    killed = {each.node.id for each in measure.kills}
    trees = report.trees
    body = _section(
        f"The tree of {fleet.name_of(tree.job)} at the end",
        drawing(tree.parents, names, masters, killed),
        f"{counted(len(tree.parents), 'agent')}. Rings are levels: of all jobs at most {depth(trees)}. "
        f"At most {trees.fan_in_max} children (limit {trees.fan_in_limit}).",
    )
    body += _section(
        "From a written line to a visible one",
        _latency(measure, plan.seconds),
        "By the second in which a line was written; vertical lines are agents that died. Logarithmic.",
    )
    body += _section(
        "Messages to a root, per second",
        _roots(measure, report, plan.seconds),
        "Of one job, beside a collection in which every agent sends to the root itself. Logarithmic.",
    )
    return document("A simulated fleet", described(plan), _cards(report), body, (), STYLE)


def _cards(report: FleetReport) -> list[tuple[str, str]]:
    exact = {True: "exact", False: "NOT exact", None: "not known"}[report.exact]
    saved = report.root.messages_saved
    recovery = f"{number(report.recovery_s.max)} s" if report.recoveries else "–"
    return [
        (f"{report.windows:,} windows", exact),
        ("levels and children at most", f"{report.trees.depth_end}, {report.trees.fan_in_max}"),
        (
            "latency, median and p99",
            f"{_span(report.latency_ms.median)}, {_span(report.latency_ms.p99)}",
        ),
        (
            "to a node, median",
            f"{number(report.node_messages.median)} msg/s, {size(report.node_bytes.median)}/s",
        ),
        (
            "to a root, median",
            f"{number(report.root.messages.median)} msg/s, {size(report.root.bytes.median)}/s",
        ),
        ("fewer messages than flat", f"{number(saved)} ×" if saved else "–"),
        ("longest recovery of a job", recovery),
    ]


def _span(ms: float) -> str:
    return f"{ms:.3g} ms" if ms < 1_000 else f"{ms / 1_000:.3g} s"


def _section(title: str, drawn: str, note: str) -> str:
    return f'<section><h2>{escape(title)}</h2>{drawn}<p class="note">{escape(note)}</p></section>\n'


def _latency(measure: Measure, seconds: int) -> str:
    written, waited = measure.latencies()
    second = (written - measure.begin_us) // SECOND
    values: list[tuple[float | None, float | None]] = []
    for at in range(seconds):
        mine = waited[second == at] / 1_000
        found = np.percentile(mine, (50, 99)).tolist() if len(mine) else (None, None)
        values.append((found[0], found[1]))
    series = [
        Series("median", "main", [median for median, _ in values]),
        Series("99th percentile", "s4", [p99 for _, p99 in values]),
    ]
    return over_seconds(series, seconds, _span, measure.kills, measure.begin_us)


def _roots(measure: Measure, report: FleetReport, seconds: int) -> str:
    counts = [second.root_messages for second in measure.seconds]
    flat = Series("every agent straight to the root", "s1", [report.root.flat_messages] * seconds)
    median = Series("a root, median of the jobs", "main", [float(np.median(each)) or None for each in counts])
    busiest = Series("the busiest root", "s4", [float(max(each)) or None for each in counts])
    series = [flat, busiest, median] if report.plan.jobs > 1 else [flat, median]
    return over_seconds(series, seconds, compact, (), measure.begin_us)


def over_seconds(
    series: Sequence[Series], seconds: int, show: Format, kills: Sequence[Killed], begin_us: int
) -> str:
    """Lines over the seconds of the run on a logarithmic axis, with deaths as vertical lines; a legend above."""
    scale = decades([value for each in series for value in each.values if value])
    low, high = log10(scale[0]), log10(scale[-1])
    tall = (HEIGHT - TOP - BOTTOM) / (high - low)
    wide = (WIDTH - LEFT - RIGHT) / seconds

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (log10(value) - low) * tall

    parts = [_level(value, y_of(value), show) for value in scale]
    parts += [_second(at, LEFT + at * wide) for at in _round_seconds(seconds)]
    parts += [_death(killed, LEFT + (killed.at_us - begin_us) / SECOND * wide) for killed in kills]
    for each in series:
        points = [
            (LEFT + (at + 0.5) * wide, y_of(max(value, scale[0])), f"second {at}, {each.name}: {show(value)}")
            if value
            else None
            for at, value in enumerate(each.values)
        ]
        parts.append(f'<g class="{each.style}">{_line(points)}</g>')
    keys = "".join(f'<span><i class="{each.style}"></i>{escape(each.name)}</span>' for each in series)
    if any(killed.jobs for killed in kills):
        keys += '<span><i class="death was-master"></i>a master died</span>'
    if any(not killed.jobs for killed in kills):
        keys += '<span><i class="death"></i>another agent died</span>'
    drawn = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'
    return f'<div class="legend">{keys}</div>{drawn}'


def decades(values: Sequence[float]) -> list[float]:
    """Levels 1, 2, 5, 10, … (or 1, 10, … where there are many) from below the lowest to above the highest value."""
    if not values:
        return [1.0, 10.0]
    first, last = floor(log10(min(values))), floor(log10(max(values)))
    levels = [10.0**power * factor for power in range(first, last + 2) for factor in (1, 2, 5)]
    start = max(i for i, level in enumerate(levels) if level <= min(values))
    stop = min(i for i, level in enumerate(levels) if level > max(values))
    return levels[start : stop + 1]


def _level(value: float, y: float, show: Format) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="axis end">{escape(show(value))}</text>'
    )


def _round_seconds(seconds: int) -> range:
    step = next(step for step in (1, 2, 5, 10, 20, 60, 120, 300, 600) if step * 15 >= seconds)
    return range(0, seconds + 1, step)


def _second(at: int, x: float) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" class="axis mid">{at} s</text>'


def _death(killed: Killed, x: float) -> str:
    style = "death was-master" if killed.jobs else "death"
    top = TOP if killed.jobs else HEIGHT - BOTTOM - 14
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{HEIGHT - BOTTOM}" class="{style}">'
        f"<title>{escape(killed.node.name)} died</title></line>"
    )


def _line(points: Sequence[tuple[float, float, str] | None]) -> str:
    path, dots, is_on = "", [], False
    for point in points:
        if point is not None:
            x, y, hint = point
            path += f"{'L' if is_on else 'M'}{x:.1f} {y:.1f}"
            dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(hint)}</title></circle>')
        is_on = point is not None
    return f'<path class="line" d="{path}"/>{"".join(dots)}'
