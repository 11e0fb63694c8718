// Draws a page's charts over time again, for the range and the steps that its reader chooses. Before a choice the page shows the
// drawings that it came with; `draw` makes the same ones for the same range and steps. SIZES comes before this text (interactive.py).
"use strict";

const DAY = 86400, WEEK = 7 * DAY, MONTH = 30 * DAY;
const STEPS = [60, 600, 3600, DAY, WEEK, MONTH];
const NAMES = { 60: "minute", 600: "10 minutes", 3600: "hour", [DAY]: "day", [WEEK]: "week", [MONTH]: "month" };
const LABELS = [1, 2, 5, 10, 20, 30].concat([1, 2, 5, 10, 20, 30].map(n => n * 60),
  [1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720, 1440, 2880].map(n => n * 3600));
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// Numbers and times as text.

function digits(value, count) {
  return String(Number(value.toPrecision(count)));
}

function scaled(value, base, units) {
  let power = 0;
  while (Math.abs(value) >= base && power < units.length - 1) {
    value /= base;
    power += 1;
  }
  return (value < 1000 ? digits(value, 4) : value.toFixed(0)) + units[power];
}

const SHOW = {
  compact: value => scaled(value, 1000, ["", "k", "M", "G", "T", "P"]),
  size: value => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]),
  percent: value => digits(value, 3) + " %",
  seconds: value => (value < 1 ? digits(value * 1000, 3) + " ms" : digits(value, 3) + " s"),
};

function two(number) {
  return String(number).padStart(2, "0");
}

function dateOf(local) {
  return new Date(local * 1000).toISOString().slice(0, 10);
}

function clockOf(local, step) {
  return new Date(local * 1000).toISOString().slice(11, step < 60 ? 19 : 16);
}

function shortDate(local) {
  const at = new Date(local * 1000);
  return two(at.getUTCDate()) + " " + MONTHS[at.getUTCMonth()];
}

function escaped(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

// Steps of a chart: {at, x, local, parts}. at: its begin in seconds; x: its place; local: as the clock of the zone shows it.

function offsetAt(chart, at) {
  let offset = chart.zone[0][1];
  for (const [since, seconds] of chart.zone) {
    if (since <= at) offset = seconds;
  }
  return offset;
}

function stepOf(chart, at, step) {
  const local = at + offsetAt(chart, at);
  if (step <= chart.step) return { at, x: Math.round((at - chart.first) / chart.step), local, end: local + chart.step };
  if (step < DAY) {
    const begin = Math.floor(at / step) * step;
    const shown = begin + offsetAt(chart, begin);
    return { at: begin, x: begin / step, local: shown, end: shown + step };
  }
  const day = Math.floor(local / DAY);
  if (step === DAY) return { at: day * DAY, x: day, local: day * DAY, end: (day + 1) * DAY };
  if (step === WEEK) {
    const week = Math.floor((day + 3) / 7);
    return { at: (week * 7 - 3) * DAY, x: week, local: (week * 7 - 3) * DAY, end: (week * 7 + 4) * DAY };
  }
  const date = new Date(local * 1000), year = date.getUTCFullYear(), month = date.getUTCMonth();
  const begin = Date.UTC(year, month, 1) / 1000;
  return { at: begin, x: year * 12 + month, local: begin, end: Date.UTC(year, month + 1, 1) / 1000 };
}

// The steps from `since` to before `until` (of the zone's clock), in order, with the sums of each series in `values`.
function stepsOf(chart, since, until, step) {
  const found = new Map(), partial = new Set(chart.partial);
  chart.slots.forEach((slot, i) => {
    const at = chart.first + slot * chart.step, local = at + offsetAt(chart, at);
    if (local < since || local >= until) return;
    const own = stepOf(chart, at, step);
    let sums = found.get(own.at);
    if (sums === undefined) {
      const cut = step > chart.step && (own.local < since || own.end > until);
      sums = { ...own, isPartial: cut, parts: chart.series.map(() => [null, null]) };
      found.set(own.at, sums);
    }
    sums.isPartial = sums.isPartial || partial.has(slot);
    chart.series.forEach((series, n) => {
      add(sums.parts[n], 0, (series.parts || series.values)[i]);
      if (series.whole) add(sums.parts[n], 1, series.whole[i]);
    });
  });
  const steps = [...found.values()].sort((a, b) => a.at - b.at);
  for (const each of steps) {
    each.values = each.parts.map(([part, whole], n) => {
      if (!chart.series[n].whole) return part;
      return part === null || !whole ? null : 100 * part / whole;
    });
  }
  return steps;
}

function add(sums, at, value) {
  if (value !== null) sums[at] = (sums[at] || 0) + value;
}

// The shortest steps, at least `step` long, in which the range is no more than a chart holds. 0: the chart's own or longer.
function fitting(chart, since, until, step) {
  if (chart.fixed) return chart.step;
  const longer = [chart.step, ...STEPS.filter(each => each > chart.step)].filter(each => each >= step);
  for (const each of longer) {
    const steps = stepsOf(chart, since, until, each);
    if (step || !steps.length || steps[steps.length - 1].x - steps[0].x < SIZES.columns) return each;
  }
  return MONTH;
}

// Drawings, as charts.py makes them.

function ticks(highest, show) {
  if (highest <= 0) return [0, 1];
  if (show === "size" && highest >= 1024) {
    const unit = 1024 ** Math.floor(Math.log2(highest) / 10);
    return ticks(highest / unit, "compact").map(tick => tick * unit);
  }
  const raw = highest / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(factor => power * factor).find(each => each >= raw * 0.999999);
  return Array.from({ length: Math.ceil(highest / step - 1e-9) + 1 }, (_, i) => step * i);
}

function whenOf(chart, step, at) {
  const local = at + offsetAt(chart, at);
  if (step === MONTH) return dateOf(at).slice(0, 7);
  if (step === WEEK) return "week of " + dateOf(at);
  if (step === DAY) return dateOf(at);
  const offset = local - at, sign = offset < 0 ? "-" : "+", minutes = Math.abs(offset) / 60;
  const zone = chart.utc ? "" : ` ${sign}${two(Math.floor(minutes / 60))}:${two(Math.floor(minutes % 60))}`;
  return `${dateOf(local)} ${clockOf(local, step)}${zone}`;
}

function yAxis(scale, tall, show) {
  return scale.map(value => {
    const y = SIZES.height - SIZES.bottom - value * tall;
    return `<line x1="${SIZES.left}" x2="${SIZES.width - SIZES.right}" y1="${y.toFixed(1)}" y2="${y.toFixed(1)}" class="grid"/>`
      + `<text x="${SIZES.left - 8}" y="${(y + 4).toFixed(1)}" class="axis end">${escaped(SHOW[show](value))}</text>`;
  }).join("");
}

function label(x, down, text, more) {
  return `<text x="${x.toFixed(1)}" y="${SIZES.height - SIZES.bottom + down}" class="axis mid${more}">${text}</text>`;
}

function xAxis(chart, step, steps, first, count, wide) {
  const parts = [];
  if (step > DAY) {
    const every = Math.ceil(count / 12);
    for (const each of steps) {
      const slot = each.x - first, x = SIZES.left + (slot + 0.5) * wide;
      if (slot % every === 0) parts.push(label(x, 18, step === MONTH ? dateOf(each.at).slice(0, 7) : shortDate(each.at), ""));
    }
    return parts.join("");
  }
  const apart = LABELS.find(each => each >= step && each * 12 >= count * step) || LABELS[LABELS.length - 1];
  let isDated = false;
  for (let slot = 0; slot < count; slot += 1) {
    const at = (step <= chart.step ? chart.first : 0) + (first + slot) * step, shown = step === DAY ? at : at + offsetAt(chart, at);
    if (shown % apart >= step && count !== 1) continue;
    const x = SIZES.left + (slot + 0.5) * wide;
    parts.push(label(x, 18, step < DAY ? clockOf(shown, step) : shortDate(shown), ""));
    if (step < DAY && (!isDated || shown % DAY < step)) {
      isDated = true;
      parts.push(label(x, 33, `${shortDate(shown)} ${dateOf(shown).slice(0, 4)}`, " day"));
    }
  }
  return parts.join("");
}

function columns(chart, step, steps, first, wide, tall) {
  const thick = Math.min(SIZES.column, wide - Math.min(2, wide * 0.15)), parts = [];
  for (const each of steps) {
    const x = SIZES.left + (each.x - first + 0.5) * wide - thick / 2;
    let y = SIZES.height - SIZES.bottom;
    chart.series.forEach((series, n) => {
      const value = each.values[n] || 0;
      if (!value) return;
      y -= value * tall;
      parts.push(`<rect x="${x.toFixed(1)}" y="${y.toFixed(2)}" width="${thick.toFixed(2)}" height="${(value * tall).toFixed(2)}" `
        + `class="${series.style}${each.isPartial ? " partial" : ""}"><title>${hint(chart, step, each, series, value)}</title></rect>`);
    });
  }
  return parts.join("");
}

function lines(chart, step, steps, first, wide, tall) {
  return chart.series.map((series, n) => {
    let path = "", before = -2;
    const dots = [];
    for (const each of steps) {
      const value = each.values[n], slot = each.x - first;
      if (value === null) continue;
      const x = SIZES.left + (slot + 0.5) * wide, y = SIZES.height - SIZES.bottom - value * tall;
      path += `${slot === before + 1 ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      before = slot;
      dots.push(`<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${Math.min(3, wide / 2).toFixed(1)}">`
        + `<title>${hint(chart, step, each, series, value)}</title></circle>`);
    }
    return `<g class="${series.style}"><path class="line" d="${path}"/>${dots.join("")}</g>`;
  }).join("");
}

function hint(chart, step, each, series, value) {
  const part = each.isPartial ? ", incomplete" : "";
  return escaped(`${whenOf(chart, step, each.at)}  ${series.name}: ${SHOW[chart.show](value)}${part}`);
}

// The drawing of a range in steps of so many seconds, as HTML; "" if there is nothing in it.
function draw(chart, since, until, step) {
  let steps = stepsOf(chart, since, until, step);
  if (!steps.length) return "";
  const last = steps[steps.length - 1].x;
  const first = Math.max(steps[0].x, last - SIZES.columns + 1);
  steps = steps.filter(each => each.x >= first);
  const count = last - first + 1, isLines = chart.kind === "lines";
  const heights = steps.map(each => isLines
    ? Math.max(...each.values.map(value => value || 0)) : each.values.reduce((sum, value) => sum + (value || 0), 0));
  const scale = ticks(heights.reduce((a, b) => Math.max(a, b), 0), chart.show);
  const wide = (SIZES.width - SIZES.left - SIZES.right) / count;
  const tall = (SIZES.height - SIZES.top - SIZES.bottom) / scale[scale.length - 1];
  const body = yAxis(scale, tall, chart.show) + xAxis(chart, step, steps, first, count, wide)
    + (isLines ? lines : columns)(chart, step, steps, first, wide, tall);
  const drawing = `<svg viewBox="0 0 ${SIZES.width} ${SIZES.height}" role="img" preserveAspectRatio="xMidYMid meet">${body}</svg>`;
  if (chart.series.length < 2) return drawing;
  const keys = chart.series.map(series => `<span><i class="${series.style}"></i>${escaped(series.name)}</span>`).join("");
  return `<div class="legend">${keys}</div>${drawing}`;
}

// The page.

function begin() {
  const places = [...document.querySelectorAll("[data-chart]")];
  const charts = places.map(place => JSON.parse(place.dataset.chart));
  const form = document.querySelector("form.range");
  if (!form || !charts.length) return;
  const times = charts.flatMap(chart => [0, chart.slots.length - 1].map(i => {
    const at = chart.first + chart.slots[i] * chart.step;
    return [at + offsetAt(chart, at), at + offsetAt(chart, at) + chart.step];
  }));
  const all = [Math.min(...times.map(each => each[0])), Math.max(...times.map(each => each[1]))];
  const { since, until, step } = form.elements;
  const least = Math.min(...charts.map(chart => chart.step));
  for (const each of STEPS.filter(each => each > least)) step.add(new Option(NAMES[each], each));

  function field(input, at) {
    input.value = new Date(at * 1000).toISOString().slice(0, 16);
  }
  function chosen(input, otherwise) {
    const at = Date.parse(input.value + "Z") / 1000;
    return Number.isNaN(at) ? otherwise : at;
  }
  function show() {
    const range = [chosen(since, all[0]), chosen(until, all[1])];
    places.forEach((place, i) => {
      const each = fitting(charts[i], ...range, Number(step.value));
      place.innerHTML = draw(charts[i], ...range, each) || '<p class="note">Nothing in this range.</p>';
      const name = NAMES[each] || `${each} seconds`, title = place.parentElement.querySelector("h2");
      title.dataset.first = title.dataset.first || title.textContent;
      title.textContent = title.dataset.first.replace(/ by (\d+ )?(second|minute|hour|day|week)s?$/, ` by ${name}`);
      const why = charts[i].fixed && Number(step.value) > each ? "; the values of longer ones do not follow from these" : "";
      place.insertAdjacentHTML("beforeend", `<p class="note">Steps: ${name}${why}.</p>`);
    });
    document.body.classList.toggle("ranged", range[0] > all[0] || range[1] < all[1]);
  }
  field(since, all[0]);
  field(until, all[1] + 59);
  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("click", event => {
    const span = event.target.dataset.span;
    if (span === undefined) return;
    field(since, Number(span) ? Math.max(all[0], all[1] - Number(span)) : all[0]);
    field(until, all[1] + 59);
    step.value = "0";
    show();
  });
}

if (typeof document !== "undefined") begin();
