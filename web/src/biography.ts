// The life of one storage over the ops of the run: born, used, last used, freed, and the phases of the program behind.
import uPlot from "uplot";
import { FONT, axisOf, label, textColor, upright } from "./chart.ts";
import { colorOf, el, named, swatch, type Part } from "./dom.ts";
import { bytes, whole } from "./format.ts";
import type { Frame } from "./frame.ts";
import type { Phases } from "./phases.ts";

const HEIGHT_PX = 150;
const MARGIN = 0.02;

export interface Life {
  born: number; // ops; -1 for before the block
  first: number; // -1 for never used
  last: number;
  dead: number; // the number of ops for what is alive at the end
  ops: number;
  known: boolean; // whether nothing else can have used it: a recording that was cut off does not show the later uses
}

export function lifeOf(frame: Frame, row: number, ops: number): Life {
  const op = (name: string) => frame.number(name, row);
  return { born: op("op"), first: op("first_use_op"), last: op("last_use_op"), dead: op("death_op") < 0 ? ops : Math.max(op("death_op"), op("last_use_op")), ops, known: !frame.has("phase") || frame.text("phase", row) !== "" };
}

// Returns the phases of a life between two ops: lag, use and drag, or void for a storage that no op used.
export function phasesOf({ born, first, last, dead, known }: Life): { phase: string; from: number; to: number }[] {
  const start = Math.max(born, 0);
  if (first < 0) return [{ phase: known ? "void" : "unknown", from: start, to: dead }];
  const parts = [
    { phase: "lag", from: start, to: first },
    { phase: "use", from: first, to: last + 1 },
    { phase: known ? "drag" : "unknown", from: last + 1, to: dead },
  ];
  return parts.filter(({ from, to }) => to > from);
}

export type Span = [number, number]; // ops, from the first to the one after the last

// What the colours of a life mean.
const PHASES: Record<string, string> = { lag: "before the first use", use: "from the first to the last use", drag: "after the last use", void: "never used", unknown: "no use recorded" };

// Returns a legend of phases of a life, each with its meaning, or with another text after its name.
export const phaseLegend = (phases: string[], text = (phase: string): string => PHASES[phase]): (Node | string)[] =>
  phases.flatMap((phase) => [el("span", { class: "nowrap", title: PHASES[phase] }, swatch({ "data-phase": phase }), el("b", { text: phase }), ` ${text(phase)}`), " "]);

export const phaseMeaning = (phase: string): string => PHASES[phase] ?? "";

const LONG = 2; // times the usual life: what lives longer would make all other bars slivers. A guess.

// Returns the ops that the small bars of a table cover: the lives that are not much longer than that of half of the bytes.
// What lives longer fills its bar up to an end, or to both.
export function spanOf(frame: Frame, ops: number): Span {
  const lives = Array.from({ length: frame.rows }, (_, row) => {
    const { born, dead } = lifeOf(frame, row, ops);
    return { from: Math.max(0, born), to: dead + 1, nbytes: frame.number("nbytes", row) };
  });
  lives.sort((a, b) => a.to - a.from - (b.to - b.from));
  const half = lives.reduce((sum, { nbytes }) => sum + nbytes, 0) / 2;
  let sum = 0;
  const usual = lives.find(({ nbytes }) => (sum += nbytes) >= half);
  if (!usual) return [0, Math.max(1, ops)];
  const short = lives.filter(({ from, to }) => to - from <= LONG * (usual.to - usual.from));
  return short.reduce(([start, end], { from, to }): Span => [Math.min(start, from), Math.max(end, to)], [usual.from, usual.to]);
}

// Returns the parts of a small bar for a row of a table.
export function lifeParts(life: Life, [start, end]: Span): Part[] {
  const place = (op: number) => Math.max(0, Math.min(1, (op - start) / (end - start)));
  return phasesOf(life)
    .filter(({ from, to }) => to >= start && from <= end)
    .map(({ phase, from, to }) => ({ from: Math.min(place(from), 0.98), to: Math.max(place(to), Math.min(place(from), 0.98) + 0.02), paint: { "data-phase": phase } }));
}

export function lifeWords({ born, first, last, dead, ops, known }: Life): string {
  const begin = born < 0 ? "there before the block" : `made by op ${whole(born)}`;
  const used = first < 0 ? (known ? "never used" : "no use recorded") : first === last ? `used by op ${whole(first)} alone` : `first used by op ${whole(first)}, last by op ${whole(last)}`;
  return `${begin}; ${used}; ${dead >= ops ? "alive at the end" : `freed after op ${whole(dead)}`}`;
}

// Returns the ops that the chart shows: the life, and some before and after it.
function rangeOf(life: Life): [number, number] {
  const [start, end] = [Math.max(0, life.born), Math.max(life.dead, life.last + 1)];
  const room = Math.max(1, (end - start) * 0.25);
  return [Math.max(0, start - room), Math.min(life.ops, end + room)];
}

// Returns a legend of the colours behind the life: the phases of the program.
export function programLegend(life: Life, phases: Phases): Node[] {
  const [start, end] = rangeOf(life);
  const shown = phases.all().filter(({ from, to }) => from < end && to > start);
  return [...new Set(shown.map(({ phase }) => phase))].map((phase) => el("span", { class: "nowrap" }, el("i", { class: "swatch behind", "data-program": phase }), phase));
}

// Draws the chart into a box; `uses` are the ops that used it, as far as they are in the page, `at` is the op shown.
export function drawBiography(box: HTMLElement, life: Life, uses: number[], phases: Phases, at: number): void {
  const range = rangeOf(life);
  const pad = (range[1] - range[0] || 1) * MARGIN;
  const options: uPlot.Options = {
    width: box.clientWidth || 760,
    height: HEIGHT_PX,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false, range: () => [range[0] - pad, range[1] + pad] }, y: { range: () => [0, 1] } },
    axes: [axisOf({ values: (_, ticks) => ticks.map((op) => (Number.isInteger(op) && op >= 0 ? whole(op) : "")), label: "op", labelSize: 18, labelFont: FONT, size: 30 }), { show: false }],
    series: [{}, { show: false }],
    hooks: { draw: [(plot) => paint(plot, life, uses, phases, at)] },
  };
  new uPlot(options, [range, [0, 0]], box);
}

function paint(plot: uPlot, life: Life, uses: number[], phases: Phases, at: number): void {
  const { ctx, bbox } = plot;
  const x = (op: number) => Math.max(bbox.left, Math.min(bbox.left + bbox.width, plot.valToPos(op, "x", true)));
  const block = (from: number, to: number, top: number, height: number, color: string) => {
    ctx.fillStyle = color;
    ctx.fillRect(x(from), bbox.top + bbox.height * top, Math.max(x(to) - x(from), devicePixelRatio), bbox.height * height);
  };
  ctx.save();
  const { min, max } = plot.scales.x;
  for (const { from, to, phase } of phases.all()) {
    if (to < min! || from > max!) continue;
    block(from, to, 0, 1, `color-mix(in srgb, ${colorOf({ "data-program": phase })} 22%, transparent)`);
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    Object.assign(ctx, { fillStyle: textColor(), textAlign: "left", textBaseline: "alphabetic" });
    if (ctx.measureText(phase).width + 8 * devicePixelRatio < x(to) - x(from)) ctx.fillText(phase, x(from) + 4 * devicePixelRatio, bbox.top + bbox.height - 5 * devicePixelRatio);
  }
  for (const { phase, from, to } of phasesOf(life)) block(from, to, 0.34, 0.28, colorOf({ "data-phase": phase }));
  for (const op of uses) block(op, op, 0.26, 0.44, textColor());
  ctx.restore();
  if (at >= 0) label(plot, "the instant shown", upright(plot, at, { width: 1.5, color: named("peak-mark") }), 0);
}

// Returns the words and figures of a life that a screen reader reads in place of the chart.
export function describe(life: Life, nbytes: number): string {
  return `${bytes(nbytes)}, ${lifeWords(life)}.`;
}
