"""Measure what observing costs: one process, all configurations interleaved, thread time, medians and minima.

Added time is told as a ratio to that of an empty TorchDispatchMode in the same run. Writes reports/overhead.md,
overhead.json and overhead.svg. It needs the extra `reports`; run it on an idle machine:
`python reports/overhead.py [--rounds N]`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import pathlib
import random
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch
from matplotlib import pyplot
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import WORKLOADS

import memwatch

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = pathlib.Path(__file__).parent
STEPS = {"MLP": 40, "GPT": 6, "ResNet": 6}


class EmptyMode(TorchDispatchMode):
    """The floor of every tool that is a dispatch mode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass the op on."""
        return func(*args, **(kwargs or {}))


def mem_tracker() -> Any:
    from torch.distributed._tools.mem_tracker import MemTracker

    return MemTracker()


def torch_profiler() -> Any:
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
        acc_events=True,
    )


@contextlib.contextmanager
def memray_tracker() -> Any:
    import memray

    with tempfile.TemporaryDirectory() as folder, memray.Tracker(pathlib.Path(folder) / "run.bin"):
        yield


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "eager": contextlib.nullcontext,
    "eager again": contextlib.nullcontext,
    "empty TorchDispatchMode": EmptyMode,
    "MemTracker": mem_tracker,
    "torch.profiler (memory, shapes, stacks)": torch_profiler,
    "memray": memray_tracker,
    "memwatch": memwatch.profile,
    "memwatch, intercept=mode": lambda: memwatch.profile(intercept="mode"),
    "memwatch, stacks=False": lambda: memwatch.profile(stacks=False),
    "memwatch, holders=False": lambda: memwatch.profile(holders=False),
    "memwatch, allocator=False": lambda: memwatch.profile(allocator=False),
}


def sample(make: Callable[[], Any], step: Callable[[], None], steps: int) -> tuple[list[float], float]:
    """Time `steps` steps inside a configuration: seconds of each, and of all with enter and exit."""
    gc.collect()
    times = []
    begin = time.thread_time()
    with make() as tool:
        for _ in range(steps):
            if hasattr(tool, "reset_mod_stats"):
                tool.reset_mod_stats()  # MemTracker raises in its second iteration without this
            start = time.thread_time()
            step()
            times.append(time.thread_time() - start)
    return times, (time.thread_time() - begin) / steps


def measure(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Measure every workload under every configuration that is installed."""
    names = [name for name in CONFIGURATIONS if name != "memray" or importlib.util.find_spec("memray")]
    results: dict[str, dict[str, dict[str, float]]] = {}
    for workload, make_step in WORKLOADS.items():
        step = make_step()
        step()
        found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
        for _ in range(rounds):
            for name in random.sample(names, len(names)):
                times, total = sample(CONFIGURATIONS[name], step, STEPS[workload])
                found[name][0].extend(times)
                found[name][1].append(total)
        results[workload] = {
            name: {
                "min_s": min(times),
                "median_s": statistics.median(times),
                "total_median_s": statistics.median(totals),
            }
            for name, (times, totals) in found.items()
        }
    return results


def added_ratio(rows: dict[str, dict[str, float]], name: str, column: str) -> float:
    """Give the added time of a configuration as a ratio to that of the empty mode."""
    eager, floor = rows["eager"][column], rows["empty TorchDispatchMode"][column]
    return (rows[name][column] - eager) / max(floor - eager, 1e-9)


def write(results: dict[str, dict[str, dict[str, float]]], rounds: int) -> str:
    """Write the table as Markdown and return it."""
    lines = [
        "# What observing costs",
        "",
        f"Written by `python reports/overhead.py --rounds {rounds}`: torch {torch.__version__}, one thread,",
        "CPU time of the thread, configurations interleaved in random order. *added* is the added time per step as a",
        "ratio to that of an empty TorchDispatchMode in the same run (by minima, by medians); *total* holds enter and",
        "exit, for " + ", ".join(f"{steps} steps of {name}" for name, steps in STEPS.items()) + ".",
    ]
    for workload, rows in results.items():
        lines += [
            "",
            f"## {workload}",
            "",
            "| configuration | min ms | median ms | added (min) | added (median) | total ms |",
        ]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for name, row in rows.items():
            lines.append(
                f"| {name} | {row['min_s'] * 1e3:.2f} | {row['median_s'] * 1e3:.2f} | "
                f"{added_ratio(rows, name, 'min_s'):.2f} | {added_ratio(rows, name, 'median_s'):.2f} | "
                f"{row['total_median_s'] * 1e3:.2f} |"
            )
    text = "\n".join(lines) + "\n"
    (HERE / "overhead.md").write_text(text, encoding="utf-8")
    (HERE / "overhead.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return text


def draw(results: dict[str, dict[str, dict[str, float]]]) -> None:
    """Draw the added time of every configuration, a panel for each workload."""
    figure, panels = pyplot.subplots(1, len(results), figsize=(4.2 * len(results), 3.6), sharey=True)
    for panel, (workload, rows) in zip(panels, results.items(), strict=True):
        names = [name for name in rows if not name.startswith("eager")][::-1]
        ratios = [added_ratio(rows, name, "min_s") for name in names]
        colors = ["#2a6fbb" if name.startswith("memwatch") else "#9aa0a6" for name in names]
        panel.bar_label(panel.barh(names, ratios, color=colors), fmt="%.2f", padding=3, fontsize=7)
        panel.set_title(workload)
        panel.set_xlim(0, 1.25 * max(ratios))
        panel.set_xlabel("added time, empty mode = 1")
    figure.tight_layout()
    figure.savefig(HERE / "overhead.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(options.rounds)
    print(write(results, options.rounds))
    draw(results)


if __name__ == "__main__":
    main()
