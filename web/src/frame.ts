// A table by columns. A column holds numbers, or the numbers of texts in the words of the page.
import { type Packed, unpackInts } from "./codec.ts";

export interface Column {
  text: boolean;
  values: Float64Array;
}

export interface Block {
  rows: number;
  columns: Record<string, Packed>;
}

// The texts of the page, each stored once. What the browser adds gets a number, too.
export class Words {
  readonly texts: string[];
  #codes: Map<string, number> | undefined;

  constructor(texts: string[]) {
    this.texts = texts;
  }

  code(text: string): number {
    this.#codes ??= new Map(this.texts.map((each, code) => [each, code]));
    let code = this.#codes.get(text);
    if (code === undefined) {
      code = this.texts.push(text) - 1;
      this.#codes.set(text, code);
    }
    return code;
  }
}

export class Frame {
  readonly rows: number;
  readonly columns: Record<string, Column>;
  readonly words: Words;

  constructor(rows: number, columns: Record<string, Column>, words: Words) {
    this.rows = rows;
    this.columns = columns;
    this.words = words;
  }

  static async unpack(block: Block, words: Words): Promise<Frame> {
    const entries = Object.entries(block.columns).map(async ([name, packed]): Promise<[string, Column]> => [
      name,
      { text: packed.kind === "text", values: await unpackInts(packed) },
    ]);
    return new Frame(block.rows, Object.fromEntries(await Promise.all(entries)), words);
  }

  has(name: string): boolean {
    return Object.hasOwn(this.columns, name);
  }

  isText(name: string): boolean {
    return this.columns[name].text;
  }

  text(name: string, row: number): string {
    return this.words.texts[this.columns[name].values[row]] ?? "";
  }

  number(name: string, row: number): number {
    return this.columns[name].values[row];
  }

  sum(name: string, rows?: number[]): number {
    const { values } = this.columns[name];
    return rows ? rows.reduce((total, row) => total + values[row], 0) : values.reduce((a, b) => a + b, 0);
  }

  // Returns this table with more columns, which share the memory of nothing.
  with(columns: Record<string, Column>): Frame {
    return new Frame(this.rows, { ...this.columns, ...columns }, this.words);
  }

  // Returns some rows of this table.
  only(rows: number[]): Frame {
    const columns = Object.entries(this.columns).map(([name, { text, values }]): [string, Column] => [name, { text, values: Float64Array.from(rows, (row) => values[row]) }]);
    return new Frame(rows.length, Object.fromEntries(columns), this.words);
  }

  // Returns a column of texts; `of` is asked once for each different number in `key`.
  derived(key: string, of: (text: string) => string): Column {
    const known = new Map<number, number>();
    const code = (each: number) => known.get(each) ?? known.set(each, this.words.code(of(this.words.texts[each]))).get(each)!;
    return { text: true, values: this.columns[key].values.map(code) };
  }
}
