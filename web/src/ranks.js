// The page of the ranks of a job: the document holds its figures, uPlot draws the peaks over the steps.
import uPlot from "uplot";
import { $, colorOf } from "./dom.js";
import { bytes, shortBytes, whole } from "./format.js";
import { listenToTheme } from "./theme.js";

const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const HEIGHT_PX = 260;
const HEADROOM = 1.1;
const FONT = "12px system-ui, sans-serif";

class Steps {
  constructor(chart) {
    this.chart = chart;
    this.box = $("steps-plot");
    this.index = 0;
    this.box.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height: HEIGHT_PX })).observe(this.box);
  }

  draw() {
    this.plot?.destroy();
    const { step, lines, worst } = this.chart;
    this.plot = new uPlot(this.#options(lines), [step, ...lines.map((line) => line.peak_bytes), worst.peak_bytes], this.box);
  }

  #options(lines) {
    const text = getComputedStyle(document.body).color;
    const grid = { stroke: `color-mix(in srgb, ${text} 12%, transparent)`, width: 1 };
    const axis = { stroke: text, grid, ticks: grid, font: FONT };
    const line = (name, width) => ({ stroke: colorOf(name), width, points: { show: this.chart.step.length < 3 } });
    return {
      width: this.box.clientWidth,
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: (_, __, max) => [0, (max || 1) * HEADROOM] } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((step) => (Number.isInteger(step) ? whole(step) : "")), label: "step", labelSize: 18, labelFont: FONT, size: 34 },
        { ...axis, values: (_, ticks) => ticks.map(shortBytes), incrs: BINARY_STEPS, size: 80 },
      ],
      series: [{}, ...lines.map(() => line("bound", 1)), line("before", 2)],
      hooks: { setCursor: [(plot) => plot.cursor.idx !== null && plot.cursor.left >= 0 && this.#say(plot.cursor.idx)] },
    };
  }

  #key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.#say(Math.max(0, Math.min(this.chart.step.length - 1, this.index + by)));
    this.plot.setCursor({ left: this.plot.valToPos(this.chart.step[this.index], "x"), top: 0 }, false);
  }

  #say(index) {
    this.index = index;
    const { step, lines, worst, per_point: steps, is_band: isBand } = this.chart;
    const known = [worst, ...lines].map(({ name, peak_bytes: peaks }) => [name, peaks[index]]).filter(([, peak]) => peak !== null);
    const shown = isBand ? known : [...known].sort((a, b) => b[1] - a[1]);
    const words = shown.slice(0, 6).map(([name, peak]) => `${name} ${bytes(peak)}`);
    if (shown.length > 6) words.push(`and ${shown.length - 6} with less`);
    const when = steps > 1 ? `Steps ${whole(step[index])} to ${whole(step[index] + steps - 1)}` : `Step ${whole(step[index])}`;
    $("steps-status").textContent = `${when}: ${words.join(", ")}`;
  }
}

const { chart } = JSON.parse($("model").textContent);
const steps = chart ? new Steps(chart) : null;
steps?.draw();
listenToTheme(() => steps?.draw());
document.documentElement.dataset.ready = "yes";
