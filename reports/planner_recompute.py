"""Recompute and offload plans against what is known: writes reports/planner_recompute.md.

Run as ``python reports/planner_recompute.py [--graphs N]``; needs the extra `exact` for the proven optima.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import time
from pathlib import Path

from planner_fcn8 import fcn8_step
from planner_recompute_graphs import adversary_chains, layered_graph, linear_graph, training_chain, unet_step
from planner_transformer import transformer_step

from memwatch.planner import BudgetError, Graph, Plan, lower_bound, plan_graph, program_peak
from memwatch.planner.recompute.retention import solve_retention
from memwatch.planner.request import Clock

MIB = 2**20
LINEAR = {
    4: {3: 6, 4: 2, 5: 1},
    8: {4: 9, 5: 5, 6: 4, 7: 3},
    12: {5: 12, 6: 8, 7: 7},
    16: {5: 20, 6: 14, 7: 11, 8: 10, 9: 9},
}
# budget (MiB) -> extra compute of the greedy prototype; torch's best peak at any budget is 60.57 MiB
PROTOTYPE = {140: 6, 105.5: 16, 85.5: 21, 77.5: None, 69.5: 27, 60.57: None, 51.5: 40, 43.8: 54, 38.54: None}


def planned(graph: Graph, budget: int | str, **options: object) -> tuple[Plan, bool, float]:
    """Plan; on failure the lowest plan; with the seconds it took."""
    start = time.perf_counter()
    try:
        plan, fits = plan_graph(graph, budget=budget, **options), True  # type: ignore[arg-type]
    except BudgetError as error:
        plan, fits = error.best, False  # type: ignore[assignment]
    return plan, fits, time.perf_counter() - start


def table(head: list[str], rows: list[list[object]]) -> str:
    """Write a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def linear() -> str:
    """Checkmate's linear graphs: recomputes against the proven optimum."""
    rows = []
    for length, budgets in LINEAR.items():
        for budget, optimum in budgets.items():
            graph = linear_graph(length)
            plan, fits, seconds = planned(graph, budget)
            count = len(plan.order) - graph.num_ops if fits else "-"
            rows.append([length, budget, optimum, count, f"{seconds:.2f}"])
    return table(["L", "budget", "optimum", "planned", "s"], rows)


def fcn8() -> str:
    """Checkmate's FCN-8 step: extra cost against the proven optimum."""
    rows = []
    for share, optimum in ((90, 0.029), (80, 0.136)):
        plan, _, seconds = planned(fcn8_step(), f"{share}%")
        rows.append([f"{share}%", optimum, f"{100 * plan.extra_cost_ratio:.3f}", f"{seconds:.2f}"])
    return table(["budget", "optimum, extra cost %", "planned", "s"], rows)


def transformer() -> str:
    """The transformer step of four layers: peak and extra FLOPs for every budget."""
    graph = transformer_step()
    rows = []
    for budget_mib, prototype in PROTOTYPE.items():
        plan, _, seconds = planned(graph, int(budget_mib * MIB), time_limit_s=30)
        rows.append(_row(plan, budget_mib, prototype if prototype is not None else "-", seconds))
    tight, moves = (1.15 * lower_bound(graph, True, offload) / MIB for offload in (False, True))
    for budget_mib, offload in ((tight, False), (moves, False), (60.57, True), (43.8, True), (moves, True)):
        plan, _, seconds = planned(graph, int(budget_mib * MIB), offload=offload, time_limit_s=30)
        rows.append(_row(plan, round(budget_mib, 2), "-", seconds))
    return table(["budget MiB", "peak MiB", "extra FLOPs %", "prototype %", "moved MiB", "s"], rows)


def _row(plan: Plan, budget_mib: float, prototype: object, seconds: float) -> list[object]:
    peak = f"{plan.peak_increase_bytes / MIB:.2f}"
    missed = "" if plan.budget_bytes is not None else " (missed)"
    extra, moved = f"{100 * plan.extra_cost_ratio:.2f}", f"{plan.moved_bytes / MIB:.1f}"
    return [budget_mib, peak + missed, extra, prototype, moved, f"{seconds:.2f}"]


def against_optimum(count: int) -> str:
    """Random graphs of at most 100 ops: extra cost against CP-SAT's optimum in program order."""
    ratios, free, proven, both_out, only_plan, longest, sizes = [], [], 0, 0, 0, 0.0, []
    for seed in range(count):
        graph, budget = _random_case(seed)
        plan, fits, seconds = planned(graph, budget, order="program")
        auto, auto_fits, auto_seconds = planned(graph, budget)
        longest = max(longest, seconds, auto_seconds)
        hint = plan.schedule.ops if fits else None
        result = solve_retention(graph, budget, copies=3, hint=hint, effort=6.0, clock=Clock.of(20))
        sizes.append(graph.num_ops)
        if result.tokens is None:
            both_out += not fits
            only_plan += fits
            continue
        proven += result.proven
        extra = plan.extra_cost_ratio * graph.total_cost if fits else float("inf")
        ratios.append((extra + 1e-9) / (result.extra_cost + 1e-9))
        if auto_fits:
            free.append((auto.extra_cost_ratio * graph.total_cost + 1e-9) / (result.extra_cost + 1e-9))
    rows = [
        ["graphs", count],
        ["ops", f"{min(sizes)} to {max(sizes)}"],
        ["CP-SAT found a schedule / proved it the cheapest", f"{len(ratios)} / {proven}"],
        ["extra cost in program order / CP-SAT: mean, worst", f"{_mean(ratios):.4f}, {max(ratios):.4f}"],
        ["  of those above 1.05", sum(ratio > 1.05 for ratio in ratios)],
        [
            "extra cost with a free order / CP-SAT in program order: mean, worst",
            f"{_mean(free):.4f}, {max(free):.4f}",
        ],
        [
            "CP-SAT found nothing (3 copies per op): the search neither / the search did",
            f"{both_out} / {only_plan}",
        ],
        ["longest plan, s", f"{longest:.2f}"],
    ]
    return table(["figure", "value"], rows)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _random_case(seed: int) -> tuple[Graph, int]:
    rng = random.Random(seed)
    graph = (
        training_chain(rng.randint(8, 26), rng),
        unet_step(rng.randint(2, 6), rng),
        layered_graph(rng.randint(5, 12), rng.randint(3, 6), rng),
        linear_graph(rng.randint(6, 30)),
    )[seed % 4]
    share = rng.choice((0.6, 0.7, 0.8, 0.9))
    return graph, int(program_peak(graph).peak_bytes * share)


def large() -> str:
    """Deep transformers and long chains: seconds, extra cost, memory of this process."""
    rows = []
    for name, graph, limit_s in (
        ("transformer", transformer_step(layers=24), 10),
        ("transformer", transformer_step(layers=240), 30),
        ("chain", training_chain(2_800, random.Random(1)), 30),
        ("transformer", transformer_step(layers=2_380), 60),
    ):
        for share in (50, 25) if graph.num_ops < 50_000 else (50,):
            plan, fits, seconds = planned(graph, f"{share}%", time_limit_s=limit_s)
            extra = f"{100 * plan.extra_cost_ratio:.2f}"
            memory = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f}"
            row = [
                name,
                graph.num_ops,
                f"{share}%",
                "yes" if fits else "no",
                extra,
                limit_s,
                f"{seconds:.1f}",
                memory,
            ]
            rows.append(row)
    load = f"Load average of the machine's {os.cpu_count()} cores at the end: {os.getloadavg()[0]:.1f}."
    head = ["program", "ops", "budget", "fits", "extra cost %", "limit s", "s", "process GiB"]
    return f"{table(head, rows)}\n\n{load}"


def adversary() -> str:
    """DTR's adversary: as many ops as the program has."""
    rows = []
    for count, length in ((4, 50), (12, 20), (20, 40)):
        graph = adversary_chains(count, length)
        plan, _, seconds = planned(graph, 3)
        program = program_peak(graph).peak_bytes
        rows.append(
            [
                count,
                length,
                program,
                plan.peak_increase_bytes,
                graph.num_ops,
                len(plan.order),
                f"{seconds:.2f}",
            ]
        )
    return table(["chains", "length", "program peak", "plan peak", "ops N", "ops computed", "s"], rows)


def main() -> None:
    """Measure everything and write the page."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--graphs", type=int, default=100)
    count = arguments.parse_args().graphs
    planned(linear_graph(4), 4)  # compiles the kernels
    parts = {
        "Checkmate's linear graphs: recomputes": linear,
        "FCN-8 on VGG-16 (CM1 of Moccasin), 73 ops": fcn8,
        "DTR's adversary with a budget of 3 buffers": adversary,
        "Transformer of 4 layers (synthetic step, 176.14 MiB in program order)": transformer,
        "Large programs": large,
        f"Extra cost against CP-SAT on {count} graphs": lambda: against_optimum(count),
    }
    text = "# Recompute and offload plans\n\nWritten by reports/planner_recompute.py; seconds on 2 shared cores.\n"
    for title, measure in parts.items():
        text += f"\n## {title}\n\n{measure()}\n"
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
