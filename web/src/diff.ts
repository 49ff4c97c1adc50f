// The page of two captures: both peaks by category, to one scale, and the sites of which they differ.
import { unpackTexts } from "./codec.ts";
import { $, el, partsBar, swatch } from "./dom.ts";
import { bytes, shortOp, signedBytes, whole } from "./format.ts";
import { type Block, Frame, Words } from "./frame.ts";
import { Query } from "./query.ts";
import { state } from "./state.ts";
import { Table, type TableColumn, sortRows } from "./table.ts";
import { listenToTheme } from "./theme.ts";

interface DiffModel {
  totals: { old_bytes: number; new_bytes: number };
  categories: { name: string; old_bytes: number; new_bytes: number }[];
  blocks: { sites: Block; words: string };
}

const LARGEST_FIRST = { name: "delta_bytes", descending: true };

function drawPeak(id: string, model: DiffModel, which: "old_bytes" | "new_bytes"): void {
  const scale = Math.max(model.totals.old_bytes, model.totals.new_bytes, 1);
  let from = 0;
  const parts = model.categories.map((category) => {
    const part = { from, to: from + category[which] / scale, paint: { "data-category": category.name } };
    from = part.to;
    return part;
  });
  $(id).append(partsBar(parts));
}

// Returns `addmm in GPT.forward` for an op and the function that called it; other names stay as they are.
function shortSite(site: string): string {
  const [op, ...rest] = site.split(" in ");
  return rest.length ? [shortOp(op), ...rest].join(" in ") : site;
}

function columnsOf(frame: Frame): TableColumn[] {
  const text = (name: string, label: string): TableColumn => ({ name, label, cell: (row) => el("span", { class: "clip wide", title: frame.text(name, row), text: frame.text(name, row) }) });
  const size = (name: string, label: string): TableColumn => ({ name, label, number: true, cell: (row) => bytes(frame.number(name, row)) });
  const count = (name: string, label: string): TableColumn => ({ name, label, number: true, cell: (row) => whole(frame.number(name, row)) });
  return [
    { name: "delta_bytes", label: "Change", number: true, cell: (row) => el("b", { "data-bytes": frame.number("delta_bytes", row), text: signedBytes(frame.number("delta_bytes", row)) }) },
    size("old_bytes", "Old"),
    size("new_bytes", "New"),
    count("old_count", "Storages old"),
    count("new_count", "Storages new"),
    { name: "category", label: "Category", cell: (row) => el("span", {}, swatch({ "data-category": frame.text("category", row) }), frame.text("category", row)) },
    text("module", "Module"),
    { name: "site", label: "Site", cell: (row) => el("span", { class: "clip wide", title: frame.text("site", row), text: shortSite(frame.text("site", row)) }) },
  ];
}

let table: Table | undefined;

function show(frame: Frame): void {
  const { q, sort } = state.get();
  const [name, direction] = sort.split(":");
  const order = frame.has(name) ? { name, descending: direction === "desc" } : LARGEST_FIRST;
  const every = Array.from({ length: frame.rows }, (_, row) => row);
  const rows = new Query(q).rows(frame, every);
  const byChange = [...rows].sort((a, b) => Math.abs(frame.number("delta_bytes", b)) - Math.abs(frame.number("delta_bytes", a)) || a - b);
  table?.close();
  table = new Table(columnsOf(frame), {
    caption: "Sites",
    keyOf: (row) => row,
    onSort: (key, isNumber) => state.set({ sort: `${key}:${(key === order.name ? !order.descending : isNumber) ? "desc" : "asc"}` }),
  });
  $("panel").replaceChildren(table.node);
  table.show(sort ? sortRows(frame, rows, order) : byChange, order);
  $("row-count").textContent = Table.count(rows.length, frame.rows);
  if ($<HTMLInputElement>("find").value !== q) $<HTMLInputElement>("find").value = q;
  document.documentElement.dataset.shown = String(Number(document.documentElement.dataset.shown ?? 0) + 1);
}

const model: DiffModel = JSON.parse($("model").textContent!);
const frame = await Frame.unpack(model.blocks.sites, new Words(await unpackTexts(model.blocks.words)));
drawPeak("old-composition", model, "old_bytes");
drawPeak("new-composition", model, "new_bytes");
$("find").addEventListener("input", () => state.set({ q: $<HTMLInputElement>("find").value }, { push: false }));
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || (event.target as Element).closest("input")) return;
  event.preventDefault();
  $("find").focus();
});
listenToTheme(() => {});
state.listen(() => show(frame));
show(frame);
document.documentElement.dataset.ready = "yes";
