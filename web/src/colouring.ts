// Which colour each storage has: by category as everywhere in memwatch, by another dimension the largest groups.
import { DIMENSIONS, known } from "./dimensions.ts";
import type { Frame } from "./frame.ts";

const HUES = 10;
export const OTHER = "(other)";

export class Colouring {
  readonly name: string;
  readonly groups: string[]; // the last is what no group holds
  readonly #ofCode = new Map<number, number>();
  readonly #places: Map<string, number>;

  constructor(name: string, groups: string[]) {
    this.name = name;
    this.groups = groups;
    this.#places = new Map(groups.map((group, index) => [group, index]));
  }

  // Returns the colours of a dimension: the groups that are largest in a table get one each.
  static of(name: string, categories: string[], frame: Frame): Colouring {
    if (known(name) === "category") return new Colouring("category", categories);
    const { column, blank, tint } = DIMENSIONS[name];
    const sums = new Map<string, number>();
    for (let row = 0; row < frame.rows; row++) {
      const group = tint(frame.text(column, row)) || blank;
      sums.set(group, (sums.get(group) ?? 0) + frame.number("nbytes", row));
    }
    const largest = [...sums].sort((a, b) => b[1] - a[1]).map(([group]) => group);
    return new Colouring(name, [...largest.slice(0, HUES), OTHER]);
  }

  get isCategory(): boolean {
    return this.name === "category";
  }

  get column(): string {
    return DIMENSIONS[this.name].column;
  }

  get other(): number {
    return this.groups.length - 1;
  }

  // Returns the group of a row, as its place in `groups`.
  of(frame: Frame, row: number): number {
    if (!frame.has(this.column)) return this.other;
    const code = frame.number(this.column, row);
    let place = this.#ofCode.get(code);
    if (place === undefined) {
      place = this.groupOf(frame.words.texts[code]);
      this.#ofCode.set(code, place);
    }
    return place;
  }

  // Returns the group of a value of the dimension.
  groupOf(text: string): number {
    const { blank, tint } = DIMENSIONS[this.name];
    return this.#places.get(tint(text) || blank) ?? this.other;
  }

  // Returns the attributes by which the stylesheet paints a group.
  paint(group: number): Record<string, string> {
    if (this.isCategory) return { "data-category": this.groups[group] };
    return { "data-hue": group === this.other ? "other" : String(group) };
  }
}
