"""A run on one page: faults and rotations by host, windows, memory, descriptors, disks and log lines over time. No scripts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tests.torture.recorder import Recorder
from tests.torture.verdict import WRONG, Verdict

WIDTH, LEFT, ROW, CHART = 1_100, 110, 18, 130
COLOURS = ("#3366cc", "#dc3912", "#ff9900", "#109618", "#990099", "#0099c6", "#dd4477", "#66aa00")
FAULTS = {
    "kill": "#c00000", "stop": "#e08000", "restart": "#a0a000", "roll": "#a0a000", "part": "#6000c0", "block": "#a060e0",
    "wipe": "#ff4040", "twin": "#008080", "restore": "#c06000", "full": "#604020", "clock": "#0060c0", "bug": "#ff00a0",
    "hog": "#909090", "renew": "#40a040", "join": "#00a000", "leave": "#407040", "revoke": "#404040", "ended": "#000000",
}  # fmt: skip
FINDINGS_MAX = 200
STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:1200px}svg{display:block}table{border-collapse:collapse}"
    "td,th{padding:2px 10px;text-align:left;vertical-align:top}.wrong{color:#c00000}"
)

Series = Mapping[str, Sequence[tuple[float, float]]]


class Time:
    """Seconds of the run to places on the page."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self.from_s, self.until_s = from_s, max(until_s, from_s + 1)

    def x(self, at_s: float) -> float:
        share = (at_s - self.from_s) / (self.until_s - self.from_s)
        return LEFT + max(0.0, min(1.0, share)) * (WIDTH - LEFT - 10)


def page(result: Mapping[str, Any], recorder: Recorder, verdict: Verdict) -> str:
    """The page's HTML."""
    samples = recorder.samples
    end_s = samples[-1]["at"] if samples else recorder.began_s
    time = Time(recorder.began_s, end_s)
    word = "every window is its count" if result["is_good"] else "something is wrong"
    parts = [
        f"<!doctype html><meta charset=utf-8><title>Torture, seed {result['seed']}</title><style>{STYLE}</style>",
        f"<h1>Torture, seed {result['seed']}: {word}</h1>",
        _facts(result),
        "<h2>Faults</h2>",
        _timeline(recorder.events, verdict, time),
        "<h2>Resident memory, MiB</h2>",
        _chart(_series(samples, lambda taken: taken.get("rss", 0) / 2**20), time),
        "<h2>Descriptors</h2>",
        _chart(_series(samples, lambda taken: taken.get("files", 0)), time),
        "<h2>Disk of the state, MiB</h2>",
        _chart(_series(samples, lambda taken: taken.get("disk", 0) / 2**20), time),
        "<h2>Said, KiB in all</h2>",
        _chart(_series(samples, lambda taken: taken.get("said", 0) / 1_024), time),
        "<h2>Lakes, MiB, and load</h2>",
        _chart(_others(samples), time),
        _findings(verdict),
    ]
    return "\n".join(parts)


def _facts(result: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>"
        for name, value in result.items()
    )
    return f"<table>{rows}</table>"


def _timeline(events: Sequence[Mapping[str, Any]], verdict: Verdict, time: Time) -> str:
    hosts = sorted({event["host"] for event in events if event["host"]})
    shapes = []
    for event in events:
        if event["host"]:
            shapes.append(_shape(event, hosts.index(event["host"]) * ROW, time))
    for number, host in enumerate(hosts):
        shapes.append(f'<text x="0" y="{number * ROW + 13}" font-size="12">{escape(host)}</text>')
    top = len(hosts) * ROW
    for finding in verdict.findings:
        if finding.start_s:
            colour = "#c00000" if finding.kind in WRONG else "#c0a000"
            x = time.x(finding.start_s)
            shapes.append(
                f'<rect x="{x:.1f}" y="{top}" width="3" height="{ROW}" fill="{colour}">'
                f"<title>{escape(finding.kind)}: {escape(finding.text[:300])}</title></rect>"
            )
    shapes.append(f'<text x="0" y="{top + 13}" font-size="12">findings</text>')
    return _svg(top + ROW, shapes, time)


def _shape(event: Mapping[str, Any], y: float, time: Time) -> str:
    x = time.x(event["at"])
    title = f"<title>{event['at'] - time.from_s:.1f} s: {escape(event['text'])}</title>"
    if event["event"] == "rotate":
        return f'<circle cx="{x:.1f}" cy="{y + 14}" r="2" fill="#888">{title}</circle>'
    width = max(2.0, time.x(event["until"] or event["at"]) - x)
    colour = FAULTS.get(event["event"], "#888")
    return (
        f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{ROW - 8}" fill="{colour}">{title}</rect>'
    )


def _series(samples: Iterable[Mapping[str, Any]], of: Callable[[Mapping[str, float]], float]) -> Series:
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        for name, taken in sample["agents"].items():
            series[name].append((sample["at"], of(taken)))
    return series


def _others(samples: Iterable[Mapping[str, Any]]) -> Series:
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        series["load"].append((sample["at"], sample["load"]))
        for number, used in enumerate(sample["lakes"]):
            series[f"lake {number + 1}"].append((sample["at"], used / 2**20))
    return series


def _chart(series: Series, time: Time) -> str:
    highest = max((value for points in series.values() for _, value in points), default=0.0) or 1.0
    shapes = [
        f'<text x="0" y="12" font-size="11">{highest:,.1f}</text><text x="0" y="{CHART}" font-size="11">0</text>'
    ]
    for number, (name, points) in enumerate(sorted(series.items())):
        colour = COLOURS[number % len(COLOURS)]
        places = " ".join(
            f"{time.x(at):.1f},{CHART - value / highest * (CHART - 6):.1f}" for at, value in points
        )
        shapes.append(f'<polyline points="{places}" fill="none" stroke="{colour}"/>')
        shapes.append(
            f'<text x="45" y="{12 + 13 * number}" font-size="11" fill="{colour}">{escape(name)}</text>'
        )
    return _svg(CHART, shapes, time)


def _svg(height: float, shapes: Sequence[str], time: Time) -> str:
    ticks = []
    step = max(10, int((time.until_s - time.from_s) / 15) // 10 * 10)
    for second in range(0, int(time.until_s - time.from_s) + 1, step):
        x = time.x(time.from_s + second)
        ticks.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="#eee"/>')
        ticks.append(f'<text x="{x:.1f}" y="{height + 12}" font-size="10">{second} s</text>')
    return f'<svg width="{WIDTH}" height="{height + 16}">{"".join(ticks)}{"".join(shapes)}</svg>'


def _findings(verdict: Verdict) -> str:
    rows = "".join(
        f"<tr><td class={'wrong' if each.kind in WRONG else 'noted'}>{each.kind}</td><td>{escape(each.text[:1_000])}</td></tr>"
        for each in verdict.findings[:FINDINGS_MAX]
    )
    return f"<h2>Findings: {len(verdict.findings)}</h2><table>{rows}</table>"
