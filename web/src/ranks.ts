// The page of the ranks of a job: the document holds its figures, uPlot draws the peaks over the steps.
import uPlot from "uplot";
import { Walk, bytesAxis, frameOf, keepWidth, stepsAxis } from "./chart.ts";
import { offerCopies } from "./copy.ts";
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
  private readonly walk: Walk;
  private plot: uPlot | undefined;

  constructor(private readonly chart: Chart) {
    this.walk = new Walk(this.box, () => this.plot, (index) => this.say(index));
    keepWidth(this.box, () => this.plot);
  }

  draw(): void {
    this.plot?.destroy();
    const { step, lines, worst } = this.chart;
    this.plot = new uPlot(this.options(lines), [step, ...lines.map((line) => line.peak_bytes), worst.peak_bytes], this.box);
  }

  private options(lines: Line[]): uPlot.Options {
    const line = (name: string, width: number) => ({ stroke: named(name), width, points: { show: this.chart.step.length < 3 } });
    return {
      ...frameOf(this.box, HEIGHT_PX),
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: (_, __, max) => [0, (max || 1) * HEADROOM] } },
      axes: [stepsAxis(), bytesAxis()],
      series: [{}, ...lines.map(() => line("bound", 1)), line("before", 2)],
      hooks: { setCursor: [this.walk.follow] },
    };
  }

  private say(index: number): void {
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
offerCopies();
document.documentElement.dataset.ready = "yes";
