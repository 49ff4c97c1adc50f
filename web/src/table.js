// One table, sorted and filtered. Its rows are in the DOM; of a long table only those in view.
import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "@tanstack/virtual-core";
import { el } from "./dom.js";
import { whole } from "./format.js";

const WINDOWED_FROM = 500;
const ROW_PX = 29;

// Returns the rows whose text columns hold every word; `module:x` searches in one column.
export function filterRows(frame, rows, query) {
  const terms = query.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = Object.keys(frame.columns).filter((name) => frame.isText(name));
  const tests = terms.map((term) => {
    const [, column, rest] = /^([a-z_]+):(.+)$/.exec(term) ?? [];
    const columns = texts.includes(column) ? [column] : texts;
    const wanted = texts.includes(column) ? rest : term;
    const known = new Map();
    const has = (code) => known.get(code) ?? known.set(code, frame.words[code].toLowerCase().includes(wanted)).get(code);
    return (row) => columns.some((name) => has(frame.columns[name].values[row]));
  });
  return tests.length ? rows.filter((row) => tests.every((test) => test(row))) : rows;
}

export function sortRows(frame, rows, name, descending) {
  const { text, values } = frame.columns[name];
  const sign = descending ? -1 : 1;
  if (!text) return [...rows].sort((a, b) => sign * (values[a] - values[b]) || a - b);
  const order = new Intl.Collator("en", { numeric: true });
  const codes = [...new Set(rows.map((row) => values[row]))].sort((a, b) => order.compare(frame.words[a], frame.words[b]));
  const rank = new Map(codes.map((code, index) => [code, index]));
  return [...rows].sort((a, b) => sign * (rank.get(values[a]) - rank.get(values[b])) || a - b);
}

export class Table {
  // columns: {name, label, number, cell(row) -> Node or text, sort (a column's name; false for none)}
  constructor(columns, { caption, onSort, keyOf }) {
    this.columns = columns;
    this.onSort = onSort;
    this.keyOf = keyOf;
    this.head = el("tr");
    this.body = el("tbody");
    this.table = el("table", { "aria-label": caption }, el("thead", {}, this.head), this.body);
    this.node = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, this.table);
  }

  show(rows, sort) {
    this.rows = rows;
    this.#showHead(sort);
    this.cleanup?.();
    this.cleanup = null;
    this.node.classList.toggle("windowed", rows.length > WINDOWED_FROM);
    this.table.setAttribute("aria-rowcount", rows.length);
    if (rows.length > WINDOWED_FROM) this.#showWindow();
    else this.body.replaceChildren(...rows.map((row) => this.#row(row)));
  }

  #showHead({ name, descending }) {
    const cells = this.columns.map((column) => {
      const key = column.sort ?? column.name;
      const sorted = key === name ? (descending ? "descending" : "ascending") : "none";
      const label = key
        ? el("button", { type: "button", text: column.label, "data-focus": `sort-${key}`, onclick: () => this.onSort(key, Boolean(column.number)) })
        : el("span", { text: column.label });
      return el("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": key ? sorted : null, "data-column": column.name }, label);
    });
    this.head.replaceChildren(...cells);
  }

  #row(row) {
    const cells = this.columns.map((column) => {
      const content = column.cell(row);
      const cell = el("td", { class: column.number ? "number" : "" });
      cell.append(content);
      if (typeof content === "string" && !column.number) cell.title = content.slice(0, 2000);
      return cell;
    });
    return el("tr", { "data-row": row, "data-key": this.keyOf(row) }, ...cells);
  }

  #showWindow() {
    const above = el("tr", { "aria-hidden": "true" }, el("td", { colspan: this.columns.length }));
    const below = el("tr", { "aria-hidden": "true" }, el("td", { colspan: this.columns.length }));
    const draw = (virtual) => {
      const items = virtual.getVirtualItems();
      above.firstChild.style.height = `${items.length ? items[0].start : 0}px`;
      below.firstChild.style.height = `${items.length ? virtual.getTotalSize() - items.at(-1).end : 0}px`;
      const rows = items.map((item) => this.#row(this.rows[item.index]));
      this.body.replaceChildren(above, ...rows, below);
    };
    const virtual = new Virtualizer({
      count: this.rows.length,
      getScrollElement: () => this.node,
      estimateSize: () => ROW_PX,
      overscan: 20,
      initialRect: { width: 1000, height: 600 },
      scrollToFn: elementScroll,
      observeElementRect,
      observeElementOffset,
      onChange: draw,
    });
    this.cleanup = virtual._didMount();
    virtual._willUpdate();
    draw(virtual);
  }

  static count(shown, all) {
    return shown === all ? `${whole(all)} rows` : `${whole(shown)} of ${whole(all)} rows`;
  }
}
