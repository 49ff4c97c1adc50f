"""Compare memwatch's model of the CUDA caching allocator with torch's own allocator on random traces.

    python reports/allocator.py LIBC10_CUDA... [--traces 10000]     # compare, and write allocator.md
    python reports/allocator.py LIBC10_CUDA --record                # write the sample that the tests read

LIBC10_CUDA is `torch/lib/libc10_cuda.so` of a CUDA build of torch, with `torch/include` beside it. No GPU is needed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import zlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.devices.cuda_allocator import FREE, Model, Outcome, Trace, child, find_torchs_own
from memwatch.devices.cuda_allocator.torchs_own import VARIABLE, TorchAllocator
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = pathlib.Path(__file__).parent
SAMPLE = HERE.parent / "tests" / "devices" / "allocator_traces.json"
MIB = 1 << 20
PAGE = 2 * MIB
SETTINGS = (
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[8:2,256:4,>:1]",
    "max_split_size_mb:32",
    "max_split_size_mb:128,max_non_split_rounding_mb:64",
    "large_segment_size_mb:40",
    "per_process_memory_fraction:0.8",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:64",
    "expandable_segments:True,large_segment_size_mb:40",
    "throw_on_cudamalloc_oom:True",
)
RECORDED = 50
CHUNK = 50  # traces that one process of a setting runs
CHILD = HERE / "allocator_child.py"


class Difference(NamedTuple):
    """Where the two allocators differ for a trace and its settings."""

    seed: int
    settings: str
    figures: str


def random_trace(seed: int, *, short: bool = False) -> tuple[Trace, int]:
    """Return a trace, and the memory of a device that it may fill.

    A program has few sizes that return. Two thirds of the traces use one stream, the others up to three.
    """
    chance = random.Random(seed)
    count = chance.choice([20, 40]) if short else chance.choice([50, 300, 1500])
    frees = chance.choice([0.3, 0.48, 0.55])
    streams = chance.choice([[0], [0], [0], [0], [0, 0, 1], [0, 1, 2]])
    most = chance.choice([40, 100, 400, 1000, 4000]) * MIB
    bounds = ((1, 2000), (1, MIB), (MIB, 12 * MIB), (10 * MIB, 80 * MIB))
    sizes = [chance.randrange(*chance.choice(bounds)) for _ in range(chance.choice([3, 8, 40]))]
    live: list[int] = []
    size_of: dict[int, int] = {}
    events: list[tuple[int, int, int]] = []
    for number in range(count):
        nbytes = chance.choice(sizes)
        while live and (chance.random() < frees or sum(size_of[each] for each in live[-50:]) + nbytes > most):
            events.append((live.pop(chance.randrange(len(live))), FREE, 0))
        events.append((number, nbytes, chance.choice(streams)))
        live.append(number)
        size_of[number] = nbytes
    trace = Trace.of_events(events)
    peak_bytes = int(trace.live_bytes.max())
    ratio, more = chance.choice([(100.0, 0), (1.02, PAGE), (1.2, PAGE), (1.5, 10 * PAGE)])
    return trace, int(peak_bytes * ratio) // PAGE * PAGE + more


def figures_of(outcome: Outcome) -> dict[str, object]:
    """Return the figures that shall be equal; those after each event as one number."""
    return {
        "most_reserved_bytes": outcome.most_reserved_bytes,
        "reserved": zlib.crc32(np.ascontiguousarray(outcome.reserved_bytes, dtype="<i8").tobytes()),
        "allocated": zlib.crc32(np.ascontiguousarray(outcome.allocated_bytes, dtype="<i8").tobytes()),
        "retries": outcome.retries,
        "refused_event": outcome.refused_event,
    }


class Real:
    """torch's own allocator under some settings, in one process for many traces."""

    def __init__(self, own: TorchAllocator, folder: str, names: list[str], settings: str) -> None:
        self.own, self.names = own, names
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CHILD), str(pathlib.Path(child.__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # torch warns at each allocation that does not fit
            env=own.environment(folder, settings),
        )

    def figures_of(self, trace: Trace, device_bytes: int) -> dict[str, object]:
        """Return the figures of a trace, as `figures_of` has them."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(self.own.order(trace, self.names, device_bytes))
        self.child.stdin.flush()
        figures: dict[str, object] = json.loads(self.child.stdout.readline())
        if "error" in figures:
            raise MemwatchError(f"torch's own allocator could not be run: {figures['error']}")
        return figures | {
            "refused_event": None if figures["refused_event"] == -1 else figures["refused_event"]
        }

    def close(self) -> None:
        """End the process."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


def compare(seeds: Sequence[int], chosen: Sequence[str]) -> tuple[list[Difference], Counter[tuple[str, str]]]:
    """Return where the allocators differ in some traces, and what happened in them by settings."""
    own = find_torchs_own()
    differences: list[Difference] = []
    happened: Counter[tuple[str, str]] = Counter()
    with own.folder() as (folder, names):
        reals = {settings: Real(own, folder, names, settings) for settings in chosen}
        for seed in seeds:
            trace, device_bytes = random_trace(seed)
            for settings, real in reals.items():
                theirs = real.figures_of(trace, device_bytes)
                ours = figures_of(Model().run(trace, settings, device_bytes))
                happened[settings, "traces"] += 1
                happened[settings, "retries"] += theirs["retries"] != 0
                happened[settings, "full"] += theirs["refused_event"] is not None
                happened[settings, "events"] += len(trace)
                if wrong := [name for name, value in ours.items() if theirs[name] != value]:
                    differences.append(Difference(seed, settings, ", ".join(wrong)))
        for real in reals.values():
            real.close()
    return differences, happened


def table(library: str, seeds: range, jobs: int) -> tuple[list[str], list[Difference]]:
    """Return the section of a torch, and the differences."""
    os.environ[VARIABLE] = library
    own = find_torchs_own()
    first, device_bytes = random_trace(seeds[0])
    outcomes = own.run_many(first, SETTINGS, device_bytes)
    chosen = [
        settings for settings, outcome in zip(SETTINGS, outcomes, strict=True) if isinstance(outcome, Outcome)
    ]
    name = own.version
    found: list[Difference] = []
    happened: Counter[tuple[str, str]] = Counter()
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        for differences, counts in pool.map(functools.partial(compare, chosen=chosen), chunks):
            found += differences
            happened.update(counts)
    lines = [
        f"## torch {name}",
        "",
        "| settings | traces | events | with retries | device too small | different |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for settings in SETTINGS:
        if settings not in chosen:
            lines.append(f"| `{settings}` | not accepted | | | | |")
            continue
        different = len({each.seed for each in found if each.settings == settings})
        cells = (
            f"{happened[settings, 'traces']:,}",
            f"{happened[settings, 'events']:,}",
            f"{happened[settings, 'retries']:,}",
            f"{happened[settings, 'full']:,}",
            f"{different:,}",
        )
        lines.append(f"| {f'`{settings}`' if settings else 'the default'} | {' | '.join(cells)} |")
    return [*lines, ""], found


def record() -> None:
    """Write short traces with the answers of torch's own allocator for the tests."""
    allocator = find_torchs_own()
    rows = []
    for seed in range(RECORDED):
        trace, device_bytes = random_trace(seed, short=True)
        outcomes = allocator.run_many(trace, SETTINGS, device_bytes)
        rows.append(
            {
                "device_bytes": device_bytes,
                "blocks": trace.blocks.tolist(),
                "sizes": trace.sizes.tolist(),
                "streams": trace.streams.tolist(),
                "outcomes": {
                    each.settings: list(figures_of(each).values())
                    for each in outcomes
                    if isinstance(each, Outcome)
                },
            }
        )
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    SAMPLE.write_text(f'{{"torch": "{allocator.version}", "traces": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{SAMPLE}: {SAMPLE.stat().st_size:,} B")


def main() -> int:
    """Compare or record; return 1 if the allocators differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("libraries", nargs="+", metavar="LIBC10_CUDA")
    parser.add_argument("--traces", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--record", action="store_true", help="write the sample of the tests")
    options = parser.parse_args()
    if options.record:
        os.environ[VARIABLE] = options.libraries[0]
        record()
        return 0
    sections: list[str] = []
    differences: list[Difference] = []
    for library in options.libraries:
        seeds = range(options.first, options.first + options.traces)
        lines, found = table(library, seeds, options.jobs)
        sections += lines
        differences += found
    for each in differences:
        print(each)
    introduction = [
        "# The model of the CUDA caching allocator beside torch's own",
        "",
        "`python reports/allocator.py LIBC10_CUDA...` runs random traces of allocations and frees through torch's own",
        "allocator (`libc10_cuda.so` of a CUDA build on memwatch's stand-in driver, no GPU) and through memwatch's",
        "model in Python. A trace counts as different if the reserved or the allocated bytes after any event, the most",
        "reserved bytes, the retries, or the allocation that does not fit differ. A third of the traces use several",
        "streams. Three of four devices have 1.02 to 1.5 times the memory of the tensors' peak, so that many traces",
        "fill them.",
        "",
        "Retries are allocations that a full device refused at first. The limit of `per_process_memory_fraction`",
        "refuses without asking the device, so these retries are not counted.",
        "",
    ]
    (HERE / "allocator.md").write_text(
        "\n".join([*introduction, *sections]).rstrip() + "\n", encoding="utf-8"
    )
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
