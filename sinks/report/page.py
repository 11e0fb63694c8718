"""The report as one HTML file with its styles, charts and one script: it fetches nothing; light or dark like the system."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from elf.sinks.console.grid import display, is_right
from elf.sinks.report import charts, interactive
from elf.sinks.report.charts import Chart, Series
from elf.sinks.report.rows import Section

TABLE_ROWS = 200

_CSS = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1c2330;--soft:#5d6778;--rule:#e3e7ee;--main:#2f6fde;
--c1:#98a2b3;--c2:#2a9d74;--c3:#4b8ff0;--c4:#e5a50a;--c5:#d6453d;--other:#9a6fd0}
@media(prefers-color-scheme:dark){:root{--bg:#12161d;--card:#1a202a;--ink:#e6eaf1;--soft:#98a3b5;--rule:#2b3340;
--main:#6aa3ff;--c1:#7c8798;--c2:#3fbf91;--c3:#6aa8ff;--c4:#f0bd3e;--c5:#f0665e;--other:#b893ea}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0}h2{font-size:17px;margin:0 0 12px}
.sub{color:var(--soft);margin:4px 0 24px;overflow-wrap:anywhere}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin-bottom:20px}
.card,section{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.card{padding:12px 16px;flex:1 1 auto}.card span{color:var(--soft)}
.card b{display:block;font-size:20px;white-space:nowrap;font-variant-numeric:tabular-nums}
section{padding:20px;margin-bottom:20px}
svg{width:100%;height:auto;display:block;overflow:visible}
svg text{font-size:12px;fill:var(--soft)}.end{text-anchor:end}.mid{text-anchor:middle}
svg .label{fill:var(--ink);font-size:13px;font-family:ui-monospace,"DejaVu Sans Mono",monospace}svg .value{font-size:12px}
svg .day{font-weight:600}.grid{stroke:var(--rule)}
.main{fill:var(--main);background:var(--main);stroke:none}
.s1{fill:var(--c1);background:var(--c1)}.s2{fill:var(--c2);background:var(--c2)}.s3{fill:var(--c3);background:var(--c3)}
.s4{fill:var(--c4);background:var(--c4)}.s5{fill:var(--c5);background:var(--c5)}
.other{fill:var(--other);background:var(--other)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}g.s2 .line{stroke:var(--c2)}
g.s4 .line{stroke:var(--c4)}g.s5 .line{stroke:var(--c5)}
rect:hover,circle:hover{opacity:.75}.partial{opacity:.4}
.legend{display:flex;gap:16px;flex-wrap:wrap;margin-bottom:8px;color:var(--soft);font-size:13px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
details{margin-top:12px}summary{cursor:pointer;color:var(--soft);font-size:13px}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;margin-top:8px;font-variant-numeric:tabular-nums}
th,td{padding:4px 14px 4px 0;text-align:left;border-bottom:1px solid var(--rule);max-width:560px}
td:not(.r){overflow-wrap:break-word;min-width:7ch}th,.r,.t{white-space:nowrap}
th{color:var(--soft);font-weight:600}.r{text-align:right}.note{color:var(--soft);font-size:13px;margin:8px 0 0}
@media(max-width:640px){main{padding:20px 12px 40px}h1{font-size:22px}section{padding:14px}.card b{font-size:17px}
svg{min-width:660px}svg text,svg .label,svg .value{font-size:16px}.drawing{overflow-x:auto;padding-left:22px}}
@media print{:root{color-scheme:light;--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--rule:#ccc;--main:#2f6fde;
--c1:#98a2b3;--c2:#2a9d74;--c3:#4b8ff0;--c4:#e5a50a;--c5:#d6453d;--other:#9a6fd0}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}main{max-width:none;padding:0}
section,.card,tr{break-inside:avoid}h2{break-after:avoid}.scroll,.drawing{overflow:visible}.drawing{padding:0}svg{min-width:0}
table{font-size:11px;width:100%}th,.r{white-space:normal}td{overflow-wrap:anywhere}summary{display:none}}
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
LISTED = 5
"""How many incomplete steps a note names."""
_WHOLE = '<p class="note whole">Of the whole time, not of the range above.</p>'


def page(
    title: str,
    subtitle: str,
    cards: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    notes: Sequence[str],
) -> str:
    """The whole document. Every text is escaped; besides, the content policy forbids fetching, and all scripts but our own."""
    body = "".join(map(_section, sections))
    if _TIMED.isdisjoint(section.chart for section in sections if section.rows):
        return document(title, subtitle, cards, body, notes)
    return document(
        title, subtitle, cards, interactive.FORM + body, notes, interactive.STYLE, interactive.script()
    )


def document(
    title: str,
    subtitle: str,
    cards: Sequence[tuple[str, str]],
    body: str,
    notes: Sequence[str],
    style: str = "",
    script: str = "",
) -> str:
    """A page in the common style around sections that are HTML already; `style` is more CSS, `script` that of `interactive`. All
    other text is escaped."""
    policy = f"{_POLICY}; {interactive.policy()}" if script else _POLICY
    run = f"<script>{script}</script>" if script else ""
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_CSS}{style}</style></head><body><main>"
    )
    figures = "".join(f'<div class="card"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for k, v in cards)
    said = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return (
        f'{head}<h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p><div class="cards">{figures}</div>'
        f"{body}{said}</main>{run}</body></html>\n"
    )


def _section(section: Section) -> str:
    """A section as HTML. If it has a chart, its table is folded."""
    drawing, table = _drawing(section), _table(section)
    if drawing:
        table = f"<details><summary>The figures</summary>{table}</details>"
    notes = [section.note, _partial(section), _lacking(section)]
    note = "".join(f'<p class="note">{escape(text)}</p>' for text in notes if text)
    whole = "" if drawing and section.chart in _TIMED else _WHOLE
    return f"<section><h2>{escape(section.title)}</h2>{drawing}{table}{whole}{note}</section>\n"


def _drawing(section: Section) -> str:
    if not (section.chart and section.rows):
        return ""
    if section.chart not in _TIMED:
        return f'<div class="drawing">{_bars(section)}</div>'
    chart = _CHARTS[section.chart](section)
    return f'<div class="drawing"{interactive.attribute(chart)}>{chart.svg()}</div>'


def _partial(section: Section) -> str:
    if not section.partial:
        return ""
    show = display("timestamp")
    steps = " and ".join(show(at) for at in section.partial)
    return f"Incomplete, since the log begins or ends there: {steps}."


def _lacking(section: Section) -> str:
    if not section.lacking:
        return ""
    show, count = display("timestamp"), len(section.lacking) - LISTED
    more = f" and {count} more" if count > 0 else ""
    return f"Incomplete, since an agent's lines are missing: {', '.join(map(show, section.lacking[:LISTED]))}{more}."


_CLASS_OF = {"timestamp": ' class="t"'}
"""Of cells that are neither numbers nor text."""


def _table(section: Section) -> str:
    shows = [display(column.type) for column in section.columns]
    right = [
        _CLASS_OF.get(column.type, ' class="r"' if is_right(column.type) else "")
        for column in section.columns
    ]
    head = "".join(f"<th{r}>{escape(c.name)}</th>" for r, c in zip(right, section.columns, strict=True))
    held = list(section.rows)
    rows = "".join(
        "<tr>"
        + "".join(f"<td{r}>{escape(show(v))}</td>" for r, show, v in zip(right, shows, row, strict=True))
        + "</tr>"
        for row in held[:TABLE_ROWS]
    )
    rest = '<p class="note">… and more; --output csv gives all</p>' if len(held) > TABLE_ROWS else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>{rest}'


def _columns(section: Section) -> Chart:
    name = section.columns[1].name
    show = charts.size if name == "bytes" else charts.compact
    values = [None if row[1] is None else float(row[1]) for row in section.rows]
    series = [Series(name, "main", values)]
    return Chart(
        [row[0] for row in section.rows],
        section.step_us,
        series,
        show,
        section.incomplete,
        adds_up=section.adds_up,
    )


def _stacked(section: Section) -> Chart:
    times = sorted({row[0] for row in section.rows})
    found = {(row[0], row[1]): float(row[2]) for row in section.rows}
    classes = sorted({row[1] for row in section.rows})
    series = [
        Series(name, "other" if name == "other" else f"s{name[0]}", [found.get((at, name)) for at in times])
        for name in classes
    ]
    return Chart(times, section.step_us, series, charts.compact, section.incomplete, adds_up=section.adds_up)


def _lines(section: Section) -> Chart:
    rows = list(section.rows)
    series = [
        Series(
            name,
            style,
            [float(row[at + 2]) for row in rows],
            [row[at] for row in rows],
            [row[1] for row in rows],
        )
        for at, (name, style) in enumerate((("4xx, client errors", "s4"), ("5xx, server errors", "s5")), 2)
    ]
    times = [row[0] for row in rows]
    return Chart(
        times,
        section.step_us,
        series,
        charts.percent,
        section.incomplete,
        lines=True,
        adds_up=section.adds_up,
    )


def _quantiles(section: Section) -> Chart:
    times = [row[0] for row in section.rows]
    series = [
        Series(name, style, [None if row[at] is None else float(row[at]) for row in section.rows])
        for at, (name, style) in enumerate((("p50", "s2"), ("p95", "s4"), ("p99", "s5")), 1)
    ]
    return Chart(
        times,
        section.step_us,
        series,
        charts.seconds,
        section.incomplete,
        lines=True,
        adds_up=section.adds_up,
    )


def _bars(section: Section) -> str:
    rows = [("NULL" if row[0] is None else str(row[0]), float(row[1])) for row in section.rows]
    return charts.bars(rows, "main", lambda value: f"{value:,.0f}")


_CHARTS = {"columns": _columns, "stacked": _stacked, "lines": _lines, "quantiles": _quantiles}
_TIMED = frozenset(_CHARTS)
"""The charts over time; the others are bars."""
