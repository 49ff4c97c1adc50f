"""Measure the planner: quality, proofs, time and memory of its orders; writes reports/planner_orders.md.

Run: python reports/planner.py [--quick] [--all]; with --all also `planner_recompute.py` (recompute and offload
against what is known) and `replay.py` (replayed plans, side by side with torch's `activation_memory_budget`).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import planner_graphs as graphs

from memwatch.planner import best_order, program_peak
from memwatch.planner.order.exact import cpsat_order
from memwatch.planner.order.lists import inductor_orders
from memwatch.planner.order.problem import order_problem, peak_of
from memwatch.planner.request import Clock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.planner import Graph

_HERE = Path(__file__).parent
# (ops, layer width, time limit in seconds)
_SIZES = ((1_000, 20, 10.0), (1_000, 50, 10.0), (10_000, 30, 30.0), (10_000, 100, 30.0), (100_000, 50, 60.0))


@dataclass(frozen=True, slots=True)
class Row:
    """One program, ordered."""

    family: str
    num_ops: int
    program_bytes: int
    inductor_bytes: int
    peak_bytes: int
    bound_bytes: int
    method: str
    duration_s: float


def measure(family: str, graph: Graph, time_limit_s: float) -> Row:
    """Order one program and time it."""
    problem = order_problem(graph)
    inductor = min(int(peak_of(problem, order)) for _, order in inductor_orders(problem))
    start = time.perf_counter()
    result = best_order(graph, time_limit_s=time_limit_s)
    duration_s = time.perf_counter() - start
    program = program_peak(graph).peak_bytes
    assert result.peak_bytes <= program
    return Row(
        family, graph.num_ops, program, inductor, result.peak_bytes, result.lower_bound_bytes, result.method,
        duration_s,
    )  # fmt: skip


def small_programs(count: int) -> Iterable[tuple[str, Graph]]:
    """Yield programs of 100 ops of three families; layers are 4 to 10 wide."""
    for seed in range(count):
        family = ("layered", "series-parallel", "training-like")[seed % 3]
        if family == "layered":
            yield family, graphs.random_layered(100, 4 + seed // 3 % 7, seed, fan_in=2 + seed % 2)
        elif family == "series-parallel":
            yield family, graphs.random_series_parallel(100, seed)
        else:
            yield family, graphs.random_training(100, seed)


def proofs_table(rows: list[Row]) -> list[str]:
    """Share of proven optima, gain over Inductor's three orders, time."""
    lines = [
        "| 100 ops | programs | proven optimal | below best of lpmf/bfs/dfs | median s | longest s |",
        "|---|---|---|---|---|---|",
    ]
    for family in [*dict.fromkeys(row.family for row in rows), "all"]:
        chosen = [row for row in rows if family in (row.family, "all")]
        proven = sum(row.peak_bytes == row.bound_bytes for row in chosen) / len(chosen)
        gain = statistics.fmean(1 - row.peak_bytes / row.inductor_bytes for row in chosen)
        times = [row.duration_s for row in chosen]
        lines.append(
            f"| {family} | {len(chosen)} | {proven:.0%} | {gain:.1%} "
            f"| {statistics.median(times):.2f} | {max(times):.2f} |"
        )
    return lines


def cpsat_line(programs: list[tuple[str, Graph]], effort_s: float) -> str:
    """Run CP-SAT with our order as a hint, some seconds for each: does it find a better order, or a proof?"""
    better = proofs = 0
    for _, graph in programs:
        result = best_order(graph, time_limit_s=2.0)
        problem = order_problem(graph)
        order, bound = cpsat_order(
            problem, result.order, 0, effort=effort_s, seed=0, clock=Clock.of(effort_s)
        )
        better += order is not None and int(peak_of(problem, order)) < result.peak_bytes
        proofs += bound == result.peak_bytes
    return (
        f"CP-SAT, given the order as a hint and {effort_s:.0f} s each for {len(programs)} of these programs, "
        f"found a better one {better} times and the same proof {proofs} times."
    )


def sizes_table(rows: list[Row]) -> list[str]:
    """One line per large layered program."""
    lines = [
        "| layered | program order | best of lpmf/bfs/dfs | planned | below it | method | s |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.family} | {row.program_bytes} | {row.inductor_bytes} | {row.peak_bytes} "
        f"| {1 - row.peak_bytes / row.inductor_bytes:.1%} | {row.method} | {row.duration_s:.1f} |"
        for row in rows
    ]
    return lines


def write_orders(quick: bool) -> None:
    """Measure the orders and write the table."""
    best_order(graphs.grid(2, 2))  # compiles the kernels: once per machine, not part of any time below
    small = [measure(family, graph, 2.0) for family, graph in small_programs(30 if quick else 200)]
    sizes = _SIZES[:2] if quick else _SIZES
    large = [
        measure(f"{num_ops:,} ops, {width} wide", graphs.random_layered(num_ops, width, seed=1), limit_s)
        for num_ops, width, limit_s in sizes
    ]
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = [
        "# Orders of the planner",
        "",
        "Written by `python reports/planner.py`; sizes of the random programs are in bytes. An order is",
        "proven when its peak equals the lower bound of the exact search, which the tests check against",
        "CP-SAT and against all orders. Time limits: 2 s for 100 ops, 10 s for 1,000, 30 s for 10,000,",
        "60 s for 100,000.",
        "",
        *proofs_table(small),
        "",
        cpsat_line(list(small_programs(9 if quick else 30)), 3.0),
        "",
        *sizes_table(large),
        "",
        (
            f"Memory of the process at the end: {memory_mib:.0f} MiB. Load average of the machine's "
            f"{os.cpu_count()} cores at the end: {os.getloadavg()[0]:.1f}."
        ),
        "",
    ]
    (_HERE / "planner_orders.md").write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the programs, none above 1,000 ops")
    parser.add_argument("--all", action="store_true", help="the other two reports as well; an hour")
    options = parser.parse_args()
    write_orders(options.quick)
    for script in ("planner_recompute.py", "replay.py") if options.all else ():
        subprocess.run([sys.executable, str(_HERE / script)], check=True)
