"""Measure the first plan of a process, with and without the compiled kernels; writes reports/planner.md.

Run: python reports/planner_first.py [--before FOLDER], where FOLDER is a checkout of an earlier commit.

Cold: nothing is compiled on the machine. Warm: `memwatch build` was run. The seconds are CPU time of the process and
of the compiler that it starts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent
_THREE = "[('a', (), {'x': 2}, 1), ('b', ('x',), {'y': 1}, 1), ('c', ('x', 'y'), {}, 1)]"
_PROGRAMS = {
    "3 ops": (f"from memwatch.planner import Graph\ngraph = Graph.build({_THREE})", 3),
    "17 ops, skips": ("from planner_recompute_graphs import linear_graph\ngraph = linear_graph(8)", 5),
    "185 ops, transformer": (
        "from planner_transformer import transformer_step\ngraph = transformer_step()",
        "50%",
    ),
}
_RUN = """
import resource, sys, time
sys.path.insert(0, {reports!r})
{make}
from memwatch.planner import plan_graph
start = time.process_time()
plan = plan_graph(graph, budget={budget!r}, time_limit_s={limit})
own = time.process_time() - start
child = resource.getrusage(resource.RUSAGE_CHILDREN)
print(own + child.ru_utime + child.ru_stime, 100 * plan.extra_cost_ratio)
"""


def first_plan(checkout: Path, name: str, caches: str | None, limit_s: float) -> tuple[float, float]:
    """Return CPU seconds and extra cost (per cent) of the first plan of a process.

    Args:
        checkout: the memwatch to measure.
        name: the program.
        caches: folder for compiled kernels; None for that of the user.
        limit_s: time limit of the plan (seconds).
    """
    make, budget = _PROGRAMS[name]
    code = _RUN.format(reports=str(_HERE), make=make, budget=budget, limit=limit_s)
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    if caches is not None:
        environment |= {"MEMWATCH_CACHE": caches, "NUMBA_CACHE_DIR": caches}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, extra = done.stdout.split()
    return float(seconds), float(extra)


def row(checkout: Path, name: str, limit_s: float) -> str:
    """Return a row of the table: a program, cold and warm."""
    with tempfile.TemporaryDirectory() as caches:
        cold, extra = first_plan(checkout, name, caches, limit_s)
        warm, extra_warm = first_plan(checkout, name, caches, limit_s)
    return f"| {name} | {cold:.1f} | {warm:.1f} | {extra:.2f} | {extra_warm:.2f} |"


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path)
    before = parser.parse_args().before
    head = [
        "| program | cold, CPU s | warm, CPU s | extra cost cold, % | warm, % |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines = [
        "# The first plan of a process",
        "",
        "Written by `python reports/planner_first.py --before FOLDER`.",
        "",
    ]
    lines += [*(__doc__ or "").split("\n\n")[2].strip().splitlines(), ""]
    # a machine at work compiles slowly: the limit leaves time for it, so that the figures are those of whole plans
    lines += ["## This commit", "", *head, *(row(_HERE.parent, name, 60) for name in _PROGRAMS), ""]
    limited, extra = 0.0, 0.0
    with tempfile.TemporaryDirectory() as caches:
        os.environ["CXX"] = "no-such-compiler"
        limited, extra = first_plan(_HERE.parent, "185 ops, transformer", caches, 5)
        del os.environ["CXX"]
    without = f"Without a compiler and with `time_limit_s=5` the last program takes {limited:.1f} CPU s"
    lines += [f"{without}; its plan costs {extra:.2f} % extra.", ""]
    if before is not None:
        lines += ["## The commit before", "", *head, row(before, "3 ops", 60), ""]
    (_HERE / "planner.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
