// The storages that are alive at the instant shown or, where two instants are compared, what changed between them.
import type { Colouring } from "./colouring.ts";
import type { Detail } from "./detail.ts";
import type { Column, Frame, Words } from "./frame.ts";
import type { Phases } from "./phases.ts";

const OF_PEAK = ["holder", "holder_kind", "path", "phase", "lag_ns", "use_ns", "drag_ns", "void_ns"];

export const CHANGES = ["born", "grown", "shrunk", "died"] as const;

export class LiveSets {
  readonly peak: Frame; // at the peak, with the holders that were recorded there
  readonly #rowAtPeak: Map<number, number>;
  readonly #phases: Phases;

  constructor(peak: Frame, phases: Phases) {
    this.#phases = phases;
    this.#rowAtPeak = new Map(Array.from(peak.columns.id.values, (id, row) => [id, row]));
    this.peak = this.described(peak);
  }

  // Returns what was alive after an event, largest first.
  at(detail: Detail, event: number): Frame {
    const live = detail.liveAt(event);
    return this.described(detail.table(largestFirst(live), (row) => live.get(row)!));
  }

  // Returns what differs between two instants: each storage with the bytes by which it changed, and how.
  between(detail: Detail, before: number, after: number): Frame {
    const [old, now] = [detail.liveAt(before), detail.liveAt(after)];
    const size = new Map<number, number>();
    for (const row of new Set([...old.keys(), ...now.keys()])) {
      const by = Math.abs((now.get(row) ?? 0) - (old.get(row) ?? 0));
      if (by > 0) size.set(row, by);
    }
    const changed = largestFirst(size);
    const frame = this.described(detail.table(changed, (row) => size.get(row)!));
    const how = (row: number) => (!old.has(row) ? "born" : !now.has(row) ? "died" : now.get(row)! > old.get(row)! ? "grown" : "shrunk");
    return frame.with({ change: textColumn(frame.words, changed.map(how)) });
  }

  // Returns the group of every storage of the run, by its row.
  groups(detail: Detail, colouring: Colouring): Uint8Array {
    const { site, op, id } = detail.storages.columns;
    const sites = colouring.column === "dtype" ? detail.sites.with({ dtype: dtypes(detail.sites) }) : detail.sites;
    if (sites.has(colouring.column)) {
      const groups = Uint8Array.from({ length: sites.rows }, (_, row) => colouring.of(sites, row));
      return gathered(groups, site.values);
    }
    if (colouring.column === "made_phase") return this.#phases.numbers(op.values, (phase) => colouring.groupOf(phase));
    const atPeak = new Uint8Array(id.values.length).fill(colouring.groupOf(""));
    for (const [each, row] of this.#rowAtPeak) {
      const at = detail.rowOf(each);
      if (at >= 0) atPeak[at] = colouring.of(this.peak, row);
    }
    return atPeak;
  }

  // Returns a table of storages with what the columns of the dimensions need.
  described(frame: Frame): Frame {
    const op = frame.columns.op.values;
    return frame.with({
      dtype: dtypes(frame),
      made_phase: textColumn(frame.words, Array.from(op, (each) => this.#phases.phase(each))),
      ...(frame.has("holder") ? {} : this.#fromPeak(frame)),
    });
  }

  // Holders and lives are recorded at the peak: what is alive there, too, has them at other instants.
  #fromPeak(frame: Frame): Record<string, Column> {
    const blank = frame.words.code("");
    const rows = Array.from(frame.columns.id.values, (id) => this.#rowAtPeak.get(id) ?? -1);
    const columns = OF_PEAK.filter((name) => this.peak.has(name)).map((name): [string, Column] => {
      const { text, values } = this.peak.columns[name];
      return [name, { text, values: Float64Array.from(rows, (row) => (row < 0 ? (text ? blank : -1) : values[row])) }];
    });
    return Object.fromEntries(columns);
  }

  isAtPeak(id: number): boolean {
    return this.#rowAtPeak.has(id);
  }
}

const dtypes = (frame: Frame): Column => frame.derived("tensor", (text) => text.split("[")[0]);

// A loop of its own: there may be millions, and `from` takes ten times as long.
function gathered(of: Uint8Array, places: Float64Array): Uint8Array {
  const gathered = new Uint8Array(places.length);
  for (let at = 0; at < places.length; at++) gathered[at] = of[places[at]];
  return gathered;
}

function largestFirst(size: Map<number, number>): number[] {
  return [...size].sort(([a, most], [b, other]) => other - most || a - b).map(([row]) => row);
}

function textColumn(words: Words, texts: string[]): Column {
  return { text: true, values: Float64Array.from(texts, (text) => words.code(text)) };
}
