// The storages that are alive at the instant shown or, where two instants are compared, what changed between them.
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
    const size = detail.sizesAt(event);
    const alive: number[] = [];
    for (let row = 0; row < size.length; row++) if (size[row] > 0) alive.push(row);
    alive.sort((a, b) => size[b] - size[a] || a - b);
    return this.described(detail.table(alive, size));
  }

  // Returns what differs between two instants: each storage with the bytes by which it changed, and how.
  between(detail: Detail, before: number, after: number): Frame {
    const [old, now] = [detail.sizesAt(before), detail.sizesAt(after)];
    const size = now.map((bytes, row) => Math.abs(bytes - old[row]));
    const changed: number[] = [];
    for (let row = 0; row < size.length; row++) if (size[row] > 0) changed.push(row);
    changed.sort((a, b) => size[b] - size[a] || a - b);
    const frame = this.described(detail.table(changed, size));
    const how = (row: number) => (old[row] <= 0 ? "born" : now[row] <= 0 ? "died" : now[row] > old[row] ? "grown" : "shrunk");
    return frame.with({ change: textColumn(frame.words, changed.map(how)) });
  }

  // Returns a table of storages with what the columns of the dimensions need.
  described(frame: Frame): Frame {
    const op = frame.columns.op.values;
    return frame.with({
      dtype: frame.derived("tensor", (text) => text.split("[")[0]),
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

function textColumn(words: Words, texts: string[]): Column {
  return { text: true, values: Float64Array.from(texts, (text) => words.code(text)) };
}
