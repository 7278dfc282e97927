// Charts, all by uPlot: step times, the ratio as it narrows, devices, the queue.

/* global uPlot */
import { bytes, number, seconds, share } from "./dom.js";

// Paul Tol's 'bright' scheme.
const COLORS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];
const MOST_LINES = 12;
// How far from 1 the ends of an interval are shown, and ticks of a ratio's axis by preference, as in the report's figure.
const FAR = 4;
const RATIO_TICKS = [1, 2, 0.5, 4, 0.25, 1.5, 0.67, 3, 0.33, 1.2, 0.8, 10, 0.1, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.01, 0.99];
const UNITS = { load: share, memory: bytes, power: (value) => `${number(value)} W`, clock: (value) => `${number(value)} MHz` };

// Lines that come after all colors are used have dashes.
const DASHES = [undefined, [8, 4], [2, 3]];

export const color = (place) => COLORS[place % COLORS.length];

const dash = (place) => DASHES[Math.floor(place / COLORS.length) % DASHES.length];

// A chart that fits its place, is drawn anew when its lines change, and follows light and dark.
export class Chart {
  constructor(label, height = 220) {
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", label);
    this.height = height;
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  size() {
    return { width: Math.max(200, this.element.clientWidth), height: this.height };
  }

  // `make` returns uPlot's options for the lines that there are; `data` its columns.
  show(shape, make, data) {
    if (!data.length || !data[0].length) return;
    const changed = JSON.stringify(shape) !== this.shape;
    [this.shape, this.make, this.data] = [JSON.stringify(shape), make, data];
    if (changed || !this.plot) this.draw();
    else this.plot.setData(data);
  }

  draw() {
    if (!this.make) return;
    this.plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const look = { ink: style.getPropertyValue("--ink").trim(), soft: style.getPropertyValue("--soft").trim(), line: style.getPropertyValue("--line").trim() };
    const axis = { stroke: look.soft, grid: { stroke: look.line, width: 1 }, ticks: { stroke: look.line, width: 1 } };
    const options = this.make(look);
    options.axes = options.axes.map((one) => ({ ...axis, ...one }));
    this.plot = new uPlot({ ...this.size(), cursor: { drag: { setScale: false } }, legend: { markers: { dash: borderOf } }, ...options }, this.data, this.element);
  }
}

// The border of a line's box in the legend is as the line.
const borderOf = (plot, place) => (plot.series[place].dash ? "dashed" : "solid");

// All launches' steps one after the other, a line a placement; those of the warm-up are points of their own.
export function showSteps(chart, run, series) {
  const names = run.placements.map((one) => one.name);
  const columns = [[], ...names.map(() => []), []];
  const begins = [];
  const add = (place, value) => {
    columns[0].push(columns[0].length);
    columns.slice(1).forEach((column, at) => column.push(at === place ? value : null));
  };
  for (const launch of run.launches) {
    const found = series[`${launch.round}/${launch.placement}`];
    if (!found || !found.at.length) continue;
    begins.push([columns[0].length, `${launch.round} ${launch.placement}`]);
    const warm = Math.round(found.at[0]) - 1 + launch.warmup;
    found.at.forEach((step, place) => add(step <= warm ? names.length : names.indexOf(launch.placement), found.seconds[place]));
    add(-1, null);
  }
  chart.show([names, begins.length], (look) => ({
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, (high || 1) * 1.06] } },
    axes: [
      { splits: (plot) => spread(begins, plot).map(([at]) => at), values: (_, ticks) => ticks.map((tick) => short(new Map(begins).get(tick))), label: "steps, launch after launch", labelSize: 20 },
      { values: (_, ticks) => ticks.map((tick) => `${number(tick)} s`), size: 64 },
    ],
    series: [
      { label: "step", value: () => "" },
      ...names.map((name, place) => ({ label: name, stroke: color(place), dash: dash(place), width: 1.5, points: { show: true, size: 4 }, value: (_, value) => seconds(value) })),
      { label: "warm-up", stroke: look.soft, width: 0, points: { show: true, size: 5 }, paths: () => null, value: (_, value) => seconds(value) },
    ],
  }), columns);
}

// The ratio of each placement after each round, with its interval; what of it lies beyond the chart is an arrowhead.
export function showRatio(chart, ratio) {
  const names = Object.keys(ratio.of).filter((name) => ratio.of[name].length);
  const rounds = [...new Set(names.flatMap((name) => ratio.of[name].map(([round]) => round)))].sort((one, other) => one - other);
  const columns = [rounds];
  for (const name of names) {
    const found = new Map(ratio.of[name].map((row) => [row[0], row]));
    for (const place of [1, 2, 3]) columns.push(rounds.map((round) => found.get(round)?.[place] ?? null));
  }
  chart.show([names, rounds.length], (look) => ({
    scales: { x: { time: false, range: (_, low, high) => [low - 0.5, high + 0.5] }, y: { distr: 3, range: (plot) => ratioView(plot.data) } },
    axes: [
      { label: "rounds", labelSize: 20, splits: () => thinned(rounds, 10) },
      { splits: ratioTicks, filter: (_, ticks) => ticks, values: (_, ticks) => ticks.map((tick) => number(tick)), size: 56 },
    ],
    series: [
      { label: "rounds" },
      ...names.flatMap((name, place) => [
        { label: name, stroke: color(place + 1), dash: dash(place + 1), width: 2, points: { show: true, size: 6 }, value: (_, value) => number(value) },
        { label: "from", stroke: color(place + 1), width: 1, dash: [4, 3], points: { show: false }, value: (_, value) => number(value) },
        { label: "to", stroke: color(place + 1), width: 1, dash: [4, 3], points: { show: false }, value: (_, value) => number(value) },
      ]),
    ],
    bands: names.map((_, place) => ({ series: [3 * place + 3, 3 * place + 2], fill: `${color(place + 1)}33` })),
    hooks: { draw: [(plot) => lineAt(plot, 1, look.soft), drawIntervals] },
  }), columns);
}

// A quantity of every device over the launch: a line each, of many their lowest, mean and highest.
export function showDevices(chart, devices, series, trial, quantity) {
  const shown = devices.filter((one) => series[`${trial}/${one.id}`]?.[quantity]?.some((value) => value !== null));
  const tables = shown.map((one) => [series[`${trial}/${one.id}`].at, series[`${trial}/${one.id}`][quantity]]);
  const many = shown.length > MOST_LINES;
  const names = many ? ["highest", "mean", "lowest"] : shown.map((one) => one.label);
  if (!tables.length) return;
  chart.show([trial, quantity, names], () => ({
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, (high || 1) * 1.06] } },
    axes: [
      { label: "seconds of the launch", labelSize: 20 },
      { values: (_, ticks) => ticks.map((tick) => UNITS[quantity](tick)), size: 72 },
    ],
    series: [{ label: "at", value: (_, value) => seconds(value) }, ...names.map((name, place) => ({
      label: name, stroke: color(place), dash: dash(place), width: 1.2, points: { show: false }, spanGaps: true, value: (_, value) => UNITS[quantity](value),
    }))],
  }), many ? summed(tables) : uPlot.join(tables));
}

export function showQueue(chart, found) {
  const columns = [found.at, found.waiting, found.most];
  chart.show("queue", () => ({
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, (high || 1) * 1.06] } },
    axes: [{ label: "steps", labelSize: 20 }, { size: 56 }],
    series: [
      { label: "step" },
      { label: "waiting, mean", stroke: color(0), width: 1.8, value: (_, value) => number(value) },
      { label: "at most", stroke: color(4), width: 1, value: (_, value) => number(value) },
    ],
    bands: [{ series: [2, 1], fill: `${color(4)}44` }],
  }), columns);
}

function summed(tables) {
  const length = Math.min(...tables.map(([at]) => at.length));
  const columns = [tables[0][0].slice(0, length), [], [], []];
  for (let place = 0; place < length; place += 1) {
    const values = tables.map(([, column]) => column[place]).filter((value) => value !== null);
    columns[1].push(values.length ? Math.max(...values) : null);
    columns[2].push(values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
    columns[3].push(values.length ? Math.min(...values) : null);
  }
  return columns;
}

function thinned(items, most) {
  const every = Math.ceil(items.length / most) || 1;
  return items.filter((_, place) => place % every === 0);
}

const short = (name) => (name.length > 14 ? `${name.slice(0, 13)}…` : name);

// Labels of which none reaches into the next: each in the middle of its tick, about 7 px a character.
function spread(begins, plot) {
  const room = 7 * Math.max(0, ...begins.map(([, name]) => short(name).length)) + 14;
  const { min, max } = plot.scales.x;
  const apart = (room * (max - min || 1)) / (plot.bbox.width / devicePixelRatio || plot.width);
  const kept = [];
  for (const one of begins) if (!kept.length || one[0] - kept.at(-1)[0] >= apart) kept.push(one);
  return kept;
}

// All ratios, and the last interval of each placement: those after few rounds may reach over decades.
function ratioView(data) {
  const inView = [0.95, 1 / 0.95];
  for (let place = 1; place < data.length; place += 3) {
    inView.push(...data[place].filter((value) => value > 0));
    for (const column of [data[place + 1], data[place + 2]]) {
      const last = column.findLast((value) => value !== null);
      if (last !== undefined) inView.push(Math.min(FAR, Math.max(1 / FAR, last)));
    }
  }
  const [low, high] = [Math.min(...inView), Math.max(...inView)];
  const room = (high / low) ** 0.08;
  return [low / room, high * room];
}

function ratioTicks(plot, _, low, high) {
  const apart = (24 * Math.log(high / low)) / (plot.bbox.height / devicePixelRatio || plot.height);
  const kept = [];
  for (const tick of RATIO_TICKS) {
    const fits = tick >= low && tick <= high && kept.every((other) => Math.abs(Math.log(tick / other)) >= apart);
    if (fits) kept.push(tick);
  }
  return kept.sort((one, other) => one - other);
}

// A bar a round, as one alone has no band; an arrowhead where it goes on beyond the chart.
function drawIntervals(plot) {
  const { left, top, width, height } = plot.bbox;
  const { min, max } = plot.scales.y;
  const size = 5 * devicePixelRatio;
  plot.ctx.save();
  plot.ctx.setLineDash([]);
  for (let place = 1; place < plot.data.length; place += 3) {
    plot.ctx.fillStyle = plot.ctx.strokeStyle = plot.series[place].stroke();
    plot.data[0].forEach((round, at) => {
      const x = plot.valToPos(round, "x", true);
      const [low, high] = [plot.data[place + 1][at], plot.data[place + 2][at]];
      if (low === null || high === null || x < left || x > left + width) return;
      const [from, to] = [Math.max(low, min), Math.min(high, max)].map((end) => plot.valToPos(end, "y", true));
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, from);
      plot.ctx.lineTo(x, to);
      plot.ctx.stroke();
      if (low < min) arrowhead(plot.ctx, x, top + height, -size);
      if (high > max) arrowhead(plot.ctx, x, top, size);
    });
  }
  plot.ctx.restore();
}

// With its point at a place, and as far from there to its base.
function arrowhead(context, x, y, size) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x - size, y + 1.5 * size);
  context.lineTo(x + size, y + 1.5 * size);
  context.fill();
}

function lineAt(plot, value, stroke) {
  const { left, top, width, height } = plot.bbox;
  const y = plot.valToPos(value, "y", true);
  if (y < top || y > top + height) return;
  plot.ctx.save();
  plot.ctx.strokeStyle = stroke;
  plot.ctx.setLineDash([]);
  plot.ctx.beginPath();
  plot.ctx.moveTo(left, y);
  plot.ctx.lineTo(left + width, y);
  plot.ctx.stroke();
  plot.ctx.restore();
}
