"""Measure this commit beside another one: time that a block adds, its peak, reading it, planning it.

Each sample is a process of its own; the two commits take turns, in random order, on the same programs. Step times are
tenth percentiles of thread time, because a machine that is shared with others only ever adds time. Writes
reports/side_by_side.md: `python reports/side_by_side.py COMMIT [--rounds N]`, on an idle machine.
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
    from collections.abc import Iterator

HERE = pathlib.Path(__file__).parent
TOP = HERE.parent
STEPS = {"MLP": 400, "GPT": 12}
PROFILES: dict[str, dict[str, Any]] = {
    "native, key": {},
    "native, mode": {"intercept": "mode"},
    "native, without holders": {"holders": False},
    "Python, key": {},
}
BUDGET = "70%"


def tenth_percentile(times_s: list[float]) -> float:
    return sorted(times_s)[len(times_s) // 10]


def sample(workload: str, profile: str) -> dict[str, float]:
    """Measure one program in this process, plainly and in a block; give seconds and bytes."""
    import torch
    from workloads import WORKLOADS

    import memwatch
    from memwatch.profile import build_recorder

    torch.set_num_threads(1)
    build_recorder()
    step = WORKLOADS[workload]()

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
        "added_ms": (tenth_percentile(inside) - tenth_percentile(plain)) * 1e3,
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


def child(script: pathlib.Path, top: pathlib.Path, *arguments: str) -> dict[str, float]:
    """Run a sample of a script in a fresh process that imports memwatch from `top`."""
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([str(top), str(top / "plugins"), str(HERE)])
    }
    if arguments[-1].startswith("Python"):
        environment["MEMWATCH_NATIVE"] = "0"
    command = [sys.executable, str(script), "--child", *arguments]
    done = subprocess.run(command, env=environment, cwd=top, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(
    tops: dict[str, pathlib.Path], rounds: int
) -> dict[tuple[str, ...], dict[str, list[dict[str, float]]]]:
    """Take all samples, the two commits in turn."""
    programs = [(workload, profile) for workload in STEPS for profile in PROFILES] + [("plan",)]
    found: dict[tuple[str, ...], dict[str, list[dict[str, float]]]] = {}
    for _ in range(rounds):
        for program in random.sample(programs, len(programs)):
            sides = found.setdefault(program, {side: [] for side in tops})
            for side in random.sample(list(sides), 2):
                sides[side].append(child(pathlib.Path(__file__), tops[side], *program))
    return found


def write(found: dict[tuple[str, ...], dict[str, list[dict[str, float]]]], commit: str, rounds: int) -> str:
    """Write the table as Markdown and return it."""
    lines = [
        f"# This commit beside {commit}",
        "",
        f"Written by `python reports/side_by_side.py {commit} --rounds {rounds}`: a process for each sample, the two",
        "in turn, medians of the rounds; the ratio is now to before. Times of steps are tenth percentiles.",
        "`added_ms` is a small difference of two steps: of the GPT, whose step takes 150 ms and more, it is noise.",
        "",
        "| program | figure | before | now | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for program, sides in sorted(found.items()):
        for figure in sides["now"][0]:
            before, now = (
                statistics.median(one[figure] for one in sides[side]) for side in ("before", "now")
            )
            ratio = f"{now / before:.2f}" if before > 0 else ""
            shown = [f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" for value in (before, now)]
            lines.append(f"| {', '.join(program)} | {figure} | {shown[0]} | {shown[1]} | {ratio} |")
    text = "\n".join(lines) + "\n"
    (HERE / "side_by_side.md").write_text(text, encoding="utf-8")
    return text


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        program = sys.argv[2:]
        print(json.dumps(planned() if program == ["plan"] else sample(*program)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the commit to measure beside this one")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with beside(options.commit) as tops:
        print(write(measure(tops, options.rounds), options.commit, options.rounds))


if __name__ == "__main__":
    main()
