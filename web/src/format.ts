// Sizes and durations in the same words as memwatch.sizes uses.

const UNITS: [string, number][] = [["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30]];
const PARTS_OF_A_SECOND: [string, number][] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];
const TICK_UNITS: [string, number][] = [["h", 3600e9], ["min", 60e9], ...PARTS_OF_A_SECOND];
const WITH_DIGITS = Array.from({ length: 10 }, (_, digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));

// Steps of an axis in time: decimal up to a minute, then whole minutes and whole hours.
export const TIME_STEPS_NS = [
  ...Array.from({ length: 11 }, (_, power) => [1, 2, 5].map((times) => times * 10 ** power)).flat().filter((ns) => ns < 60e9),
  ...[1, 2, 5, 10, 20, 30].map((minutes) => minutes * 60e9),
  ...Array.from({ length: 12 }, (_, power) => 2 ** power * 3600e9),
];

// As Python rounds: a tie, such as 16.125, goes to the even digit. `toFixed` would go up, and the page would differ from
// the summary. A number is a tie only if it is an odd multiple of a power of two.
export function fixed(value: number, digits: number): string {
  const isTie = Math.abs((value * 2 ** (digits + 1)) % 2) === 1;
  if (!isTie) return value.toFixed(digits);
  const below = Math.floor(Math.abs(value) * 10 ** digits);
  return ((Math.sign(value) * (below + (below % 2))) / 10 ** digits).toFixed(digits);
}

export function bytes(count: number): string {
  const magnitude = Math.abs(count);
  if (magnitude < 1024) return `${Math.round(count)} B`;
  for (const [unit, scale] of UNITS) {
    if (Number(fixed(magnitude / scale, 2)) < 1024) return `${fixed(count / scale, 2)} ${unit}`;
  }
  return `${fixed(count / 2 ** 40, 2)} TiB`;
}

// Returns the labels of an axis in bytes, all in one unit: that of the largest tick.
export function byteTicks(ticks: number[]): string[] {
  const most = Math.max(...ticks.map(Math.abs));
  const [unit, scale] = unitOf(most);
  return ticks.map((count) => (count === 0 ? "0 B" : `${Number((count / scale).toFixed(most / scale < 100 ? 3 : 0))} ${unit}`));
}

const unitOf = (count: number): [string, number] => [...UNITS, ["TiB", 2 ** 40] as [string, number]].filter(([, scale]) => Math.abs(count) >= scale).at(-1) ?? ["B", 1];

export const signedBytes = (count: number): string => `${count > 0 ? "+" : ""}${bytes(count)}`;

export function duration(ns: number): string {
  if (ns === 0) return "0 s";
  if (ns >= 60e9) return `${Math.floor(ns / 60e9)} min ${Math.floor((ns % 60e9) / 1e9)} s`;
  for (const [unit, scale] of PARTS_OF_A_SECOND) {
    if (ns >= scale) return `${Number((ns / scale).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

// Returns the labels of an axis in time, all in one unit: that of whole steps, or else of the largest tick.
export function timeTicks(ticks: number[], step: number): string[] {
  const most = Math.max(...ticks.map(Math.abs));
  const [unit, scale] = TICK_UNITS.find(([, scale]) => (scale >= 60e9 ? step % scale === 0 : most >= scale)) ?? ["ns", 1];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
  return ticks.map((ns) => `${ns === 0 ? 0 : WITH_DIGITS[Math.min(digits, 9)].format(ns / scale)} ${unit}`);
}

export const percent = (part: number, all: number): string => `${all ? fixed((100 * part) / all, 1) : "0.0"} %`;
const WITH_COMMAS = new Intl.NumberFormat("en-US"); // to make one takes longer than to use it a hundred times
export const whole = (number: number): string => WITH_COMMAS.format(number);
export const orNone = (number: number): string => (number < 0 ? "" : whole(number));
export const counted = (count: number, noun: string): string => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

let cells: Record<string, string> = {};

// From now on, lines of a notebook's cells are called as the notebook does: `Cell In[3], line 2`.
export const nameCells = (found: Record<string, string>): void => void (cells = found);

export const fileName = (file: string): string => (Object.hasOwn(cells, file) ? cells[file] : file);

function cellLine(line: string): string | null {
  const place = placeOf(line);
  return place && Object.hasOwn(cells, place.file) ? `${cells[place.file]}, line ${place.number}` : null;
}

// Shortens a long path but keeps its end, the file and the line.
export function shortLine(line: string): string {
  const cell = cellLine(line);
  if (cell) return cell;
  const parts = line.split("/");
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : line;
}

// Returns file and line without the folders, for a narrow place; of a package's `__init__.py` the package, too.
export function fileLine(line: string): string {
  const cell = cellLine(line);
  if (cell) return cell;
  const parts = line.split("/");
  return parts.slice(parts.at(-1)!.startsWith("__") ? -2 : -1).join("/");
}

// Shortens the long paths in a text, each as `shortLine` does.
export const shortPaths = (text: string): string => text.replace(/(?<![\w.])(?:\/[^\s/():]+)+:\d+/g, shortLine);

// Returns file and number of a `file:line`.
export function placeOf(line: string): { file: string; number: number } | null {
  const match = /^([^]+):(\d+)$/.exec(line);
  return match && { file: match[1], number: Number(match[2]) };
}

// Returns `mul` for `aten.mul.Tensor`.
export function shortOp(name: string): string {
  const [space, ...rest] = name.split(".");
  if (rest.length !== 2) return name;
  return space === "aten" ? rest[0] : `${space}.${rest[0]}`;
}
