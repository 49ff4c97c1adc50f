// The tree of modules: parents and children, folded rows, and the order of the rows in the table.
import { el } from "./dom.ts";
import type { Frame } from "./frame.ts";
import { state } from "./state.ts";

const DEPTHS = 12;

export class ModuleTree {
  readonly frame: Frame;
  readonly #parents: Float64Array;
  readonly #names: string[];
  readonly #rowOf: Map<string, number>;
  readonly #hasChildren: Set<number>;

  constructor(frame: Frame) {
    this.frame = frame;
    this.#parents = frame.columns.parent.values;
    this.#names = Array.from({ length: frame.rows }, (_, row) => frame.text("module", row));
    this.#rowOf = new Map(this.#names.map((name, row) => [name, row]));
    this.#hasChildren = new Set(this.#parents);
  }

  // Returns the names from the root to a module.
  lineage(name: string): string[] {
    const path: string[] = [];
    for (let row = this.#rowOf.get(name) ?? -1; row >= 0; row = this.#parents[row]) path.unshift(this.#names[row]);
    return path;
  }

  depth(row: number): number {
    return this.lineage(this.#names[row]).length - 1;
  }

  // Sorts rows within the tree: a sort order applies among the children of the same module.
  arrange(rows: number[], folded: Set<number>): number[] {
    const there = new Set(rows);
    const children = new Map<number, number[]>();
    for (const row of rows) {
      let parent = this.#parents[row];
      while (parent >= 0 && !there.has(parent)) parent = this.#parents[parent];
      if (!children.has(parent)) children.set(parent, []);
      children.get(parent)!.push(row);
    }
    const walk = (parent: number): number[] => (children.get(parent) ?? []).flatMap((row) => [row, ...(folded.has(row) ? [] : walk(row))]);
    return walk(-1);
  }

  fold(row: number, close: boolean): void {
    const folded = foldedRows();
    if (close === folded.has(row) || !this.#hasChildren.has(row)) return;
    if (close) folded.add(row);
    else folded.delete(row);
    keep(folded);
  }

  foldAll(close: boolean): void {
    keep(new Set(close ? this.#names.map((_, row) => row).filter((row) => this.#hasChildren.has(row)) : []));
  }

  // Returns the first cell: an arrow that folds, and the name, indented by its depth.
  cell(row: number): HTMLElement {
    const name = this.#names[row];
    const label = el("span", { class: "clip wide", title: name.slice(0, 2000), text: name === "" ? "(root)" : name });
    const depth = Math.min(this.depth(row), DEPTHS);
    if (!this.#hasChildren.has(row)) return el("span", { class: "node", "data-depth": depth }, el("span", { class: "twist" }), label);
    const open = !foldedRows().has(row);
    const toggle = el("button", {
      type: "button",
      class: "twist",
      "aria-expanded": String(open),
      "aria-label": `${open ? "Fold" : "Unfold"} ${name || "(root)"}`,
      "data-focus": `fold-${row}`,
      onclick: () => this.fold(row, open),
      onkeydown: (event: KeyboardEvent) => this.#key(event, row),
    });
    return el("span", { class: "node", "data-depth": depth }, toggle, label);
  }

  #key(event: KeyboardEvent, row: number): void {
    const actions: Record<string, () => void> = { ArrowRight: () => this.fold(row, false), ArrowLeft: () => this.fold(row, true), ArrowDown: () => step(event.target as HTMLElement, 1), ArrowUp: () => step(event.target as HTMLElement, -1) };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }
}

function step(toggle: HTMLElement, by: number): void {
  const all = [...toggle.closest("table")!.querySelectorAll<HTMLElement>("button.twist")];
  all[all.indexOf(toggle) + by]?.focus();
}

export const foldedRows = (): Set<number> => new Set(state.get().fold.split("_").filter(Boolean).map(Number));
const keep = (folded: Set<number>) => state.set({ fold: [...folded].sort((a, b) => a - b).join("_") });
