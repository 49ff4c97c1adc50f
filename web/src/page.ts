// The page of a profile: each part is drawn again when what it shows of the state has changed.
import { phaseLegend } from "./biography.ts";
import { Colouring } from "./colouring.ts";
import { liveColumns, type Links, moduleColumns, savedColumns, stepColumns } from "./columns.ts";
import { Curve } from "./curve.ts";
import { Data } from "./data.ts";
import { DIMENSIONS, grouping, known, levelsOf } from "./dimensions.ts";
import { $, el, link, marked } from "./dom.ts";
import { Findings } from "./findings.ts";
import { Flame } from "./flame.ts";
import { bytes, counted, percent, whole } from "./format.ts";
import type { Frame } from "./frame.ts";
import { Instant, listenToInstant, tell } from "./instant.ts";
import { Legend } from "./legend.ts";
import { Listing } from "./listing.ts";
import type { LiveSets } from "./live.ts";
import type { PageModel } from "./model.ts";
import { type ModuleTree, foldedRows } from "./modules.ts";
import type { Phases } from "./phases.ts";
import { label, picked, pickedRows } from "./pick.ts";
import { planCharts } from "./plan.ts";
import { Query } from "./query.ts";
import { Search } from "./search.ts";
import { type Key, type State, state } from "./state.ts";
import { StorageDialog } from "./storage.ts";
import { Tables } from "./tables.ts";
import { listenToTheme } from "./theme.ts";
import { buildTree, matches } from "./tree.ts";

const isAtPeak = (frame: Frame, row: number): boolean => frame.number("at_peak", row) !== 0;

export class Page {
  readonly #model: PageModel;
  readonly #data: Data;
  readonly #instant: Instant;
  readonly #curve: Curve;
  readonly #flame = new Flame((path) => state.set({ cell: path, tab: "live" }));
  readonly #search = new Search();
  readonly #legend: Legend;
  readonly #categories: string[];
  #colouring: Colouring;
  #live!: Frame; // the live set of the instant, or what changed between two
  #later!: Frame; // the live set at the later of two instants
  #shown!: Frame; // of these, what is picked out
  #sets!: LiveSets;
  #phases!: Phases;
  #modules!: ModuleTree;
  #findings!: Findings;
  #listing!: Listing;
  #tables!: Tables;
  #dialog!: StorageDialog;
  #drawPlan: (() => void) | undefined;

  constructor(model: PageModel) {
    this.#model = model;
    this.#data = new Data(model);
    this.#instant = new Instant(model);
    this.#curve = new Curve(model, this.#data, this.#instant);
    this.#categories = model.categories.map(({ name }) => name);
    this.#colouring = new Colouring("category", this.#categories);
    this.#legend = new Legend(model);
  }

  async start(): Promise<void> {
    this.#listen();
    this.#curve.drawOverview(this.#colouring);
    performance.mark("memwatch-first-chart");
    await this.#unpack();
    await this.#draw(new Set(["at", "zoom", "color", "storage"]));
    if (this.#model.plan) this.#drawPlan = await planCharts(this.#model.plan, await this.#data.words());
    state.listen((_, changed) => this.#change(changed));
    // the events are decoded while the user looks at the peak, so that the first click is as quick as the next
    requestIdleCallback(() => this.#data.detail(), { timeout: 2000 });
  }

  async #unpack(): Promise<void> {
    const data = this.#data;
    [this.#sets, this.#phases, this.#modules, this.#findings] = await Promise.all([data.sets(), data.phases(), data.modules(), data.findings()]);
    const [sources, stacks] = await Promise.all([data.sources(), data.stacks()]);
    this.#listing = new Listing(sources, this.#model.findings);
    const revealLine = (line: string) => this.#listing.reveal(line);
    const detail = data.detail;
    this.#dialog = new StorageDialog({ stacks, sources, phases: this.#phases, findings: this.#findings, instant: this.#instant, detail, revealLine });
    this.#findings.connect(detail, this.#instant, revealLine);
    this.#tables = await this.#makeTables({ openStorage: (id) => state.set({ storage: id }), showOp: (op) => this.#showOp(op), revealLine });
  }

  // -- what is shown ---------------------------------------------------------------------------------------

  #pending: Set<Key> | undefined; // what has changed while something was drawn
  #isDrawing = false;

  async #change(changed: Set<Key>): Promise<void> {
    this.#pending = new Set([...(this.#pending ?? []), ...changed]);
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    while (this.#pending) {
      const now = this.#pending;
      this.#pending = undefined;
      await this.#draw(now);
    }
    this.#isDrawing = false;
    document.documentElement.dataset.shown = String(Number(document.documentElement.dataset.shown ?? 0) + 1);
  }

  async #draw(changed: Set<Key>): Promise<void> {
    const now = state.get();
    const has = (...keys: Key[]) => keys.some((key) => changed.has(key));
    if (has("at", "than")) await this.#loadLive();
    if (has("color", "at") && !this.#showsColours(now)) this.#colouring = Colouring.of(now.color, this.#categories, this.#sets.peak);
    if (has("zoom", "axis", "color")) await this.#curve.draw(this.#colouring, this.#sets);
    else if (has("at", "than")) this.#curve.redraw();
    if (has("at", "than", "pick", "color")) this.#pick();
    if (has("at", "than", "pick", "color", "by")) this.#drawFlame(now);
    else if (has("cell")) this.#flame.zoom(now.cell);
    $("icicle-reset").toggleAttribute("disabled", now.cell === "");
    const rows = has("at", "than", "cell", "by", "color", "pick", "tab", "sort", "q", "fold", "wrap", "saved") ? this.#tables.show() : 0;
    if (has("at", "than", "by", "color", "pick", "q", "tab", "cell")) this.#find(now, rows);
    if (has("storage", "at")) await this.#drawStorage(now);
  }

  #showsColours({ color }: State): boolean {
    return this.#colouring.name === known(color);
  }

  async #loadLive(): Promise<void> {
    const { isPeak, event, than } = this.#instant;
    if (isPeak && than === null) this.#live = this.#sets.peak;
    else if (than === null) this.#live = this.#sets.at(await this.#data.detail(), event);
    else this.#live = this.#sets.between(await this.#data.detail(), Math.min(than, event), Math.max(than, event)); // whichever was chosen first
    this.#later = than === null ? this.#live : Math.max(than, event) === this.#model.peak.event ? this.#sets.peak : this.#sets.at(await this.#data.detail(), Math.max(than, event));
    const changes = than === null ? null : { born: this.#changed("born", "grown"), died: this.#changed("died", "shrunk") };
    const liveBytes = isPeak ? this.#model.totals.peak_bytes : than === null ? this.#live.sum("nbytes") : (await this.#data.detail()).bytesAt(event);
    tell(this.#model, { instant: this.#instant, phases: this.#phases, detail: this.#data.decoded, liveBytes, changes });
  }

  #changed(...how: string[]): number {
    return this.#live.sum("nbytes", this.#rows(this.#live).filter((row) => how.includes(this.#live.text("change", row))));
  }

  #rows(frame: Frame): number[] {
    return Array.from({ length: frame.rows }, (_, row) => row);
  }

  // The instant in words, for the titles of all parts: `at the peak`, or what two instants lie apart.
  get #when(): string {
    const { than, event, name } = this.#instant;
    if (than === null) return `at ${name}`;
    return `from ${this.#instant.nameOf(Math.min(than, event))} to ${this.#instant.nameOf(Math.max(than, event))}`;
  }

  #pick(): void {
    const lineage = (name: string) => this.#modules.lineage(name);
    this.#shown = pickedRows(this.#live, { storagesOf: (index) => this.#findings.storagesOf(index), lineage, colouring: () => this.#colouring });
    this.#legend.show(this.#colouring, { live: this.#live, later: this.#later, peak: this.#sets.peak, when: this.#when });
    this.#listing.show(this.#live, this.#when);
    this.#findings.show(this.#live, this.#when);
  }

  #drawFlame(now: State): void {
    const [first, second] = grouping(now.by);
    $<HTMLSelectElement>("by-first").value = first;
    $<HTMLSelectElement>("by-second").value = second ?? "";
    $<HTMLSelectElement>("color").value = this.#colouring.name;
    const chosen = picked(now.pick);
    const what = chosen ? `${label(chosen)} ${this.#when}` : this.#when;
    const levels = levelsOf(now.by, this.#live.has("change"));
    this.#flame.show(buildTree(this.#shown, levels, what.replace(/^at /, ""), (name) => this.#modules.lineage(name), this.#colouring), this.#colouring, now.cell);
    $("icicle-title").textContent = this.#live.has("change") ? `what changed ${chosen ? "in " : ""}${what}` : chosen || !this.#instant.isPeak ? `what was live${chosen ? ":" : ""} ${what}` : "what the peak is made of";
  }

  #find({ q }: State, storages: number): void {
    const query = new Query(q);
    const has = (text: string) => query.matches(text);
    this.#search.show({ storages, cells: this.#flame.find(query), rows: this.#tables.hits(), lines: this.#listing.find(has), findings: this.#findings.find(has) });
  }

  async #drawStorage({ storage }: State): Promise<void> {
    if (storage === "") return this.#dialog.close();
    const id = Number(storage);
    const place = (frame: Frame) => frame.columns.id.values.indexOf(id);
    let frame = [this.#sets.peak, this.#live].find((each) => place(each) >= 0);
    frame ??= this.#sets.described((await this.#data.detail()).one(id));
    const { isPeak, event } = this.#instant;
    const op = isPeak ? this.#model.peak.op : (await this.#data.detail()).opOf(event);
    const uses = (await this.#data.uses()).get(id) ?? [];
    if (place(frame) >= 0) this.#dialog.show({ frame, row: place(frame), uses, ops: this.#model.totals.ops ?? 0, op });
  }

  async #showOp(op: number): Promise<void> {
    this.#instant.show((await this.#data.detail()).highestIn(op));
  }

  // -- tables ----------------------------------------------------------------------------------------------

  async #makeTables(links: Links): Promise<Tables> {
    const [saved, steps] = await Promise.all([this.#data.frame("saved"), this.#data.frame("steps")]);
    const { ops } = this.#model.totals;
    const lineage = (name: string) => this.#modules.lineage(name);
    return new Tables({
      live: {
        label: "Live storages",
        key: "id",
        sort: "nbytes:desc",
        frame: () => this.#shown,
        columns: (frame) => liveColumns(frame, this.#live.sum("nbytes"), ops ?? 0, this.#colouring, links),
        chosen: (frame) => matches(frame, this.#flame.cellsAt(state.get().cell).map(({ key }) => key), lineage),
        cell: () => this.#flame.cellsAt(state.get().cell).slice(1).map(({ name }) => name.slice(0, 60)).join(" › "),
        summary: (frame, rows) => this.#liveSummary(frame, rows),
      },
      saved: {
        label: "Saved for backward",
        key: "storage",
        sort: "nbytes:desc",
        frame: () => saved,
        columns: (frame) => savedColumns(frame, links, !this.#listsSavedAtPeak(frame)),
        chosen: (frame) => (row) => !this.#listsSavedAtPeak(frame) || isAtPeak(frame, row),
        summary: (frame) => this.#savedSummary(frame),
      },
      modules: {
        label: "Modules",
        key: "module",
        sort: "inclusive_bytes:desc",
        frame: () => this.#modules.frame,
        columns: () => moduleColumns(this.#modules, this.#findings),
        arrange: (rows, filtered) => this.#modules.arrange(rows, filtered ? new Set() : foldedRows()),
        summary: () => this.#moduleSummary(),
      },
      // a run without calls of prof.step() is one step: its row would repeat the figures at the top
      ...(steps.rows > 1 && { steps: { label: "Steps", key: "step", sort: "step:asc", frame: () => steps, columns: (frame) => stepColumns(frame, links), summary: () => marked("One row for each `prof.step()`. The last row ends with the block.") } }),
    });
  }

  #liveSummary(frame: Frame, rows: number[]): (Node | string)[] {
    const sum = frame.sum("nbytes", rows);
    const all = this.#live.sum("nbytes");
    const part = sum === all ? "" : ` of ${bytes(all)}`;
    const verb = frame.has("change") ? "changed" : "live";
    const legend = el("span", { class: "layers muted", id: "life-legend" }, "Life, op by op: ", ...phaseLegend(["lag", "use", "drag", "void"]));
    return [el("span", { id: "live-total", "data-bytes": sum, text: `${bytes(sum)}${part} in ${whole(rows.length)} storage${rows.length === 1 ? "" : "s"} ${verb} ${this.#when}.` }), legend];
  }

  // Of the saved tensors of a whole run, those at the peak answer the page's question.
  #listsSavedAtPeak(frame: Frame): boolean {
    return state.get().saved !== "all" && this.#rows(frame).some((row) => isAtPeak(frame, row));
  }

  #savedSummary(frame: Frame): (Node | string)[] {
    const { saved, totals } = this.#model;
    if (saved.share_ratio === null) return ["A memory snapshot does not record the tensors that autograd saves."];
    if (!frame.rows && !saved.tensors) return ["Autograd saved no tensors in this run."];
    const only = saved.nbytes - saved.held_anyway_bytes;
    const layers = saved.layers ? ` ${saved.layers}.` : "";
    const told = marked(`${bytes(only)} (${percent(only, totals.peak_bytes)}) of the peak is saved only for backward. Backward also reads ${bytes(saved.held_anyway_bytes)} of parameters, inputs and other tensors that stay alive anyway.${layers} `);
    const atPeak = this.#rows(frame).filter((row) => isAtPeak(frame, row)).length;
    if (saved.listed < saved.tensors) return [...told, `Of ${counted(saved.tensors, "saved tensor")} of the run, those at the peak are listed.`];
    if (atPeak === 0 || atPeak === frame.rows) return told;
    const all = state.get().saved === "all";
    const text = all ? `List those at the peak (${whole(atPeak)})` : `List those of the whole run (${whole(frame.rows)})`;
    const listed = all ? "The saved tensors of the whole run are listed. " : "The saved tensors at the peak are listed. ";
    return [...told, listed, link(text, () => state.set({ saved: all ? "" : "all" }), { id: "saved-listed" })];
  }

  #moduleSummary(): (Node | string)[] {
    const fold = (id: string, text: string, close: boolean) => link(text, () => this.#modules.foldAll(close), { id });
    return ["Bytes at the peak, by the module that made or owns them. A row includes the rows indented under it; only “Calls” and “Own at the peak” are of the module alone. Parameters and inputs are not in “Only for backward”, because they stay alive anyway. ", fold("fold-modules", "Fold all", true), " · ", fold("unfold-modules", "Unfold all", false)];
  }

  // -- wiring ----------------------------------------------------------------------------------------------

  #listen(): void {
    const options = () => Object.entries(DIMENSIONS).map(([value, { label: text }]) => el("option", { value, text }));
    $("by-first").append(...options());
    $("by-second").append(el("option", { value: "", text: "op and line" }), ...options());
    $("color").append(...options());
    const chosen = (id: string) => $<HTMLSelectElement>(id).value;
    for (const id of ["by-first", "by-second"]) $(id).addEventListener("change", () => state.set({ by: [chosen("by-first"), chosen("by-second")].filter(Boolean).join("."), cell: "" }));
    $("color").addEventListener("change", () => state.set({ color: chosen("color"), pick: picked()?.kind === "group" ? "" : state.get().pick }));
    $("icicle-reset").addEventListener("click", () => state.set({ cell: "" }));
    $("help-open").addEventListener("click", () => $<HTMLDialogElement>("help").showModal());
    listenToInstant(this.#model, this.#instant, this.#data.detail);
    listenToTheme(() => this.#repaint());
    for (const jump of document.querySelectorAll<HTMLElement>("[data-jump], .skip")) {
      jump.addEventListener("click", (event) => {
        event.preventDefault();
        const target = $(jump.dataset.jump ?? "timeline");
        target.scrollIntoView({ block: "start" });
        target.focus({ preventScroll: true });
      });
    }
  }

  #repaint(): void {
    this.#curve.repaint();
    if (this.#live) this.#drawFlame(state.get());
    this.#drawPlan?.();
    void this.#drawStorage(state.get());
  }
}
