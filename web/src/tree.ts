// Groups live storages into the tree that the icicle draws. Modules are nested as in the program.
import type { Colouring } from "./colouring.ts";
import { blankOf } from "./dimensions.ts";
import type { Frame } from "./frame.ts";
import { around } from "./pick.ts";

type Lineage = (module: string) => string[];

export const MIXED = -1;

export interface Cell {
  name: string;
  level: string;
  key: string;
  value: number;
  count: number;
  tint: number; // the group of the colouring that has more than half of its bytes; MIXED without one
  children: Cell[];
}

interface Node {
  name: string;
  level: string;
  key: string;
  value: number;
  count: number;
  byKey: Map<string, Node>;
  bytesOf: Map<number, number>;
}

const node = (level: string, name: string, key: string): Node => ({ name, level, key, value: 0, count: 0, byKey: new Map(), bytesOf: new Map() });

function child(of: Node, level: string, name: string, key: string): Node {
  let found = of.byKey.get(key);
  if (!found) of.byKey.set(key, (found = node(level, name, key)));
  return found;
}

// Shows `blocks.0` rather than a bare `0`, and `model.0` for a child of a model.
function shortModule(name: string, above: string | undefined): string {
  const local = above !== undefined && name.startsWith(`${above}.`) ? name.slice(above.length + 1) : name;
  if (!/^\d+$/.test(local)) return local;
  return name.includes(".") ? name.split(".").slice(-2).join(".") : above ? `${above}.${name}` : name;
}

// Returns the nodes below another that a storage passes through at one level.
function steps(level: string, text: string, lineage: Lineage): { name: string; key: string }[] {
  if (level !== "module" || text === "") return [{ name: text || blankOf(level), key: `${level}=${text}` }];
  const path = around(text, lineage);
  return path.map((name, index) => ({ name: shortModule(name, path[index - 1]), key: `module<${name}` }));
}

function add(to: Node, tint: number, nbytes: number): void {
  to.value += nbytes;
  to.count += 1;
  to.bytesOf.set(tint, (to.bytesOf.get(tint) ?? 0) + nbytes);
}

// Sorts by size; but categories have one order everywhere: in the bar of the peak, the curve, its legend and here.
function order(colouring: Colouring): (a: Cell, b: Cell) => number {
  const place = ({ level, name }: Cell) => (level === "category" && colouring.isCategory ? colouring.groups.indexOf(name) : 0);
  return (a, b) => place(a) - place(b) || b.value - a.value || (a.key < b.key ? -1 : 1);
}

function finish(of: Node, inOrder: (a: Cell, b: Cell) => number): Cell {
  const children = [...of.byKey.values()].map((each) => finish(each, inOrder));
  children.sort(inOrder);
  // a module whose only content is another module shares its cell: `encoder.layers`
  if (of.level === "module" && children.length === 1 && children[0].level === "module" && of.key.startsWith("module<")) {
    const only = children[0];
    return { ...only, name: only.name.startsWith(`${of.name}.`) ? only.name : `${of.name}.${only.name}` };
  }
  // six blocks with equal shares have no colour in common: that of the first would stand for all of them
  const tint = [...of.bytesOf].find(([, nbytes]) => 2 * nbytes > of.value)?.[0] ?? MIXED;
  return { name: of.name, level: of.level, key: of.key, value: of.value, count: of.count, tint, children };
}

export function buildTree(frame: Frame, levels: string[], name: string, lineage: Lineage, colouring: Colouring): Cell {
  const root = node("root", name, "root");
  const there = levels.filter((level) => frame.has(level));
  const known = new Map<string, { name: string; key: string }[]>();
  for (let row = 0; row < frame.rows; row++) {
    const tint = colouring.of(frame, row);
    const nbytes = frame.number("nbytes", row);
    let at = root;
    add(at, tint, nbytes);
    for (const level of there) {
      const text = frame.text(level, row);
      const path = known.get(`${level}=${text}`) ?? known.set(`${level}=${text}`, steps(level, text, lineage)).get(`${level}=${text}`)!;
      for (const step of path) {
        at = child(at, level, step.name, step.key);
        add(at, tint, nbytes);
      }
    }
  }
  return finish(root, order(colouring));
}

// Returns the conditions that the rows of a cell fulfil: its own key and those of the cells above it.
export function matches(frame: Frame, keys: string[], lineage: Lineage): (row: number) => boolean {
  const tests = keys.filter((key) => key !== "root").map((key): [string, (text: string) => boolean] => {
    const [, level, sign, wanted] = /^(\w+)([=<])([^]*)$/.exec(key)!;
    const below = (text: string) => text !== "" && around(text, lineage).includes(wanted);
    return [level, sign === "=" ? (text) => text === wanted : below];
  });
  return (row) => tests.every(([level, test]) => test(frame.text(level, row)));
}
