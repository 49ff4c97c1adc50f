// Builds elements. Text from a capture becomes text nodes, never HTML.

export const $ = <E extends HTMLElement = HTMLElement>(id: string): E => document.getElementById(id) as E;

const SVG = "http://www.w3.org/2000/svg";

type Attribute = string | number | boolean | null | undefined | ((event: any) => void);
export type Attributes = Record<string, Attribute>;
export type Child = Node | string | null | undefined;

// Shows what stands between backticks as code, as memwatch's texts mean it.
const MARKED = /`([^`]+)`/;
export const marked = (text: string): Node[] => text.split(MARKED).map((part, index) => (index % 2 ? codeOf(part) : document.createTextNode(part)));

function codeOf(text: string): HTMLElement {
  const node = document.createElement("code");
  node.textContent = text;
  return node;
}

export function el<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "text" && tag !== "code" && MARKED.test(String(value))) node.append(...marked(String(value)));
    else if (name === "text") node.textContent = String(value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child): child is Node | string => child !== null && child !== undefined));
  return node;
}

export const button = (text: string, onclick: (event: Event) => void, more: Attributes = {}) => el("button", { type: "button", text, onclick, ...more });
export const link = (text: string, onclick: (event: Event) => void, more: Attributes = {}) => button(text, onclick, { class: "link", ...more });

const TAIL_CHARS = 8; // of a text that is cut in the middle: as many as in `0.weight`

// Lets a text that is too long lose its middle: names of one kind differ at the beginning and at the end.
export function fromMiddle<E extends Element>(node: E, text: string): E {
  const parts = text.split(MARKED).map((part, index) => ({ part, isCode: index % 2 === 1 }));
  const nodes = (of: typeof parts) => of.filter(({ part }) => part !== "").map(({ part, isCode }) => (isCode ? codeOf(part) : document.createTextNode(part)));
  const tail: typeof parts = [];
  for (let left = TAIL_CHARS; left > 0 && parts.length; ) {
    const last = parts.pop()!;
    const cut = Math.max(0, last.part.length - left);
    tail.unshift({ ...last, part: last.part.slice(cut) });
    if (cut > 0) parts.push({ ...last, part: last.part.slice(0, cut) });
    left -= last.part.length;
  }
  node.classList.add("from-middle");
  node.replaceChildren(el("span", { class: "first" }, ...nodes(parts)), el("span", { class: "last" }, ...nodes(tail)));
  return node;
}

// Lets a text that is too long lose its beginning: the end, such as the number of a line, is what one looks for.
export function fromEnd<E extends Element>(node: E): E {
  node.classList.add("from-end");
  node.replaceChildren(el("bdi", { text: node.textContent }));
  return node;
}

export interface Part {
  from: number; // shares of the whole, 0 to 1
  to: number;
  paint: Record<string, string>;
}

// Parts of a whole as a bar. It is an SVG, because the page's security policy forbids inline style attributes.
export function partsBar(parts: Part[], kind = ""): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  const give = (node: Element, attributes: Record<string, unknown>) => Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, String(value)));
  give(svg, { class: `bar ${kind}`.trim(), viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const { from, to, paint } of parts) {
    const rect = document.createElementNS(SVG, "rect");
    give(rect, { x: 100 * from, width: 100 * Math.max(0, to - from), height: 6, ...paint });
    svg.append(rect);
  }
  return svg;
}

export const bar = (ratio: number, paint: Record<string, string> = {}) => partsBar([{ from: 0, to: Math.max(0, Math.min(1, ratio)), paint }]);

// To ask for a colour makes the browser lay out the page, so each is asked for once in a theme.
const colors = new Map<string, string>();

export const forgetColors = (): void => colors.clear();

// Returns the colour that the stylesheet gives an element with these attributes.
export function colorOf(paint: Record<string, string>): string {
  const key = JSON.stringify(paint);
  const known = colors.get(key);
  if (known !== undefined) return known;
  const probe = el("i", { class: "swatch probe", ...paint });
  document.body.append(probe);
  const color = getComputedStyle(probe).backgroundColor;
  probe.remove();
  colors.set(key, color);
  return color;
}

export const named = (name: string): string => colorOf({ "data-category": name });
export const swatch = (paint: Record<string, string>) => el("i", { class: "swatch", ...paint });
