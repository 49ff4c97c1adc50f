// Sizes and durations in the same words as memwatch.sizes and memwatch.report.meta use.

export function bytes(count) {
  const magnitude = Math.abs(count);
  if (magnitude < 1024) return `${Math.round(count)} B`;
  for (const [unit, scale] of [["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30]]) {
    if (Number((magnitude / scale).toFixed(2)) < 1024) return `${(count / scale).toFixed(2)} ${unit}`;
  }
  return `${(count / 2 ** 40).toFixed(2)} TiB`;
}

export function shortBytes(count) {
  return bytes(count).replace(/(\.[0-9]*?)0+ /, "$1 ").replace(". ", " ");
}

export function duration(ns) {
  if (ns >= 60e9) return `${Math.floor(ns / 60e9)} min ${Math.round((ns % 60e9) / 1e9)} s`;
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (ns >= scale) return `${Number((ns / scale).toPrecision(4))} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

export const percent = (part, whole) => `${whole ? ((100 * part) / whole).toFixed(1) : "0.0"} %`;
export const whole = (number) => number.toLocaleString("en-US");
export const orNone = (number) => (number < 0 ? "" : whole(number));

// Shortens a long path but keeps its end, the file and the line.
export function shortLine(line) {
  const parts = line.split("/");
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : line;
}
