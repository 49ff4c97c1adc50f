// The page of the ranks of a job: the document holds its figures, uPlot draws the peaks over the steps.
import uPlot from "uplot";
import { FONT, Walk, bytesAxis, endLabel, frameOf, keepWidth, stepsAxis } from "./chart.ts";
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
      padding: [null, this.chart.is_band ? null : this.widthOfNames(), null, null],
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: (_, __, max) => [0, (max || 1) * HEADROOM] } },
      axes: [stepsAxis(), bytesAxis()],
      series: [{}, ...lines.map(() => line("bound", 1)), line("before", 2)],
      hooks: { setCursor: [this.walk.follow], draw: [(plot) => this.nameLines(plot)] },
    };
  }

  // Returns the lines with a name at their right end: all of them, or the worst alone beside a band.
  private get named(): Line[] {
    return this.chart.is_band ? [] : [this.chart.worst, ...this.chart.lines];
  }

  private widthOfNames(): number {
    const context = document.createElement("canvas").getContext("2d")!;
    context.font = FONT;
    return 8 + Math.max(...this.endings().map(({ text }) => context.measureText(text).width));
  }

  // Returns the texts at the right ends: lines that end at one value share a text.
  private endings(): { text: string; value: number }[] {
    const texts = new Map<number, string[]>();
    for (const { name, peak_bytes: peaks } of this.named) {
      const value = peaks.findLast((peak) => peak !== null);
      if (value !== undefined && value !== null) texts.set(value, [...(texts.get(value) ?? []), name]);
    }
    return [...texts].map(([value, names]) => ({ value, text: names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", ") }));
  }

  // Writes the names beside the ends, the highest first. A text that would lie on another one is left out.
  private nameLines(plot: uPlot): void {
    let above = -Infinity;
    for (const { text, value } of this.endings().sort((a, b) => b.value - a.value)) {
      const at = plot.valToPos(value, "y", true);
      if (at - above < 13 * devicePixelRatio) continue;
      endLabel(plot, text, at);
      above = at;
    }
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
