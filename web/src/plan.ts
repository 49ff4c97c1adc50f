// The charts of a plan: live bytes before and after, and the cost of other budgets. uPlot draws them.
import uPlot from "uplot";
import { FONT, Walk, axisOf, bytesAxis, frameOf, keepWidth, label, level, stepsAxis, upright } from "./chart.ts";
import { $, named } from "./dom.ts";
import { bytes, whole } from "./format.ts";
import { type Block, Frame, type Words } from "./frame.ts";

const HEIGHT_PX = 260;
const HEADROOM = 1.15;

interface Figures {
  budget_bytes: number | null;
  bound_bytes: number;
  program_bytes: number;
}

interface Point {
  peak_bytes: number;
  extra_cost_ratio: number;
  shown: boolean;
}

export interface PlanModel {
  figures: Figures;
  tradeoff: Point[];
  curves: Block | null;
}

class Curves {
  readonly box = $("plan-curves");
  plot: uPlot | undefined;
  readonly #frame: Frame;
  readonly #figures: Figures;
  readonly #walk: Walk;

  constructor(frame: Frame, figures: Figures) {
    this.#frame = frame;
    this.#figures = figures;
    this.#walk = new Walk(this.box, () => this.plot, (index) => this.#say(index));
  }

  draw(): void {
    this.plot?.destroy();
    const column = (name: string) => Array.from(this.#frame.columns[name].values);
    const lives = ["program", "plan"].map((who) => {
      const steps = column(`${who}_step`);
      return column(`${who}_bytes`).map((value, row) => (steps[row] < 0 ? null : value));
    });
    this.plot = new uPlot(this.#options(), [column("at"), ...lives], this.box);
  }

  #options(): uPlot.Options {
    const { budget_bytes: budget, bound_bytes: bound } = this.#figures;
    const series = ["before", "after"].map((name) => ({
      stroke: named(name),
      width: 2,
      points: { show: false },
      paths: uPlot.paths.stepped!({ align: 1 }),
    }));
    return {
      ...frameOf(this.box, HEIGHT_PX),
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: (_, min, max) => [Math.min(0, min), (Math.max(max, budget ?? 0) || 1) * HEADROOM] } },
      axes: [stepsAxis("op"), bytesAxis()],
      series: [{}, ...series],
      hooks: {
        setCursor: [this.#walk.follow],
        draw: [
          (plot) => {
            if (budget !== null) level(plot, budget, "budget");
            level(plot, bound, "bound");
          },
        ],
      },
    };
  }

  #say(index: number): void {
    const part = (who: string) => {
      const step = this.#frame.number(`${who}_step`, index);
      if (step < 0) return `${who} is done`;
      return `${who} ${bytes(this.#frame.number(`${who}_bytes`, index))} at op ${whole(step)} (${this.#frame.text(`${who}_what`, index)})`;
    };
    $("curves-status").textContent = `${part("program")}; ${part("plan")}`;
  }
}

class TradeOff {
  readonly box = $("plan-tradeoff");
  plot: uPlot | undefined;
  readonly #points: Point[];
  readonly #program: Point;
  readonly #figures: Figures;

  constructor(points: Point[], figures: Figures) {
    // the program itself is a point too: it has no extra cost
    this.#program = { peak_bytes: figures.program_bytes, extra_cost_ratio: 0, shown: false };
    this.#points = [...points, this.#program].sort((a, b) => a.peak_bytes - b.peak_bytes);
    this.#figures = figures;
  }

  draw(): void {
    this.plot?.destroy();
    const x = this.#points.map((point) => point.peak_bytes);
    const all = this.#points.map((point) => 100 * point.extra_cost_ratio);
    const only = (wanted: (point: Point) => boolean) => this.#points.map((point) => (wanted(point) ? 100 * point.extra_cost_ratio : null));
    const [shown, unchanged] = [only((point) => point.shown), only((point) => point === this.#program)];
    const dots = (color: string, size: number) => ({ points: { show: true, size, fill: color, stroke: color } });
    const { bound_bytes: bound, program_bytes: program } = this.#figures;
    const right = Math.max(program, x.at(-1)!) * 1.04;
    const options: uPlot.Options = {
      ...frameOf(this.box, HEIGHT_PX),
      padding: [null, 36, null, null], // half of the last label
      cursor: { show: false },
      scales: { x: { time: false, range: () => [0, right] }, y: { range: (_, __, max) => [0, (max || 1) * HEADROOM] } },
      axes: [
        bytesAxis({ space: 80, label: "peak increase", labelSize: 18, labelFont: FONT, size: 34 }),
        axisOf({ values: (_, ticks) => ticks.map((share) => `${share} %`), label: "extra cost", labelSize: 18, labelFont: FONT, size: 56 }),
      ],
      // the colours of the chart above: the program is red, and the plan is green
      series: [
        {},
        { stroke: named("bound"), width: 2, ...dots(named("bound"), 6) },
        { width: 0, ...dots(named("before"), 9) },
        { width: 0, ...dots(named("after"), 11) },
      ],
      hooks: { draw: [(plot) => this.#bound(plot, bound)] },
    };
    this.plot = new uPlot(options, [x, all, unchanged, shown], this.box);
  }

  #bound(plot: uPlot, bound: number): void {
    label(plot, "lower bound", upright(plot, bound, { width: 1.5, color: named("bound"), dash: [6, 4] }), 0);
  }
}

export async function planCharts(plan: PlanModel, words: Words): Promise<() => void> {
  const charts: (Curves | TradeOff)[] = [];
  if ($("plan-curves") && plan.curves) charts.push(new Curves(await Frame.unpack(plan.curves, words), plan.figures));
  if ($("plan-tradeoff")) charts.push(new TradeOff(plan.tradeoff, plan.figures));
  const redraw = () => charts.forEach((chart) => chart.draw());
  redraw();
  for (const chart of charts) keepWidth(chart.box, () => chart.plot);
  return redraw;
}
