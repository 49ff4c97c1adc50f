"""Measure memwatch on a CUDA device and write reports/cuda.md: peaks against torch's counter, costs, and the process.

Run by `make gpu`, with the machine's own Python and torch. Where there is no device it says so and writes nothing.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import WORKLOADS

import memwatch
from memwatch.monitor.device_memory import device_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
STEPS, ROUNDS = 5, 12
FLOOR = "empty TorchDispatchMode"


class EmptyMode(TorchDispatchMode):
    """The floor of every tool that is a dispatch mode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def memory_history() -> Iterator[None]:
    torch.cuda.memory._record_memory_history()
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def mem_tracker() -> Any:
    from torch.distributed._tools.mem_tracker import MemTracker

    return MemTracker()


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "eager": contextlib.nullcontext,
    FLOOR: EmptyMode,
    "MemTracker": mem_tracker,
    "_record_memory_history": memory_history,
    "memwatch": lambda: memwatch.profile(intercept="auto"),
    "memwatch, intercept=mode": lambda: memwatch.profile(intercept="mode"),
}


def seconds_per_step(make: Callable[[], Any], step: Callable[[], None]) -> float:
    """Run steps inside a configuration; return the time of one on the clock, the device's work included."""
    with make() as tool:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            if hasattr(tool, "reset_mod_stats"):
                tool.reset_mod_stats()  # MemTracker raises in its second iteration without this
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / STEPS


def peaks(step: Callable[[], None]) -> tuple[int, int]:
    """Return the peak increase of one step, as memwatch has it and as torch's counter has it in the same step."""
    with memwatch.profile() as prof:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        counted = torch.cuda.max_memory_allocated() - before
    return prof.peak_increase_bytes, counted


def measure() -> str:
    """Measure every workload; return the tables as Markdown."""
    lines = [
        "# memwatch on a CUDA device",
        "",
        f"Written by `make gpu` on {torch.cuda.get_device_name()} with torch {torch.__version__}, Python",
        f"{sys.version.split()[0]}.",
        f"Each time is the median of {ROUNDS} rounds of {STEPS} steps. The configurations take turns, and each round",
        "waits for the device. A round enters and leaves its tool, so each step carries a part of that.",
        "*Added* is the added time divided by the time that an empty TorchDispatchMode adds.",
        "The peaks belong to the first step of a new model, which frees no older memory.",
    ]
    for name, make in WORKLOADS.items():
        step = on_cuda(make)
        step()  # workspaces of cuBLAS and cuDNN are made once
        ours, counted = peaks(on_cuda(make))
        times: dict[str, list[float]] = {each: [] for each in CONFIGURATIONS}
        for _ in range(ROUNDS):
            for each in random.sample(list(CONFIGURATIONS), len(CONFIGURATIONS)):
                times[each].append(seconds_per_step(CONFIGURATIONS[each], step))
        medians = {each: statistics.median(found) for each, found in times.items()}
        floor = max(medians[FLOOR] - medians["eager"], 1e-9)
        lines += [
            "",
            f"## {name}",
            "",
            f"Peak increase: memwatch {ours:,} bytes, `max_memory_allocated` {counted:,} bytes.",
            "",
            "| configuration | ms per step | added |",
            "| --- | ---: | ---: |",
        ]
        for each, median in medians.items():
            lines.append(f"| {each} | {median * 1e3:.2f} | {(median - medians['eager']) / floor:.2f} |")
    return "\n".join([*lines, "", *rows_of_devices(), ""])


READINGS = 1000


def rows_of_devices() -> list[str]:
    """Return a table of the rows of the devices, and the time that a reading of them takes."""
    x = torch.ones(4 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (x * 2).sin_()
    kept = [torch.empty(1 << 16, device="cuda") for _ in range(10_000)]
    free_bytes, capacity_bytes = torch.cuda.mem_get_info()
    used_bytes = capacity_bytes - free_bytes
    table = memwatch.process_memory(children=False)
    device = str(x.device)
    begin = time.perf_counter()
    for _ in range(READINGS):
        device_memory([])
    seconds = (time.perf_counter() - begin) / READINGS
    del kept[::2]
    torch.cuda.empty_cache()  # the next reading lists all blocks
    begin = time.perf_counter()
    device_memory([])
    seconds_of_list = time.perf_counter() - begin
    rows = table[table.row.str.startswith("device: ")]
    return [
        "## The device in `memwatch.process_memory()`",
        "",
        f"The program has 10,000 tensors and a graph on `{device}`. Right before, `torch.cuda.mem_get_info` had",
        f"{used_bytes:,} bytes in use, by all processes together. A reading of the device took",
        f"{seconds * 1e3:.2f} ms, and {seconds_of_list * 1e3:.1f} ms after the allocator had returned or taken memory.",
        "",
        "| row | bytes |",
        "| --- | ---: |",
        *(f"| {name} | {nbytes:,} |" for name, nbytes in zip(rows.row, rows[device], strict=True)),
        f"| sum | {rows[device].sum():,} |",
    ]


def on_cuda(make: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Return the step of a new model on the device."""
    with torch.device("cuda"):
        return make()


def main() -> None:
    """Measure, print and write the table."""
    if not torch.cuda.is_available():
        print(
            f"reports/cuda.py: torch {torch.__version__} finds no CUDA device here; reports/cuda.md stays as it is"
        )
        return
    text = measure()
    (HERE / "cuda.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
