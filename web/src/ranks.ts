// The page of the ranks of a job: the document holds its figures, uPlot draws the peaks over the steps.
import uPlot from "uplot";
import { axisOf, bytesAxis } from "./chart.ts";
import { $, named } from "./dom.ts";
import { bytes, whole } from "./format.ts";
import { listenToTheme } from "./theme.ts";

const HEIGHT_PX = 260;
const HEADROOM = 1.1;

interface Line {
  name: string;
  peak_bytes: (number | null)[];
}

interface Chart {
  step: number[];
  lines: Line[];
  worst: Line;
  per_point: number;
  is_band: boolean;
}

class Steps {
  private readonly box = $("steps-plot");
  private index = 0;
  private plot: uPlot | undefined;

  constructor(private readonly chart: Chart) {
    this.box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height: HEIGHT_PX })).observe(this.box);
  }

  draw(): void {
    this.plot?.destroy();
    const { step, lines, worst } = this.chart;
    this.plot = new uPlot(this.options(lines), [step, ...lines.map((line) => line.peak_bytes), worst.peak_bytes], this.box);
  }

  private options(lines: Line[]): uPlot.Options {
    const line = (name: string, width: number) => ({ stroke: named(name), width, points: { show: this.chart.step.length < 3 } });
    const steps = (_: uPlot, ticks: number[]) => ticks.map((step) => (Number.isInteger(step) ? whole(step) : ""));
    return {
      width: this.box.clientWidth,
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: (_, __, max) => [0, (max || 1) * HEADROOM] } },
      axes: [axisOf({ values: steps, label: "step", labelSize: 18, size: 34 }), bytesAxis()],
      series: [{}, ...lines.map(() => line("bound", 1)), line("before", 2)],
      hooks: { setCursor: [(plot) => this.moved(plot)] },
    };
  }

  private moved(plot: uPlot): void {
    const index = plot.cursor.idx;
    if (index !== null && index !== undefined && (plot.cursor.left ?? -1) >= 0) this.say(index);
  }

  private key(event: KeyboardEvent): void {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.plot) return;
    event.preventDefault();
    this.say(Math.max(0, Math.min(this.chart.step.length - 1, this.index + by)));
    this.plot.setCursor({ left: this.plot.valToPos(this.chart.step[this.index], "x"), top: 0 }, false);
  }

  private say(index: number): void {
    this.index = index;
    const { step, lines, worst, per_point: steps, is_band: isBand } = this.chart;
    const known = [worst, ...lines].flatMap(({ name, peak_bytes: peaks }) => (peaks[index] === null ? [] : [{ name, peak: peaks[index] as number }]));
    const shown = isBand ? known : [...known].sort((a, b) => b.peak - a.peak);
    const words = shown.slice(0, 6).map(({ name, peak }) => `${name} ${bytes(peak)}`);
    if (shown.length > 6) words.push(`and ${shown.length - 6} with less`);
    const when = steps > 1 ? `Steps ${whole(step[index])} to ${whole(step[index] + steps - 1)}` : `Step ${whole(step[index])}`;
    $("steps-status").textContent = `${when}: ${words.join(", ")}`;
  }
}

const { chart } = JSON.parse($("model").textContent ?? "{}") as { chart: Chart | null };
const steps = chart ? new Steps(chart) : null;
steps?.draw();
listenToTheme(() => steps?.draw());
document.documentElement.dataset.ready = "yes";
