// The dialog of one storage: what it is, its life, who holds it, its findings, and the call stack that allocated it.
import { describe, drawBiography, lifeOf, phaseLegend, phaseMeaning, phasesOf, programLegend } from "./biography.ts";
import type { Detail } from "./detail.ts";
import { $, el, link, marked, type Child } from "./dom.ts";
import { bytes, duration, shortLine, shortOp, shortPaths, whole } from "./format.ts";
import type { Findings } from "./findings.ts";
import type { Frame } from "./frame.ts";
import type { Instant } from "./instant.ts";
import type { Phases } from "./phases.ts";
import { pick } from "./pick.ts";
import type { Sources } from "./sources.ts";
import type { StackFrame, Stacks } from "./stacks.ts";
import { state } from "./state.ts";

const LIFE = ["lag", "use", "drag", "void"];

export interface Shown {
  frame: Frame;
  row: number;
  uses: number[];
  ops: number;
  op: number; // the op of the instant shown
}

interface Parts {
  stacks: Stacks;
  sources: Sources;
  phases: Phases;
  findings: Findings;
  instant: Instant;
  detail: () => Promise<Detail>;
  revealLine: (line: string) => void;
}

export class StorageDialog {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
    $("storage").addEventListener("close", () => state.set({ storage: "" }));
  }

  close(): void {
    if ($<HTMLDialogElement>("storage").open) $<HTMLDialogElement>("storage").close();
  }

  show(shown: Shown): void {
    const { frame, row } = shown;
    const dialog = $<HTMLDialogElement>("storage");
    const life = lifeOf(frame, row, shown.ops);
    const figures = { "data-born": life.born, "data-first": life.first, "data-last": life.last, "data-dead": life.dead, "data-uses": shown.uses.join(" ") };
    const chart = el("div", { class: "plot biography", role: "img", "aria-label": describe(life, frame.number("nbytes", row)), ...figures });
    $("storage-title").replaceChildren(...marked(frame.text("name", row) || "Storage"));
    $("storage-body").replaceChildren(
      this.#facts(shown),
      ...this.#findings(frame.number("id", row)),
      el("h3", { text: "Life: the ops from its allocation to its free" }),
      chart,
      ...this.#life(shown),
      ...holder(frame, row),
      ...this.#stack(frame.number("stack", row)),
    );
    if (!dialog.open) dialog.showModal();
    drawBiography(chart, life, shown.uses, this.#parts.phases, shown.op);
  }

  #facts({ frame, row }: Shown): HTMLElement {
    const text = (name: string) => frame.text(name, row);
    const nbytes = frame.number("nbytes", row);
    const toLine = (line: string) => link(shortLine(line), () => (pick("line", line), this.#parts.revealLine(line)), { class: "link to-line", title: line });
    const own = text("own_line");
    const facts: [string, Child][] = [
      ["bytes", nbytes < 1024 ? bytes(nbytes) : `${bytes(nbytes)} (${whole(nbytes)} B)`],
      ["category", `${text("category")}: ${text("rule")}`],
      ["tensor", text("tensor")],
      ["module", text("module") && link(text("module"), () => pick("module", text("module")), { class: "link to-module" })],
      ["op", text("op_name") && `${shortOp(text("op_name"))} (${text("op_name")})`],
      ["line", text("line") && (text("line") === own ? toLine(own) : el("span", { title: text("line"), text: shortLine(text("line")) }))],
      ["your line", own && own !== text("line") ? toLine(own) : ""],
      ["origin", text("origin")],
      ["device", text("device")],
    ];
    return el("dl", { class: "plain" }, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", { text: name }), el("dd", {}, value)]));
  }

  #findings(id: number): HTMLElement[] {
    const { findings } = this.#parts;
    const about = findings.about(id);
    return about.length ? [el("p", { class: "links" }, "Findings about it: ", ...about.map((index) => findings.link(index)))] : [];
  }

  // The words of its life lead to the instants; durations are known of what is alive at the peak.
  #life({ frame, row, ops, uses }: Shown): HTMLElement[] {
    const { detail, instant } = this.#parts;
    const life = lifeOf(frame, row, ops);
    const at = (words: string, place: (events: Detail, storage: number) => number) =>
      link(words, async () => {
        const events = await detail();
        const storage = events.rowOf(frame.number("id", row));
        if (storage >= 0) instant.show(place(events, storage));
      }, { class: "link to-instant" });
    const steps = [
      ...(life.born >= 0 ? [at("made", (events, storage) => events.row[events.birth[storage]])] : []),
      ...(life.first >= 0 ? [at("first use", (events) => events.highestIn(life.first)), at("last use", (events) => events.highestIn(life.last))] : []),
      ...(life.dead < ops ? [at("freed", (events, storage) => events.row[events.death[storage] < 0 ? events.count - 1 : events.death[storage]])] : []),
    ];
    const lengths = frame.has("lag_ns") ? LIFE.map((phase): [string, number] => [phase, frame.number(`${phase}_ns`, row)]).filter(([, length]) => length > 0) : [];
    const told = new Map(lengths.map(([phase, length]) => [phase, `${phaseMeaning(phase)}: ${duration(length)}`]));
    const shown = lengths.length ? lengths.map(([phase]) => phase) : [...new Set(phasesOf(life).map(({ phase }) => phase))];
    const legend = phaseLegend(shown, (phase) => told.get(phase) ?? phaseMeaning(phase));
    const ticks = uses.length ? [el("span", { class: "nowrap" }, el("i", { class: "swatch tick" }), "an op that uses it")] : [];
    return [el("p", { class: "layers" }, ...legend, ...ticks, ...programLegend(life, this.#parts.phases)), el("p", { class: "muted life" }, describe(life, frame.number("nbytes", row))), el("p", { class: "links" }, "Show the instant: ", ...steps)];
  }

  #stack(stack: number): HTMLElement[] {
    const frames = this.#parts.stacks.of(stack);
    if (!frames.length) return [];
    const callers = frames.filter(({ callsTorch }) => callsTorch);
    const all = callers.length && callers.length < frames.length ? [el("details", {}, el("summary", { text: `All ${frames.length} frames` }), this.#frames(frames))] : [];
    return [el("h3", { text: "Made at" }), this.#frames(callers.length ? callers : frames), ...all];
  }

  #frames(frames: StackFrame[]): HTMLElement {
    const item = ({ file, line, name, isOwn }: StackFrame) => {
      const code = isOwn ? this.#parts.sources.text(`${file}:${line}`).trim() : "";
      return el("li", { class: isOwn ? "user" : "" }, el("code", { title: `${file}:${line}`, text: shortLine(`${file}:${line}`) }), ` ${name}`, code ? el("pre", { text: code }) : null);
    };
    return el("ol", { class: "stack" }, ...frames.map(item));
  }
}

function holder(frame: Frame, row: number): HTMLElement[] {
  if (!frame.has("holder") || !frame.text("holder", row)) return [];
  // the texts of the page escape line ends: two edges are separated by a backslash and an n
  const path = frame.text("path", row).split("\\n").filter(Boolean);
  const kind = frame.text("holder_kind", row);
  const said = el("p", { text: frame.text("holder", row) + (kind ? ` (${kind})` : "") });
  return [el("h3", { text: "Kept alive at the peak by" }), said, ...(path.length ? [el("ol", { class: "path" }, ...path.map((edge) => el("li", { title: edge, text: shortPaths(edge) })))] : [])];
}
