// In place of d3-transition: what d3-flame-graph would move to its place within a time is there at once. A click is
// answered in one frame, and a thousand cells need no thousand timers.
import { selection } from "d3-selection";

function itself<T>(this: T): T {
  return this;
}

for (const name of ["transition", "duration", "delay", "ease"]) Object.assign(selection.prototype, { [name]: itself });
