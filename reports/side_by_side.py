"""Measure this commit beside another one: time that a block adds, its peak, reading it, planning it.

Each sample is a process of its own; the two commits take turns, in random order, on the same programs. What a block
adds to a step is the least step in it less the least step outside, of all rounds, in thread time: a machine that is
shared with others only ever adds time, and one that changes its clock between two processes makes a mean useless.
Writes reports/side_by_side.md: `python reports/side_by_side.py COMMIT [--rounds N]`, on an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = pathlib.Path(__file__).parent
TOP = HERE.parent
STEPS = {
    "MLP": 400, "GPT": 12, "50 x.exp()": 400, "50 x.mul_(1)": 400, "AdamW step": 200, "chain of 25": 200,
    "chain, updated": 200,
}  # fmt: skip
PROFILES: dict[str, dict[str, Any]] = {
    "native, key": {},
    "native, mode": {"intercept": "mode"},
    "native, without holders": {"holders": False},
    "Python, key": {},
}
BUDGET = "70%"
HOLDERS = "holders"


def small_programs() -> dict[str, Callable[[], Callable[[], None]]]:
    """Return programs that show what one kind of op costs, each as a function that gives its step."""
    import torch

    def without_grad(name: str, *arguments: float) -> Callable[[], None]:
        x = torch.randn(16, 16)

        def step() -> None:
            for _ in range(50):
                getattr(x, name)(*arguments)

        return step

    def optimizer() -> Callable[[], None]:
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(8)])
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        return torch.optim.AdamW(model.parameters()).step

    def chain(*, updates: bool = False) -> Callable[[], None]:
        weight = torch.randn(8, 8, requires_grad=True)

        def step() -> None:
            y = weight
            for _ in range(25):
                y = y * 2
            y.sum().backward()
            if updates:
                with torch.no_grad():
                    weight.sub_(weight.grad, alpha=1e-12)
            weight.grad = None

        return step

    return {
        "50 x.exp()": lambda: without_grad("exp"),
        "50 x.mul_(1)": lambda: without_grad("mul_", 1.0),
        "AdamW step": optimizer,
        "chain of 25": chain,
        "chain, updated": lambda: chain(updates=True),
    }


def sample(workload: str, profile: str) -> dict[str, float]:
    """Measure one program in this process, plainly and in a block; give seconds and bytes."""
    import torch
    from workloads import WORKLOADS

    import memwatch
    from memwatch.profile import build_recorder

    torch.set_num_threads(1)
    build_recorder()
    step = {**WORKLOADS, **small_programs()}[workload]()

    def times_s() -> list[float]:
        found = []
        for _ in range(STEPS[workload]):
            start = time.thread_time()
            step()
            found.append(time.thread_time() - start)
        return found

    step()
    plain = times_s()
    start = time.thread_time()
    with memwatch.profile(**PROFILES[profile]) as prof:
        inside = times_s()
    block_s = time.thread_time() - start
    plain += times_s()
    start = time.thread_time()
    prof.summary()
    summary_s = time.thread_time() - start
    return {
        "plain_ms": min(plain) * 1e3,
        "inside_ms": min(inside) * 1e3,
        "enter_exit_ms": (block_s - sum(inside)) * 1e3,
        "summary_ms": summary_s * 1e3,
        "peak_bytes": prof.peak_bytes,
        "looks": prof.capture.meta["holder_samples"],
    }


def planned() -> dict[str, float]:
    """Plan one recorded step of the GPT in this process."""
    import torch
    from workloads import WORKLOADS

    import memwatch

    torch.set_num_threads(1)

    def recorded(workload: str) -> Any:
        step = WORKLOADS[workload]()
        step()
        with memwatch.profile(replay=True) as prof:
            step()
        return prof

    memwatch.plan(recorded("MLP"), budget=BUDGET)  # compiles the kernels, where none are in the cache
    prof = recorded("GPT")
    start = time.thread_time()
    plan = memwatch.plan(prof, budget=BUDGET)
    return {"plan_s": time.thread_time() - start, "plan_peak_increase_bytes": plan.peak_increase_bytes}


def measured(first: str, *rest: str) -> dict[str, float]:
    """Measure in this process what the words of a program say."""
    if first == "plan":
        return planned()
    if first == HOLDERS:
        return holders(*rest)
    return sample(first, *rest)


def holders(program: str) -> dict[str, float]:
    """Measure what looking for holders adds to a program in this process."""
    import holders_programs
    import torch

    torch.set_num_threads(1)
    return holders_programs.calls(program) | holders_programs.sample(program)


@contextlib.contextmanager
def beside(commit: str) -> Iterator[dict[str, pathlib.Path]]:
    """Check another commit out; yield the folders of both, by the words for them."""
    with tempfile.TemporaryDirectory() as folder:
        other = pathlib.Path(folder) / "other"
        git = ["git", "-C", str(TOP), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(other), commit], check=True)
        try:
            yield {"before": other, "now": TOP}
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)


def environment(top: pathlib.Path) -> dict[str, str]:
    """Return the environment of a process that imports memwatch from `top`."""
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(top), str(top / "plugins"), str(HERE)])}


def child(script: pathlib.Path, top: pathlib.Path, *arguments: str) -> dict[str, float]:
    """Run a sample of a script in a fresh process that imports memwatch from `top`."""
    variables = environment(top)
    if arguments[-1].startswith("Python"):
        variables["MEMWATCH_NATIVE"] = "0"
    command = [sys.executable, str(script), "--child", *arguments]
    done = subprocess.run(command, env=variables, cwd=top, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(
    tops: dict[str, pathlib.Path], rounds: int, only: str
) -> dict[tuple[str, ...], dict[str, list[dict[str, float]]]]:
    """Take all samples, the two commits in turn."""
    programs: list[tuple[str, ...]] = [(workload, profile) for workload in STEPS for profile in PROFILES]
    from holders_programs import PROGRAMS

    programs += [(HOLDERS, program) for program in PROGRAMS]
    programs = [program for program in [*programs, ("plan",)] if only in ", ".join(program)]
    found: dict[tuple[str, ...], dict[str, list[dict[str, float]]]] = {}
    for _ in range(rounds):
        for program in random.sample(programs, len(programs)):
            sides = found.setdefault(program, {side: [] for side in tops})
            for side in random.sample(list(sides), 2):
                sides[side].append(child(pathlib.Path(__file__), tops[side], *program))
    return found


def figures(sides: dict[str, list[dict[str, float]]]) -> dict[str, tuple[float, float]]:
    """Return each figure of one program, before and now."""

    def both(of: Callable[[list[dict[str, float]]], float]) -> tuple[float, float]:
        return of(sides["before"]), of(sides["now"])

    def median(figure: str) -> tuple[float, float]:
        return both(lambda samples: statistics.median(one[figure] for one in samples))

    def added_ms(samples: list[dict[str, float]]) -> float:
        return min(one["inside_ms"] for one in samples) - min(one["plain_ms"] for one in samples)

    if "samples_ms" in sides["now"][0]:
        return {
            "added_calls": median("added_calls"),
            "samples": median("samples"),
            "samples_ms": both(lambda samples: min(one["samples_ms"] for one in samples)),
            "added_ms": both(
                lambda samples: (
                    min(one["with_holders_ms"] for one in samples)
                    - min(one["without_holders_ms"] for one in samples)
                )
            ),
        }
    names = [name for name in sides["now"][0] if name not in ("plain_ms", "inside_ms")]
    added = {"added_ms": both(added_ms)} if "inside_ms" in sides["now"][0] else {}
    return {**added, **{name: median(name) for name in names}}


def write(
    found: dict[tuple[str, ...], dict[str, list[dict[str, float]]]], commit: str, rounds: int, only: str
) -> str:
    """Write the table as Markdown and return it."""
    chosen = f' --only "{only}"' if only else ""
    lines = [
        f"# This commit beside {commit}",
        "",
        f"Written by `python reports/side_by_side.py {commit} --rounds {rounds}{chosen}`:",
        "each sample has its own process, and the two commits take turns. The ratio is now divided by before.",
        "`added_ms` is the shortest step in a block minus the shortest step outside it, over all rounds.",
        "Other figures are medians. A step of the GPT takes 150 ms and more, so its `added_ms` is noise. The",
        "rows of `holders` show the effect of `holders=True`: `added_calls` are calls of Python functions,",
        "and `samples_ms` is the lowest CPU time in samples of all blocks.",
        "",
        "| program | figure | before | now | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for program, sides in sorted(found.items()):
        for figure, (before, now) in figures(sides).items():
            ratio = f"{now / before:.2f}" if before > 0 else ""
            shown = [f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" for value in (before, now)]
            lines.append(f"| {', '.join(program)} | {figure} | {shown[0]} | {shown[1]} | {ratio} |")
    text = "\n".join(lines) + "\n"
    (HERE / "side_by_side.md").write_text(text, encoding="utf-8")
    return text


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        program = sys.argv[2:]
        print(json.dumps(measured(*program)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the commit to measure beside this one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="words that a program's name must hold, such as 'native, key'"
    )
    options = parser.parse_args()
    with beside(options.commit) as tops:
        print(
            write(measure(tops, options.rounds, options.only), options.commit, options.rounds, options.only)
        )


if __name__ == "__main__":
    main()
