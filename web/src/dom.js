// Builds elements. Text from a capture becomes text nodes, never HTML.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A share as a bar. It is an SVG, because the page's security policy forbids inline style attributes.
export function bar(ratio, category) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "bar");
  svg.setAttribute("viewBox", "0 0 100 6");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const rect = document.createElementNS(SVG, "rect");
  rect.setAttribute("width", String(Math.max(0, Math.min(1, ratio)) * 100));
  rect.setAttribute("height", "6");
  if (category) rect.dataset.category = category;
  svg.append(rect);
  return svg;
}

export function colorOf(category) {
  const probe = el("i", { class: "swatch probe", "data-category": category });
  document.body.append(probe);
  const color = getComputedStyle(probe).backgroundColor;
  probe.remove();
  return color;
}
