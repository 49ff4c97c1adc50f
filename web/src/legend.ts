// What the colours mean, with the bytes of each group at the instant; a click picks a group out.
import type { Colouring } from "./colouring.ts";
import { DIMENSIONS } from "./dimensions.ts";
import { $, el, swatch } from "./dom.ts";
import { bytes, percent, signedBytes } from "./format.ts";
import type { Frame } from "./frame.ts";
import type { PageModel } from "./model.ts";
import { isPicked, pick } from "./pick.ts";

interface Shown {
  live: Frame; // the live set, or what changed between two instants
  later: Frame; // the live set at the later of two instants
  peak: Frame;
  when: string;
}

export class Legend {
  readonly #categories: Set<string>;

  constructor({ overview }: PageModel) {
    this.#categories = new Set(Object.keys(overview.live_bytes).filter((name) => overview.live_bytes[name].some((nbytes) => nbytes > 0)));
  }

  // Shows every group that the run or its peak has: what is under the legend stays in its place at any instant.
  show(colouring: Colouring, { live, later, peak, when }: Shown): void {
    const isChange = live.has("change");
    const [now, atPeak] = [sums(colouring, live), sums(colouring, peak)];
    const isKnown = (group: number) => now[group] !== 0 || (colouring.isCategory ? this.#categories.has(colouring.groups[group]) : atPeak[group] !== 0);
    const shown = colouring.groups.map((name, group) => ({ name, group, sum: now[group] })).filter(({ group }) => isKnown(group));
    const all = shown.reduce((total, { sum }) => total + sum, 0);
    const after = isChange ? sums(colouring, later) : now;
    $("key-title").textContent = `By ${DIMENSIONS[colouring.name].label}: ${isChange ? `the change ${when}, and the bytes after it` : `the bytes ${when}`}`;
    const words = (sum: number, group: number) => (isChange ? [el("b", { text: signedBytes(sum) }), el("span", { class: "muted", text: `to ${bytes(after[group])}` })] : [el("b", { text: bytes(sum) }), el("span", { class: "muted", text: percent(sum, all) })]);
    const item = ({ name, group, sum }: (typeof shown)[number]) =>
      el("button", { type: "button", class: "quiet", "data-group": name, "data-bytes": sum, "aria-pressed": String(isPicked("group", name)), onclick: () => pick("group", name, { toggle: true }) }, swatch(colouring.paint(group)), el("span", { class: "clip", text: name, title: name }), ...words(sum, group));
    $("key").replaceChildren(...shown.map((each) => el("li", {}, item(each))));
  }
}

function sums(colouring: Colouring, frame: Frame): number[] {
  const found = colouring.groups.map(() => 0);
  const isChange = frame.has("change");
  for (let row = 0; row < frame.rows; row++) {
    const isLess = isChange && ["died", "shrunk"].includes(frame.text("change", row));
    found[colouring.of(frame, row)] += frame.number("nbytes", row) * (isLess ? -1 : 1);
  }
  return found;
}
