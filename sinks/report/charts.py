"""Charts as inline SVG text: they open offline, follow the page's light or dark colours, and need no script.

All text from logs is escaped here. Sizes are in SVG units of one pixel; the page scales the drawing to its width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from html import escape
from math import ceil, floor, log2, log10

import msgspec

from elf.sinks.console.cells import EPOCH, is_utc, iso, local
from elf.sinks.console.cells import escape as printable

WIDTH, HEIGHT = 960, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 40
COLUMNS_MAX = 14 * 24
"""The most columns in one chart: two weeks of hours. Of more, only the last are drawn."""
COLUMN_MAX = 64.0
LABEL_CHARS = 96

Format = Callable[[float], str]


class Series(msgspec.Struct, frozen=True):
    """A named series of values, one for each time; None: no value. `style` is a CSS class of the page. Of shares also what they
    are computed from, since only that adds up."""

    name: str
    style: str
    values: list[float | None]
    part: list[int] | None = None
    whole: list[int] | None = None


class Chart(msgspec.Struct, frozen=True):
    """What `over_time` draws. adds_up: see `Section`."""

    times: Sequence[int]
    step_us: int
    series: Sequence[Series]
    show: Format
    partial: Sequence[int] = ()
    lines: bool = False
    adds_up: bool = True

    def svg(self) -> str:
        return over_time(self.times, self.step_us, self.series, self.show, self.partial, lines=self.lines)


def compact(value: float) -> str:
    """1234567 as `1.23M`: three digits suffice on an axis."""
    return _scaled(value, 1000, ("", "k", "M", "G", "T", "P"))


def size(value: float) -> str:
    """Bytes, in powers of 1024."""
    return _scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"))


def percent(value: float) -> str:
    return f"{value:.3g} %"


def seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    power = 0
    while abs(value) >= base and power < len(units) - 1:
        value, power = value / base, power + 1
    return f"{value:.4g}{units[power]}" if value < 1000 else f"{value:.0f}{units[power]}"


def moment(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def ticks(highest: float, show: Format = compact, count: int = 4) -> list[float]:
    """Round numbers from 0 to at least `highest`, in steps of 1, 2 or 5 times a power of ten (for bytes: of a KiB, MiB, GiB)."""
    if highest <= 0:
        return [0.0, 1.0]
    if show is size and highest >= 1024:
        unit = 1024.0 ** int(log2(highest) / 10)
        return [tick * unit for tick in ticks(highest / unit)]
    raw = highest / count
    power: float = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999999)
    return [step * i for i in range(ceil(highest / step - 1e-9) + 1)]


def over_time(
    times: Sequence[int],
    step_us: int,
    series: Sequence[Series],
    show: Format,
    partial: Sequence[int] = (),
    *,
    lines: bool = False,
) -> str:
    """Columns (stacked where there are several series) or lines over time. `times`: ascending microseconds, `step_us` apart.

    Times without a value stay empty; the steps that begin at the times `partial`, which are incomplete, are pale.
    Days of the zone shown are equally wide, though some have 23 or 25 hours.
    """
    if step_us == _DAY_US:
        times = [local(at) // _DAY_US * _DAY_US for at in times]
        partial = [local(at) // _DAY_US * _DAY_US for at in partial]
    first = max(times[0], times[-1] - (COLUMNS_MAX - 1) * step_us)
    count = (times[-1] - first) // step_us + 1
    slots = {at: (at - first) // step_us for at in times if at >= first}
    sums = [sum(s.values[i] or 0 for s in series) for i, at in enumerate(times) if at >= first]
    single = [s.values[i] or 0 for s in series for i, at in enumerate(times) if at >= first]
    scale = ticks(max(single if lines else sums), show)
    wide = (WIDTH - LEFT - RIGHT) / count
    tall = (HEIGHT - TOP - BOTTOM) / scale[-1]
    body = _y_axis(scale, tall, show) + _x_axis(first, step_us, count, wide)
    plot = Plot(times, slots, wide, tall, show, step_us, partial)
    return _svg(HEIGHT, body + (_lines if lines else _columns)(plot, series), series)


class Plot(msgspec.Struct, frozen=True):
    """Where a chart over time draws: the slot of each time shown, the pixels of a slot and of a unit, and the texts of values."""

    times: Sequence[int]
    slots: dict[int, int]
    wide: float
    tall: float
    show: Format
    step_us: int
    partial: Sequence[int]

    def hint(self, at: int, series: Series, value: float) -> str:
        part = ", incomplete" if at in self.partial else ""
        return f"{_when(at, self.step_us)}  {series.name}: {self.show(value)}{part}"


def _columns(plot: Plot, series: Sequence[Series]) -> str:
    parts = []
    slots, wide, tall = plot.slots, plot.wide, plot.tall
    thick = min(COLUMN_MAX, wide - min(2.0, wide * 0.15))
    for i, at in enumerate(plot.times):
        if at not in slots:
            continue
        x, y = LEFT + (slots[at] + 0.5) * wide - thick / 2, float(HEIGHT - BOTTOM)
        for each in series:
            value = each.values[i] or 0
            if value:
                y -= value * tall
                hint = plot.hint(at, each, value)
                style = f"{each.style} partial" if at in plot.partial else each.style
                parts.append(_rect(x, y, thick, value * tall, style, hint))
    return "".join(parts)


def _lines(plot: Plot, series: Sequence[Series]) -> str:
    parts = []
    slots, wide = plot.slots, plot.wide
    for each in series:
        path, before, dots = "", -2, []
        for at, value in zip(plot.times, each.values, strict=True):
            if at not in slots or value is None:
                continue
            x, y = LEFT + (slots[at] + 0.5) * wide, HEIGHT - BOTTOM - value * plot.tall
            path += f"{'L' if slots[at] == before + 1 else 'M'}{x:.1f} {y:.1f}"
            before = slots[at]
            hint = escape(plot.hint(at, each, value))
            dots.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{min(3, wide / 2):.1f}"><title>{hint}</title></circle>'
            )
        parts.append(f'<g class="{each.style}"><path class="line" d="{path}"/>{"".join(dots)}</g>')
    return "".join(parts)


def bars(rows: Sequence[tuple[str, float]], style: str, show: Format) -> str:
    """Horizontal bars, one per row, each with its label above it and its value at its end."""
    step, thick = 34, 10
    longest = max((value for _, value in rows), default=0) or 1
    parts = []
    for i, (label, value) in enumerate(rows):
        y = 4 + i * step
        shown = printable(label)
        short = shown if len(shown) <= LABEL_CHARS else shown[: LABEL_CHARS - 1] + "…"
        parts.append(
            f'<text x="0" y="{y + 11}" class="label"><title>{escape(shown)}</title>{escape(short)}</text>'
        )
        wide = max(2.0, value / longest * (WIDTH - 90))
        parts.append(_rect(0, y + 17, wide, thick, style, f"{shown}: {show(value)}"))
        parts.append(f'<text x="{wide + 8:.1f}" y="{y + 26}" class="value">{escape(show(value))}</text>')
    return _svg(8 + len(rows) * step, "".join(parts), [])


def _rect(x: float, y: float, wide: float, tall: float, style: str, hint: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.2f}" width="{wide:.2f}" height="{tall:.2f}" class="{style}">'
        f"<title>{escape(hint)}</title></rect>"
    )


def _y_axis(scale: Sequence[float], tall: float, show: Format) -> str:
    parts = []
    for value in scale:
        y = HEIGHT - BOTTOM - value * tall
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="axis end">{escape(show(value))}</text>')
    return "".join(parts)


_SECOND_US, _MINUTE_US, _HOUR_US, _DAY_US = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
_STEPS_US = [unit * n for unit in (_SECOND_US, _MINUTE_US) for n in (1, 2, 5, 10, 20, 30)]
_STEPS_US += [_HOUR_US * n for n in (1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720, 1440, 2880)]


def _x_axis(first: int, step_us: int, count: int, wide: float) -> str:
    """At most twelve labels, at round times; the first one, and those where a day begins, have the date."""
    label_us = next((us for us in _STEPS_US if us >= step_us and us * 12 >= count * step_us), _STEPS_US[-1])
    parts, dated = [], False
    for slot in range(count):
        at = first + slot * step_us
        shown = at if step_us == _DAY_US else local(at)
        if shown % label_us < step_us or count == 1:
            x = LEFT + (slot + 0.5) * wide
            when = moment(shown)
            text = _clock(when, step_us) if step_us < _DAY_US else f"{when:%d %b}"
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" class="axis mid">{text}</text>')
            if step_us < _DAY_US and (not dated or shown % _DAY_US < step_us):
                dated = True
                text = f"{when:%d %b %Y}"
                parts.append(
                    f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 33}" class="axis mid day">{text}</text>'
                )
    return "".join(parts)


def _when(at: int, step_us: int) -> str:
    if step_us == _DAY_US:
        return f"{moment(at):%Y-%m-%d}"
    when = moment(local(at))
    return f"{when:%Y-%m-%d} {_clock(when, step_us)}" + ("" if is_utc() else f" {iso(at)[-6:]}")


def _clock(when: datetime, step_us: int) -> str:
    """The time of day, with seconds if steps are shorter than a minute."""
    return f"{when:%H:%M:%S}" if step_us < _MINUTE_US else f"{when:%H:%M}"


def _svg(height: int, body: str, series: Sequence[Series]) -> str:
    drawing = (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" preserveAspectRatio="xMidYMid meet">{body}</svg>'
    )
    if len(series) < 2:
        return drawing
    keys = "".join(f'<span><i class="{s.style}"></i>{escape(s.name)}</span>' for s in series)
    return f'<div class="legend">{keys}</div>{drawing}'
