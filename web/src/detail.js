// Every event and storage, decoded when they are first needed. memwatch/report/page/events.py writes them.
import { Frame } from "./codec.js";

const CHECKPOINT = 8192;
const POINTS = 4000;
const SITE_COLUMNS = ["category", "rule", "name", "tensor", "module", "op_name", "line", "origin", "device", "stack"];

export class Detail {
  static async unpack(block, categories, curve, words) {
    const [sites, storages, events] = await Promise.all(
      [block.sites, block.storages, block.events].map((table) => Frame.unpack(table, words)),
    );
    return new Detail(block, categories, curve, { sites, storages, events });
  }

  constructor(block, categories, base, { sites, storages, events }) {
    this.sites = sites;
    this.storages = storages;
    this.categories = categories;
    this.base = base; // live bytes of each category at entry
    this.count = events.rows + 1; // event 0 is the entry to the block
    this.leftOut = block.left_out;
    this.row = new Float64Array(this.count); // their rows of the timeline; a page that left events out has gaps here
    this.row.set(events.columns.row.values, 1);
    this.op = events.columns.op.values;
    this.time = new Float64Array(this.count);
    for (let at = 1; at < this.count; at++) this.time[at] = events.columns.tick.values[at - 1] * block.tick_ns;
    this.#readStorages();
    this.#readEvents(events);
  }

  #readStorages() {
    const { site, grown_bytes: grown } = Object.fromEntries(
      Object.entries(this.storages.columns).map(([name, column]) => [name, column.values]),
    );
    const last = new Float64Array(this.sites.rows);
    this.nbytes = grown.map((bytes, row) => (last[site[row]] += bytes));
    const code = new Map(this.categories.map((name, index) => [name, index]));
    const unknown = code.get("unknown");
    const ofSite = Array.from({ length: this.sites.rows }, (_, row) => code.get(this.sites.get("category", row)) ?? unknown);
    this.category = Uint8Array.from(site, (row) => ofSite[row]);
  }

  #readEvents(events) {
    const who = events.columns.who.values;
    const beyond = events.columns.beyond_bytes.values;
    this.storage = new Int32Array(this.count).fill(-1);
    this.delta = new Float64Array(this.count);
    let next = this.storages.rows;
    for (let row = 0; row < who.length; row++) if (who[row] === 0) next--;
    this.entered = next;
    for (let row = 1; row < this.count; row++) {
      const back = who[row - 1];
      const storage = back < 0 ? -1 : next - back;
      if (back === 0) next++;
      this.storage[row] = storage;
      const expected = storage < 0 ? 0 : back === 0 ? this.nbytes[storage] : -this.nbytes[storage];
      this.delta[row] = expected + beyond[row - 1];
    }
    this.#keepCheckpoints();
  }

  // Live bytes by category at every few thousandth event, so that drawing a window need not add up from the entry.
  #keepCheckpoints() {
    const unknown = this.categories.indexOf("unknown");
    const live = Float64Array.from(this.base);
    this.checkpoints = [];
    for (let row = 0; row < this.count; row++) {
      if (row % CHECKPOINT === 0) this.checkpoints.push(Float64Array.from(live));
      live[this.storage[row] < 0 ? unknown : this.category[this.storage[row]]] += this.delta[row];
    }
  }

  // Outside of this class an event is known by its row of the timeline, inside by its place in these arrays.
  timeOf(event) {
    return this.time[this.placeOf(event, "events")];
  }

  x(place, axis) {
    return axis === "events" ? this.row[place] : this.time[place];
  }

  // Returns the last place at or before x.
  placeOf(x, axis) {
    const order = axis === "events" ? this.row : this.time;
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (order[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  // Returns the points to draw between two x: every event or, if there are too many, the highest of each bin.
  window(from, to, axis) {
    const first = this.placeOf(from, axis);
    const last = Math.min(this.count - 1, this.placeOf(to, axis) + 1);
    const every = last - first + 1 <= POINTS;
    const span = this.x(last, axis) - this.x(first, axis) || 1;
    const points = { event: [], x: [], live: this.categories.map(() => []) };
    let best = null;
    let bin = -1;
    this.#walk(first, last, (row, live, total) => {
      const now = every ? row : Math.min(POINTS - 1, Math.floor(((this.x(row, axis) - this.x(first, axis)) / span) * POINTS));
      if (now !== bin && best) this.#keep(points, best, axis);
      if (now !== bin || total > best.total) best = { row, total, live: live.slice() };
      bin = now;
    });
    if (best) this.#keep(points, best, axis);
    return points;
  }

  #keep(points, { row, live }, axis) {
    points.event.push(this.row[row]);
    points.x.push(this.x(row, axis));
    live.forEach((bytes, index) => points.live[index].push(bytes));
  }

  #walk(first, last, visit) {
    const unknown = this.categories.indexOf("unknown");
    const start = Math.floor(first / CHECKPOINT);
    const live = this.checkpoints[start].slice();
    for (let row = start * CHECKPOINT; row <= last; row++) {
      live[this.storage[row] < 0 ? unknown : this.category[this.storage[row]]] += this.delta[row];
      if (row >= first) visit(row, live, live.reduce((a, b) => a + b, 0));
    }
  }

  // Returns the storages alive after an event, as a table with the columns of the peak's.
  liveAt(event) {
    const size = new Float64Array(this.storages.rows);
    size.set(this.nbytes.subarray(0, this.entered));
    const last = this.placeOf(event, "events");
    for (let row = 1; row <= last; row++) if (this.storage[row] >= 0) size[this.storage[row]] += this.delta[row];
    const alive = [];
    for (let row = 0; row < size.length; row++) if (size[row] > 0) alive.push(row);
    alive.sort((a, b) => size[b] - size[a] || a - b);
    return new Frame(alive.length, this.#columns(alive, size), this.sites.words);
  }

  // Returns every storage of the run, at its own size.
  all() {
    const rows = Array.from(this.nbytes.keys());
    return new Frame(rows.length, this.#columns(rows, this.nbytes), this.sites.words);
  }

  // Returns the row with the most live bytes while an op ran, or the entry if the op allocated nothing.
  highestIn(op) {
    let best = 0;
    let most = -1;
    this.#walk(0, this.count - 1, (row, _, total) => {
      if (this.op[row - 1] === op && total > most) [best, most] = [row, total];
    });
    return this.row[best];
  }

  #columns(rows, size) {
    const of = (name) => this.storages.columns[name].values;
    const number = (value) => ({ text: false, values: Float64Array.from(rows, value) });
    const op = of("op");
    const first = (row) => (of("first_use")[row] < 0 ? -1 : of("first_use")[row] + op[row]);
    const last = (row) => (of("last_use")[row] < 0 ? -1 : of("last_use")[row] + Math.max(first(row), 0));
    const shared = SITE_COLUMNS.map((name) => {
      const { text, values } = this.sites.columns[name];
      return [name, { text, values: Float64Array.from(rows, (row) => values[of("site")[row]]) }];
    });
    return {
      id: number((row) => of("id")[row]),
      nbytes: number((row) => size[row]),
      ...Object.fromEntries(shared),
      op: number((row) => op[row]),
      first_use_op: number(first),
      last_use_op: number(last),
    };
  }
}
