"""Measure means over long runs: a process for every tool, which take turns step by step, each in one long block.

A machine whose speed changes by a fifth from one second to the next decides nothing about two long runs one after the
other. Of processes that wait for their turn only one runs at a time, and a slow second is slow for all of them. What a
tool does in threads of its own between two of its turns is counted with it, and so is the end of its block. Where a
process has its memory makes its steps some per cent slower or faster for as long as it runs: so there are several
rounds of fresh processes, and the interval is that of the rounds. Of a workload with large activations this is more
than what is to be measured: it has many rounds, and glibc keeps what is freed, as how often it hands memory back to the
system and faults it in again differs from process to process too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from overhead_tools import CONFIGURATIONS, FLOOR, HEAVY, PLAIN
from workloads import THIN, WORKLOADS

from memwatch.profile import build_recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    Rounds = dict[str, list[list[float]]]

IN_TURNS = (PLAIN, FLOOR, HEAVY, "memwatch", "memwatch, to a file")
STEPS = {"MLP": 200, "GPT": 1, "ResNet": 1, "ResNet, thin": 8}
"""Steps of a turn. What a file gets by the clock, it gets for fewer steps than alone where a turn is shorter."""
RARELY = 6
"""MemTracker, which adds ten times as much, has one turn of so many."""
ROUNDS = {"MLP": 8, "GPT": 8, "ResNet": 30, "ResNet, thin": 8}
_KEEPS_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33), "MALLOC_TOP_PAD_": str(2**30)
}  # fmt: skip
_LARGE = {"ResNet"}
DRAWS = 4000
_WARM_STEPS = 3


class Tool:
    """A process that runs a workload under a tool, some steps whenever it is asked."""

    def __init__(self, name: str, workload: str) -> None:
        self.steps = STEPS[workload]
        command = [sys.executable, "-W", "ignore", __file__, name, workload]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | (_KEEPS_MEMORY if workload in _LARGE else {}),
        )  # fmt: skip
        self._taken = 0

    def wait(self) -> None:
        """Wait until the process can take its first turn."""
        self._answer()

    def turn(self) -> None:
        """Run the steps of a turn."""
        self._asked(str(self.steps))
        self._taken += self.steps

    def end(self) -> list[float]:
        """Leave the block; return the CPU and the wall time of a step of it, that of its threads and end included."""
        spent_s = self._asked("0")
        self._process.wait()
        return [each / self._taken for each in spent_s]

    def _asked(self, what: str) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("["):
                found: list[float] = json.loads(line)
                return found
        raise RuntimeError("the process of a tool ended before its turn")


def serve(name: str, workload: str) -> None:
    """Run the steps that the other side asks for; answer with the CPU and wall time of them all so far."""
    torch.set_num_threads(1)
    step = {**WORKLOADS, **THIN}[workload]()
    for _ in range(_WARM_STEPS):
        step()
    gc.collect()
    wall_s = 0.0
    with CONFIGURATIONS[name]() as tool:
        before_s = time.process_time()
        print("[]", flush=True)
        for line in sys.stdin:
            if line == "0\n":
                break
            start_s = time.perf_counter()
            run(step, int(line), tool)
            wall_s += time.perf_counter() - start_s
            print([time.process_time() - before_s, wall_s], flush=True)
        start_s = time.perf_counter()
    wall_s += time.perf_counter() - start_s
    print([time.process_time() - before_s, wall_s], flush=True)


def run_alone(name: str, workload: str, steps: int) -> None:
    """Print the CPU time of a step, of the program's thread and of the others, in a process that waits for no turn.

    What a tool writes by the clock, it writes for fewer steps where its program waits for those of others.
    """
    torch.set_num_threads(1)
    step = {**WORKLOADS, **THIN}[workload]()
    for _ in range(_WARM_STEPS):
        step()
    gc.collect()
    with CONFIGURATIONS[name]() as tool:
        before_s, mine_s = time.process_time(), time.thread_time()
        run(step, steps, tool)
    own_s, all_s = time.thread_time() - mine_s, time.process_time() - before_s
    print(
        f"{name}, {workload}: {own_s / steps * 1e3:.2f} ms, other threads {(all_s - own_s) / steps * 1e3:.2f} ms"
    )


def run(step: Callable[[], None], steps: int, tool: Any) -> None:
    """Run some steps under a tool."""
    for _ in range(steps):
        if hasattr(tool, "reset_mod_stats"):  # MemTracker raises in its second iteration without
            tool.reset_mod_stats()
        step()


def measure_turns(workload: str, seconds: float) -> Rounds:
    """Let the tools take turns for some seconds; return what a step of each took in each round."""
    found: Rounds = {name: [] for name in IN_TURNS}
    for _ in range(ROUNDS[workload]):
        tools = {name: Tool(name, workload) for name in IN_TURNS}
        for tool in tools.values():
            tool.wait()
        begin_s, turn = time.monotonic(), 0
        while time.monotonic() - begin_s < seconds / ROUNDS[workload]:
            for name in random.sample(list(tools), len(tools)):
                if name != HEAVY or turn % RARELY == 0:
                    tools[name].turn()
            turn += 1
        for name, tool in tools.items():
            found[name].append(tool.end())
    return found


def turns_lines(kept: dict[str, Rounds]) -> list[str]:
    """Return the section of the report."""
    lines = [
        "",
        "## Means of long runs",
        "",
        "This section shows the mean time of a step. Every tool has its own process and one block per round. The",
        f"processes take turns of {', '.join(f'{steps} steps ({name})' for name, steps in STEPS.items())}.",
        "The time includes a tool's threads between turns, all searches for holders, flushes and the end of",
        f"the block, but not entering. MemTracker has one turn of {RARELY}. Every round has fresh processes,",
        "because the addresses of its memory make a process some per cent slower or faster. For the ResNet,",
        "this effect is as large as the added time. Therefore it has more rounds, glibc keeps freed memory,",
        "and its ops are also measured on small tensors (thin). `python reports/overhead.py --turns all`",
        "measures only this section again.",
        "",
        "*Of the mode* is the added time divided by the added time of an empty mode, by CPU time of all threads and by",
        f"wall time. The interval contains 95 % of {DRAWS:,} draws of the rounds",
        f"({', '.join(f'{rounds} of the {name}' for name, rounds in ROUNDS.items())}).",
        "",
        "| workload | configuration | CPU ms | wall ms | of the mode, CPU | of the mode, wall | of MemTracker, CPU |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for workload, rounds in kept.items():
        for name, samples in rounds.items():
            cells = [f"{mean * 1e3:.2f}" for mean in np.mean(samples, axis=0)]
            cells += [ratio_text(rounds, name, FLOOR, clock) for clock in (0, 1)]
            cells.append(ratio_text(rounds, name, HEAVY, 0))
            lines.append(f"| {workload} | {name} | {' | '.join(cells)} |")
    return lines


def ratio_text(rounds: Rounds, name: str, beside: str, clock: int) -> str:
    """Return what a configuration adds over what another adds, with its interval; empty for these themselves."""
    if name in (PLAIN, beside):
        return ""
    mine, other, plain = (np.array(rounds[each])[:, clock] for each in (name, beside, PLAIN))
    whole = (mine - plain).sum() / (other - plain).sum()
    drawn = np.random.default_rng(0).integers(0, len(plain), (DRAWS, len(plain)))
    added = (mine - plain)[drawn].sum(axis=1) / (other - plain)[drawn].sum(axis=1)
    low, high = np.quantile(added, [0.025, 0.975])
    return f"{whole:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(CONFIGURATIONS))
    parser.add_argument("workload", choices=list(STEPS))
    parser.add_argument("--alone", type=int, help="run so many steps, and print what one takes")
    options = parser.parse_args()
    build_recorder()
    if options.alone is None:
        serve(options.name, options.workload)
    else:
        run_alone(options.name, options.workload, options.alone)
