// The columns of the page's tables, and what a click in a cell leads to.
import { lifeOf, lifeParts, lifeWords, spanOf } from "./biography.ts";
import type { Colouring } from "./colouring.ts";
import { bar, el, fromEnd, fromMiddle, link, marked, partsBar, swatch } from "./dom.ts";
import type { Findings } from "./findings.ts";
import { bytes, duration, fileLine, orNone, percent, shortOp, whole } from "./format.ts";
import type { Frame } from "./frame.ts";
import type { ModuleTree } from "./modules.ts";
import { pick } from "./pick.ts";
import type { TableColumn } from "./table.ts";

const TITLE_CHARS = 2000;

export interface Links {
  openStorage: (id: number) => void;
  showOp: (op: number) => void; // what was live while an op ran
  revealLine: (line: string) => void;
}

const clip = (text: string, shown = text) => el("span", { class: "clip", title: text.slice(0, TITLE_CHARS), text: shown });

// The holder of a storage. A text that is too long for three lines unfolds in place; without a mouse, too.
function heldBy(text: string): Node | string {
  if (!text) return "";
  const toggle = (event: Event) => {
    const target = event.currentTarget as HTMLElement;
    target.setAttribute("aria-expanded", String(target.getAttribute("aria-expanded") !== "true"));
  };
  return el("button", { type: "button", class: "clip unfold", title: text.slice(0, TITLE_CHARS), "aria-expanded": "false", onclick: toggle }, ...marked(text));
}

const text = (frame: Frame, name: string, label: string): TableColumn => ({ name, label, cell: (row) => clip(frame.text(name, row)) });
const size = (frame: Frame, name: string, label: string): TableColumn => ({ name, label, number: true, cell: (row) => bytes(frame.number(name, row)) });
const count = (frame: Frame, name: string, label: string): TableColumn => ({ name, label, number: true, cell: (row) => orNone(frame.number(name, row)) });

// The number of an op, which leads to what was live while it ran.
const opNumber = (frame: Frame, name: string, label: string, { showOp }: Links): TableColumn => ({
  name,
  label,
  number: true,
  cell: (row) => (frame.number(name, row) < 0 ? "" : link(whole(frame.number(name, row)), () => showOp(frame.number(name, row)), { title: "show what was live then" })),
});

const module = (frame: Frame): TableColumn => ({
  name: "module",
  label: "Module",
  cell: (row) => {
    const name = frame.text("module", row);
    return name ? link(name, () => pick("module", name, { toggle: true }), { class: "link clip to-module", title: name.slice(0, TITLE_CHARS) }) : "";
  },
});

function line(frame: Frame, { revealLine }: Links): TableColumn {
  const cell = (row: number) => {
    const [line, own] = [frame.text("line", row), frame.has("own_line") ? frame.text("own_line", row) : ""];
    if (!own) return fromEnd(clip(line, fileLine(line)));
    const reveal = () => (pick("line", own), revealLine(own));
    return fromEnd(link(fileLine(own), reveal, { class: "link clip to-line", title: (own === line ? own : `${own}, in ${line}`).slice(0, TITLE_CHARS) }));
  };
  return { name: frame.has("own_line") ? "own_line" : "line", label: "Line", cell };
}

const holdersKnown = (frame: Frame) => frame.has("holder") && frame.columns.holder.values.some((code) => (frame.words.texts[code] ?? "") !== "");

function lifePhase(frame: Frame): TableColumn {
  const cell = (row: number) => (frame.text("phase", row) ? el("span", {}, swatch({ "data-phase": frame.text("phase", row) }), frame.text("phase", row)) : "");
  return { name: "phase", label: "At the peak", cell };
}

export function liveColumns(frame: Frame, total: number, ops: number, colouring: Colouring, links: Links): TableColumn[] {
  const paint = (row: number) => colouring.paint(colouring.of(frame, row));
  const largest = frame.columns.nbytes.values.reduce((most, nbytes) => Math.max(most, nbytes), 1);
  const span = spanOf(frame, ops);
  const life = (row: number) => {
    const words = lifeWords(lifeOf(frame, row, ops));
    return el("span", { class: "life", role: "img", "aria-label": words, title: words }, partsBar(lifeParts(lifeOf(frame, row, ops), span)));
  };
  const name = (row: number) => {
    const text = frame.text("name", row) || "(no name)";
    return fromMiddle(link("", () => links.openStorage(frame.number("id", row)), { class: "link clip wide", title: text.slice(0, TITLE_CHARS) }), text);
  };
  return [
    ...(frame.has("change") ? [{ name: "change", label: "Change", cell: (row: number) => el("span", { class: "change", "data-change": frame.text("change", row), text: frame.text("change", row) }) }] : []),
    { name: "name", label: "Name", cell: name },
    size(frame, "nbytes", "Bytes"),
    { name: "share", sort: false, label: "Share", title: "The bar compares the storage with the largest one", number: true, cell: (row) => el("span", { class: "share" }, bar(frame.number("nbytes", row) / largest, paint(row)), percent(frame.number("nbytes", row), total)) },
    { name: "category", label: "Category", cell: (row) => el("span", { title: frame.text("rule", row) }, swatch({ "data-category": frame.text("category", row) }), frame.text("category", row)) },
    { name: "op", label: "Life", title: `The bars cover the ops from ${whole(span[0])} to ${whole(span[1] - 1)}. Click a name to see the whole life.`, cell: life },
    ...(frame.has("phase") ? [lifePhase(frame)] : []), // beside the bars whose colours it names
    line(frame, links),
    ...(holdersKnown(frame) ? [{ name: "holder", label: "Kept alive at the peak by", cell: (row: number) => heldBy(frame.text("holder", row)) }] : []),
    module(frame),
    text(frame, "tensor", "Tensor"),
  ];
}

export function savedColumns(frame: Frame, links: Links, ofWholeRun: boolean): TableColumn[] {
  const name = (row: number) => shortOp(frame.text("op_name", row)) || "(unknown)";
  return [
    { name: "op_name", label: "For the backward of", cell: (row) => (frame.number("storage", row) < 0 ? clip(name(row)) : link(name(row), () => links.openStorage(frame.number("storage", row)), { class: "link clip wide", title: frame.text("op_name", row).slice(0, TITLE_CHARS) })) },
    size(frame, "nbytes", "Bytes"),
    line(frame, links),
    module(frame),
    text(frame, "tensor", "Tensor"),
    ...(ofWholeRun ? [{ name: "at_peak", label: "At the peak", cell: (row: number) => (frame.number("at_peak", row) ? "yes" : "no") }] : []),
    opNumber(frame, "saved_op", "Saved at op", links),
    opNumber(frame, "used_op", "Read at op", links),
    opNumber(frame, "released_op", "Released at op", links),
  ];
}

export function moduleColumns(tree: ModuleTree, findings: Findings): TableColumn[] {
  const { frame } = tree;
  const storages = (row: number) => {
    const name = frame.text("module", row);
    return name ? link(bytes(frame.number("inclusive_bytes", row)), () => pick("module", name), { class: "link to-storages", title: "show its storages" }) : bytes(frame.number("inclusive_bytes", row));
  };
  return [
    { name: "module", label: "Module", cell: (row) => tree.cell(row) },
    text(frame, "class_name", "Class"),
    count(frame, "calls", "Calls"),
    { name: "inclusive_bytes", label: "At the peak", number: true, cell: storages },
    size(frame, "own_bytes", "Own at the peak"),
    size(frame, "only_for_backward_bytes", "Only for backward"),
    size(frame, "parameter_bytes", "Parameters and buffers"),
    size(frame, "born_bytes", "Ever allocated"),
    { name: "findings", sort: false, label: "Findings", cell: (row) => el("span", {}, ...findings.linksOfModule(frame.text("module", row))) },
  ];
}

export const stepColumns = (frame: Frame, links: Links): TableColumn[] => [
  { name: "step", label: "Step", number: true, cell: (row) => whole(frame.number("step", row)) },
  size(frame, "peak_bytes", "Peak"),
  opNumber(frame, "peak_op", "Peak at op", links),
  size(frame, "end_live_bytes", "Live at its end"),
  { name: "duration_ns", label: "Duration", number: true, cell: (row) => duration(frame.number("duration_ns", row)) },
  count(frame, "start_op", "First op"),
  count(frame, "end_op", "Ends before op"),
  { name: "show", sort: false, label: "", cell: (row) => link("show its peak", () => links.showOp(frame.number("peak_op", row))) },
];
