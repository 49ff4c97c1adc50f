"""Compare what memwatch reports at two commits, program by program.

A change of the code's structure must change no answer.

The programs are those of the tests: `tests/truth` and `tests/findings` (peak, allocations at the peak, holders,
findings), the leak programs of `tests/leaks` with their clean twins (leaks, references, advice), the graphs of the
planner (the lowest peak, whether it is proven, and plans within budgets), and the training steps of `tests/replay`
(the recorded ops and storages, plans, and what their replay measures). Each commit runs its own copy of them in a
worktree. Text is compared without line numbers and folders.

Some answers depend on the clock, such as the instant of a sample. So the older commit runs twice, and a program whose
two answers differ is listed as not repeatable and not compared.

Run: python reports/frozen.py OLD [NEW] [--only truth|findings|leaks|planner|replay] [--every N]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parent.parent
KINDS = ("truth", "findings", "leaks", "planner", "replay")
BUDGETS = ("80%", "50%")
LONGEST_S = 120.0
"""A search that its time limit ends would give another plan on a busy machine, so the limit is never reached."""
LINE = re.compile(r"(\w+\.py):\d+")
"""A line of a program: a change of the tests may move it, so the file alone is compared."""


def without_lines(text: object) -> str:
    """Return a text without line numbers and without the folders of files."""
    return LINE.sub(r"\1", re.sub(r"[^\s(`]*/(?=\w+\.py)", "", str(text)))


def of_profile(prof: Any) -> dict[str, Any]:
    """Return the figures and kinds of a recording, without times."""
    rows = sorted(
        [
            int(row.nbytes), row.category, row.origin, row.module, without_lines(row.name),
            without_lines(row.holder), row.holder_evidence,
        ]
        for row in prof.at_peak.itertuples()
    )  # fmt: skip
    findings = [
        [
            str(each.kind), each.nbytes, each.predicted_peak_bytes, each.together_peak_bytes,
            *map(without_lines, (each.holder, each.site, each.advice)),
        ]
        for each in prof.findings
    ]  # fmt: skip
    return {"peak_bytes": int(prof.peak_bytes), "at_peak": rows, "findings": findings}


def of_leaks(leaks: list[Any]) -> list[Any]:
    """Return the figures and kinds of some leaks."""
    return [
        [
            str(leak.kind), leak.nbytes, leak.count, leak.cycle_length, leak.grows, leak.keeps_graph,
            [[edge.kind.name, edge.name] for edge in leak.edges],
            *map(without_lines, (leak.holder, leak.site, leak.advice)),
        ]
        for leak in leaks
    ]  # fmt: skip


def truth() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the programs of tests/truth."""
    import importlib

    from truth_facts import PATTERNS

    for path in sorted((pathlib.Path("tests") / "truth").glob("patterns_*.py")):
        importlib.import_module(path.stem)
    for name, pattern in PATTERNS.items():
        yield name, lambda pattern=pattern: of_profile(pattern.run().prof)


def findings() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the programs of tests/findings, with their silent twins."""
    import test_findings

    import memwatch

    def run(program: Callable[[], object]) -> dict[str, Any]:
        with memwatch.profile() as prof:
            program()
        return of_profile(prof)

    for name, (program, _, twin) in test_findings.CASES.items():
        yield name, lambda program=program: run(program)
        yield f"{name}, mended", lambda twin=twin: run(twin)


def leaks() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the leak programs and their clean twins."""
    from all_programs import PROGRAMS

    from memwatch.leaks import find_leaks

    for program in PROGRAMS:
        yield program.name, lambda program=program: of_leaks(find_leaks(program.leak))
        yield f"{program.name}, clean", lambda program=program: of_leaks(find_leaks(program.clean))


def of_plan(source: Any, make: Callable[..., Any], **options: Any) -> list[Any]:
    """Return the steps and figures of a plan; the lowest plan where none fits the budget."""
    from memwatch import BudgetError

    error = ""
    try:
        plan = make(source, time_limit_s=LONGEST_S, **options)
    except BudgetError as raised:
        plan, error = raised.best, str(raised)
    return [
        plan.schedule.kind.tolist(), plan.schedule.index.tolist(), list(map(str, plan.order)), plan.moves,
        plan.peak_increase_bytes, plan.lower_bound_bytes, plan.extra_cost_ratio, plan.moved_bytes, error,
    ]  # fmt: skip


def planner() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the graphs whose best order is known, and graphs with budgets that need recompute or moves."""
    from planner_recompute_graphs import linear_graph, training_chain, unet_step, uniform_chain
    from test_planner_targets import CASES

    from memwatch.planner import best_order, plan_graph

    for name, graph, _ in CASES:
        yield name, lambda graph=graph: [(best := best_order(graph)).peak_bytes, best.proven]
    graphs = {
        "linear": linear_graph(12),
        "chain": uniform_chain(16),
        "training": training_chain(20, random.Random(0)),
        "u-net": unet_step(3, random.Random(0)),
    }
    for name, graph in graphs.items():
        for budget in BUDGETS:
            for offload in (False, True):
                yield (
                    f"{name}, {budget}, {offload=}",
                    lambda graph=graph, budget=budget, offload=offload: of_plan(
                        graph, plan_graph, budget=budget, offload=offload
                    ),
                )


def replay() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the training steps that are recorded, planned and replayed."""
    from replay_programs import PROGRAMS
    from replay_recording import record

    import memwatch

    def run(build: Callable[[], Callable[[], object]]) -> dict[str, Any]:
        prof = record(build())
        found: dict[str, Any] = {
            "ops": prof.ops[["name", "phase"]].to_numpy().tolist(),
            "storages": prof.storages["nbytes"].tolist(),
        }
        for budget in (None, *BUDGETS):
            found[f"plan {budget}"] = of_plan(prof, memwatch.plan, budget=budget)
        try:
            plan = memwatch.plan(prof, budget=BUDGETS[0], time_limit_s=LONGEST_S)
        except memwatch.BudgetError as error:
            plan = error.best
        replayed = memwatch.replay(plan)
        found["replay"] = [replayed.peak_increase_bytes, replayed.identical, replayed.num_checked]
        return found

    for name, build in PROGRAMS.items():
        yield name, lambda build=build: run(build)


def answers(kinds: list[str], every: int) -> dict[str, Any]:
    """Run every n-th program of some kinds in this process, and return what memwatch reports of each."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for kind in kinds:
        for number, (name, run) in enumerate(globals()[kind]()):
            if number % every:
                continue
            torch.manual_seed(0)
            # The instant of a collection depends on memwatch's own objects. Garbage of the programs before would be
            # part of the peak at one commit, and not at the other one.
            gc.collect()
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    found[f"{kind}: {name}"] = run()
            except Exception as error:  # an error is an answer too
                found[f"{kind}: {name}"] = f"{type(error).__name__}: {error}"
    return found


def answers_of(tree: pathlib.Path, kinds: list[str], every: int) -> dict[str, Any]:
    """Run the programs of a worktree with its own memwatch, each kind in a process of its own."""
    found: dict[str, Any] = {}
    for kind in kinds:
        path = os.pathsep.join(
            str(tree / part) for part in (".", "plugins", "reports", "tests", f"tests/{kind}")
        )
        command = [sys.executable, __file__, "--here", "--only", kind, "--every", str(every)]
        ran = subprocess.run(
            command, cwd=tree, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )  # fmt: skip
        if ran.returncode:
            raise SystemExit(f"{kind} in {tree} failed:\n{ran.stderr[-2000:]}")
        found |= json.loads(ran.stdout)
    return found


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[pathlib.Path]:
    """Check a commit out into a folder of its own, and compile its C++ parts."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            build = [sys.executable, "-m", "memwatch", "build"]
            subprocess.run(build, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, check=True, stdout=2)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def main() -> int:
    """Compare two commits, and return 1 if a repeatable answer differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "commits", nargs="*", metavar="COMMIT", help="the older commit; the newer, default HEAD"
    )
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run every n-th program")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds = [options.only] if options.only else list(KINDS)
    if options.here:
        json.dump(answers(kinds, options.every), sys.stdout)
        return 0
    if not options.commits:
        parser.error("name the older commit")
    old, new = (*options.commits, "HEAD")[:2]
    with worktree(old) as tree:
        first, second = answers_of(tree, kinds, options.every), answers_of(tree, kinds, options.every)
    with worktree(new) as tree:
        after = answers_of(tree, kinds, options.every)
    unsure = sorted(name for name in first if first[name] != second[name])
    different = [name for name in first if name not in unsure and after.get(name, "not run") != first[name]]
    for name in different:
        print(f"{name}\n  {old}: {first[name]}\n  {new}: {after.get(name, 'not run')}")
    print(
        f"{len(first)} programs: {len(first) - len(unsure) - len(different)} equal, {len(different)} different"
    )
    print(f"{len(unsure)} not repeatable at {old}: {', '.join(unsure) or 'none'}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
