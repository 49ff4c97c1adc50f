"""Write `tune.md`: what torch's CUDA allocator reserves for twenty programs, by default and with the setting of `tune`.

    python reports/tune.py                   # with memwatch's model of the allocator
    MEMWATCH_C10_CUDA=.../libc10_cuda.so python reports/tune.py  # with torch's own

Each program is estimated on fake tensors, so no GPU is needed. The second table runs many settings on one long trace.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from allocator import random_trace
from tune_programs import PROGRAMS, STEPS

import memwatch
from memwatch.devices.cuda_allocator import ANY_DEVICE_BYTES, FREE, Trace, choose_allocator
from memwatch.devices.cuda_allocator.model import Model
from memwatch.sizes import format_bytes

_HERE = Path(__file__).parent
_WANTED_RATIO = 1.03
_EVENTS = 170_000
_SPLITS = ("", *(f"max_split_size_mb:{size}" for size in (21, 32, 48, 64, 96, 128, 192, 256, 512, 1024)))
_GRID = [
    ",".join(filter(None, parts))
    for parts in itertools.product(
        ("", "expandable_segments:True"),
        ("", *(f"roundup_power2_divisions:{number}" for number in (2, 4, 8, 16, 32, 64))),
        (*_SPLITS, *(f"large_segment_size_mb:{size}" for size in (11, 12, 16, 32))),
    )
]
"""210 settings, about 175 more than `tune` tries."""
_TEXT = """# The setting that `memwatch tune` chooses, for twenty programs

`python reports/tune.py`, torch {torch}. The batches of each program differ in length or size
([tune_programs.py](tune_programs.py)). It runs on fake tensors, so its sizes are those of a real job. *Tensors* is the
most bytes of tensors that are alive at once. No setting can reserve less. *Default* and *chosen* are the most reserved
bytes as a multiple of it, without a setting and with the one that `tune` names. The answers come from {allocator}.

{within} of {count} programs reserve at most {wanted} times their tensors with the chosen setting. For each of the
others we ran a grid of {settings} settings. *Grid* is the best of them.

| program | what it is | tensors | default | chosen | grid | setting that `tune` chooses |
| --- | --- | ---: | ---: | ---: | ---: | --- |
{rows}

{settings} settings on a trace of {events:,} events took {seconds:.1f} s on a machine with two cores. In
memwatch's model, which answers on a CPU build of torch, they took {model_cpu_s:.0f} s of processor time.
"""


def measured(name: str) -> dict[str, Any]:
    """Return the row of one program."""
    reading = memwatch.estimate(PROGRAMS[name], device="cuda", steps=10 * STEPS).reading
    tuning = memwatch.tune(reading)
    best_of_grid = None
    if tuning.best.most_reserved_bytes > _WANTED_RATIO * tuning.lower_bound_bytes:
        best_of_grid = memwatch.tune(reading, settings=_GRID).best.most_reserved_bytes
    return {
        "name": name,
        "what": (PROGRAMS[name].__doc__ or "").rstrip("."),
        "tensors": tuning.lower_bound_bytes,
        "default": tuning.default.most_reserved_bytes,
        "chosen": tuning.best.most_reserved_bytes,
        "grid": best_of_grid,
        "setting": tuning.best.settings,
    }


def long_trace() -> Trace:
    """Return random traces, one after the other."""
    events: list[tuple[int, int, int]] = []
    blocks, seed = 0, 0
    while len(events) < _EVENTS:
        trace, _ = random_trace(seed)
        alive = set()
        for block, size, stream in zip(
            (trace.blocks + blocks).tolist(), trace.sizes.tolist(), trace.streams.tolist(), strict=True
        ):
            events.append((block, size, stream))
            (alive.discard if size == FREE else alive.add)(block)
        events += [(block, FREE, 0) for block in sorted(alive)]
        blocks, seed = blocks + int(trace.blocks.max()) + 1, seed + 1
    return Trace.of_events(events[:_EVENTS])


def seconds_of_many_settings(trace: Trace) -> float:
    """Return the time of many settings on one trace in the allocator that answers here."""
    start = time.perf_counter()
    choose_allocator()[0].run_many(trace, _GRID, ANY_DEVICE_BYTES)
    return time.perf_counter() - start


def model_cpu_s_of_many_settings(trace: Trace) -> float:
    """Return the processor time of many settings on one trace in memwatch's model."""
    start = time.process_time()
    Model().run_many(trace, _GRID, ANY_DEVICE_BYTES)
    return time.process_time() - start


def main() -> None:
    """Measure all programs, or print the row of the one that is named."""
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1])))
        return
    found = []
    for name in PROGRAMS:
        command = [sys.executable, __file__, name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=_HERE)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1], flush=True)
    rows = [
        f"| {row['name']} | {row['what']} | {format_bytes(row['tensors'])} | {row['default'] / row['tensors']:.3f} "
        f"| {row['chosen'] / row['tensors']:.3f} | {_ratio(row['grid'], row['tensors'])} | {_code(row['setting'])} |"
        for row in found
    ]
    trace = long_trace()
    text = _TEXT.format(
        torch=torch.__version__,
        allocator=choose_allocator()[0].name,
        within=sum(row["grid"] is None for row in found),
        count=len(found),
        wanted=_WANTED_RATIO,
        rows="\n".join(rows),
        settings=len(_GRID),
        events=_EVENTS,
        seconds=seconds_of_many_settings(trace),
        model_cpu_s=model_cpu_s_of_many_settings(trace),
    )
    (_HERE / "tune.md").write_text(text)


def _ratio(nbytes: int | None, of_bytes: int) -> str:
    return "" if nbytes is None else f"{nbytes / of_bytes:.3f}"


def _code(setting: str) -> str:
    return f"`{setting}`" if setting else "the default"


if __name__ == "__main__":
    main()
