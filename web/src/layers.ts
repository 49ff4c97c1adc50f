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
    this.#checkpoints.push(Float64Array.from(base));
  }

  // Adds up events to what was live before them, and keeps the checkpoints that it passes for the first time.
  #add(live: Float64Array, from: number, to: number): void {
    const { storage, delta } = this.#detail;
    for (let place = from; place < to; place++) {
      if (place === this.#checkpoints.length * CHECKPOINT) this.#checkpoints.push(live.slice());
      const at = storage[place];
      live[at < 0 ? this.#other : this.#group[at]] += delta[place];
    }
  }

  // Returns the points to draw between two x: every event or, if there are too many, the highest of each bin.
  window(from: number, to: number, axis: Axis): Points {
    const first = this.#detail.placeOf(from, axis);
    const last = Math.min(this.#detail.count - 1, this.#detail.placeOf(to, axis) + 1);
    const count = last - first + 1;
    return this.#pointsAt(count <= MOST_POINTS ? Array.from({ length: count }, (_, index) => first + index) : highest(this.#detail, first, last, axis), axis);
  }

  #pointsAt(places: number[], axis: Axis): Points {
    const { row } = this.#detail;
    const xs = this.#detail.xs(axis);
    const points: Points = { event: places.map((place) => row[place]), x: places.map((place) => xs[place]), live: Array.from(this.#base, () => []) };
    const start = Math.min(this.#checkpoints.length - 1, Math.floor((places[0] ?? 0) / CHECKPOINT));
    const live = this.#checkpoints[start].slice();
    let next = start * CHECKPOINT; // what its event changes is not yet in a checkpoint
    for (const place of places) {
      this.#add(live, next, place + 1);
      next = place + 1;
      for (let group = 0; group < live.length; group++) points.live[group].push(live[group]);
    }
    return points;
  }
}

interface Bins {
  key: string;
  places: number[];
}

const drawn = new WeakMap<Detail, Bins>(); // of the last window: other colours have the same

// Returns the place of each bin after which most is alive. What is alive at the first counts for all: it is left out.
function highest(detail: Detail, first: number, last: number, axis: Axis): number[] {
  const key = `${first} ${last} ${axis}`;
  const known = drawn.get(detail);
  if (known?.key === key) return known.places;
  const { delta } = detail;
  const xs = detail.xs(axis);
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
  drawn.set(detail, { key, places });
  return places;
}
