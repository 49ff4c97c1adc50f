// What all charts of the page have in common: axes in bytes, the colours of text and grid, lines across.
import uPlot from "uplot";
import { named } from "./dom.ts";
import { shortBytes } from "./format.ts";

export const FONT = "12px system-ui, sans-serif";
export const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

export const textColor = (): string => named("text");

export function axisOf(more: uPlot.Axis): uPlot.Axis {
  const text = textColor();
  const grid = { stroke: `color-mix(in srgb, ${text} 12%, transparent)`, width: 1 };
  return { stroke: text, grid, ticks: grid, font: FONT, ...more };
}

export const bytesAxis = (more: uPlot.Axis = {}): uPlot.Axis => axisOf({ values: (_, ticks) => ticks.map(shortBytes), incrs: BINARY_STEPS, size: 80, ...more });

interface Line {
  width: number;
  color: string;
  dash?: number[];
}

function stroke(plot: uPlot, { width, color, dash = [] }: Line, from: [number, number], to: [number, number]): void {
  const { ctx } = plot;
  ctx.save();
  Object.assign(ctx, { strokeStyle: color, lineWidth: width * devicePixelRatio });
  ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(...from);
  ctx.lineTo(...to);
  ctx.stroke();
  ctx.restore();
}

// Draws a line from bottom to top, and returns its place in pixels.
export function upright(plot: uPlot, x: number, line: Line): number {
  const { left, top, height, width } = plot.bbox;
  const at = Math.max(left, Math.min(left + width, Math.round(plot.valToPos(x, "x", true)) + 0.5));
  stroke(plot, line, [at, top], [at, top + height]);
  return at;
}

// Draws a dashed line across the chart.
export function level(plot: uPlot, value: number, name: string): void {
  const { left, width } = plot.bbox;
  const at = Math.round(plot.valToPos(value, "y", true)) + 0.5;
  stroke(plot, { width: 1.5, color: named(name), dash: [6, 4] }, [left, at], [left + width, at]);
}

// Writes a label beside a line, on the side where there is room.
export function label(plot: uPlot, text: string, left: number, row: number): void {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  Object.assign(ctx, { font: `${12 * scale}px system-ui, sans-serif`, fillStyle: textColor(), textBaseline: "alphabetic" });
  const toTheLeft = left + ctx.measureText(text).width + 8 * scale > bbox.left + bbox.width;
  ctx.textAlign = toTheLeft ? "right" : "left";
  ctx.fillText(text, left + (toTheLeft ? -4 : 4) * scale, bbox.top + (11 + 14 * row) * scale);
  ctx.restore();
}
