// The four tables and their columns. The state says which is shown, and how it is sorted and filtered.
import { $, bar, el } from "./dom.js";
import { bytes, duration, orNone, percent, shortLine, whole } from "./format.js";
import { state } from "./state.js";
import { Table, filterRows, sortRows } from "./table.js";
import { matches } from "./tree.js";

const clip = (text, shown = text) => el("span", { class: "clip", title: text.slice(0, 2000), text: shown });
const range = (count) => Array.from({ length: count }, (_, index) => index);

export class Tables {
  // views: {live, saved, modules, steps}, each {label, key (its column), frame(), columns(frame), sort, keys(), summary(), arrange}
  constructor(views, lineage) {
    this.views = views;
    this.lineage = lineage;
    this.panel = $("panel");
    this.input = el("input", { type: "search", placeholder: "filter", "aria-label": "Filter the table", autocomplete: "off", spellcheck: "false", id: "filter" });
    this.input.addEventListener("input", () => state.set({ q: this.input.value }, { push: false }));
    this.count = el("span", { class: "muted", id: "row-count", role: "status" });
    this.summary = el("p", { class: "summary", id: "table-summary" });
    this.holder = el("div");
    this.clear = el("button", { type: "button", id: "clear-cell", onclick: () => state.set({ cell: "" }) });
    this.panel.append(this.summary, el("div", { class: "tools" }, this.input, this.clear, this.count), this.holder);
    $("tabs").append(...Object.entries(views).map(([name, view]) => this.#tab(name, view)));
  }

  #tab(name, view) {
    const open = () => state.set({ tab: name, sort: "", q: "" });
    const tab = el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", onclick: open, text: view.label });
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const names = Object.keys(this.views);
      const next = names[(names.indexOf(name) + by + names.length) % names.length];
      state.set({ tab: next, sort: "", q: "" });
      $(`tab-${next}`).focus();
    });
    return tab;
  }

  show() {
    const { tab, sort, q } = state.get();
    const name = Object.hasOwn(this.views, tab) ? tab : "live";
    const view = this.views[name];
    const focused = this.panel.contains(document.activeElement) ? document.activeElement.dataset.focus : null; // drawing replaces the button that has the focus
    for (const other of Object.keys(this.views)) {
      $(`tab-${other}`).setAttribute("aria-selected", String(other === name));
      $(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `tab-${name}`);
    const frame = view.frame();
    const [column, direction] = (sort || view.sort).split(":");
    const order = { name: frame.has(column) ? column : view.sort.split(":")[0], descending: direction === "desc" };
    const keys = view.keys?.() ?? [];
    const matched = filterRows(frame, range(frame.rows).filter(matches(frame, keys, this.lineage)), q);
    const rows = sortRows(frame, matched, order.name, order.descending);
    const table = new Table(view.columns(frame), { caption: view.label, keyOf: (row) => frame.get(view.key, row), onSort: (key, number) => this.#sort(key, number, order) });
    if (this.input.value !== q) this.input.value = q;
    this.clear.hidden = keys.length < 2;
    this.clear.textContent = `× ${view.cell?.() ?? ""}`;
    this.summary.replaceChildren(...view.summary(frame, matched));
    this.count.textContent = Table.count(rows.length, frame.rows);
    this.table?.cleanup?.();
    this.table = table;
    this.holder.replaceChildren(table.node);
    table.show(view.arrange ? view.arrange(rows, q !== "") : rows, order);
    if (focused) this.panel.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  #sort(key, number, order) {
    const descending = key === order.name ? !order.descending : number;
    state.set({ sort: `${key}:${descending ? "desc" : "asc"}` });
  }
}

const text = (frame, name, label) => ({ name, label, cell: (row) => clip(frame.get(name, row)) });
const line = (frame) => ({ name: "line", label: "Line", cell: (row) => clip(frame.get("line", row), shortLine(frame.get("line", row))) });
const size = (frame, name, label) => ({ name, label, number: true, cell: (row) => bytes(frame.get(name, row)) });
const count = (frame, name, label) => ({ name, label, number: true, cell: (row) => orNone(frame.get(name, row)) });

const phaseCell = (phase) => (phase ? el("span", {}, el("i", { class: "swatch", "data-phase": phase }), phase) : "");
const holdersKnown = (frame) => frame.has("holder") && frame.columns.holder.values.some((code) => frame.words[code] !== "");

export const liveColumns = (frame, total, open) => [
  {
    name: "name",
    label: "Name",
    cell: (row) => el("button", { type: "button", class: "link clip wide", title: frame.get("name", row).slice(0, 2000), text: frame.get("name", row) || "(no name)", onclick: () => open(frame.get("id", row)) }),
  },
  size(frame, "nbytes", "Bytes"),
  { name: "share", sort: false, label: "Share", number: true, cell: (row) => el("span", { class: "share" }, bar(frame.get("nbytes", row) / (total() || 1), frame.get("category", row)), percent(frame.get("nbytes", row), total())) },
  { name: "category", label: "Category", cell: (row) => el("span", { title: frame.get("rule", row) }, el("i", { class: "swatch", "data-category": frame.get("category", row) }), frame.get("category", row)) },
  text(frame, "tensor", "Tensor"),
  text(frame, "module", "Module"),
  ...(frame.has("phase") ? [{ name: "phase", label: "Phase", cell: (row) => phaseCell(frame.get("phase", row)) }] : []),
  holdersKnown(frame) ? text(frame, "holder", "Holder") : text(frame, "op_name", "Op"),
  line(frame),
];

export const savedColumns = (frame, open) => [
  { name: "op_name", label: "For the backward of", cell: (row) => (frame.get("storage", row) < 0 ? clip(frame.get("op_name", row) || "(unknown)") : el("button", { type: "button", class: "link clip", text: frame.get("op_name", row) || "(unknown)", onclick: () => open(frame.get("storage", row)) })) },
  size(frame, "nbytes", "Bytes"),
  text(frame, "tensor", "Tensor"),
  text(frame, "module", "Module"),
  line(frame),
  { name: "at_peak", label: "At the peak", cell: (row) => (frame.get("at_peak", row) ? "yes" : "no") },
  count(frame, "saved_op", "Saved at op"),
  count(frame, "used_op", "Read at op"),
  count(frame, "released_op", "Released at op"),
];

export const moduleColumns = (tree, frame = tree.frame) => [
  { name: "module", label: "Module", cell: (row) => tree.cell(row) },
  text(frame, "class_name", "Class"),
  count(frame, "calls", "Calls"),
  size(frame, "inclusive_bytes", "At the peak"),
  size(frame, "own_bytes", "Own at the peak"),
  size(frame, "saved_bytes", "Saved for backward"),
  size(frame, "parameter_bytes", "Parameters"),
  size(frame, "born_bytes", "Ever allocated"),
];

export const stepColumns = (frame, showOp) => [
  { name: "step", label: "Step", number: true, cell: (row) => whole(frame.get("step", row)) },
  size(frame, "peak_bytes", "Peak"),
  count(frame, "peak_op", "Peak at op"),
  size(frame, "end_live_bytes", "Live at its end"),
  { name: "duration_ns", label: "Duration", number: true, cell: (row) => duration(frame.get("duration_ns", row)) },
  count(frame, "start_op", "First op"),
  count(frame, "end_op", "Op after the last"),
  { name: "show", sort: false, label: "", cell: (row) => el("button", { type: "button", class: "link", text: "show its peak", onclick: () => showOp(frame.get("peak_op", row)) }) },
];
