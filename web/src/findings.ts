// The findings of the document, linked with their storages, line, modules and the instant at which they matter most.
import { unpackInts } from "./codec.ts";
import type { Detail } from "./detail.ts";
import { el, link, type Child } from "./dom.ts";
import { bytes, counted, shortLine } from "./format.ts";
import type { Frame } from "./frame.ts";
import type { Instant } from "./instant.ts";
import type { Finding } from "./model.ts";
import { isPicked, pick } from "./pick.ts";

// A finding may count less than what is live of its storages: at any one instant, only a part of them is without need.
const partOf = (liveBytes: number, nbytes: number): string => (liveBytes > nbytes ? `at most ${bytes(nbytes)} without need at one time, ` : "");

// Splits the bytes by category, as the chart and the tables count them, where the largest part reads as less than all.
function parts(categories: Map<string, number>): string {
  const largestFirst = [...categories].sort(([, a], [, b]) => b - a);
  const all = largestFirst.reduce((sum, [, nbytes]) => sum + nbytes, 0);
  if (!largestFirst.length || bytes(largestFirst[0][1]) === bytes(all)) return "";
  return ` (${largestFirst.map(([category, nbytes]) => `${bytes(nbytes)} ${category}`).join(", ")})`;
}

export class Findings {
  readonly #findings: Finding[];
  readonly #storages: Set<number>[];
  readonly #entries: HTMLDetailsElement[];

  static async unpack(findings: Finding[]): Promise<Findings> {
    return new Findings(findings, await Promise.all(findings.map(async ({ storages }) => new Set(await unpackInts(storages)))));
  }

  constructor(findings: Finding[], storages: Set<number>[]) {
    this.#findings = findings;
    this.#storages = storages;
    this.#entries = [...document.querySelectorAll<HTMLDetailsElement>("details.finding")];
  }

  storagesOf(finding: number): Set<number> {
    return this.#storages[finding] ?? new Set();
  }

  // Returns the findings that are about a storage.
  about(id: number): number[] {
    return this.#storages.flatMap((storages, index) => (storages.has(id) ? [index] : []));
  }

  // Returns links to the findings whose storages a module, or one in it, made or owns.
  linksOfModule(module: string): HTMLElement[] {
    const inside = (each: string) => each === module || each.startsWith(`${module}.`) || module === "";
    return this.#findings.flatMap(({ modules, label }, index) => (modules.some(inside) ? [this.link(index, label)] : []));
  }

  link(index: number, text = this.#findings[index].label): HTMLElement {
    return link(`${text} (finding ${index + 1})`, () => this.open(index), { class: "link tag" });
  }

  open(index: number): void {
    pick("finding", index);
    this.#entries[index].open = true;
    this.#entries[index].scrollIntoView({ block: "center" });
  }

  // Adds the links below each finding.
  connect(detail: () => Promise<Detail>, instant: Instant, revealLine: (line: string) => void): void {
    this.#findings.forEach((finding, index) => {
      const highest = async () => {
        const events = await detail();
        const rows = new Set([...this.#storages[index]].map((id) => events.rowOf(id)));
        instant.show(events.highestOf(rows));
      };
      const parts: Child[] = [
        link(counted(this.#storages[index].size, "storage"), () => pick("finding", index, { toggle: true }), { class: "link to-storages" }),
        el("span", { class: "now" }),
        link("the instant at which they are largest", highest, { class: "link to-instant" }),
        ...(finding.site ? [link(finding.place || shortLine(finding.site), () => (pick("line", finding.site), revealLine(finding.site)), { class: "link to-line", title: finding.site })] : []),
        ...finding.modules.map((module) => link(`module ${module}`, () => pick("module", module), { class: "link to-module" })),
      ];
      this.#entries[index].append(el("p", { class: "links" }, ...parts));
    });
  }

  // Says of each finding how many of its bytes are in the live set that is shown.
  show(live: Frame, when: string): void {
    const sums = this.#storages.map(() => 0);
    const categories = this.#storages.map(() => new Map<string, number>());
    for (let row = 0; row < live.rows; row++) {
      const id = live.number("id", row);
      this.#storages.forEach((storages, index) => {
        if (!storages.has(id)) return;
        const [nbytes, category] = [live.number("nbytes", row), live.text("category", row)];
        sums[index] += nbytes;
        categories[index].set(category, (categories[index].get(category) ?? 0) + nbytes);
      });
    }
    this.#entries.forEach((entry, index) => {
      const now = entry.querySelector<HTMLElement>(".now")!;
      now.textContent = sums[index] ? `${partOf(sums[index], this.#findings[index].nbytes)}${bytes(sums[index])} of them${parts(categories[index])} live ${when}` : `none of them live ${when}`;
      now.dataset.bytes = String(sums[index]);
      entry.classList.toggle("picked", isPicked("finding", index));
    });
  }

  find(matches: (text: string) => boolean): Element[] {
    return this.#entries.filter((entry) => matches(entry.textContent!));
  }
}
