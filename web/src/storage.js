// The dialog of one storage: what it is, the phases of its life, and the call stack that allocated it.
import { unpackInts } from "./codec.js";
import { $, bar, el } from "./dom.js";
import { bytes, duration, orNone } from "./format.js";
import { state } from "./state.js";

export class Stacks {
  static async unpack(block, words) {
    const names = Object.keys(block);
    const columns = await Promise.all(names.map((name) => unpackInts(block[name])));
    return new Stacks(Object.fromEntries(names.map((name, index) => [name, columns[index]])), words);
  }

  constructor(columns, words) {
    this.columns = columns;
    this.words = words;
    this.innermost = new Map(Array.from(columns.stack, (stack, index) => [stack, columns.node[index]]));
  }

  // Returns the frames of a stack, innermost first.
  of(stack) {
    const { parent, file, line, function: name, user, code } = this.columns;
    const frames = [];
    for (let node = this.innermost.get(stack) ?? -1; node >= 0; node = parent[node]) {
      frames.push({ file: this.words[file[node]], line: line[node], name: this.words[name[node]], code: this.words[code[node]], user: user[node] === 1 });
    }
    return frames;
  }
}

const fact = (label, value) => (value === "" ? [] : [el("dt", { text: label }), el("dd", { text: value })]);

function life(frame, row) {
  const op = (name) => orNone(frame.get(name, row));
  const used = op("first_use_op") === "" ? "never used" : `first used by op ${op("first_use_op")}, last by op ${op("last_use_op")}`;
  return op("op") === "" ? `not made by an op that was seen; ${used}` : `made by op ${op("op")}; ${used}`;
}

const PHASES = ["lag", "use", "drag", "void"];

// The four phases of a storage's life (lag, use, drag, void), drawn to scale.
function biography(frame, row) {
  const lengths = PHASES.map((phase) => frame.get(`${phase}_ns`, row));
  const total = lengths.reduce((a, b) => a + b, 0);
  const svg = bar(0);
  svg.setAttribute("class", "bar biography");
  let left = 0;
  const rects = PHASES.map((phase, index) => {
    const rect = svg.firstChild.cloneNode();
    const width = total ? (100 * lengths[index]) / total : 0;
    for (const [name, value] of Object.entries({ x: left, width, "data-phase": phase })) rect.setAttribute(name, value);
    left += width;
    return rect;
  });
  svg.replaceChildren(...rects);
  const words = PHASES.map((phase, index) => [phase, lengths[index]]).filter(([, length]) => length > 0);
  const legend = words.flatMap(([phase, length]) => [el("i", { class: "swatch", "data-phase": phase }), `${phase} ${duration(length)} `]);
  return [el("h3", { text: "Biography" }), svg, el("p", { class: "muted" }, ...legend)];
}

function holder(frame, row) {
  // the texts of the page escape line ends: two edges are separated by a backslash and an n
  const path = frame.get("path", row).split("\\n").filter(Boolean);
  const edges = path.map((edge) => el("li", { text: edge }));
  const kind = frame.get("holder_kind", row);
  const said = el("p", { text: frame.get("holder", row) + (kind ? ` (${kind})` : "") });
  return [el("h3", { text: "Held at the peak by" }), said, ...(edges.length ? [el("ol", { class: "path" }, ...edges)] : [])];
}

function stackList(frames) {
  const items = frames.map(({ file, line, name, user, code }) =>
    el("li", { class: user ? "user" : "" }, el("code", { text: `${file}:${line}` }), ` ${name}`, code ? el("pre", { text: code }) : null),
  );
  return el("ol", { class: "stack" }, ...items);
}

export function listenToDialog() {
  $("storage").addEventListener("close", () => state.set({ storage: "" }));
}

export function showStorage(frame, row, stacks) {
  const text = (name) => frame.get(name, row);
  $("storage-title").textContent = text("name") || "Storage";
  const facts = el(
    "dl",
    { class: "plain" },
    ...fact("bytes", `${bytes(text("nbytes"))} (${text("nbytes").toLocaleString("en-US")} B)`),
    ...fact("category", `${text("category")}: ${text("rule")}`),
    ...fact("tensor", text("tensor")),
    ...fact("module", text("module")),
    ...fact("op", text("op_name")),
    ...fact("line", text("line")),
    ...fact("own line", text("own_line") === text("line") ? "" : text("own_line")),
    ...fact("origin", text("origin")),
    ...fact("device", text("device")),
    ...fact("life", life(frame, row)),
  );
  const frames = stacks.of(text("stack"));
  const own = frames.filter((each) => each.user);
  const parts = [facts];
  if (frame.has("lag_ns")) parts.push(...biography(frame, row));
  if (frame.has("holder") && text("holder")) parts.push(...holder(frame, row));
  if (frames.length) parts.push(el("h3", { text: "Made at" }), stackList(own.length ? own : frames));
  if (own.length && own.length < frames.length) parts.push(el("details", {}, el("summary", { text: `All ${frames.length} frames` }), stackList(frames)));
  $("storage-body").replaceChildren(...parts);
  if (!$("storage").open) $("storage").showModal();
}
