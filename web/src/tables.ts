// The tabs with the tables. The state says which is shown, how it is sorted and what is searched.
import { $, el } from "./dom.ts";
import type { Frame } from "./frame.ts";
import { label, picked } from "./pick.ts";
import { Query } from "./query.ts";
import { state } from "./state.ts";
import { type Order, Table, type TableColumn, sortRows } from "./table.ts";

export interface View {
  label: string;
  key: string; // the column by which its rows are known
  sort: string;
  frame: () => Frame;
  columns: (frame: Frame) => TableColumn[];
  summary: (frame: Frame, rows: number[]) => (Node | string)[];
  chosen?: (frame: Frame) => (row: number) => boolean; // the rows of the zoomed cell
  cell?: () => string; // the name of that cell; only a table of storages has it
  arrange?: (rows: number[], filtered: boolean) => number[];
}

export class Tables {
  readonly #views: Record<string, View>;
  readonly #panel = $("panel");
  readonly #count = el("span", { class: "muted", id: "row-count", role: "status" });
  readonly #summary = el("p", { class: "summary", id: "table-summary" });
  readonly #holder = el("div");
  readonly #clearCell = el("button", { type: "button", id: "clear-cell", onclick: () => state.set({ cell: "" }) });
  readonly #clearPick = el("button", { type: "button", id: "clear-pick", onclick: () => state.set({ pick: "", cell: "" }) });
  readonly #wrap = el("input", { type: "checkbox", id: "wrap", onchange: () => state.set({ wrap: this.#wrap.checked ? "yes" : "" }, { push: false }) });
  readonly #tools = el("div", { class: "tools" }, this.#clearPick, this.#clearCell, el("label", {}, this.#wrap, " Show long texts in full"), this.#count);
  #table: Table | undefined;

  constructor(views: Record<string, View>) {
    this.#views = views;
    this.#panel.append(this.#summary, this.#tools, this.#holder);
    $("tabs").append(...Object.entries(views).map(([name, view]) => this.#tab(name, view)));
  }

  #tab(name: string, view: View): HTMLElement {
    const open = (other: string) => state.set({ tab: other, sort: "" });
    const tab = el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", onclick: () => open(name), text: view.label });
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const names = Object.keys(this.#views);
      const next = names[(names.indexOf(name) + by + names.length) % names.length];
      open(next);
      $(`tab-${next}`).focus();
    });
    return tab;
  }

  // Draws the chosen table; returns how many of its rows hold what is searched.
  show(): number {
    const { tab, sort, q, wrap } = state.get();
    const name = Object.hasOwn(this.#views, tab) ? tab : "live";
    const view = this.#views[name];
    const focused = this.#panel.contains(document.activeElement) ? (document.activeElement as HTMLElement).dataset.focus : null; // drawing replaces the button that has the focus
    this.#showTabs(name);
    const frame = view.frame();
    const order = this.#order(frame, sort || view.sort, view.sort);
    const inside = Array.from({ length: frame.rows }, (_, row) => row).filter(view.chosen?.(frame) ?? (() => true));
    const matched = new Query(q).rows(frame, inside);
    const rows = sortRows(frame, matched, order);
    const table = new Table(view.columns(frame), {
      caption: view.label,
      keyOf: (row) => (frame.isText(view.key) ? frame.text(view.key, row) : frame.number(view.key, row)),
      onSort: (key, isNumber) => this.#sort(key, isNumber, order),
    });
    this.#showChoices(view);
    this.#wrap.checked = wrap !== "";
    this.#panel.classList.toggle("wrapped", wrap !== "");
    this.#summary.replaceChildren(...view.summary(frame, matched));
    this.#count.textContent = Table.count(rows.length, frame.rows);
    this.#table?.close();
    this.#table = table;
    this.#holder.replaceChildren(table.node);
    this.#holder.hidden = this.#tools.hidden = frame.rows === 0; // the summary says why the table is empty
    table.show(view.arrange ? view.arrange(rows, q !== "") : rows, order, { atOnce: q !== "" || Boolean(focused?.startsWith("fold-")) }); // a search and the focus may be in any row
    if (focused) this.#panel.querySelector<HTMLElement>(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
    return matched.length;
  }

  #order(frame: Frame, sort: string, otherwise: string): Order {
    const [column, direction] = sort.split(":");
    return { name: frame.has(column) ? column : otherwise.split(":")[0], descending: direction === "desc" };
  }

  #showTabs(name: string): void {
    for (const other of Object.keys(this.#views)) {
      $(`tab-${other}`).setAttribute("aria-selected", String(other === name));
      $(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    }
    this.#panel.setAttribute("aria-labelledby", `tab-${name}`);
  }

  #showChoices(view: View): void {
    const cell = view.cell?.() ?? "";
    this.#clearCell.hidden = cell === "";
    this.#clearCell.textContent = `× ${cell}`;
    const chosen = view.cell ? picked() : null;
    this.#clearPick.hidden = chosen === null;
    this.#clearPick.textContent = chosen ? `× ${label(chosen)}` : "";
  }

  // Returns the rows in the document that hold what is searched, for stepping through them.
  hits(): Element[] {
    return state.get().q ? [...this.#holder.querySelectorAll("tbody tr[data-key]")] : [];
  }

  #sort(key: string, isNumber: boolean, order: Order): void {
    const descending = key === order.name ? !order.descending : isNumber;
    state.set({ sort: `${key}:${descending ? "desc" : "asc"}` });
  }
}
