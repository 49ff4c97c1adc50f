"""Measure means in turns: short blocks of steps of every configuration, in random order, many times, in one process.

A machine whose speed changes by a fifth from one second to the next decides nothing about two long runs. Blocks of a
second each that take turns are slow and fast alike, and the ratio of their sums, drawn again many times from the same
turns, tells how far chance goes.
"""

from __future__ import annotations

import gc
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Turns = dict[str, list[list[float]]]

PLAIN, FLOOR, HEAVY = "eager", "empty TorchDispatchMode", "MemTracker"
STEPS = {"MLP": 800, "GPT": 30, "ResNet": 12, "GPT, thin": 40, "ResNet, thin": 40}
"""Steps of a block: about a second."""
RARELY = 6
"""MemTracker, which adds ten times as much, has one block in so many turns."""
DRAWS = 4000
_ENOUGH = 5
"""Fewer turns have no interval."""


def measure_turns(
    makers: Mapping[str, Callable[[], Any]], step: Callable[[], None], steps: int, seconds: float
) -> Turns:
    """Run turns for some seconds; return CPU and wall time of a step of each configuration in each turn.

    A block begins when the tool is entered, and ends when it was left: what it wrote last is in its time.
    """
    begin_s = time.monotonic()
    for make in makers.values():
        block(make, step, 2)
    found: Turns = {name: [] for name in makers}
    turn = 0
    while time.monotonic() - begin_s < seconds:
        for name in random.sample(list(makers), len(makers)):
            rare = name == HEAVY and turn % RARELY
            found[name].append([] if rare else block(makers[name], step, steps))
        turn += 1
    return found


def block(make: Callable[[], Any], step: Callable[[], None], steps: int) -> list[float]:
    """Return the CPU and the wall time of a step in a block, all threads and the end of the block included."""
    gc.collect()
    with make() as tool:
        resets = hasattr(tool, "reset_mod_stats")  # MemTracker raises in its second iteration without
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        for _ in range(steps):
            if resets:
                tool.reset_mod_stats()
            step()
    return [(time.process_time() - cpu_s) / steps, (time.perf_counter() - wall_s) / steps]


def turns_lines(kept: dict[str, Turns]) -> list[str]:
    """Return the section of the report."""
    sizes = [f"* {STEPS[name]} steps of {name} in {len(kept[name][PLAIN])} turns." for name in kept]
    lines = [
        "",
        "## Means, in turns",
        "",
        "The time of a step in the mean: blocks of every configuration take turns in random order in one process.",
        "Flushes and the end of each block, which a long run has once, are included; entering is not. MemTracker has a",
        f"block in one turn of {RARELY}:",
        "",
        *sizes,
        "",
        "*Of the mode* is the sum of what was added to eager over the sum of what an empty mode added, by CPU time of",
        f"all threads and by wall time, with the interval in which 95 % of {DRAWS:,} draws of the turns lie. Where",
        "wall time is a multiple of CPU time other programs had the processors: what the interval holds is undecided.",
        "*Thin* are the same ops in the same order on small tensors: what a tool adds to an op is the same, and the",
        "noise of the step itself, which is many times as large on GPT and ResNet, is not.",
        "",
        "| workload | configuration | CPU ms | wall ms | of the mode, CPU | of the mode, wall | of MemTracker, CPU |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for workload, turns in kept.items():
        for name, samples in turns.items():
            means = np.array([each for each in samples if each]).mean(axis=0) * 1e3
            cells = [f"{means[0]:.2f}", f"{means[1]:.2f}"]
            cells += [ratio_text(turns, name, FLOOR, clock) for clock in (0, 1)]
            cells.append(ratio_text(turns, name, HEAVY, 0))
            lines.append(f"| {workload} | {name} | {' | '.join(cells)} |")
    return lines


def ratio_text(turns: Turns, name: str, beside: str, clock: int) -> str:
    """Return what a configuration adds over what another adds, with its interval; empty for these themselves."""
    if name in (PLAIN, beside):
        return ""
    both = [index for index, sample in enumerate(turns[beside]) if sample and turns[name][index]]
    mine, other, plain = (
        np.array([turns[each][index][clock] for index in both]) for each in (name, beside, PLAIN)
    )
    whole = (mine - plain).sum() / (other - plain).sum()
    if len(both) < _ENOUGH:
        return f"{whole:.2f} ({len(both)} turns)"
    drawn = np.random.default_rng(0).integers(0, len(both), (DRAWS, len(both)))
    added = (mine - plain)[drawn].sum(axis=1) / (other - plain)[drawn].sum(axis=1)
    low, high = np.quantile(added, [0.025, 0.975])
    return f"{whole:.2f} ({low:.2f} to {high:.2f})"
