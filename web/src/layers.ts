// The live bytes of each group of storages over the events of the run, for the curve.
import type { Axis, Detail } from "./detail.ts";

const CHECKPOINT = 8192;
const MOST_POINTS = 4000;

export interface Points {
  event: number[];
  x: number[];
  live: number[][]; // per group
}

export class Layers {
  readonly #detail: Detail;
  readonly #base: Float64Array;
  readonly #group: Uint8Array;
  readonly #other: number;
  readonly #checkpoints: Float64Array[] = []; // so that a window need not be added up from the entry

  // `base` has the bytes of each group at entry; `group` the group of each storage; `other` that of bytes of no storage.
  constructor(detail: Detail, base: Float64Array, group: Uint8Array, other: number) {
    this.#detail = detail;
    this.#base = base;
    this.#group = group;
    this.#other = other;
    const live = Float64Array.from(base);
    for (let place = 0; place < detail.count; place++) {
      if (place % CHECKPOINT === 0) this.#checkpoints.push(Float64Array.from(live));
      this.#step(live, place);
    }
  }

  #step(live: Float64Array, place: number): void {
    const storage = this.#detail.storage[place];
    live[storage < 0 ? this.#other : this.#group[storage]] += this.#detail.delta[place];
  }

  // Returns the points to draw between two x: every event or, if there are too many, the highest of each bin.
  window(from: number, to: number, axis: Axis): Points {
    const detail = this.#detail;
    const first = detail.placeOf(from, axis);
    const last = Math.min(detail.count - 1, detail.placeOf(to, axis) + 1);
    const every = last - first + 1 <= MOST_POINTS;
    const start = detail.x(first, axis);
    const span = detail.x(last, axis) - start || 1;
    const points: Points = { event: [], x: [], live: Array.from(this.#base, () => []) };
    const best = { place: -1, total: 0, live: new Float64Array(this.#base.length) };
    let bin = -1;
    this.#walk(first, last, (place, live) => {
      let total = 0;
      for (let group = 0; group < live.length; group++) total += live[group];
      const now = every ? place : Math.min(MOST_POINTS - 1, Math.floor(((detail.x(place, axis) - start) / span) * MOST_POINTS));
      if (now !== bin && best.place >= 0) this.#keep(points, best, axis);
      if (now !== bin || total > best.total) {
        best.place = place;
        best.total = total;
        best.live.set(live);
      }
      bin = now;
    });
    if (best.place >= 0) this.#keep(points, best, axis);
    return points;
  }

  #keep(points: Points, { place, live }: { place: number; live: Float64Array }, axis: Axis): void {
    points.event.push(this.#detail.row[place]);
    points.x.push(this.#detail.x(place, axis));
    live.forEach((bytes, group) => points.live[group].push(bytes));
  }

  #walk(first: number, last: number, visit: (place: number, live: Float64Array) => void): void {
    const start = Math.floor(first / CHECKPOINT);
    const live = this.#checkpoints[start].slice();
    for (let place = start * CHECKPOINT; place <= last; place++) {
      this.#step(live, place);
      if (place >= first) visit(place, live);
    }
  }
}
