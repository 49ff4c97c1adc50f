// Puts the page together from the model in the document and the state in the URL; each part has one function.
import { Frame, unpackJson } from "./codec.js";
import { Detail } from "./detail.js";
import { $, bar, el } from "./dom.js";
import { Flame } from "./flame.js";
import { listenToFolds } from "./folds.js";
import { bytes, duration, percent, whole } from "./format.js";
import { ModuleTree, foldedRows } from "./modules.js";
import { planCharts } from "./plan.js";
import { state } from "./state.js";
import { Stacks, listenToDialog, showStorage } from "./storage.js";
import { Tables, liveColumns, moduleColumns, savedColumns, stepColumns } from "./tables.js";
import { listenToTheme } from "./theme.js";
import { Timeline, listenToKeys } from "./timeline.js";
import { ORDERS, knownOrder } from "./tree.js";

const model = modelOf(state.get().device);
const categories = model.categories.map(({ name }) => name);
const { overview, totals, peak } = model;
// The other devices lie in templates; one of them takes the place of the page's own parts.
function modelOf(device) {
  const other = [...document.querySelectorAll("template[data-device]")].find((each) => each.dataset.device === device);
  if (!other) return JSON.parse($("model").textContent);
  for (const part of other.content.querySelectorAll("[data-part]")) {
    document.querySelector(`[data-part=${part.dataset.part}]`).replaceChildren(...part.cloneNode(true).childNodes);
  }
  return JSON.parse(other.content.querySelector("script").textContent);
}

const once = (make) => {
  let made;
  return () => (made ??= make());
};

const words = once(() => unpackJson(model.blocks.words));
const entry = categories.map((name) => overview.live_bytes[name][0] ?? 0);
const detail = once(async () => {
  performance.mark("memwatch-detail");
  const { left_out: leftOut } = model.blocks.detail;
  $("left-out").textContent = leftOut ? `${whole(leftOut)} short-lived storages are left out of zooms and live sets: they were alive at none of the maxima drawn.` : "";
  return Detail.unpack(model.blocks.detail, categories, entry, await words());
});
const moduleTree = once(async () => new ModuleTree(await Frame.unpack(model.blocks.modules, await words())));
const stacks = once(async () => Stacks.unpack(model.blocks.stacks, await words()));
let live; // the table of the storages alive at the instant shown
let decoded; // the detail, once it is decoded

// -- timeline ------------------------------------------------------------------------------------------

// The axis ends a little after the run; the last event would have no width otherwise.
const wholeRun = (axis) => [0, Math.max(1, axis === "events" ? totals.events : totals.span_ns) * 1.01];

function marks(axis) {
  const x = (event, time) => (axis === "events" ? event : decoded ? decoded.timeOf(event) : time);
  const at = Number(state.get().at);
  const steps = axis === "time" && model.steps.length > 1 ? model.steps.map((step) => ({ x: step.time_ns, label: `step ${step.name}`, kind: "step" })) : [];
  const shown = [...(steps.length <= 12 ? steps : steps.map((step) => ({ ...step, label: "" }))), { x: x(peak.event, peak.time_ns), label: `peak ${bytes(totals.peak_bytes)}`, kind: "peak" }];
  if (!showsPeak() && decoded) shown.push({ x: x(at, 0), label: `event ${whole(at)}`, kind: "at" });
  return shown;
}

const timeline = new Timeline({
  categories,
  marks,
  onPick: (event) => state.set({ at: event === peak.event ? "" : event, cell: "", tab: "live", sort: "" }),
  onZoom: (range) => {
    const axis = state.get().axis;
    const [from, to] = wholeRun(axis);
    const inside = range && [Math.max(from, range[0]), Math.min(to, range[1])];
    const all = !inside || inside[1] - inside[0] >= to - from || inside[1] <= inside[0];
    state.set({ zoom: all ? "" : inside.map((x) => x.toPrecision(12).replace(/\.?0+$/, "")).join("_") });
  },
});

function zoomRange(axis) {
  const range = state.get().zoom.split("_").map(Number);
  return range.length === 2 && range.every(Number.isFinite) && range[0] < range[1] ? range : null;
}

async function drawTimeline() {
  const { axis } = state.get();
  const range = zoomRange(axis);
  $("zoom-reset").disabled = !range;
  $("axis").value = axis === "events" ? "events" : "time";
  if (!range && axis !== "events") {
    const live = categories.map((name) => overview.live_bytes[name]);
    timeline.draw({ event: overview.event, x: overview.time_ns, live }, "time", wholeRun("time"));
    return;
  }
  decoded = await detail();
  const [from, to] = range ?? wholeRun(axis);
  timeline.draw(decoded.window(from, to, axis), axis, [from, to]);
}

function zoomToPeak() {
  const { axis } = state.get();
  const [from, to] = zoomRange(axis) ?? wholeRun(axis);
  const middle = axis === "events" ? peak.event : peak.time_ns;
  timeline.onZoom([middle - (to - from) / 20, middle + (to - from) / 20]);
}

// -- live storages: icicle and tables ---------------------------------------------------------------

const peakFrame = once(async () => Frame.unpack(model.blocks.peak, await words()));

function showsPeak() {
  const event = Number(state.get().at);
  return state.get().at === "" || !Number.isInteger(event) || event < 0 || event > totals.events;
}

async function loadLive() {
  const event = Number(state.get().at);
  if (showsPeak()) {
    live = await peakFrame();
  } else {
    decoded = await detail();
    live = decoded.liveAt(event);
  }
  $("icicle-title").textContent = showsPeak() ? "What the peak is made of" : `What was live at event ${whole(event)}`;
}

let modules; // the tree of modules, once it is built
const flame = new Flame({ onCell: (path) => state.set({ cell: path, tab: "live" }), lineage: (name) => modules.lineage(name) });
const liveTotal = () => live.sum("nbytes");

function drawFlame() {
  const { order } = state.get();
  flame.show(live, order, showsPeak() ? "peak" : `event ${whole(Number(state.get().at))}`);
  flame.zoom(state.get().cell);
  if (flame.search) flame.find(flame.search);
}

function liveSummary(frame, rows) {
  const atPeak = showsPeak();
  const sum = frame.sum("nbytes", rows);
  const part = rows.length === frame.rows ? "" : ` of ${bytes(liveTotal())}`;
  const where = atPeak ? "at the peak" : `at event ${whole(Number(state.get().at))}, ${duration(decoded.timeOf(Number(state.get().at)))} after entry`;
  const text = el("span", { id: "live-total", "data-bytes": sum, text: `${bytes(sum)}${part} in ${whole(rows.length)} storages ${where}. ` });
  return atPeak ? [text] : [text, el("button", { type: "button", class: "link", id: "back-to-peak", text: "Back to the peak", onclick: () => state.set({ at: "", cell: "" }) })];
}

const openStorage = (id) => state.set({ storage: id });

async function drawStorage() {
  const { storage } = state.get();
  if (storage === "") {
    if ($("storage").open) $("storage").close();
    return;
  }
  const ofPeak = await peakFrame();
  let frame = [ofPeak, live].find((each) => each.columns.id.values.includes(Number(storage)));
  if (!frame) {
    decoded = await detail();
    frame = decoded.all();
  }
  const row = frame.columns.id.values.indexOf(Number(storage));
  if (row >= 0) showStorage(frame, row, await stacks());
}

async function showOp(op) {
  decoded = await detail();
  state.set({ at: decoded.highestIn(op), tab: "live", cell: "", sort: "" });
}

function moduleSummary() {
  const button = (id, text, close) => el("button", { type: "button", class: "link", id, text, onclick: () => modules.foldAll(close) });
  return ["Bytes at the peak by the module that made or owns them; a row includes the rows indented under it. ", button("fold-modules", "Fold all", true), " ", button("unfold-modules", "Unfold all", false)];
}

async function makeTables() {
  const [saved, steps] = await Promise.all(["saved", "steps"].map(async (name) => Frame.unpack(model.blocks[name], await words())));
  const share = model.saved.share_ratio === null ? "A memory snapshot does not tell what autograd saved." : `${bytes(model.saved.nbytes - model.saved.held_anyway_bytes)} (${percent(model.saved.nbytes - model.saved.held_anyway_bytes, totals.peak_bytes)}) of the peak is there only for backward; ${bytes(model.saved.held_anyway_bytes)} more is saved but lives anyway (parameters, inputs, states).`;
  const listed = model.saved.listed < model.saved.tensors ? ` Of ${whole(model.saved.tensors)} saved tensors, those held at the peak are listed.` : "";
  const layers = model.saved.layers ? ` ${model.saved.layers}.` : "";
  return new Tables({
    live: {
      label: "Live set",
      key: "id",
      frame: () => live,
      columns: (frame) => liveColumns(frame, liveTotal, openStorage),
      sort: "nbytes:desc",
      keys: () => flame.cellsAt(state.get().cell).map((cell) => cell.key),
      cell: () => flame.cellsAt(state.get().cell).slice(1).map((cell) => cell.name.slice(0, 60)).join(" › "),
      summary: liveSummary,
    },
    saved: { label: "Saved for backward", key: "storage", frame: () => saved, columns: (frame) => savedColumns(frame, openStorage), sort: "nbytes:desc", summary: () => [share + layers + listed] },
    modules: { label: "Modules", key: "module", frame: () => modules.frame, columns: () => moduleColumns(modules), sort: "inclusive_bytes:desc", arrange: (rows, filtered) => modules.arrange(rows, filtered ? new Set() : foldedRows()), summary: moduleSummary },
    steps: { label: "Steps", key: "step", frame: () => steps, columns: (frame) => stepColumns(frame, showOp), sort: "step:asc", summary: () => ["One row per prof.step(); the last ends with the block."] },
  }, (name) => modules.lineage(name));
}

// -- wiring --------------------------------------------------------------------------------------------

function drawComposition() {
  const svg = bar(0);
  svg.replaceChildren();
  let left = 0;
  for (const { name, nbytes } of model.categories) {
    const rect = document.createElementNS(svg.namespaceURI, "rect");
    const width = (100 * nbytes) / (totals.peak_bytes || 1);
    for (const [key, value] of Object.entries({ x: left, width, height: 6, "data-category": name })) rect.setAttribute(key, value);
    svg.append(rect);
    left += width;
  }
  $("composition").append(svg);
}

function listen() {
  $("axis").addEventListener("change", () => state.set({ axis: $("axis").value, zoom: "" }));
  $("zoom-peak").addEventListener("click", zoomToPeak);
  $("zoom-reset").addEventListener("click", () => state.set({ zoom: "" }));
  $("order").append(...Object.entries(ORDERS).map(([value, { label }]) => el("option", { value, text: label })));
  $("order").addEventListener("change", () => state.set({ order: $("order").value, cell: "" }));
  $("icicle-reset").addEventListener("click", () => state.set({ cell: "" }));
  $("icicle-search").addEventListener("input", (event) => flame.find(event.target.value.trim()));
  $("help-open").addEventListener("click", () => $("help").showModal());
  for (const link of document.querySelectorAll("[data-jump], .skip")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const target = $(link.dataset.jump ?? "timeline");
      target.scrollIntoView({ block: "start" });
      target.focus({ preventScroll: true });
    });
  }
}

let drawPlan;

function repaint() {
  if (timeline.points) timeline.draw(timeline.points, timeline.axis, timeline.range);
  if (live) drawFlame();
  drawPlan?.();
}

async function start() {
  drawComposition();
  listen();
  listenToTheme(repaint);
  listenToFolds();
  listenToKeys(timeline);
  listenToDialog();
  await drawTimeline();
  performance.mark("memwatch-first-chart");
  await loadLive();
  modules = await moduleTree();
  $("order").value = knownOrder(state.get().order);
  drawFlame();
  const tables = await makeTables();
  tables.show();
  await drawStorage();
  if (model.plan) drawPlan = await planCharts(model.plan, await words());
  state.listen(async (now, changed) => {
    const has = (...keys) => keys.some((key) => changed.has(key));
    if (has("at")) await loadLive();
    if (has("zoom", "axis")) await drawTimeline();
    else if (has("at")) timeline.redraw();
    $("order").value = knownOrder(now.order);
    if (has("at", "order")) drawFlame();
    else if (has("cell")) flame.zoom(now.cell);
    $("icicle-reset").disabled = now.cell === "";
    if (has("at", "cell", "order", "tab", "sort", "q", "fold")) tables.show();
    if (has("storage")) await drawStorage();
    document.documentElement.dataset.shown = String(Number(document.documentElement.dataset.shown ?? 0) + 1);
  });
  $("icicle-reset").disabled = state.get().cell === "";
  document.documentElement.dataset.ready = "yes";
  performance.mark("memwatch-ready");
}

state.listen((now, changed) => {
  if (changed.has("device")) location.reload(); // the state of the other device is in the address already
});
start();
