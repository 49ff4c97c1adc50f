// Which phase of the program and which step each op was in. memwatch/report/page/phases.py writes the stretches.
import type { Frame } from "./frame.ts";

export interface Stretch {
  from: number;
  to: number;
  phase: string;
  step: number;
}

export class Phases {
  readonly #frame: Frame;
  readonly #starts: Float64Array;
  readonly #ops: number;

  constructor(frame: Frame, ops: number) {
    this.#frame = frame;
    this.#starts = frame.columns.op.values;
    this.#ops = ops;
  }

  #rowOf(op: number): number {
    let low = 0;
    let high = this.#starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#starts[middle] <= op) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  #stretch(row: number): Stretch {
    const to = row + 1 < this.#starts.length ? this.#starts[row + 1] : this.#ops;
    return { from: this.#starts[row], to, phase: this.#frame.text("phase", row), step: this.#frame.number("step", row) };
  }

  of(op: number): Stretch | null {
    const row = op < 0 ? -1 : this.#rowOf(op);
    return row < 0 ? null : this.#stretch(row);
  }

  phase(op: number): string {
    return this.of(op)?.phase ?? "";
  }

  // Returns the number that `of` gives an op's phase, for many ops: it is asked once for each stretch, and most ops are in
  // that of the one before.
  numbers(ops: Float64Array, of: (phase: string) => number): Uint8Array {
    const before = of("");
    const known = this.all().map(({ phase }) => of(phase));
    const numbers = new Uint8Array(ops.length);
    let [number, from, to] = [before, 0, 0];
    for (let at = 0; at < ops.length; at++) {
      const op = ops[at];
      if (op < from || op >= to) {
        const row = op < 0 ? -1 : this.#rowOf(op);
        [number, from, to] = row < 0 ? [before, op, op + 1] : [known[row], this.#starts[row], this.#starts[row + 1] ?? Infinity];
      }
      numbers[at] = number;
    }
    return numbers;
  }

  all(): Stretch[] {
    return Array.from(this.#starts, (_, row) => this.#stretch(row));
  }
}
