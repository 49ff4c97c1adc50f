// Live bytes over time, stacked by group, with the instants marked. uPlot draws; the state says which part.
import uPlot from "uplot";
import { bytesAxis, frameOf, keepWidth, label, layerOver, onKeys, runAxis, stride, textColor, upright } from "./chart.ts";
import type { Colouring } from "./colouring.ts";
import type { Axis } from "./detail.ts";
import { $, colorOf, named } from "./dom.ts";
import { bytes, duration, whole } from "./format.ts";
import type { Points } from "./layers.ts";

const CLICK_SLOP_PX = 4;
const GRIP_PX = 7;
const HEIGHT_PX = 280;
const HEADROOM = 1.32; // room above the curve for the labels of the instants and the steps

export type Range = [number, number];

export interface Mark {
  x: number;
  label: string;
  bytes?: number; // where the line ends, if it shall not cross what lies below
  kind: "step" | "peak" | "than" | "at";
}

interface Wishes {
  marks: (axis: Axis) => Mark[]; // x on the chosen axis
  onPick: (event: number, more?: { push: boolean }) => void; // the row of the timeline
  onZoom: (range: Range | null) => void;
}

const ROW: Record<Mark["kind"], number> = { step: 0, peak: 1, at: 2, than: 3 };

export class Timeline {
  readonly box = $("plot");
  readonly #wishes: Wishes;
  plot: uPlot | undefined;
  points: Points = { event: [], x: [], live: [] };
  axis: Axis = "time";
  range: Range = [0, 1];
  #colouring: Colouring | undefined;
  #total: number[] = [];

  constructor(wishes: Wishes) {
    this.#wishes = wishes;
    keepWidth(this.box, () => this.plot);
  }

  draw(points: Points, axis: Axis, range: Range, colouring: Colouring): void {
    this.axis = axis;
    this.range = range;
    this.#colouring = colouring;
    this.points = holdLast(points, range[1]);
    this.repaint();
  }

  repaint(): void {
    if (!this.#colouring) return;
    this.plot?.destroy();
    const shown = this.#colouring.groups.map((_, group) => group).filter((group) => this.points.live[group]?.some((value) => value > 0));
    this.plot = new uPlot(this.#options(shown), this.#stack(shown), this.box);
    this.#listen(this.plot);
  }

  // Returns cumulative curves, the topmost first: each is painted over by those below it.
  #stack(shown: number[]): uPlot.AlignedData {
    const sum = new Float64Array(this.points.x.length);
    const layers = shown.map((group) => {
      this.points.live[group].forEach((value, at) => (sum[at] += value));
      return Array.from(sum);
    });
    this.#total = layers.at(-1) ?? Array.from(sum);
    if (!layers.length) layers.push(this.#total);
    return [this.points.x, ...layers.reverse()];
  }

  #options(shown: number[]): uPlot.Options {
    const paints = shown.length ? shown.map((group) => this.#colouring!.paint(group)) : [{ "data-category": "unknown" }];
    const series = paints.reverse().map((paint): uPlot.Series => ({
      stroke: colorOf(paint),
      fill: colorOf(paint),
      width: 1,
      points: { show: false },
      paths: uPlot.paths.stepped!({ align: 1 }),
    }));
    return {
      ...frameOf(this.box, HEIGHT_PX),
      cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false } },
      scales: { x: { time: false, range: () => this.range }, y: { range: (_, __, max) => [0, (max || 1) * HEADROOM] } },
      axes: [runAxis(this.axis, "allocations and frees"), bytesAxis()],
      series: [{}, ...series],
      hooks: {
        setSelect: [(plot) => this.#selected(plot)],
        setCursor: [(plot) => this.#hover(plot)],
        draw: [(plot) => this.#drawMarks(plot)],
      },
    };
  }

  // A click picks an instant, a drag zooms; a drag of the instant's own mark, or with Shift, moves the instant.
  #listen(plot: uPlot): void {
    let downX = 0;
    plot.over.addEventListener("mousedown", (event) => (downX = event.clientX));
    plot.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - downX) <= CLICK_SLOP_PX && !event.shiftKey) this.#wishes.onPick(this.#eventAt(event));
    });
    plot.over.addEventListener("dblclick", () => this.#wishes.onZoom(null));
    plot.over.addEventListener("mousemove", (event) => plot.over.classList.toggle("grip", this.#isOnMark(event)));
    plot.root.addEventListener("mousedown", (event) => this.#grip(event), { capture: true });
  }

  #grip(down: MouseEvent): void {
    if (down.button !== 0 || !(down.target as Element).closest(".u-over") || !(down.shiftKey || this.#isOnMark(down))) return;
    down.stopImmediatePropagation();
    down.preventDefault();
    let moved = false;
    const move = (event: MouseEvent) => {
      this.#wishes.onPick(this.#eventAt(event), { push: !moved });
      moved = true;
    };
    document.addEventListener("mousemove", move);
    document.addEventListener("mouseup", () => document.removeEventListener("mousemove", move), { once: true });
  }

  #left(event: MouseEvent): number {
    return event.clientX - this.plot!.over.getBoundingClientRect().left;
  }

  #isOnMark(event: MouseEvent): boolean {
    const mark = this.#wishes.marks(this.axis).findLast(({ kind }) => kind === "at" || kind === "peak");
    return mark !== undefined && Math.abs(this.plot!.valToPos(mark.x, "x") - this.#left(event)) <= GRIP_PX;
  }

  #eventAt(event: MouseEvent): number {
    return this.points.event[this.indexAt(this.#left(event))];
  }

  // Returns the point whose step is drawn at a pixel: the last one at or before it.
  indexAt(left: number): number {
    const x = this.plot!.posToVal(left, "x");
    const near = this.plot!.valToIdx(x);
    return near > 0 && this.points.x[near] > x ? near - 1 : near;
  }

  #selected(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width > CLICK_SLOP_PX) this.#wishes.onZoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }

  #hover(plot: uPlot): void {
    if ((plot.cursor.left ?? -1) >= 0) this.say(this.indexAt(plot.cursor.left!));
  }

  say(index: number): void {
    const { event, x, live } = this.points;
    const parts = this.#colouring!.groups
      .map((name, group): [string, number] => [name, live[group]?.[index] ?? 0])
      .filter(([, value]) => value > 0)
      .sort((a, b) => b[1] - a[1])
      .map(([name, value]) => `${name} ${bytes(value)}`);
    const when = this.axis === "events" ? "" : `${duration(x[index])}, `;
    $("plot-status").textContent = `${when}event ${whole(event[index])}: ${bytes(this.#total[index] ?? 0)} live (${parts.join(", ")})`;
  }

  #drawMarks(plot: uPlot): void {
    const text = textColor();
    const over = layerOver(plot);
    const { min, max } = plot.scales.x;
    const lines: number[] = []; // of the instants: a label of a step would be crossed by them
    const labels: [string, number, Mark["kind"]][] = []; // they lie above all lines
    for (const { x, label: words, bytes: ends, kind } of this.#wishes.marks(this.axis)) {
      if (x < min! || x > max!) continue;
      const isStep = kind === "step";
      if (!isStep) upright(over, x, { width: 4, color: named("panel") }, ends); // an outline: a group may have the colour of the mark
      const color = kind === "peak" ? named("peak-mark") : isStep ? `color-mix(in srgb, ${text} 35%, transparent)` : text;
      const left = upright(over, x, { width: isStep ? 1 : kind === "at" ? 2 : 1.5, color, dash: isStep ? [2, 3] : kind === "than" ? [6, 3] : [] }, ends);
      if (words) labels.push([words, left, kind]);
      if (!isStep) lines.push(left);
    }
    const steps: [number, number][] = [];
    for (const [words, left, kind] of labels) label(over, words, left, ROW[kind], kind === "step" ? { labels: steps, lines } : undefined);
  }

  // Draws the marks of the instants again: the curve is as before.
  redraw(): void {
    if (this.plot) this.#drawMarks(this.plot);
  }
}

// Storages alive after the last event stay alive, so the last step reaches to the end.
function holdLast(points: Points, end: number): Points {
  const { event, x, live } = points;
  if (!x.length || x.at(-1)! >= end) return points;
  return { event: [...event, event.at(-1)!], x: [...x, end], live: live.map((curve) => [...curve, curve.at(-1)!]) };
}

// Arrow keys move from point to point; plus and minus zoom around the present point.
export function listenToKeys(timeline: Timeline, at: () => number, onPick: Wishes["onPick"], onZoom: Wishes["onZoom"]): void {
  let index: number | null = null;
  const move = (by: number) => {
    const { plot, points } = timeline;
    index = Math.max(0, Math.min(points.x.length - 1, (index ?? points.event.findIndex((event) => event >= at())) + by));
    plot!.setCursor({ left: plot!.valToPos(points.x[index], "x"), top: 20 }, false);
    timeline.say(index);
  };
  const zoom = (factor: number) => {
    const [from, to] = timeline.range;
    const middle = index === null ? (from + to) / 2 : timeline.points.x[index];
    onZoom([middle - (middle - from) * factor, middle + (to - middle) * factor]);
    index = null;
  };
  const far = (event: KeyboardEvent) => stride(event, timeline.points.x.length);
  onKeys(timeline.box, {
    ArrowRight: (event) => move(far(event)),
    ArrowLeft: (event) => move(-far(event)),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    Enter: () => index !== null && onPick(timeline.points.event[index]),
    Escape: () => onZoom(null),
  });
}
