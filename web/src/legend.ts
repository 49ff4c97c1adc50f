// What the colours mean, with the bytes of each group at the instant; a click picks a group out.
import type { Colouring } from "./colouring.ts";
import { $, el, swatch } from "./dom.ts";
import { bytes, signedBytes } from "./format.ts";
import type { Frame } from "./frame.ts";
import { isPicked, pick } from "./pick.ts";

export function showLegend(colouring: Colouring, live: Frame): void {
  const sums = colouring.groups.map(() => 0);
  const isChange = live.has("change");
  for (let row = 0; row < live.rows; row++) {
    const isLess = isChange && ["died", "shrunk"].includes(live.text("change", row));
    sums[colouring.of(live, row)] += live.number("nbytes", row) * (isLess ? -1 : 1);
  }
  const shown = colouring.groups.map((name, group) => ({ name, group, sum: sums[group] })).filter(({ sum }) => sum !== 0);
  $("key").replaceChildren(
    ...shown.map(({ name, group, sum }) =>
      el("li", {}, el("button", { type: "button", class: "quiet", "data-group": name, "data-bytes": sum, "aria-pressed": String(isPicked("group", name)), onclick: () => pick("group", name, { toggle: true }) }, swatch(colouring.paint(group)), el("span", { class: "clip", text: name, title: name }), el("b", { text: isChange ? signedBytes(sum) : bytes(sum) }))),
    ),
  );
}
