"""Measure what observing costs: one process, all configurations interleaved, thread time, medians and minima.

Added time is told as a ratio to that of an empty TorchDispatchMode in the same run, by minima, and by medians of the
differences from plain steps run next to each sample, which a machine that slows down for a while disturbs less.
Writes reports/overhead.md, overhead.json and overhead.svg. It needs the extra `reports`, and builds the native recorder
if need be; run it on an idle machine: `python reports/overhead.py [--rounds N] [--workload NAME]`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import pathlib
import random
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch
from matplotlib import pyplot
from overhead_turns import FLOOR, HEAVY, PLAIN, measure_turns, turns_lines
from overhead_turns import STEPS as TURN_STEPS
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import THIN, WORKLOADS

import memwatch
from memwatch.profile import build_recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from overhead_turns import Turns

HERE = pathlib.Path(__file__).parent
STEPS = {"MLP": 40, "GPT": 8, "ResNet": 10}
IN_TURNS_TOO = {**WORKLOADS, **THIN}
IN_TURNS = (PLAIN, FLOOR, HEAVY, "memwatch", "memwatch, to a file")


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


@contextlib.contextmanager
def python_recorder(**options: Any) -> Any:
    os.environ["MEMWATCH_NATIVE"] = "0"
    try:
        with memwatch.profile(**options) as prof:
            yield prof
    finally:
        del os.environ["MEMWATCH_NATIVE"]


@contextlib.contextmanager
def to_file() -> Any:
    with (
        tempfile.TemporaryDirectory() as folder,
        memwatch.profile(pathlib.Path(folder) / "run.memwatch") as prof,
    ):
        yield prof


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "eager": contextlib.nullcontext,
    "eager again": contextlib.nullcontext,
    FLOOR: EmptyMode,
    "MemTracker": mem_tracker,
    "torch.profiler (memory, shapes, stacks)": torch_profiler,
    "memray": memray_tracker,
    "memwatch": memwatch.profile,
    "memwatch, to a file": to_file,
    "memwatch, intercept=mode": lambda: memwatch.profile(intercept="mode"),
    "memwatch, Python recorder": python_recorder,
    "memwatch, Python recorder, mode": lambda: python_recorder(intercept="mode"),
    "memwatch, stacks=False": lambda: memwatch.profile(stacks=False),
    "memwatch, holders=False": lambda: memwatch.profile(holders=False),
    "memwatch, allocator=False": lambda: memwatch.profile(allocator=False),
}


class Samples:
    """The times of a configuration: of each step, of all with enter and exit, and what it adds to plain steps."""

    def __init__(self) -> None:
        self.steps_s: list[float] = []
        self.totals_s: list[float] = []
        self.added_s: list[float] = []

    def add(self, make: Callable[[], Any], step: Callable[[], None], steps: int) -> None:
        """Run `steps` steps inside a configuration, between half as many plain ones."""
        gc.collect()
        plain = [timed(step) for _ in range(steps // 4)]
        begin = time.thread_time()
        with make() as tool:
            inside = []
            for _ in range(steps):
                if hasattr(tool, "reset_mod_stats"):
                    tool.reset_mod_stats()  # MemTracker raises in its second iteration without this
                inside.append(timed(step))
        self.totals_s.append((time.thread_time() - begin) / steps)
        plain += [timed(step) for _ in range(steps // 4)]
        self.steps_s += inside
        self.added_s.append(statistics.median(inside) - statistics.median(plain))

    def figures(self) -> dict[str, float]:
        """Return the figures of the table."""
        return {
            "min_s": min(self.steps_s),
            "median_s": statistics.median(self.steps_s),
            "added_median_s": statistics.median(self.added_s),
            "total_median_s": statistics.median(self.totals_s),
        }


def timed(step: Callable[[], None]) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start


def measure(rounds: int, workloads: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Measure workloads under every configuration that is installed."""
    names = [name for name in CONFIGURATIONS if name != "memray" or importlib.util.find_spec("memray")]
    results: dict[str, dict[str, dict[str, float]]] = {}
    for workload in workloads:
        step = WORKLOADS[workload]()
        step()
        found = {name: Samples() for name in names}
        for _ in range(rounds):
            for name in random.sample(names, len(names)):
                found[name].add(CONFIGURATIONS[name], step, STEPS[workload])
        results[workload] = {name: samples.figures() for name, samples in found.items()}
    return results


def measure_in_turns(workload: str, seconds: float) -> Turns:
    """Return the times of the turns of a workload."""
    step = IN_TURNS_TOO[workload]()
    step()
    return measure_turns(
        {name: CONFIGURATIONS[name] for name in IN_TURNS}, step, TURN_STEPS[workload], seconds
    )


def added_by_minima(rows: dict[str, dict[str, float]], name: str) -> float:
    """Return the added time of a configuration as a ratio to that of the empty mode."""
    eager = rows["eager"]["min_s"]
    return (rows[name]["min_s"] - eager) / max(rows[FLOOR]["min_s"] - eager, 1e-9)


def added_by_medians(rows: dict[str, dict[str, float]], name: str) -> float:
    """Return the same ratio, by the medians of the differences from the plain steps next to each sample."""
    return rows[name]["added_median_s"] / max(rows[FLOOR]["added_median_s"], 1e-9)


def write(kept: dict[str, Any]) -> str:
    """Write the tables as Markdown and return them."""
    results, rounds = kept["results"], kept["rounds"]
    lines = [
        "# What observing costs",
        "",
        f"Written by `python reports/overhead.py`: torch {torch.__version__}, one thread,",
        "CPU time of the thread, configurations interleaved in random order. *added* is the added time per step as a",
        "ratio to that of an empty TorchDispatchMode in the same run: by minima, and by medians of the differences",
        "from plain steps run just before and after each sample; *total* holds enter and exit, for",
        ", ".join(f"{steps} steps of {name}" for name, steps in STEPS.items()) + ".",
        "memwatch's recorder is the native one of `memwatch build`, but where the table says Python.",
    ]
    for workload, rows in results.items():
        lines += [
            "",
            f"## {workload}",
            "",
            f"{rounds[workload]} rounds.",
            "",
            "| configuration | min ms | median ms | added (min) | added (median) | total ms |",
        ]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for name, row in rows.items():
            lines.append(
                f"| {name} | {row['min_s'] * 1e3:.2f} | {row['median_s'] * 1e3:.2f} | "
                f"{added_by_minima(rows, name):.2f} | {added_by_medians(rows, name):.2f} | "
                f"{row['total_median_s'] * 1e3:.2f} |"
            )
    text = (
        "\n".join(
            [*lines, *(turns_lines(kept["turns"]) if kept.get("turns") else []), *kept.get("remarks", [])]
        )
        + "\n"
    )
    (HERE / "overhead.md").write_text(text, encoding="utf-8")
    (HERE / "overhead.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return text


def draw(results: dict[str, dict[str, dict[str, float]]]) -> None:
    """Draw the added time of every configuration, a panel for each workload."""
    figure, panels = pyplot.subplots(1, len(results), figsize=(4.2 * len(results), 3.6), sharey=True)
    for panel, (workload, rows) in zip(panels, results.items(), strict=True):
        names = [name for name in rows if not name.startswith("eager")][::-1]
        ratios = [added_by_minima(rows, name) for name in names]
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
    parser.add_argument("--workload", choices=list(WORKLOADS), help="measure only this one again")
    parser.add_argument("--turns", choices=list(IN_TURNS_TOO), help="measure only more turns of this one")
    parser.add_argument(
        "--seconds", type=float, default=300, help="how long turns of a workload are measured"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    build_recorder()
    kept: dict[str, Any] = {"rounds": {}, "results": {}}
    if options.workload is not None or options.turns is not None:
        kept = json.loads((HERE / "overhead.json").read_text(encoding="utf-8"))
    if options.turns is None:
        wanted = list(WORKLOADS) if options.workload is None else [options.workload]
        kept["results"] |= measure(options.rounds, wanted)
        kept["rounds"] |= dict.fromkeys(wanted, options.rounds)
    if options.workload is None:
        for workload in [options.turns] if options.turns else list(IN_TURNS_TOO):
            turns = kept.setdefault("turns", {}).setdefault(workload, {})
            for name, samples in measure_in_turns(workload, options.seconds).items():
                turns.setdefault(name, []).extend(samples)
    print(write(kept))
    draw(kept["results"])


if __name__ == "__main__":
    main()
