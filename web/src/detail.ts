// Every event and storage, decoded when they are first needed. memwatch/report/page/events.py writes them.
import { type Column, Frame, type Words } from "./frame.ts";
import type { DetailBlock } from "./model.ts";

const SITE_COLUMNS = ["category", "rule", "name", "tensor", "module", "op_name", "line", "own_line", "origin", "device", "stack"];
export type Axis = "time" | "events";

interface Tables {
  sites: Frame;
  storages: Frame;
  events: Frame;
}

// Outside of this class an event is known by its row of the timeline, inside by its place in these arrays.
export class Detail {
  readonly sites: Frame;
  readonly storages: Frame;
  readonly count: number; // event 0 is the entry to the block
  readonly leftOut: number;
  readonly otherBaselineBytes: number;
  readonly row: Float64Array; // their rows of the timeline; a page that left events out has gaps here
  readonly time: Float64Array;
  readonly op: Float64Array;
  readonly nbytes: Float64Array;
  readonly storage: Int32Array;
  readonly delta: Float64Array;
  readonly birth: Int32Array; // per storage: the places of its birth and death, 0 and -1 for none
  readonly death: Int32Array;
  entered = 0; // how many storages were alive at entry; they come first
  #rowOf: Int32Array | undefined;
  readonly #resized = new Map<number, number[]>(); // the places of all events of storages that change their size

  static async unpack(block: DetailBlock, words: Words): Promise<Detail> {
    const [sites, storages, events] = await Promise.all([block.sites, block.storages, block.events].map((table) => Frame.unpack(table, words)));
    return new Detail(block, { sites, storages, events });
  }

  constructor(block: DetailBlock, { sites, storages, events }: Tables) {
    this.sites = sites;
    this.storages = storages;
    this.count = events.rows + 1;
    this.leftOut = block.left_out;
    this.otherBaselineBytes = block.other_baseline_bytes;
    this.row = new Float64Array(this.count);
    this.row.set(events.columns.row.values, 1);
    this.op = new Float64Array(this.count).fill(-1);
    this.op.set(events.columns.op.values, 1);
    const ticks = events.columns.tick.values;
    this.time = new Float64Array(this.count);
    for (let at = 1; at < this.count; at++) this.time[at] = ticks[at - 1] * block.tick_ns;
    this.nbytes = this.#sizes();
    this.storage = new Int32Array(this.count).fill(-1);
    this.delta = new Float64Array(this.count);
    this.birth = new Int32Array(storages.rows);
    this.death = new Int32Array(storages.rows).fill(-1);
    this.#readEvents(events);
  }

  #sizes(): Float64Array {
    const site = this.storages.columns.site.values;
    const last = new Float64Array(this.sites.rows);
    return this.storages.columns.grown_bytes.values.map((bytes, row) => (last[site[row]] += bytes));
  }

  #readEvents(events: Frame): void {
    const who = events.columns.who.values;
    const beyond = events.columns.beyond_bytes.values;
    const resized = new Set<number>();
    let next = this.storages.rows;
    for (let row = 0; row < who.length; row++) if (who[row] === 0) next--;
    this.entered = next;
    for (let row = 1; row < this.count; row++) {
      const back = who[row - 1];
      const storage = back < 0 ? -1 : next - back;
      const expected = storage < 0 ? 0 : back === 0 ? this.nbytes[storage] : -this.nbytes[storage];
      const delta = expected + beyond[row - 1];
      this.storage[row] = storage;
      this.delta[row] = delta;
      if (back === 0) this.birth[next++] = row;
      else if (storage >= 0) this.death[storage] = delta < 0 ? row : -1;
      if (delta !== expected && storage >= 0) resized.add(storage);
    }
    for (const storage of resized) this.#resized.set(storage, []);
    if (resized.size) this.storage.forEach((storage, place) => this.#resized.get(storage)?.push(place));
  }

  // Returns the x of each event.
  xs(axis: Axis): Float64Array {
    return axis === "events" ? this.row : this.time;
  }

  // Returns the last place at or before x.
  placeOf(x: number, axis: Axis = "events"): number {
    const order = this.xs(axis);
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (order[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  timeOf(event: number): number {
    return this.time[this.placeOf(event)];
  }

  opOf(event: number): number {
    return this.op[this.placeOf(event)];
  }

  // Returns the event so many events after another: those that were left out are passed over.
  step(event: number, by: number): number {
    return this.row[Math.max(0, Math.min(this.count - 1, this.placeOf(event) + by))];
  }

  // Returns the row of a storage in the table of storages, -1 if it was left out.
  rowOf(id: number): number {
    this.#rowOf ??= rowsById(this.storages.columns.id.values);
    return this.#rowOf[id] ?? -1;
  }

  // Returns the bytes of each storage that is alive after an event, by its row.
  liveAt(event: number): Map<number, number> {
    const last = this.placeOf(event);
    const live = new Map<number, number>();
    for (let row = 0; row < this.birth.length && this.birth[row] <= last; row++) {
      if ((this.death[row] < 0 || this.death[row] > last) && this.nbytes[row] > 0) live.set(row, this.nbytes[row]);
    }
    for (const [row, places] of this.#resized) {
      const bytes = places.reduce((sum, place) => (place <= last ? sum + this.delta[place] : sum), row < this.entered ? this.nbytes[row] : 0);
      if (bytes > 0) live.set(row, bytes);
      else live.delete(row);
    }
    return live;
  }

  // Returns the bytes of all of them together.
  bytesAt(event: number): number {
    return [...this.liveAt(event).values()].reduce((sum, bytes) => sum + bytes, 0);
  }

  // Returns the event after which some storages have the most bytes together.
  highestOf(rows: Set<number>): number {
    let live = 0;
    for (const row of rows) if (row < this.entered) live += this.nbytes[row];
    let [best, most] = [0, live];
    for (let place = 1; place < this.count; place++) {
      if (!rows.has(this.storage[place])) continue;
      live += this.delta[place];
      if (live > most) [best, most] = [place, live];
    }
    return this.row[best];
  }

  // Returns the event with the most live bytes while an op ran or, if it allocated nothing, the one before.
  highestIn(op: number): number {
    let [best, most, live] = [-1, -Infinity, 0];
    let before = 0;
    for (let place = 1; place < this.count && this.op[place] <= op; place++) {
      live += this.delta[place];
      if (this.op[place] < op) before = place;
      else if (live > most) [best, most] = [place, live];
    }
    return this.row[best < 0 ? before : best];
  }

  // Returns some storages as a table with the columns of the peak's; `size` says the bytes of each.
  table(rows: number[], size: (row: number) => number): Frame {
    const of = (name: string) => this.storages.columns[name].values;
    const number = (value: (row: number) => number): Column => ({ text: false, values: Float64Array.from(rows, value) });
    const [id, op, site, firstUse, lastUse] = ["id", "op", "site", "first_use", "last_use"].map(of);
    const first = (row: number) => (firstUse[row] < 0 ? -1 : firstUse[row] + op[row]);
    const last = (row: number) => (lastUse[row] < 0 ? -1 : lastUse[row] + Math.max(first(row), 0));
    const shared = SITE_COLUMNS.map((name): [string, Column] => {
      const { text, values } = this.sites.columns[name];
      return [name, { text, values: Float64Array.from(rows, (row) => values[site[row]]) }];
    });
    return new Frame(
      rows.length,
      {
        id: number((row) => id[row]),
        nbytes: number(size),
        ...Object.fromEntries(shared),
        op: number((row) => op[row]),
        first_use_op: number(first),
        last_use_op: number(last),
        death_op: number((row) => (this.death[row] < 0 ? -1 : this.op[this.death[row]])),
      },
      this.sites.words,
    );
  }

  // Returns one storage as such a table, with the bytes that it was born with.
  one(id: number): Frame {
    const row = this.storages.columns.id.values.indexOf(id);
    return this.table(row < 0 ? [] : [row], (each) => this.nbytes[each]);
  }
}

// Storages are numbered from 0, so an array has the row of each: a map of a million takes a tenth of a second to make.
function rowsById(ids: Float64Array): Int32Array {
  const rows = new Int32Array(ids.reduce((most, id) => Math.max(most, id), -1) + 1).fill(-1);
  for (let row = 0; row < ids.length; row++) rows[ids[row]] = row;
  return rows;
}
