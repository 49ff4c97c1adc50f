// The icicle (upside-down flame graph) of the live set. d3-flame-graph draws it; the state says which cell is zoomed.
import flamegraph from "d3-flame-graph/src/flamegraph.js";
import { select } from "d3-selection";
import type { Colouring } from "./colouring.ts";
import { $, colorOf, fromEnd, named } from "./dom.ts";
import { bytes, counted, fileLine, percent, shortOp } from "./format.ts";
import type { Query } from "./query.ts";
import { type Cell, MIXED } from "./tree.ts";

const CELL_PX = 22;
const THINNEST_PX = 2; // of a thinner cell only its border could be seen
const LABELLED_PX = 35; // d3-flame-graph hides the labels of narrower cells
const LINE_CHAR_PX = 6.5; // of the font of these labels
const LABEL_CHARS = 160;
const SAID: Record<string, string> = { root: "", op_name: "op ", line: "", own_line: "", holder: "held by ", holder_kind: "held by ", made_phase: "made in ", change: "" };

// d3-flame-graph's own fields of a cell that it has drawn.
interface Drawn {
  data: Cell;
  x0: number; // shares of the cell that is zoomed into
  x1: number;
  highlight?: boolean;
  depth: number;
  parent: Drawn | null;
  children?: Drawn[];
}

const depth = (cell: Cell): number => 1 + Math.max(0, ...cell.children.map(depth));
const isLine = ({ level }: Cell): boolean => level === "line" || level === "own_line";
// As a call: the op `empty` alone would read as if nothing were there. Texts in parentheses stand for no op.
const callOf = (op: string) => (op.startsWith("(") ? op : `${shortOp(op)}()`);
const short = (text: string) => (text.length > LABEL_CHARS ? `${text.slice(0, LABEL_CHARS)}…` : text);

export class Flame {
  readonly #box = $("flame");
  readonly #onCell: (path: string) => void;
  #tree: Cell | undefined;
  #chart: any;
  #isMarked = false; // whether a search may have left its colour
  #width = 0;

  constructor(onCell: (path: string) => void) {
    this.#onCell = onCell;
    new ResizeObserver(() => this.#resize()).observe(this.#box);
  }

  // Draws a tree, zoomed to the cell at a path.
  show(tree: Cell, colouring: Colouring, path: string): void {
    this.#tree = tree;
    this.#isMarked = false;
    this.#box.replaceChildren();
    if (!tree.value) return;
    if (document.documentElement.dataset.paper) this.#width = 0; // no resize is reported before the page is printed
    this.#width ||= this.#box.clientWidth; // to ask makes the browser lay out the page; later it is told of each change
    const found = named("found");
    const [root, mixed] = [named("root"), named("small")];
    const colors = colouring.groups.map((_, group) => colorOf(colouring.paint(group)));
    this.#chart = flamegraph()
      .width(this.#width)
      .height(depth(tree) * CELL_PX)
      .cellHeight(CELL_PX)
      .inverted(true)
      .minFrameSize(THINNEST_PX)
      .setColorMapper((d: Drawn) => (d.highlight ? found : d.data.level === "root" ? root : d.data.tint === MIXED ? mixed : colors[d.data.tint]))
      .setLabelHandler((d: Drawn) => this.describe(d.data))
      .setSearchMatch((d: Drawn, query: Query) => d.data.level !== "root" && query.matches(d.data.name))
      .onClick((d: Drawn) => this.#onCell(this.pathOf(d)))
      .onHover((d: Drawn) => this.#say(d.data));
    select(this.#box).datum(this.#copy(tree)).call(this.#chart);
    if (path) this.zoom(path); // each drawing of all cells costs: one is enough
    else this.#makeReachable();
  }

  // d3-flame-graph adds fields to the data it draws, so it gets a copy.
  #copy(cell: Cell): Cell {
    const name = isLine(cell) ? fileLine(cell.name) : cell.level === "op_name" ? callOf(cell.name) : short(cell.name).replaceAll("`", ""); // no code in these labels
    return { ...cell, name, children: cell.children.map((each) => this.#copy(each)) };
  }

  #say(cell: Cell): void {
    $("flame-status").textContent = this.describe(cell);
  }

  describe({ name, level, value, count }: Cell): string {
    return `${SAID[level] ?? `${level} `}${short(name)}: ${bytes(value)}, ${percent(value, this.#tree!.value)}, ${counted(count, "storage")}`;
  }

  pathOf(d: Drawn): string {
    const path: number[] = [];
    for (let at = d; at.parent; at = at.parent) path.unshift(at.parent.children!.indexOf(at));
    return path.join(".");
  }

  // Returns the cells from the root down to a path such as `0.2.1`.
  cellsAt(path: string): Cell[] {
    if (!this.#tree) return [];
    const cells = [this.#tree];
    for (const index of path ? path.split(".").map(Number) : []) {
      const next = cells.at(-1)!.children[index];
      if (!next) break;
      cells.push(next);
    }
    return cells;
  }

  zoom(path: string): void {
    if (!this.#tree?.value) return;
    let at: any = select(this.#box).datum();
    at.each((each: any) => Object.assign(each.data, { hide: false, fade: false })); // without this, a jump to another branch keeps marks of the last one
    for (const index of path ? path.split(".").map(Number) : []) at = at.children?.[index] ?? at;
    const onClick = this.#chart.onClick();
    this.#chart.onClick(null); // the zoom comes from the state: it must not set it again
    this.#chart.zoomTo(at);
    this.#chart.onClick(onClick);
    this.#makeReachable();
  }

  // Highlights what is searched, and returns the cells that are wide enough to be seen.
  find(query: Query): Element[] {
    if (!this.#tree?.value || (query.isEmpty && !this.#isMarked)) return [];
    this.#isMarked = !query.isEmpty;
    this.#chart.search(query);
    this.#makeReachable();
    return select(this.#box).selectAll<SVGGElement, Drawn>("g.frame").filter((d) => Boolean(d.highlight)).nodes();
  }

  #makeReachable(): void {
    const cells = select(this.#box).selectAll<SVGGElement, Drawn>("g.frame");
    // the box of a hidden label would still be laid out and painted: there are hundreds
    cells.select("foreignObject").attr("display", (d) => ((d.x1 - d.x0) * this.#width < LABELLED_PX ? "none" : null));
    const width = this.#width;
    cells.filter((d) => isLine(d.data)).select<HTMLElement>(".d3-flame-graph-label").each(function (d) {
      const fits = (d.x1 - d.x0) * width > d.data.name.length * LINE_CHAR_PX;
      this.textContent = fits ? d.data.name : d.data.name.replace(/^.*(?=:\d+$)/, ""); // `:45` says more than `…y:45`
      fromEnd(this);
    });
    // one stop of Tab: a picture of hundreds of cells would have hundreds; arrow keys move inside it
    cells
      .attr("tabindex", (d) => (d.parent ? -1 : 0))
      .attr("role", "button")
      .attr("data-level", (d) => d.data.level)
      .attr("aria-label", (d) => this.describe(d.data))
      .on("focus", (_, d) => this.#say(d.data))
      .on("keydown", (event: KeyboardEvent, d) => {
        const isChoice = event.key === "Enter" || event.key === " ";
        if (!isChoice && !event.key.startsWith("Arrow")) return;
        event.preventDefault();
        if (isChoice) this.#onCell(this.pathOf(d));
        else this.#move(d, event.key);
      });
  }

  // Moves the focus to the cell above, to the first below, or to the next one of the same row.
  #move(from: Drawn, key: string): void {
    const cells = select(this.#box).selectAll<SVGGElement, Drawn>("g.frame");
    const drawn = cells.data(); // without those that are too thin, or outside the cell that is zoomed into
    const row = drawn.filter(({ depth }) => depth === from.depth).sort((a, b) => a.x0 - b.x0);
    const targets: Record<string, Drawn | null | undefined> = {
      ArrowUp: from.parent,
      ArrowDown: from.children?.find((child) => drawn.includes(child)),
      ArrowLeft: row[row.indexOf(from) - 1],
      ArrowRight: row[row.indexOf(from) + 1],
    };
    const to = targets[key];
    if (!to) return;
    cells.attr("tabindex", (d) => (d === to ? 0 : -1));
    cells.filter((d) => d === to).node()?.focus();
  }

  #resize(): void {
    if (!this.#tree?.value || this.#box.clientWidth === this.#width) return;
    this.#width = this.#box.clientWidth;
    this.#chart.width(this.#width).update();
    this.#makeReachable();
  }
}
