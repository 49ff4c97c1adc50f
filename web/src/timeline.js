// Live bytes over time, stacked by category, with the peak marked. uPlot draws; the state says which part.
import uPlot from "uplot";
import { $, colorOf } from "./dom.js";
import { bytes, duration, shortBytes, whole } from "./format.js";
import { state } from "./state.js";

const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const CLICK_SLOP_PX = 4;
const HEIGHT_PX = 280;
const HEADROOM = 1.22; // room above the curve for the labels of the peak and the steps

export class Timeline {
  // `peak` and `steps` return x on the chosen axis; a click calls `onPick(event)` with the row of the timeline.
  constructor({ categories, marks, onPick, onZoom }) {
    this.categories = categories;
    this.marks = marks;
    this.onPick = onPick;
    this.onZoom = onZoom;
    this.box = $("plot");
    new ResizeObserver(() => this.#resize()).observe(this.box);
  }

  draw(points, axis, range) {
    this.points = points;
    this.axis = axis;
    this.range = range;
    this.#holdLast(range[1]);
    this.plot?.destroy();
    const text = getComputedStyle(document.body).color;
    const shown = this.categories.map((_, index) => index).filter((index) => points.live[index].some((value) => value > 0));
    this.plot = new uPlot(this.#options(shown, text), this.#stack(shown), this.box);
    this.#listen();
  }

  // Storages alive after the last event stay alive, so the last step reaches to the end.
  #holdLast(end) {
    const { event, x, live } = this.points;
    if (!x.length || x.at(-1) >= end) return;
    this.points = { event: [...event, event.at(-1)], x: [...x, end], live: live.map((curve) => [...curve, curve.at(-1)]) };
  }

  // Returns cumulative curves, the topmost first: each is painted over by those below it.
  #stack(shown) {
    const sum = new Float64Array(this.points.x.length);
    const layers = shown.map((index) => {
      this.points.live[index].forEach((value, at) => (sum[at] += value));
      return Array.from(sum);
    });
    this.total = layers.at(-1) ?? Array.from(sum);
    if (!layers.length) layers.push(this.total);
    return [this.points.x, ...layers.reverse()];
  }

  #options(shown, text) {
    const grid = { stroke: `color-mix(in srgb, ${text} 12%, transparent)`, width: 1 };
    const axis = { stroke: text, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const names = shown.length ? shown.map((index) => this.categories[index]) : ["unknown"];
    const series = names.reverse().map((name) => ({
      label: name,
      stroke: colorOf(name),
      fill: colorOf(name),
      width: 1,
      points: { show: false },
      paths: uPlot.paths.stepped({ align: 1 }),
    }));
    return {
      width: this.box.clientWidth,
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false } },
      scales: { x: { time: false, range: () => this.range }, y: { range: (_, __, max) => [0, (max || 1) * HEADROOM] } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((x) => (this.axis === "events" ? whole(x) : duration(x))), space: 90, size: 34 },
        { ...axis, values: (_, ticks) => ticks.map(shortBytes), incrs: BINARY_STEPS, size: 80 },
      ],
      series: [{}, ...series],
      hooks: {
        setSelect: [(plot) => this.#selected(plot)],
        setCursor: [(plot) => this.#hover(plot)],
        draw: [(plot) => this.#drawMarks(plot, text)],
      },
    };
  }

  #listen() {
    const { over } = this.plot;
    let downX = 0;
    over.addEventListener("mousedown", (event) => (downX = event.clientX));
    over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - downX) <= CLICK_SLOP_PX) this.onPick(this.points.event[this.indexAt(this.plot.cursor.left)]);
    });
    over.addEventListener("dblclick", () => this.onZoom(null));
  }

  // Returns the point whose step is drawn at a pixel: the last one at or before it.
  indexAt(left) {
    const x = this.plot.posToVal(left, "x");
    const near = this.plot.valToIdx(x);
    return near > 0 && this.points.x[near] > x ? near - 1 : near;
  }

  #selected(plot) {
    const { left, width } = plot.select;
    if (width > CLICK_SLOP_PX) this.onZoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }

  #hover(plot) {
    if (plot.cursor.left >= 0) this.say(this.indexAt(plot.cursor.left));
  }

  say(index) {
    const { event, x, live } = this.points;
    const parts = this.categories
      .map((name, at) => [name, live[at][index]])
      .filter(([, value]) => value > 0)
      .sort((a, b) => b[1] - a[1])
      .map(([name, value]) => `${name} ${bytes(value)}`);
    const when = this.axis === "events" ? "" : `${duration(x[index])}, `;
    $("plot-status").textContent = `${when}event ${whole(event[index])}: ${bytes(this.total[index] ?? 0)} live (${parts.join(", ")})`;
  }

  #drawMarks(plot, text) {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.font = `${12 * scale}px system-ui, sans-serif`;
    for (const { x, label, kind } of this.marks(this.axis)) {
      if (x < plot.scales.x.min || x > plot.scales.x.max) continue;
      const left = Math.round(plot.valToPos(x, "x", true)) + 0.5;
      const lineTo = (width, color, dash) => {
        Object.assign(ctx, { strokeStyle: color, fillStyle: color, lineWidth: width * scale });
        ctx.setLineDash(dash.map((length) => length * scale));
        ctx.beginPath();
        ctx.moveTo(left, bbox.top);
        ctx.lineTo(left, bbox.top + bbox.height);
        ctx.stroke();
      };
      ctx.globalAlpha = kind === "step" ? 0.35 : 1;
      if (kind !== "step") lineTo(4, colorOf("panel"), []); // an outline, because a category may have the colour of the mark
      lineTo(kind === "step" ? 1 : 1.5, kind === "peak" ? colorOf("peak-mark") : text, kind === "step" ? [2, 3] : []);
      const right = left + ctx.measureText(label).width + 8 * scale > bbox.left + bbox.width;
      ctx.textAlign = right ? "right" : "left";
      const line = { step: 11, peak: 25, at: 39 }[kind];
      ctx.globalAlpha = 1;
      ctx.fillText(label, left + (right ? -4 : 4) * scale, bbox.top + line * scale);
    }
    ctx.restore();
  }

  #resize() {
    if (this.plot && this.box.clientWidth !== this.plot.width) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT_PX });
  }

  redraw() {
    this.plot?.redraw(false);
  }
}

// Arrow keys move from point to point; plus and minus zoom around the present point.
export function listenToKeys(timeline) {
  let index = null;
  const move = (by) => {
    const { plot, points } = timeline;
    index = Math.max(0, Math.min(points.x.length - 1, (index ?? points.event.findIndex((event) => event >= Number(state.get().at || 0))) + by));
    plot.setCursor({ left: plot.valToPos(points.x[index], "x"), top: 20 }, false);
    timeline.say(index);
  };
  const zoom = (factor) => {
    const [from, to] = timeline.range;
    const middle = index === null ? (from + to) / 2 : timeline.points.x[index];
    timeline.onZoom([middle - (middle - from) * factor, middle + (to - middle) * factor]);
    index = null;
  };
  const keys = {
    ArrowRight: (event) => move(event.shiftKey ? Math.ceil(timeline.points.x.length / 100) : 1),
    ArrowLeft: (event) => move(-(event.shiftKey ? Math.ceil(timeline.points.x.length / 100) : 1)),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    Enter: () => index !== null && timeline.onPick(timeline.points.event[index]),
    Escape: () => timeline.onZoom(null),
  };
  timeline.box.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key](event);
  });
}
