// The section of the program's own lines, with the bytes of each and a bar in the margin.
import { $, bar, el, link } from "./dom.ts";
import { bytes, fileName, percent, placeOf } from "./format.ts";
import type { Frame } from "./frame.ts";
import type { Finding } from "./model.ts";
import { isPicked, pick } from "./pick.ts";
import type { LineBytes, Sources } from "./sources.ts";

const OPEN_FILES = 2;
const NONE: LineBytes = { own: 0, all: 0 };

export class Listing {
  readonly #sources: Sources;
  readonly #findings: Finding[];
  readonly #closed = new Set<string>();
  readonly #opened = new Set<string>();

  constructor(sources: Sources, findings: Finding[]) {
    this.#sources = sources;
    this.#findings = findings;
  }

  show(frame: Frame, when: string): void {
    const found = this.#sources.bytesOf(frame);
    const total = frame.sum("nbytes");
    const most = Math.max(1, ...[...found.values()].map(({ own }) => own));
    const ofFile = this.#sources.bytesOf(frame, (line) => placeOf(line)?.file ?? line);
    const files = [...this.#sources.excerpts(found.keys())].map(([file, lines]) => ({ file, lines, made: ofFile.get(file) ?? NONE }));
    files.sort((a, b) => b.made.own - a.made.own || b.made.all - a.made.all || (a.file < b.file ? -1 : 1));
    $("source-title").textContent = when;
    $("source-body").replaceChildren(
      ...files.map(({ file, lines, made }, index) => this.#file(file, made, total, index, () => lines.map((number) => this.#line(file, number, found, most)))),
    );
    if (!files.length) $("source-body").append(el("p", { class: "muted", text: "No line of the program's own code made what is shown." }));
  }

  // A file's lines are made when it is opened.
  #file(file: string, { own, all }: LineBytes, total: number, index: number, rows: () => Node[]): HTMLElement {
    const body = el("tbody");
    const isOpen = this.#opened.has(file) || (index < OPEN_FILES && !this.#closed.has(file));
    const head = el("thead", {}, el("tr", {}, ...["", "Made here", "With calls", "Line", "Code"].map((text, at) => (at ? el("th", { scope: "col", class: at < 4 ? "number" : "", text }) : el("td", {})))));
    const box = el("details", { class: "file", open: isOpen, "data-file": file }, el("summary", {}, el("code", { text: fileName(file) }), ` ${bytes(own)}, ${percent(own, total)}${all > own ? `; ${bytes(all)} with calls` : ""}`), el("table", { class: "listing", "aria-label": fileName(file) }, head, body));
    if (isOpen) body.append(...rows());
    box.addEventListener("toggle", () => {
      if (box.open && !body.childElementCount) body.append(...rows());
      (box.open ? this.#opened : this.#closed).add(file);
      (box.open ? this.#closed : this.#opened).delete(file);
    });
    return box;
  }

  #line(file: string, number: number | null, found: Map<string, LineBytes>, most: number): Node {
    if (number === null) return el("tr", { class: "gap" }, el("td", { colspan: 5, text: "⋯" }));
    const line = `${file}:${number}`;
    const { own, all } = found.get(line) ?? NONE;
    const findings = this.#findings.flatMap(({ site, label }, index) => (site === line ? [link(`${label}, finding ${index + 1}`, () => pick("finding", index), { class: "link tag" })] : []));
    return el(
      "tr",
      { "data-line": line, "aria-current": isPicked("line", line) ? "true" : null },
      el("td", { class: "heat" }, own ? bar(own / most) : ""),
      el("td", { class: "number" }, own ? link(bytes(own), () => pick("line", line, { toggle: true }), { "data-bytes": own, title: "show the storages that this line made" }) : ""),
      el("td", { class: "number muted", text: all ? bytes(all) : "" }),
      el("td", { class: "number muted", text: number }),
      el("td", {}, el("code", { class: "code", text: this.#sources.text(line) }), ...findings),
    );
  }

  // Returns the lines that hold what is searched, in files that are open.
  find(matches: (text: string) => boolean): Element[] {
    const rows = [...$("source-body").querySelectorAll<HTMLElement>("tr[data-line]")];
    return rows.filter((row) => matches(row.querySelector("code")!.textContent!) || matches(row.dataset.line!));
  }

  // Brings a line into view, and opens its file.
  reveal(line: string): void {
    const find = () => $("source-body").querySelector<HTMLElement>(`tr[data-line="${CSS.escape(line)}"]`);
    for (const box of find() ? [] : $("source-body").querySelectorAll<HTMLDetailsElement>("details.file")) {
      if (placeOf(line)?.file !== box.dataset.file) continue;
      box.open = true;
      box.dispatchEvent(new Event("toggle")); // the browser's own comes later
    }
    (find() ?? $("source")).scrollIntoView({ block: "center" });
  }
}
