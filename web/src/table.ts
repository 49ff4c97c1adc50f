// One table, sorted. Its rows are in the DOM, the first at once; of a long table only those in view.
import { Virtualizer, elementScroll, measureElement, observeElementOffset } from "@tanstack/virtual-core";
import { el } from "./dom.ts";
import { whole } from "./format.ts";
import type { Frame } from "./frame.ts";

const WINDOWED_FROM = 200;
const FIRST = 24; // rows: as many as are in view
const ROW_PX = 29;
const HEIGHT_PX = 640; // as in the stylesheet

export interface TableColumn {
  name: string;
  label: string;
  title?: string; // what the heading says when one points at it
  number?: boolean;
  sort?: string | false; // the column that a click on the heading sorts by; its own by default, false for none
  cell: (row: number) => Node | string;
}

export interface Order {
  name: string;
  descending: boolean;
}

interface Wishes {
  caption: string;
  keyOf: (row: number) => string | number;
  onSort: (key: string, isNumber: boolean) => void;
}

export function sortRows(frame: Frame, rows: number[], { name, descending }: Order): number[] {
  const { text, values } = frame.columns[name];
  const sign = descending ? -1 : 1;
  if (!text) return [...rows].sort((a, b) => sign * (values[a] - values[b]) || a - b);
  const order = new Intl.Collator("en", { numeric: true });
  const { texts } = frame.words;
  const codes = [...new Set(rows.map((row) => values[row]))].sort((a, b) => order.compare(texts[a], texts[b]));
  const rank = new Map(codes.map((code, index) => [code, index]));
  return [...rows].sort((a, b) => sign * (rank.get(values[a])! - rank.get(values[b])!) || a - b);
}

export class Table {
  readonly node: HTMLElement;
  readonly #columns: TableColumn[];
  readonly #wishes: Wishes;
  readonly #head = el("tr");
  readonly #body = el("tbody");
  readonly #table: HTMLTableElement;
  #rows: number[] = [];
  #cleanup: (() => void) | null = null;

  constructor(columns: TableColumn[], wishes: Wishes) {
    this.#columns = columns;
    this.#wishes = wishes;
    this.#table = el("table", { "aria-label": wishes.caption }, el("thead", {}, this.#head), this.#body);
    this.node = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": wishes.caption }, this.#table);
  }

  // Shows some rows; with `atOnce` all of a short table, not only the first, are there when this returns.
  show(rows: number[], sort: Order, { atOnce = false } = {}): void {
    this.#rows = rows;
    this.#showHead(sort);
    this.close();
    this.#body.replaceChildren();
    this.node.classList.toggle("windowed", rows.length > WINDOWED_FROM);
    this.#table.setAttribute("aria-rowcount", String(rows.length));
    if (rows.length > WINDOWED_FROM) this.#showWindow();
    else this.#showRest(0, atOnce ? rows.length : FIRST);
  }

  // Draws so many rows, and as many again whenever the browser has nothing else to do.
  #showRest(from: number, many: number): void {
    this.#body.append(...this.#rows.slice(from, from + many).map((row) => this.#row(row)));
    const isWhole = from + many >= this.#rows.length;
    this.#table.setAttribute("aria-busy", String(!isWhole));
    if (isWhole) return;
    const next = requestIdleCallback(() => this.#showRest(from + many, many), { timeout: 500 });
    this.#cleanup = () => cancelIdleCallback(next);
  }

  close(): void {
    this.#cleanup?.();
    this.#cleanup = null;
  }

  #showHead({ name, descending }: Order): void {
    const cells = this.#columns.map((column) => {
      const key = column.sort ?? column.name;
      const sorted = key === name ? (descending ? "descending" : "ascending") : "none";
      const head = key
        ? el("button", { type: "button", text: column.label, title: column.title, "data-focus": `sort-${key}`, onclick: () => this.#wishes.onSort(key, Boolean(column.number)) })
        : el("span", { title: column.title, class: column.label ? "" : "visually-hidden", text: column.label || column.name });
      return el("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": key ? sorted : null, "data-column": column.name }, head);
    });
    this.#head.replaceChildren(...cells);
  }

  #row(row: number, index?: number): HTMLElement {
    const cells = this.#columns.map((column) => el("td", { class: column.number ? "number" : "" }, column.cell(row)));
    return el("tr", { "data-row": row, "data-index": index, "data-key": this.#wishes.keyOf(row) }, ...cells);
  }

  // Rows may be higher than others, where a long text was unfolded. The browser tells the sizes of what it has laid out:
  // nothing here asks for one, which would make it lay out the page at once.
  #showWindow(): void {
    const spacer = () => el("tr", { "aria-hidden": "true" }, el("td", { colspan: this.#columns.length }));
    const [above, below] = [spacer(), spacer()];
    const height = (row: HTMLElement, px: number) => ((row.firstChild as HTMLElement).style.height = `${px}px`);
    let drawn = "";
    const draw = (virtual: Virtualizer<HTMLElement, HTMLElement>) => {
      const items = virtual.getVirtualItems();
      height(above, items.length ? items[0].start : 0);
      height(below, items.length ? virtual.getTotalSize() - items.at(-1)!.end : 0);
      const now = `${items[0]?.index}-${items.at(-1)?.index}`;
      if (now === drawn) return; // a row has changed its height, and none has come or gone
      drawn = now;
      const rows = items.map((item) => this.#row(this.#rows[item.index], item.index));
      this.#body.replaceChildren(above, ...rows, below);
      rows.forEach((row) => virtual.measureElement(row));
    };
    const virtual = new Virtualizer<HTMLElement, HTMLElement>({
      count: this.#rows.length,
      getScrollElement: () => this.node,
      estimateSize: () => ROW_PX,
      overscan: 8,
      initialRect: { width: 1000, height: HEIGHT_PX },
      scrollToFn: (offset, more, all) => {
        if (more.adjustments || offset !== all.scrollOffset) elementScroll(offset, more, all);
      },
      measureElement: (row, entry, all) => (entry ? measureElement(row, entry, all) : (all.itemSizeCache.get(all.indexFromElement(row)) ?? ROW_PX)),
      observeElementRect: (all, tell) => {
        const observer = new ResizeObserver(([{ contentRect }]) => tell(contentRect));
        observer.observe(all.scrollElement!);
        return () => observer.disconnect();
      },
      observeElementOffset,
      onChange: draw,
    });
    this.#cleanup = virtual._didMount();
    virtual._willUpdate();
    draw(virtual);
  }

  static count(shown: number, all: number): string {
    const rows = `${whole(all)} ${all === 1 ? "row" : "rows"}`;
    return shown === all ? rows : `${whole(shown)} of ${rows}`;
  }
}
