// What memwatch/report/page/model.py writes into the document.
import type { Packed } from "./codec.ts";
import type { Axis } from "./detail.ts";
import { $ } from "./dom.ts";
import type { Block } from "./frame.ts";
import type { PlanModel } from "./plan.ts";

export interface Finding {
  kind: string;
  label: string;
  nbytes: number;
  holder: string;
  site: string;
  place: string; // the same, shortened
  modules: string[];
  storages: Packed;
}

export interface DetailBlock {
  tick_ns: number;
  sites: Block;
  storages: Block;
  events: Block;
  other_baseline_bytes: number;
  left_out: number;
}

export interface Moment {
  event: number;
  time_ns: number;
}

// The memory of the whole process, at each reading of it.
export interface ProcessModel {
  time_ns: number[];
  event: number[];
  coverage_ratio: number[];
  layers: { name: string; parts: { name: string; nbytes: number[] }[] }[];
}

export interface PageModel {
  totals: { peak_bytes: number; device: string; ops: number | null; events: number; span_ns: number };
  peak: Moment & { op: number; text: string; step: [Moment, Moment] | null }; // the start and the end of its step
  categories: { name: string; nbytes: number }[];
  overview: { axis: Axis; complete: boolean; event: number[]; x: number[]; live_bytes: Record<string, number[]> };
  process: ProcessModel | null;
  steps: (Moment & { name: string; op: number })[];
  saved: { nbytes: number; held_anyway_bytes: number; share_ratio: number | null; tensors: number; listed: number; layers: string };
  findings: Finding[];
  cells: Record<string, string>; // what a notebook calls the files of its cells
  plan: PlanModel | null;
  blocks: {
    words: string;
    peak: Block;
    saved: Block;
    modules: Block;
    steps: Block;
    phases: Block;
    sources: Block;
    detail: DetailBlock;
    stacks: Record<string, Packed>;
    uses: Record<"storage" | "count" | "op", Packed>;
  };
}

// The other devices lie in templates; one of them takes the place of the page's own parts.
export function modelOf(device: string): PageModel {
  const templates = [...document.querySelectorAll<HTMLTemplateElement>("template[data-device]")];
  const other = templates.find((each) => each.dataset.device === device);
  if (!other) return JSON.parse($("model").textContent!);
  for (const part of other.content.querySelectorAll<HTMLElement>("[data-part]")) {
    document.querySelector(`[data-part=${part.dataset.part}]`)!.replaceChildren(...part.cloneNode(true).childNodes);
  }
  return JSON.parse(other.content.querySelector("script")!.textContent!);
}
