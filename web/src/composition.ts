// The peak by category, as one bar at the head of the page.
import { $, partsBar } from "./dom.ts";
import type { PageModel } from "./model.ts";

export function drawComposition({ categories, totals }: PageModel): void {
  let from = 0;
  const parts = categories.map(({ name, nbytes }) => {
    const part = { from, to: from + nbytes / (totals.peak_bytes || 1), paint: { "data-category": name } };
    from = part.to;
    return part;
  });
  $("composition").append(partsBar(parts));
}
