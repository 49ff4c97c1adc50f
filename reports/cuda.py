"""Measure memwatch on a CUDA device and write reports/cuda.md: peaks against torch's counter, and what observing costs.

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
    return "\n".join([*lines, ""])


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
