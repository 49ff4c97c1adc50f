// The icicle (upside-down flame graph) of live storages. d3-flame-graph draws it; the state holds order and cell.
import flamegraph from "d3-flame-graph/src/flamegraph.js";
import { select } from "d3-selection";
import { $, colorOf } from "./dom.js";
import { bytes, percent, shortLine, whole } from "./format.js";
import { buildTree, levelsOf } from "./tree.js";

const CELL_PX = 22;
const LABEL_CHARS = 160;

const depth = (node) => 1 + Math.max(0, ...node.children.map(depth));
const short = (text) => (text.length > LABEL_CHARS ? `${text.slice(0, LABEL_CHARS)}…` : text);

export class Flame {
  // `lineage(module)` returns the names of the modules from the root to this one.
  constructor({ onCell, lineage }) {
    this.box = $("flame");
    this.onCell = onCell;
    this.lineage = lineage;
    this.search = "";
    new ResizeObserver(() => this.#resize()).observe(this.box);
  }

  show(frame, order, name) {
    this.tree = buildTree(frame, levelsOf(frame, order), name, this.lineage);
    this.box.replaceChildren();
    this.width = this.box.clientWidth;
    const colors = new Map();
    const color = (name) => colors.get(name) ?? colors.set(name, colorOf(name)).get(name);
    const quick = matchMedia("(prefers-reduced-motion: reduce)").matches || document.hidden;
    this.chart = flamegraph()
      .width(this.width)
      .height(depth(this.tree) * CELL_PX)
      .cellHeight(CELL_PX)
      .inverted(true)
      .minFrameSize(1)
      .transitionDuration(quick ? 0 : 150)
      .setColorMapper((d) => (d.highlight ? color("found") : color(d.data.level === "root" ? "root" : d.data.category)))
      .setLabelHandler((d) => this.describe(d.data))
      .setSearchMatch((d, term) => term !== "" && d.data.name.toLowerCase().includes(term))
      .onClick((d) => this.onCell(this.pathOf(d)))
      .onHover((d) => ($("flame-status").textContent = this.describe(d.data)));
    const data = this.tree.value ? this.#cell(this.tree) : null;
    if (!data) return;
    select(this.box).datum(data).call(this.chart);
    this.#makeReachable();
  }

  // d3-flame-graph adds fields to the data it draws, so it gets a copy.
  #cell({ name, level, value, count, category, children }) {
    return { name: level === "line" ? shortLine(name) : short(name), level, value, count, category, children: children.map((child) => this.#cell(child)) };
  }

  describe({ name, level, value, count }) {
    const kind = { root: "", op_name: "op ", line: "", holder: "held by ", holder_kind: "held by " }[level] ?? `${level} `;
    return `${kind}${short(name)}: ${bytes(value)}, ${percent(value, this.tree.value)}, ${whole(count)} storage${count === 1 ? "" : "s"}`;
  }

  pathOf(d) {
    const path = [];
    for (let node = d; node.parent; node = node.parent) path.unshift(node.parent.children.indexOf(node));
    return path.join(".");
  }

  // Returns keys and names of the cells from the root down to a path such as `0.2.1`.
  cellsAt(path) {
    const cells = [this.tree];
    for (const index of path ? path.split(".").map(Number) : []) {
      const next = cells.at(-1).children[index];
      if (!next) break;
      cells.push(next);
    }
    return cells;
  }

  zoom(path) {
    if (!this.tree?.value) return;
    let node = select(this.box).datum();
    node.each((each) => Object.assign(each.data, { hide: false, fade: false })); // without this, a jump to another branch keeps marks of the last one
    for (const index of path ? path.split(".").map(Number) : []) node = node.children?.[index] ?? node;
    const onClick = this.chart.onClick();
    this.chart.onClick(null).zoomTo(node);
    this.chart.onClick(onClick);
    this.#makeReachable();
  }

  find(term) {
    this.search = term.toLowerCase();
    if (!this.tree?.value) return;
    this.chart.search(this.search);
    this.#makeReachable();
  }

  #makeReachable() {
    select(this.box)
      .selectAll("g.frame")
      .attr("tabindex", 0)
      .attr("role", "button")
      .attr("data-level", (d) => d.data.level)
      .attr("aria-label", (d) => this.describe(d.data))
      .on("focus", (_, d) => ($("flame-status").textContent = this.describe(d.data)))
      .on("keydown", (event, d) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        this.onCell(this.pathOf(d));
      });
  }

  #resize() {
    if (!this.tree?.value || this.box.clientWidth === this.width) return;
    this.width = this.box.clientWidth;
    this.chart.width(this.width).update();
    this.#makeReachable();
  }
}
