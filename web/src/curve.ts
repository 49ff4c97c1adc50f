// Which part of the curve is drawn, by which groups, and which instants are marked on it.
import type { Colouring } from "./colouring.ts";
import type { Data } from "./data.ts";
import type { Axis, Detail } from "./detail.ts";
import { $ } from "./dom.ts";
import { bytes, whole } from "./format.ts";
import type { Instant } from "./instant.ts";
import { Layers } from "./layers.ts";
import type { LiveSets } from "./live.ts";
import type { Moment, PageModel } from "./model.ts";
import { ProcessBand } from "./process.ts";
import { state } from "./state.ts";
import { type Mark, type Range, Timeline, listenToKeys } from "./timeline.ts";

export class Curve {
  readonly #model: PageModel;
  readonly #data: Data;
  readonly #instant: Instant;
  readonly #timeline: Timeline;
  readonly #process: ProcessBand | undefined;
  #layers: { colouring: Colouring; layers: Layers } | undefined;

  constructor(model: PageModel, data: Data, instant: Instant) {
    this.#model = model;
    this.#data = data;
    this.#instant = instant;
    const onPick = (event: number, more = { push: true }) => instant.show(event, more);
    const onZoom = (range: Range | null) => this.zoom(range);
    this.#timeline = new Timeline({ marks: (axis) => this.#marks(axis), onPick, onZoom });
    this.#process = model.process && document.getElementById("process-plot") ? new ProcessBand(model.process) : undefined;
    listenToKeys(this.#timeline, () => instant.event, onPick, onZoom);
    $("axis").addEventListener("change", () => state.set({ axis: $<HTMLSelectElement>("axis").value, zoom: "" }));
    $("zoom-at").addEventListener("click", () => this.#zoomToInstant());
    $("zoom-step").addEventListener("click", () => this.#zoomToStep());
    $("zoom-reset").addEventListener("click", () => state.set({ zoom: "" }));
  }

  get #axis(): Axis {
    const { axis } = state.get();
    return axis === "time" || axis === "events" ? axis : this.#model.overview.axis;
  }

  // The axis ends a little after the run; the last event would have no width otherwise.
  #wholeRun(axis: Axis): Range {
    const { events, span_ns: span } = this.#model.totals;
    return [0, Math.max(1, axis === "events" ? events : span) * 1.01];
  }

  #range(): Range | null {
    const range = state.get().zoom.split("_").map(Number);
    return range.length === 2 && range.every(Number.isFinite) && range[0] < range[1] ? (range as Range) : null;
  }

  zoom(range: Range | null): void {
    const [from, to] = this.#wholeRun(this.#axis);
    const inside = range && [Math.max(from, range[0]), Math.min(to, range[1])];
    const all = !inside || inside[1] - inside[0] >= to - from || inside[1] <= inside[0];
    state.set({ zoom: all ? "" : inside.map((x) => x.toPrecision(12).replace(/\.?0+$/, "")).join("_") });
  }

  async #zoomToInstant(): Promise<void> {
    const { event } = this.#instant;
    const [from, to] = this.#range() ?? this.#wholeRun(this.#axis);
    const middle = this.#axis === "events" ? event : (await this.#data.detail()).timeOf(event);
    this.zoom([middle - (to - from) / 20, middle + (to - from) / 20]);
  }

  // Shows the step that has the peak: where the first step takes longer than all others, it has a few pixels only.
  #zoomToStep(): void {
    const [from, to] = this.#model.peak.step!.map((start) => placeOf(start, this.#axis));
    this.zoom([from, to]);
  }

  #marks(axis: Axis): Mark[] {
    const { peak, totals, steps } = this.#model;
    const { decoded } = this.#data;
    const x = (event: number, time: number) => (axis === "events" ? event : decoded ? decoded.timeOf(event) : time);
    const lines = steps.length > 1 ? steps.map((step): Mark => ({ x: placeOf(step, axis), label: `step ${step.name}`, kind: "step" })) : [];
    const marks: Mark[] = [...lines, { x: x(peak.event, peak.time_ns), label: `peak ${bytes(totals.peak_bytes)}`, bytes: totals.peak_bytes, kind: "peak" }];
    const { event, than, isPeak } = this.#instant;
    if (than !== null && than !== peak.event && decoded) marks.push({ x: x(than, 0), label: `compared with event ${whole(than)}`, kind: "than" });
    if (!isPeak && decoded) marks.push({ x: x(event, 0), label: `event ${whole(event)}`, kind: "at" });
    return marks;
  }

  async draw(colouring: Colouring, sets: LiveSets): Promise<void> {
    const axis = this.#axis;
    const range = this.#range();
    $("zoom-reset").toggleAttribute("disabled", !range);
    $<HTMLSelectElement>("axis").value = axis;
    if (!range && axis === this.#model.overview.axis && colouring.isCategory) {
      this.drawOverview(colouring);
      return;
    }
    const detail = await this.#data.detail();
    if (this.#layers?.colouring !== colouring) this.#layers = { colouring, layers: layersOf(detail, colouring, sets.groups(detail, colouring)) };
    const [from, to] = range ?? this.#wholeRun(axis);
    this.#timeline.draw(this.#layers.layers.window(from, to, axis), axis, [from, to], colouring);
    this.#process?.draw(axis, [from, to]);
  }

  // The first drawing needs what the page holds in plain: nothing is decoded for it.
  drawOverview(colouring: Colouring): void {
    const { overview } = this.#model;
    const live = colouring.groups.map((name) => overview.live_bytes[name]);
    this.#timeline.draw({ event: overview.event, x: overview.x, live }, overview.axis, this.#wholeRun(overview.axis), colouring);
    this.#process?.draw(overview.axis, this.#wholeRun(overview.axis));
  }

  redraw(): void {
    this.#timeline.redraw();
  }

  repaint(): void {
    this.#timeline.repaint();
    this.#process?.repaint();
  }
}

const placeOf = (moment: Moment, axis: Axis): number => (axis === "events" ? moment.event : moment.time_ns);

function layersOf(detail: Detail, colouring: Colouring, group: Uint8Array): Layers {
  const base = new Float64Array(colouring.groups.length);
  for (let row = 0; row < detail.entered; row++) base[group[row]] += detail.nbytes[row];
  const other = colouring.isCategory ? colouring.groups.indexOf("unknown") : colouring.other;
  base[other] += detail.otherBaselineBytes;
  return new Layers(detail, base, group, other);
}
