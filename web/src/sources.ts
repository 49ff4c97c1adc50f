// The program's own lines: their text, and how many bytes of a live set each has made.
import { placeOf } from "./format.ts";
import type { Frame } from "./frame.ts";
import type { Stacks } from "./stacks.ts";

export interface LineBytes {
  own: number; // of storages that the line made itself
  all: number; // of storages that it or a call in it made
}

export class Sources {
  readonly #texts = new Map<string, string>();
  readonly #stacks: Stacks;

  constructor(frame: Frame, stacks: Stacks) {
    this.#stacks = stacks;
    for (let row = 0; row < frame.rows; row++) this.#texts.set(`${frame.text("file", row)}:${frame.number("line", row)}`, frame.text("text", row));
  }

  // Returns the text of a line, empty where it is not in the page.
  text(line: string): string {
    return this.#texts.get(line) ?? "";
  }

  // Returns the bytes of each line that has some, by `file:line`, or of each group of lines, such as a file.
  bytesOf(frame: Frame, groupOf = (line: string) => line): Map<string, LineBytes> {
    const found = new Map<string, LineBytes>();
    const at = (group: string) => found.get(group) ?? found.set(group, { own: 0, all: 0 }).get(group)!;
    for (let row = 0; row < frame.rows; row++) {
      const nbytes = frame.number("nbytes", row);
      const own = frame.text("own_line", row);
      if (own) at(groupOf(own)).own += nbytes;
      const lines = [...this.#stacks.ownLines(frame.number("stack", row)), ...(own ? [own] : [])];
      for (const group of new Set(lines.map(groupOf))) at(group).all += nbytes;
    }
    return found;
  }

  // Returns the lines to show by file, with those around them; null stands for lines left out.
  excerpts(lines: Iterable<string>): Map<string, (number | null)[]> {
    const byFile = new Map<string, Set<number>>();
    for (const line of lines) {
      const place = placeOf(line);
      if (!place) continue;
      const numbers = byFile.get(place.file) ?? byFile.set(place.file, new Set()).get(place.file)!;
      numbers.add(place.number);
      for (const near of [-2, -1, 1, 2]) if (this.#texts.has(`${place.file}:${place.number + near}`)) numbers.add(place.number + near);
    }
    return new Map([...byFile].map(([file, numbers]) => [file, withGaps([...numbers].sort((a, b) => a - b))]));
  }
}

function withGaps(numbers: number[]): (number | null)[] {
  return numbers.flatMap((number, index) => (index > 0 && numbers[index - 1] < number - 1 ? [null, number] : [number]));
}
