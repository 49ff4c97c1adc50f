// The band under the timeline: the memory of the whole process on the same axis, in layers that sum to RSS.
import uPlot from "uplot";
import { Walk, bytesAxis, frameOf, keepWidth, runAxis } from "./chart.ts";
import type { Axis } from "./detail.ts";
import { $, named } from "./dom.ts";
import { bytes, duration } from "./format.ts";
import type { ProcessModel } from "./model.ts";
import type { Range } from "./timeline.ts";

const HEIGHT_PX = 150;
const HEADROOM = 1.1;
const MOST_POINTS = 60; // of readings that are marked: the peak may lie between two of a short run

const LEAST_GAP = 0.18; // of the height between two labels, which are 12 pixels high

// The labels of a small chart: even steps of a power of two, and the maximum.
function sizesOf({ scales }: uPlot): number[] {
  const most = scales.y.max! / HEADROOM;
  const step = 2 ** Math.floor(Math.log2(most / 2));
  return [0, step, 2 * step, 3 * step].filter((size) => size <= (1 - LEAST_GAP) * most).concat(most);
}

export class ProcessBand {
  readonly box = $("process-plot");
  plot: uPlot | undefined;
  readonly #process: ProcessModel;
  readonly #sums: number[][]; // the top of each layer; the last is RSS
  readonly #walk: Walk;
  #axis: Axis = "time";
  #statusPx = 0;
  #range: Range = [0, 1];

  constructor(process: ProcessModel) {
    this.#process = process;
    let below = process.time_ns.map(() => 0);
    this.#sums = process.layers.map(({ parts }) => (below = below.map((value, index) => parts.reduce((sum, { nbytes }) => sum + nbytes[index], value))));
    this.#walk = new Walk(this.box, () => this.plot, (index) => this.#say(index));
    keepWidth(this.box, () => this.plot);
  }

  draw(axis: Axis, range: Range): void {
    this.#axis = axis;
    this.#range = range;
    this.repaint();
  }

  repaint(): void {
    this.plot?.destroy();
    const { time_ns, event, layers } = this.#process;
    const series = layers.map((_, layer): uPlot.Series => {
      const color = named(`process-${layer}`);
      const isRss = layer === layers.length - 1;
      const points = { show: isRss && time_ns.length <= MOST_POINTS, size: 5, fill: named("text"), stroke: named("text") };
      return { stroke: color, fill: color, width: 1, points, paths: uPlot.paths.stepped!({ align: 1 }) };
    });
    const options: uPlot.Options = {
      ...frameOf(this.box, HEIGHT_PX),
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: () => this.#range }, y: { range: (_, __, max) => [0, (max || 1) * HEADROOM] } },
      axes: [runAxis(this.#axis), bytesAxis({ splits: sizesOf })],
      series: [{}, ...series.reverse()], // the topmost first: each is painted over by those below it
      hooks: { setCursor: [this.#walk.follow] },
    };
    this.plot = new uPlot(options, [this.#axis === "events" ? event : time_ns, ...[...this.#sums].reverse()], this.box);
  }

  #say(index: number): void {
    const { time_ns, coverage_ratio, layers } = this.#process;
    const told = layers
      .flatMap(({ parts }) => parts)
      .map(({ name, nbytes }): [string, number] => [name, nbytes[index]])
      .filter(([, value]) => value > 0)
      .sort((a, b) => b[1] - a[1])
      .map(([name, value]) => `${bytes(value)} ${name}`);
    const explained = `${(100 * coverage_ratio[index]).toFixed(0)} % explained`;
    const status = $("process-status");
    status.textContent = `${duration(time_ns[index])}: RSS ${bytes(this.#sums.at(-1)![index])}, ${explained}: ${told.join(", ")}`;
    // as high as its longest text so far, so that what is below it does not jump with every reading
    this.#statusPx = Math.max(this.#statusPx, status.clientHeight);
    status.style.minHeight = `${this.#statusPx}px`;
  }
}
