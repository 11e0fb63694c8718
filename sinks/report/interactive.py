"""What lets a page's reader choose the range and the steps of its charts: their values as JSON, a form, and one script.

Without scripts the page is as it was made. The content policy names the script by its digest, so no other one runs.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from elf.sinks.console.cells import is_utc, local
from elf.sinks.report import charts
from elf.sinks.report.charts import Chart, Series

SECOND_US, MINUTE_US, DAY_US = 1_000_000, 60_000_000, 86_400_000_000
_SHOWN: dict[Callable[[float], str], str] = {
    charts.compact: "compact",
    charts.size: "size",
    charts.percent: "percent",
    charts.seconds: "seconds",
}

STYLE = """
.range{display:flex;flex-wrap:wrap;gap:10px 16px;align-items:end;margin-bottom:20px;font-size:13px;color:var(--soft)}
.range[hidden],.whole{display:none}.ranged .whole{display:block}
.range label{display:grid;gap:2px}.range input,.range select,.range button{font:inherit;color:var(--ink);background:var(--card);
border:1px solid var(--rule);border-radius:6px;padding:4px 8px}.range button{cursor:pointer}
.range :focus-visible{outline:2px solid var(--main);outline-offset:1px}
@media print{.range{display:none}}
"""
FORM = (
    '<form class="range" hidden><label>From <input name="since" type="datetime-local"></label>'
    '<label>Until <input name="until" type="datetime-local"></label>'
    '<label>Steps <select name="step"><option value="0">that fit</option></select></label><span>'
    + "".join(
        f'<button type="button" data-span="{seconds}">{name}</button> '
        for name, seconds in (
            ("1 day", 86_400),
            ("7 days", 604_800),
            ("30 days", 2_592_000),
            ("1 year", 31_536_000),
            ("All", 0),
        )
    )
    + "</span></form>"
)


@cache
def script() -> str:
    """The text of the script."""
    sizes = {
        "width": charts.WIDTH, "height": charts.HEIGHT, "left": charts.LEFT, "right": charts.RIGHT, "top": charts.TOP,
        "bottom": charts.BOTTOM, "column": charts.COLUMN_MAX, "columns": charts.COLUMNS_MAX,
    }  # fmt: skip
    text = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    return f"const SIZES = {json.dumps(sizes)};\n{text}"


@cache
def policy() -> str:
    """The source of scripts for the content policy."""
    return f"script-src 'sha256-{b64encode(hashlib.sha256(script().encode()).digest()).decode()}'"


def attribute(chart: Chart) -> str:
    """` data-chart="…"`, for the element that holds the drawing; "" for a chart without times. O(values)."""
    if not chart.times:
        return ""
    return f' data-chart="{escape(json.dumps(values_of(chart), separators=(",", ":")))}"'


def values_of(chart: Chart) -> dict[str, Any]:
    """Times are seconds, and slots are steps since the first time. zone: from when on which offset to UTC is shown. Days are
    those of the zone already."""
    is_daily = chart.step_us >= DAY_US
    times = [local(at) // DAY_US * DAY_US for at in chart.times] if is_daily else list(chart.times)
    partial = [local(at) // DAY_US * DAY_US for at in chart.partial] if is_daily else list(chart.partial)
    return {
        "kind": "lines" if chart.lines else "columns",
        "show": _SHOWN[chart.show],
        "step": chart.step_us // SECOND_US,
        "fixed": not chart.adds_up,
        "utc": is_utc(),
        "first": times[0] // SECOND_US,
        "slots": [(at - times[0]) // chart.step_us for at in times],
        "zone": [[times[0] // SECOND_US, 0]] if is_daily else _offsets(times[0], times[-1]),
        "partial": [(at - times[0]) // chart.step_us for at in partial],
        "series": [_series(each) for each in chart.series],
    }


def _offsets(first: int, last: int) -> list[list[int]]:
    """The offsets of the zone from `first` to `last`: (since, offset), in seconds. A zone changes it once a day at most."""
    found = [[first // SECOND_US, _offset(first)]]
    for at in range(first, last + DAY_US, DAY_US):
        low, high = at - DAY_US, at
        if _offset(high) == found[-1][1]:
            continue
        while high - low > MINUTE_US:
            middle = (low + high) // 2
            low, high = (middle, high) if _offset(middle) == found[-1][1] else (low, middle)
        found.append([-(-low // MINUTE_US) * 60, _offset(high)])
    return found


def _offset(at: int) -> int:
    return (local(at) - at) // SECOND_US


def _series(series: Series) -> dict[str, Any]:
    held: dict[str, Any] = {"name": series.name, "style": series.style}
    if series.part is not None and series.whole is not None:
        return held | {"parts": series.part, "whole": series.whole}
    return held | {"values": [int(v) if v is not None and v == int(v) else v for v in series.values]}
