// The packed tables of the page, each decoded once, when it is first needed.
import { unpackInts, unpackTexts } from "./codec.ts";
import { Detail } from "./detail.ts";
import { $ } from "./dom.ts";
import { Findings } from "./findings.ts";
import { whole } from "./format.ts";
import { Frame, Words } from "./frame.ts";
import { LiveSets } from "./live.ts";
import type { PageModel } from "./model.ts";
import { ModuleTree } from "./modules.ts";
import { Phases } from "./phases.ts";
import { Sources } from "./sources.ts";
import { Stacks } from "./stacks.ts";

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined;
  return () => (made ??= make());
}

export class Data {
  readonly #model: PageModel;
  decoded: Detail | undefined; // the detail, once it is there
  constructor(model: PageModel) {
    this.#model = model;
  }

  readonly words = once(async () => new Words(await unpackTexts(this.#model.blocks.words)));
  readonly detail = once(async () => {
    performance.mark("memwatch-detail");
    this.decoded = await Detail.unpack(this.#model.blocks.detail, await this.words());
    const { leftOut } = this.decoded;
    $("left-out").textContent = leftOut ? `${whole(leftOut)} short-lived storages are left out of zooms and live sets: they were alive at none of the maxima drawn.` : "";
    return this.decoded;
  });
  readonly modules = once(async () => new ModuleTree(await this.frame("modules")));
  readonly stacks = once(async () => Stacks.unpack(this.#model.blocks.stacks, await this.words()));
  readonly sources = once(async () => new Sources(await this.frame("sources"), await this.stacks()));
  readonly phases = once(async () => new Phases(await this.frame("phases"), this.#model.totals.ops ?? 0));
  readonly sets = once(async () => new LiveSets(await this.frame("peak"), await this.phases()));
  readonly findings = once(async () => Findings.unpack(this.#model.findings));
  readonly uses = once(async () => {
    const { storage, count, op } = this.#model.blocks.uses;
    const [ids, counts, ops] = await Promise.all([storage, count, op].map(unpackInts));
    let from = 0;
    return new Map(Array.from(ids, (id, index): [number, number[]] => [id, Array.from(ops.subarray(from, (from += counts[index])))]));
  });

  async frame(name: "peak" | "saved" | "modules" | "steps" | "phases" | "sources"): Promise<Frame> {
    return Frame.unpack(this.#model.blocks[name], await this.words());
  }
}
