// The charts of a plan: live bytes before and after, and the cost of other budgets. uPlot draws them.
import uPlot from "uplot";
import { Frame } from "./codec.js";
import { $, colorOf } from "./dom.js";
import { bytes, shortBytes, whole } from "./format.js";

const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const HEIGHT_PX = 260;
const HEADROOM = 1.15;

const textColor = () => getComputedStyle(document.body).color;

function axisOf(more) {
  const text = textColor();
  const grid = { stroke: `color-mix(in srgb, ${text} 12%, transparent)`, width: 1 };
  return { stroke: text, grid, ticks: grid, font: "12px system-ui, sans-serif", ...more };
}

// A dashed line across the chart.
function level(plot, value, name) {
  const { ctx, bbox } = plot;
  const top = Math.round(plot.valToPos(value, "y", true)) + 0.5;
  ctx.save();
  Object.assign(ctx, { strokeStyle: colorOf(name), lineWidth: 1.5 * devicePixelRatio });
  ctx.setLineDash([6, 4].map((length) => length * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(bbox.left, top);
  ctx.lineTo(bbox.left + bbox.width, top);
  ctx.stroke();
  ctx.restore();
}

class Curves {
  constructor(frame, figures) {
    this.box = $("plan-curves");
    this.frame = frame;
    this.figures = figures;
    this.index = 0;
    this.box.addEventListener("keydown", (event) => this.#key(event));
  }

  draw() {
    this.plot?.destroy();
    const column = (name) => Array.from(this.frame.columns[name].values);
    const lives = ["program", "plan"].map((who) => {
      const steps = column(`${who}_step`);
      return column(`${who}_bytes`).map((value, row) => (steps[row] < 0 ? null : value));
    });
    this.plot = new uPlot(this.#options(), [column("at"), ...lives], this.box);
  }

  #options() {
    const { budget_bytes: budget, bound_bytes: bound } = this.figures;
    const series = ["before", "after"].map((name) => ({
      stroke: colorOf(name),
      width: 2,
      points: { show: false },
      paths: uPlot.paths.stepped({ align: 1 }),
    }));
    return {
      width: this.box.clientWidth,
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: (_, min, max) => [Math.min(0, min), (Math.max(max, budget ?? 0) || 1) * HEADROOM] } },
      axes: [
        axisOf({ values: (_, ticks) => ticks.map((step) => (Number.isInteger(step) ? whole(step) : "")), label: "step", labelSize: 18, labelFont: "12px system-ui, sans-serif", size: 34 }),
        axisOf({ values: (_, ticks) => ticks.map(shortBytes), incrs: BINARY_STEPS, size: 80 }),
      ],
      series: [{}, ...series],
      hooks: {
        setCursor: [(plot) => plot.cursor.idx !== null && plot.cursor.left >= 0 && this.#say(plot.cursor.idx)],
        draw: [
          (plot) => {
            if (budget !== null) level(plot, budget, "budget");
            level(plot, bound, "bound");
          },
        ],
      },
    };
  }

  #say(index) {
    this.index = index;
    const part = (who) => {
      const step = this.frame.get(`${who}_step`, index);
      if (step < 0) return `${who} is done`;
      return `${who} ${bytes(this.frame.get(`${who}_bytes`, index))} at step ${whole(step)} (${this.frame.get(`${who}_what`, index)})`;
    };
    $("curves-status").textContent = `${part("program")}; ${part("plan")}`;
  }

  #key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const far = event.shiftKey ? Math.ceil(this.frame.rows / 100) : 1;
    const next = Math.max(0, Math.min(this.frame.rows - 1, this.index + by * far));
    this.plot.setCursor({ left: this.plot.valToPos(this.plot.data[0][next], "x"), top: 20 }, false);
    this.#say(next);
  }
}

class TradeOff {
  constructor(points, figures) {
    this.box = $("plan-tradeoff");
    // the program itself is a point too: it has no extra cost
    this.points = [...points, { peak_bytes: figures.program_bytes, extra_cost_ratio: 0, shown: false }].sort((a, b) => a.peak_bytes - b.peak_bytes);
    this.figures = figures;
  }

  draw() {
    this.plot?.destroy();
    const x = this.points.map((point) => point.peak_bytes);
    const all = this.points.map((point) => 100 * point.extra_cost_ratio);
    const shown = this.points.map((point) => (point.shown ? 100 * point.extra_cost_ratio : null));
    const dots = (color, size) => ({ points: { show: true, size, fill: color, stroke: color } });
    const { bound_bytes: bound, program_bytes: program } = this.figures;
    const right = Math.max(program, x.at(-1)) * 1.04;
    const options = {
      width: this.box.clientWidth,
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, range: () => [0, right] }, y: { range: (_, __, max) => [0, (max || 1) * HEADROOM] } },
      axes: [
        axisOf({ values: (_, ticks) => ticks.map(shortBytes), incrs: BINARY_STEPS, space: 80, label: "peak increase", labelSize: 18, labelFont: "12px system-ui, sans-serif", size: 34 }),
        axisOf({ values: (_, ticks) => ticks.map((share) => `${share} %`), label: "extra cost", labelSize: 18, labelFont: "12px system-ui, sans-serif", size: 56 }),
      ],
      series: [{}, { stroke: colorOf("after"), width: 2, ...dots(colorOf("after"), 6) }, { width: 0, ...dots(colorOf("peak-mark"), 11) }],
      hooks: { draw: [(plot) => this.#bound(plot, bound)] },
    };
    this.plot = new uPlot(options, [x, all, shown], this.box);
  }

  #bound(plot, bound) {
    const { ctx, bbox } = plot;
    const left = Math.round(plot.valToPos(bound, "x", true)) + 0.5;
    ctx.save();
    Object.assign(ctx, { strokeStyle: colorOf("bound"), fillStyle: textColor(), lineWidth: 1.5 * devicePixelRatio, textAlign: "left", font: `${12 * devicePixelRatio}px system-ui, sans-serif` });
    ctx.setLineDash([6, 4].map((length) => length * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText("lower bound", left + 4 * devicePixelRatio, bbox.top + 12 * devicePixelRatio);
    ctx.restore();
  }
}

export async function planCharts(plan, words) {
  const charts = [];
  if ($("plan-curves")) charts.push(new Curves(await Frame.unpack(plan.curves, words), plan.figures));
  if ($("plan-tradeoff")) charts.push(new TradeOff(plan.tradeoff, plan.figures));
  const redraw = () => charts.forEach((chart) => chart.draw());
  redraw();
  for (const { box } of charts) {
    new ResizeObserver(() => charts.forEach((chart) => chart.plot.width !== chart.box.clientWidth && chart.plot.setSize({ width: chart.box.clientWidth, height: HEIGHT_PX }))).observe(box);
  }
  return redraw;
}
