// The instant that the curve, the icicle, the live set and the lines show: its event, what it is compared with, and the bar that says and moves it.
import type { Detail } from "./detail.ts";
import { $ } from "./dom.ts";
import { bytes, duration, shortOp, whole } from "./format.ts";
import type { PageModel } from "./model.ts";
import type { Phases } from "./phases.ts";
import { state } from "./state.ts";

// The URL may hold anything: what is no event is not there.
function eventOf(text: string, events: number): number | null {
  const event = Number(text);
  return text !== "" && Number.isInteger(event) && event >= 0 && event <= events ? event : null;
}

export class Instant {
  readonly #model: PageModel;

  constructor(model: PageModel) {
    this.#model = model;
  }

  get isPeak(): boolean {
    return eventOf(state.get().at, this.#model.totals.events) === null;
  }

  get event(): number {
    return eventOf(state.get().at, this.#model.totals.events) ?? this.#model.peak.event;
  }

  // The event that the instant is compared with, null where nothing is compared.
  get than(): number | null {
    const { than } = state.get();
    return than === "peak" ? this.#model.peak.event : eventOf(than, this.#model.totals.events);
  }

  // Shows another instant; the selection of a cell belongs to the one before.
  show(event: number, { push = true } = {}): void {
    state.set({ at: event === this.#model.peak.event ? "" : event, cell: "", storage: "" }, { push });
  }

  get name(): string {
    return this.isPeak ? "the peak" : `event ${whole(this.event)}`;
  }

  nameOf(event: number): string {
    return event === this.#model.peak.event ? "the peak" : `event ${whole(event)}`;
  }
}

export interface Told {
  instant: Instant;
  phases: Phases;
  detail: Detail | undefined; // not decoded while the peak is shown for the first time
  liveBytes: number;
  changes: { born: number; died: number } | null;
}

// Writes into the header which instant is shown.
export function tell(model: PageModel, { instant, phases, detail, liveBytes, changes }: Told): void {
  const { event, isPeak, than } = instant;
  const op = isPeak ? model.peak.op : (detail?.opOf(event) ?? -1);
  const stretch = phases.of(op);
  const time = isPeak ? model.peak.time_ns : (detail?.timeOf(event) ?? 0);
  const steps = model.steps.length > 1 && stretch ? [`step ${stretch.step}`] : [];
  const where = [...steps, ...(stretch ? [stretch.phase] : []), `${duration(time)} after the start`, ...(op >= 0 ? [`op ${whole(op)}${nameOf(op, detail)}`] : [])];
  $("instant-name").textContent = isPeak ? "Peak" : `Event ${whole(event)}`;
  $("instant-bytes").textContent = `${bytes(liveBytes)} live on ${model.totals.device}`;
  $("instant-where").textContent = `· ${where.join(" · ")}`;
  $("back-to-peak").toggleAttribute("disabled", isPeak);
  const scrub = $<HTMLInputElement>("scrub");
  scrub.value = String(event);
  scrub.setAttribute("aria-valuetext", `${instant.name}, ${bytes(liveBytes)} live`);
  $("compare").textContent = than === null ? "Compare from here" : "End the comparison";
  const compared = $("compared");
  compared.hidden = than === null;
  compared.textContent = than === null ? "" : `· ${than <= event ? "since" : "until"} ${instant.nameOf(than)}: ${bytes(changes?.born ?? 0)} allocated, ${bytes(changes?.died ?? 0)} freed`;
  $("instant").title = $("instant").textContent!; // one line shows it, and may cut it off
}

// The op's name is known where something that it made was recorded.
function nameOf(op: number, detail: Detail | undefined): string {
  if (!detail) return "";
  const row = detail.storages.columns.op.values.indexOf(op);
  const name = row < 0 ? "" : detail.sites.text("op_name", detail.storages.number("site", row));
  return name ? ` (${shortOp(name)})` : "";
}

export function listenToInstant(model: PageModel, instant: Instant, detail: () => Promise<Detail>): void {
  const scrub = $<HTMLInputElement>("scrub");
  let dragged = false;
  scrub.max = String(model.totals.events);
  scrub.addEventListener("input", () => {
    instant.show(Number(scrub.value), { push: !dragged });
    dragged = true;
  });
  scrub.addEventListener("change", () => (dragged = false));
  const step = async (by: number) => instant.show((await detail()).step(instant.event, by));
  $("event-back").addEventListener("click", () => step(-1));
  $("event-on").addEventListener("click", () => step(1));
  $("back-to-peak").addEventListener("click", () => instant.show(model.peak.event));
  const compare = () => state.set({ than: instant.than === null ? (instant.isPeak ? "peak" : instant.event) : "", cell: "" });
  $("compare").addEventListener("click", compare);
  const keys: Record<string, () => void> = { "[": () => step(-1), "]": () => step(1), p: () => instant.show(model.peak.event), c: compare };
  document.addEventListener("keydown", (event) => {
    const isTyping = (event.target as Element).closest("input, select, textarea, dialog, [contenteditable]");
    if (!keys[event.key] || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
}
