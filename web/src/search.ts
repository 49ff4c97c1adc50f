// The search of the whole page, as in a browser's developer tools: it filters the tables, marks cells, lines and
// findings, counts them, and Enter walks through them.
import { $ } from "./dom.ts";
import { counted, whole } from "./format.ts";
import { state } from "./state.ts";

export class Search {
  readonly #input = $<HTMLInputElement>("find");
  #hits: Element[] = [];
  #at = -1;

  constructor() {
    this.#input.addEventListener("input", () => state.set({ q: this.#input.value }, { push: false }));
    this.#input.addEventListener("keydown", (event) => this.#key(event));
    $("find-back").addEventListener("click", () => this.#step(-1));
    $("find-on").addEventListener("click", () => this.#step(1));
    document.addEventListener("keydown", (event) => this.#open(event));
  }

  // `/` and Ctrl+F go to the search; a second Ctrl+F is the browser's own.
  #open(event: KeyboardEvent): void {
    const isTyping = (event.target as Element).closest("input, textarea, select, dialog");
    const isFind = (event.ctrlKey || event.metaKey) && event.key === "f" && event.target !== this.#input;
    if (!isFind && (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.#input.focus();
    this.#input.select();
  }

  #key(event: KeyboardEvent): void {
    if (event.key === "Enter") this.#step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") state.set({ q: "" }, { push: false });
    else return;
    event.preventDefault();
  }

  // Shows what was found: how many storages, and the elements to walk through.
  show(found: { storages: number; cells: Element[]; lines: Element[]; findings: Element[]; rows: Element[] }): void {
    const { q } = state.get();
    if (this.#input.value !== q) this.#input.value = q;
    this.#mark(null);
    for (const each of document.querySelectorAll(".hit")) each.classList.remove("hit");
    this.#hits = q ? [...found.cells, ...found.rows, ...found.lines, ...found.findings] : [];
    for (const each of [...found.lines, ...found.findings]) each.classList.toggle("hit", q !== "");
    this.#at = -1;
    $("find-back").toggleAttribute("disabled", !this.#hits.length);
    $("find-on").toggleAttribute("disabled", !this.#hits.length);
    const counts: [number, string][] = [[found.storages, "row"], [found.cells.length, "cell"], [found.lines.length, "line"], [found.findings.length, "finding"]];
    const said = counts.filter(([count]) => count > 0).map(([count, noun]) => counted(count, noun));
    $("find-count").textContent = q ? said.join(", ") || "nothing found" : "";
  }

  #step(by: number): void {
    if (!this.#hits.length) return;
    this.#at = this.#at < 0 && by < 0 ? this.#hits.length - 1 : (this.#at + by + this.#hits.length) % this.#hits.length;
    const hit = this.#hits[this.#at];
    if (hit instanceof HTMLDetailsElement) hit.open = true;
    this.#mark(hit);
    hit.scrollIntoView({ block: "center" });
    $("find-count").textContent = `${whole(this.#at + 1)} of ${whole(this.#hits.length)}`;
  }

  #mark(hit: Element | null): void {
    for (const each of document.querySelectorAll(".hit-now")) each.classList.remove("hit-now");
    hit?.classList.add("hit-now");
  }
}
