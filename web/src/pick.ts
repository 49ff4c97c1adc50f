// What is picked out of the live set: a finding, a module, a line or a group of one colour. One thing at a time;
// whoever shows the live set asks here which rows it is about.
import type { Colouring } from "./colouring.ts";
import type { Frame } from "./frame.ts";
import { shortLine } from "./format.ts";
import { state } from "./state.ts";

export interface Pick {
  kind: "finding" | "module" | "line" | "group";
  value: string;
}

export interface Sources {
  storagesOf: (finding: number) => Set<number>;
  lineage: (module: string) => string[];
  colouring: () => Colouring;
}

export function picked(text = state.get().pick): Pick | null {
  const match = /^(finding|module|line|group):([^]*)$/.exec(text);
  return match && { kind: match[1] as Pick["kind"], value: match[2] };
}

export const isPicked = (kind: Pick["kind"], value: string | number): boolean => state.get().pick === `${kind}:${value}`;

// Picks something out, or lets go of it if it is picked already; what was looked at before is left.
export function pick(kind: Pick["kind"], value: string | number, { toggle = false } = {}): void {
  const text = `${kind}:${value}`;
  state.set({ pick: toggle && state.get().pick === text ? "" : text, cell: "", storage: "", tab: "live", sort: "" });
}

export function label({ kind, value }: Pick): string {
  if (kind === "finding") return `finding ${Number(value) + 1}`;
  if (kind === "line") return shortLine(value);
  return kind === "module" ? `module ${value}` : value;
}

// Returns the modules around one, itself the last: by the tree of modules, or by the dots in a name that it lacks.
export function around(module: string, lineage: Sources["lineage"]): string[] {
  const known = lineage(module);
  if (known.length) return known;
  const parts = module.split(".");
  return parts.map((_, index) => parts.slice(0, index + 1).join("."));
}

// Returns the rows of a live set that are picked out.
export function pickedRows(frame: Frame, sources: Sources): Frame {
  const chosen = picked();
  if (!chosen) return frame;
  const test = testOf(chosen, frame, sources);
  return frame.only(Array.from({ length: frame.rows }, (_, row) => row).filter(test));
}

function testOf({ kind, value }: Pick, frame: Frame, { storagesOf, lineage, colouring }: Sources): (row: number) => boolean {
  if (kind === "finding") {
    const storages = storagesOf(Number(value));
    return (row) => storages.has(frame.number("id", row));
  }
  if (kind === "line") return (row) => frame.text("own_line", row) === value || frame.text("line", row) === value;
  if (kind === "group") {
    const colours = colouring();
    return (row) => colours.groups[colours.of(frame, row)] === value;
  }
  const known = new Map<string, boolean>();
  const inside = (module: string) => known.get(module) ?? known.set(module, module !== "" && around(module, lineage).includes(value)).get(module)!;
  return (row) => inside(frame.text("module", row));
}
