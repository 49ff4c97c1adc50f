"""Measure what observing costs: one process, all configurations interleaved, thread time, medians and minima.

Added time is told as a ratio to that of an empty TorchDispatchMode in the same run, by minima, and by medians of the
differences from plain steps run next to each sample, which a machine that slows down for a while disturbs less.
Writes reports/overhead.md, overhead.json and overhead.svg. It needs the extra `reports`, and builds the native recorder
if need be; run it on an idle machine: `python reports/overhead.py [--rounds N] [--workload NAME]`.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import pathlib
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from matplotlib import pyplot
from overhead_tools import CONFIGURATIONS, FLOOR, PLAIN
from overhead_turns import STEPS as IN_TURNS
from overhead_turns import measure_turns, turns_lines
from workloads import WORKLOADS

from memwatch.profile import build_recorder

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = pathlib.Path(__file__).parent
STEPS = {"MLP": 40, "GPT": 8, "ResNet": 10}


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


def added_by_minima(rows: dict[str, dict[str, float]], name: str) -> float:
    """Return the added time of a configuration as a ratio to that of the empty mode."""
    eager = rows[PLAIN]["min_s"]
    return (rows[name]["min_s"] - eager) / max(rows[FLOOR]["min_s"] - eager, 1e-9)


def added_by_medians(rows: dict[str, dict[str, float]], name: str) -> float:
    """Return the same ratio, by the medians of the differences from the plain steps next to each sample."""
    return rows[name]["added_median_s"] / max(rows[FLOOR]["added_median_s"], 1e-9)


def write(kept: dict[str, Any]) -> str:
    """Write the tables as Markdown and return them."""
    results, rounds = kept["results"], kept["rounds"]
    lines = [
        "# The cost of recording",
        "",
        f"Written by `python reports/overhead.py`: torch {torch.__version__}, one thread,",
        "CPU time of the thread, configurations interleaved in random order. *added* is the added time per",
        "step, divided by the added time of an empty TorchDispatchMode in the same run. It is given by",
        "minima, and by medians of the differences from plain steps just before and after each sample.",
        "*total* includes enter and exit, for",
        ", ".join(f"{steps} steps of {name}" for name, steps in STEPS.items()) + ".",
        "memwatch uses the native recorder of `memwatch build`, unless the table says Python.",
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
    parser.add_argument("--turns", choices=[*IN_TURNS, "all"], help="measure only the long runs of this one")
    parser.add_argument("--seconds", type=float, default=300, help="how long the turns of a workload go on")
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
        for workload in [options.turns] if options.turns in IN_TURNS else IN_TURNS:
            kept.setdefault("turns", {})[workload] = measure_turns(workload, options.seconds)
    print(write(kept))
    draw(kept["results"])


if __name__ == "__main__":
    main()
