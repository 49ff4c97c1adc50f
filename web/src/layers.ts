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
    const first = this.#detail.placeOf(from, axis);
    const last = Math.min(this.#detail.count - 1, this.#detail.placeOf(to, axis) + 1);
    const count = last - first + 1;
    return this.#pointsAt(count <= MOST_POINTS ? Array.from({ length: count }, (_, index) => first + index) : this.#highest(first, last, axis), axis);
  }

  // Returns the place of each bin after which most is alive. What is alive at the first counts for all: it is left out.
  #highest(first: number, last: number, axis: Axis): number[] {
    const { delta } = this.#detail;
    const xs = this.#detail.xs(axis);
    const scale = MOST_POINTS / (xs[last] - xs[first] || 1);
    const places: number[] = [];
    let [bin, live, most] = [-1, 0, 0];
    for (let place = first; place <= last; place++) {
      live += delta[place];
      const now = Math.min(MOST_POINTS - 1, Math.floor((xs[place] - xs[first]) * scale));
      if (now === bin && live <= most) continue;
      if (now === bin) places.pop();
      places.push(place);
      most = live;
      bin = now;
    }
    return places;
  }

  #pointsAt(places: number[], axis: Axis): Points {
    const { row } = this.#detail;
    const xs = this.#detail.xs(axis);
    const points: Points = { event: places.map((place) => row[place]), x: places.map((place) => xs[place]), live: Array.from(this.#base, () => []) };
    const start = Math.floor((places[0] ?? 0) / CHECKPOINT);
    const live = this.#checkpoints[start].slice();
    let next = start * CHECKPOINT; // what its event changes is not yet in a checkpoint
    for (const place of places) {
      while (next <= place) this.#step(live, next++);
      live.forEach((bytes, group) => points.live[group].push(bytes));
    }
    return points;
  }
}
