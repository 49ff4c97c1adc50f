"""Measure what recording adds to a step beside much that is merely alive, on this commit and on another one.

A step should cost the same whatever else there is: idle modules, tensors that nobody touches. The main figure is the
mean that a block adds to a step, with the samples of the holders, which lie in the first steps. The least that it adds
to a step leaves them out; it says whether every step costs more. Each sample is a process of its own; the two commits
take turns. Times are the thread's own CPU time. Garbage is collected before the steps that are timed: to make the idle
objects makes a collection of all objects due, which takes as long as hundreds of steps, and which would fall by chance
into the steps outside the block or into those inside.
Writes reports/alive.md: `python reports/alive.py COMMIT [--rounds N]`.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import shlex
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from side_by_side import beside, child

if TYPE_CHECKING:
    from collections.abc import Callable

HERE: Final = pathlib.Path(__file__)
STEPS: Final = 150
"""Few, as in a block that a person looks at: the more steps, the less of each sample falls on one."""
NOTES: Final = (
    "The machine was shared, so the times of one row are comparable and those of distant rows less so. Counts repeat:",
    "tests/integration/test_what_is_alive_costs_nothing.py counts the calls in the first steps of a block beside idle",
    "modules, tensors, parameters, lists and dictionaries.",
)
RECORDERS: Final = ("native, key", "native, mode", "Python, key")


def mlp_step() -> Callable[[], None]:
    """A step of the small MLP with AdamW."""
    from workloads import WORKLOADS

    step: Callable[[], None] = WORKLOADS["MLP"]()
    return step


def ten_backwards() -> Callable[[], None]:
    """Ten forwards and backwards of one small layer."""
    import torch

    torch.manual_seed(0)
    layer, batch = torch.nn.Linear(8, 8), torch.randn(4, 8)

    def step() -> None:
        for _ in range(10):
            layer.zero_grad()
            layer(batch).pow(2).mean().backward()

    return step


def idle_modules(count: int) -> Any:
    import torch

    return torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(count))


def idle_tensors(count: int) -> Any:
    import torch

    return [torch.zeros(2) for _ in range(count)]


def idle_objects(count: int) -> Any:
    return [[number] for number in range(count)]


def beneath(frames: int, call: Callable[[], Any]) -> Any:
    """Call from the bottom of a stack of calls, each with variables of its own."""
    items, words = [frames], {"frames": frames}
    return beneath(frames - 1, call) if items and words["frames"] > 1 else call()


DEEP: Final = "MLP step, beneath 300 frames"
CASES: Final[dict[str, tuple[Callable[[], Callable[[], None]], Callable[[], Any]]]] = {
    "MLP step, beside nothing": (mlp_step, list),
    "MLP step, beside 20,000 modules": (mlp_step, lambda: idle_modules(20_000)),
    "MLP step, beside 100,000 tensors": (mlp_step, lambda: idle_tensors(100_000)),
    "MLP step, beside 2,000,000 objects": (mlp_step, lambda: idle_objects(2_000_000)),
    DEEP: (mlp_step, list),
    "ten backwards, beside nothing": (ten_backwards, list),
    "ten backwards, beside 10,000 modules": (ten_backwards, lambda: idle_modules(10_000)),
}


def sample(case: str, recorder: str) -> dict[str, float]:
    """Measure one case in this process: what the block adds to a step, and what it takes to enter, leave and read."""
    import torch

    import memwatch
    from memwatch.profile import build_recorder

    torch.set_num_threads(1)
    build_recorder()
    make_step, make_idle = CASES[case]
    idle, step = make_idle(), make_step()
    read: Callable[[], int] = time.thread_time_ns

    def times_ns() -> list[int]:
        found = []
        for _ in range(STEPS):
            start = read()
            step()
            found.append(read() - start)
        return found

    for _ in range(20):
        step()
    gc.collect()
    plain = times_ns()
    gc.collect()
    marks = [read()]
    with memwatch.profile(intercept="mode" if recorder.endswith("mode") else "key") as prof:
        marks.append(read())
        inside = times_ns()
        marks.append(read())
    marks.append(read())
    prof.summary()
    marks.append(read())
    del idle
    return {
        "added_mean_ms": (statistics.mean(inside) - statistics.mean(plain)) / 1e6,
        "added_least_ms": (min(inside) - min(plain)) / 1e6,
        "enter_ms": (marks[1] - marks[0]) / 1e6,
        "exit_ms": (marks[3] - marks[2]) / 1e6,
        "summary_ms": (marks[4] - marks[3]) / 1e6,
    }


Found = dict[tuple[str, str], dict[str, list[dict[str, float]]]]


def write(found: Found, commit: str) -> str:
    """Write the table as Markdown and return it."""
    command = shlex.join(["python", "reports/alive.py", *sys.argv[1:]])
    lines = [
        "# What recording adds beside much that is merely alive",
        "",
        f"Written by `{command}`.",
        "",
        "CPU time of the thread, a process for each sample, the two commits in turn, medians of the rounds,",
        f"{STEPS} steps. `added_mean_ms` is the main figure: what the block adds to the mean step, samples of the",
        "holders included. `added_least_ms` is the time that the block adds to the fastest step, which has no sample.",
        "The last column divides the figure of now by the figure of now beside nothing.",
        "",
        *NOTES,
        "",
        f"| case | recorder | figure | {commit} | now | now to before | to beside nothing |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    now_of: dict[tuple[str, str, str], float] = {}
    for (case, recorder), sides in found.items():
        for figure in sides["now"][0]:
            before, now = (
                statistics.median(one[figure] for one in sides[side]) for side in ("before", "now")
            )
            program = case.split(",")[0]
            alone = now_of.setdefault((program, recorder, figure), now)
            ratios = (f"{now / other:.2f}" if other > 0 else "" for other in (before, alone))
            lines.append(
                f"| {case} | {recorder} | {figure} | {before:,.2f} | {now:,.2f} | {' | '.join(ratios)} |"
            )
    text = "\n".join(lines) + "\n"
    HERE.with_suffix(".md").write_text(text, encoding="utf-8")
    return text


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        case, recorder = sys.argv[2:]
        frames = 300 if case == DEEP else 1
        print(json.dumps(beneath(frames, lambda: sample(case, recorder))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the commit to measure beside this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recorders", nargs="+", choices=RECORDERS, default=RECORDERS)
    options = parser.parse_args()
    found: Found = {}
    with beside(options.commit) as sides:
        for _ in range(options.rounds):
            for case in CASES:
                for recorder in options.recorders:
                    samples = found.setdefault((case, recorder), {side: [] for side in sides})
                    for side, top in sides.items():
                        samples[side].append(child(HERE, top, case, recorder))
                    text = write(found, options.commit)  # what there is, should it be cut short
    print(text)


if __name__ == "__main__":
    main()
