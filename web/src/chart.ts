// What all charts of the page have in common: axes in bytes, the colours of text and grid, lines across.
import uPlot from "uplot";
import type { Axis } from "./detail.ts";
import { el, named } from "./dom.ts";
import { TIME_STEPS_NS, byteTicks, timeTicks, whole } from "./format.ts";

export const FONT = "12px system-ui, sans-serif";
// What all charts begin with: they fill the width of their box, and the page has legends of its own.
export const frameOf = (box: HTMLElement, heightPx: number) => ({ width: box.clientWidth, height: heightPx, legend: { show: false } });

// Keeps a chart as wide as its box.
export function keepWidth(box: HTMLElement, plot: () => uPlot | undefined): void {
  const fit = () => {
    const chart = plot();
    if (chart && chart.width !== box.clientWidth) chart.setSize({ width: box.clientWidth, height: chart.height });
  };
  new ResizeObserver(fit).observe(box);
}

// An axis of steps: whole numbers alone.
const WHOLE_STEPS = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((times) => times * 10 ** power)).flat();
export const stepsAxis = (label = "step"): uPlot.Axis => axisOf({ incrs: WHOLE_STEPS, values: (_, ticks) => ticks.map(whole), label, labelSize: 18, labelFont: FONT, size: 34 });

const isModified = (event: KeyboardEvent) => event.ctrlKey || event.metaKey || event.altKey;

// Calls what a key means, unless it belongs to the browser.
export function onKeys(box: HTMLElement, keys: Record<string, (event: KeyboardEvent) => void>): void {
  box.addEventListener("keydown", (event) => {
    if (!keys[event.key] || isModified(event)) return;
    event.preventDefault();
    keys[event.key](event);
  });
}

// How far an arrow key goes among a number of points: with Shift a hundredth of them.
export const stride = (event: KeyboardEvent, points: number): number => (event.shiftKey ? Math.ceil(points / 100) : 1);

// Lets the pointer and the arrow keys walk from point to point of a chart, and says each.
export class Walk {
  #index = 0;
  readonly #say: (index: number) => void;

  constructor(box: HTMLElement, plot: () => uPlot | undefined, say: (index: number) => void) {
    this.#say = say;
    const move = (by: number) => {
      const chart = plot();
      if (!chart) return;
      const xs = chart.data[0];
      this.#go(Math.max(0, Math.min(xs.length - 1, this.#index + by)));
      chart.setCursor({ left: chart.valToPos(xs[this.#index], "x"), top: 20 }, false);
    };
    const points = () => plot()?.data[0].length ?? 0;
    onKeys(box, { ArrowRight: (event) => move(stride(event, points())), ArrowLeft: (event) => move(-stride(event, points())) });
  }

  readonly follow = ({ cursor: { idx, left } }: uPlot): void => {
    if (typeof idx === "number" && (left ?? -1) >= 0) this.#go(idx);
  };

  #go(index: number): void {
    this.#index = index;
    this.#say(index);
  }
}

export const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

export const textColor = (): string => named("text");

export function axisOf(more: uPlot.Axis): uPlot.Axis {
  const text = textColor();
  const grid = { stroke: `color-mix(in srgb, ${text} 12%, transparent)`, width: 1 };
  return { stroke: text, grid, ticks: grid, font: FONT, ...more };
}

export const bytesAxis = (more: uPlot.Axis = {}): uPlot.Axis => axisOf({ values: (_, ticks) => byteTicks(ticks), incrs: BINARY_STEPS, size: 80, ...more });

// The axis of a run, in time or in events. Two charts with it, one above the other, begin and end at the same pixels.
export function runAxis(axis: Axis, name?: string): uPlot.Axis {
  if (axis === "events") return axisOf({ incrs: WHOLE_STEPS, values: (_, ticks) => ticks.map(whole), space: 90, size: 34, ...(name && { label: name, labelSize: 18, labelFont: FONT }) });
  return axisOf({ incrs: TIME_STEPS_NS, values: (_, ticks, __, ___, step) => timeTicks(ticks, step), space: 90, size: 34 });
}

// What marks are drawn on: a chart, or a layer that lies over one.
export type Surface = Pick<uPlot, "ctx" | "bbox" | "valToPos">;

interface Line {
  width: number;
  color: string;
  dash?: number[];
}

function stroke({ ctx }: Surface, { width, color, dash = [] }: Line, from: [number, number], to: [number, number]): void {
  ctx.save();
  Object.assign(ctx, { strokeStyle: color, lineWidth: width * devicePixelRatio });
  ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(...from);
  ctx.lineTo(...to);
  ctx.stroke();
  ctx.restore();
}

// Returns an empty layer over a chart: what is drawn there can change while the chart stays as it is.
export function layerOver({ root, ctx: { canvas }, bbox, valToPos }: uPlot): Surface {
  const over = root.querySelector<HTMLCanvasElement>("canvas.marks") ?? el("canvas", { class: "marks" });
  if (!over.parentNode) canvas.after(over);
  Object.assign(over, { width: canvas.width, height: canvas.height }); // to set its size empties it
  return { ctx: over.getContext("2d")!, bbox, valToPos };
}

// Draws a line from the top to the bottom, or to a value, and returns its place in pixels.
export function upright(plot: Surface, x: number, line: Line, value?: number): number {
  const { left, top, height, width } = plot.bbox;
  const at = Math.max(left, Math.min(left + width, Math.round(plot.valToPos(x, "x", true)) + 0.5));
  stroke(plot, line, [at, top], [at, value === undefined ? top + height : plot.valToPos(value, "y", true)]);
  return at;
}

// Draws a dashed line across the chart.
export function level(plot: uPlot, value: number, name: string): void {
  const { left, width } = plot.bbox;
  const at = Math.round(plot.valToPos(value, "y", true)) + 0.5;
  stroke(plot, { width: 1.5, color: named(name), dash: [6, 4] }, [left, at], [left + width, at]);
}

// Writes the name of a line to the right of the chart, where the line ends.
export function endLabel({ ctx, bbox }: Surface, text: string, top: number): void {
  const scale = devicePixelRatio;
  ctx.save();
  Object.assign(ctx, { font: `${12 * scale}px system-ui, sans-serif`, fillStyle: textColor(), textAlign: "left", textBaseline: "middle" });
  ctx.fillText(text, bbox.left + bbox.width + 5 * scale, top);
  ctx.restore();
}

// What is on a chart already: the labels of one row, from one pixel to another, and the lines that no label may lie on.
export interface Taken {
  labels: [number, number][];
  lines: number[];
}

// Writes a label beside a line: on the right, else on the left, where the chart has room and nothing is in its way. If
// neither side is free, the label is left out.
export function label(plot: Surface, text: string, left: number, row: number, { labels, lines }: Taken = { labels: [], lines: [] }): void {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  Object.assign(ctx, { font: `${12 * scale}px system-ui, sans-serif`, fillStyle: textColor(), textBaseline: "alphabetic" });
  const width = ctx.measureText(text).width + 8 * scale;
  const sides: [number, number][] = [[left, left + width], [left - width, left]];
  const isFree = ([from, to]: [number, number]) =>
    from >= bbox.left && to <= bbox.left + bbox.width && labels.every((other) => to <= other[0] || from >= other[1]) && lines.every((line) => line === left || line <= from || line >= to);
  const side = sides.find(isFree);
  if (side) {
    labels.push(side);
    const toTheLeft = side[1] === left;
    const at: [number, number] = [left + (toTheLeft ? -4 : 4) * scale, bbox.top + (11 + 14 * row) * scale];
    Object.assign(ctx, { textAlign: toTheLeft ? "right" : "left", lineWidth: 4 * scale, lineJoin: "round", strokeStyle: named("panel") });
    ctx.strokeText(text, ...at); // an outline: a line or a curve may be behind it
    ctx.fillText(text, ...at);
  }
  ctx.restore();
}
