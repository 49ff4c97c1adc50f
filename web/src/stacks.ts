// The call stacks that made the storages, as a tree of frames: deep stacks share their outer part.
import { type Packed, unpackInts } from "./codec.ts";
import type { Words } from "./frame.ts";

export interface StackFrame {
  file: string;
  line: number;
  name: string;
  isOwn: boolean; // the program's own code
  callsTorch: boolean; // that, or an installed package's
}

// As in memwatch.own_code.
const PROGRAM = 0;
const INSTALLED = 1;

export class Stacks {
  readonly #columns: Record<string, Float64Array>;
  readonly #words: Words;
  readonly #innermost: Map<number, number>;
  readonly #own = new Map<number, string[]>();

  static async unpack(block: Record<string, Packed>, words: Words): Promise<Stacks> {
    const entries = Object.entries(block).map(async ([name, packed]): Promise<[string, Float64Array]> => [name, await unpackInts(packed)]);
    return new Stacks(Object.fromEntries(await Promise.all(entries)), words);
  }

  constructor(columns: Record<string, Float64Array>, words: Words) {
    this.#columns = columns;
    this.#words = words;
    this.#innermost = new Map(Array.from(columns.stack, (stack, index) => [stack, columns.node[index]]));
  }

  // Returns the frames of a stack, innermost first.
  of(stack: number): StackFrame[] {
    const { parent, file, line, function: name, owner } = this.#columns;
    const frames: StackFrame[] = [];
    for (let node = this.#innermost.get(stack) ?? -1; node >= 0; node = parent[node]) {
      frames.push({ file: this.#words.texts[file[node]], line: line[node], name: this.#words.texts[name[node]], isOwn: owner[node] === PROGRAM, callsTorch: owner[node] <= INSTALLED });
    }
    return frames;
  }

  // Returns the program's own lines on a stack, each once, as `file:line`.
  ownLines(stack: number): string[] {
    let lines = this.#own.get(stack);
    if (!lines) {
      lines = [...new Set(this.of(stack).filter(({ isOwn }) => isOwn).map(({ file, line }) => `${file}:${line}`))];
      this.#own.set(stack, lines);
    }
    return lines;
  }
}
