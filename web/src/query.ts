// What is searched for: words in any order, `column:word` in one column, or /a regular expression/.
import type { Frame } from "./frame.ts";

interface Term {
  column: string;
  has: (text: string) => boolean;
}

function termOf(word: string): Term {
  const [, column, rest] = /^([a-z_]+):(.+)$/.exec(word) ?? ["", "", word];
  const wanted = rest.toLowerCase();
  return { column, has: (text) => text.toLowerCase().includes(wanted) };
}

// Returns null for an expression that is not finished yet: then nothing matches.
function expression(text: string): RegExp | null {
  try {
    return new RegExp(text.slice(1, text.length > 1 && text.endsWith("/") ? -1 : undefined), "i");
  } catch {
    return null;
  }
}

export class Query {
  readonly terms: Term[];

  constructor(text: string) {
    const wanted = text.trim();
    if (wanted.startsWith("/") && wanted.length > 1) {
      const pattern = expression(wanted);
      this.terms = [{ column: "", has: (each) => pattern?.test(each) ?? false }];
    } else {
      this.terms = wanted.split(/\s+/).filter(Boolean).map(termOf);
    }
  }

  get isEmpty(): boolean {
    return this.terms.length === 0;
  }

  // Returns whether one text holds all that is searched.
  matches(text: string): boolean {
    return !this.isEmpty && this.terms.every((term) => term.has(text));
  }

  // Returns the rows of which some text columns hold all that is searched.
  rows(frame: Frame, rows: number[]): number[] {
    const texts = Object.keys(frame.columns).filter((name) => frame.isText(name));
    const tests = this.terms.map((term) => {
      const isColumn = texts.includes(term.column);
      const columns = isColumn ? [term.column] : texts;
      const word = (text: string) => term.has(text) && (isColumn || term.column === "" || text.toLowerCase().includes(`${term.column}:`));
      const known = new Map<number, boolean>();
      const has = (code: number) => known.get(code) ?? known.set(code, word(frame.words.texts[code] ?? "")).get(code)!;
      return (row: number) => columns.some((name) => has(frame.columns[name].values[row]));
    });
    return tests.length ? rows.filter((row) => tests.every((test) => test(row))) : rows;
  }
}
