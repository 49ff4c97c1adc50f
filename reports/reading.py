"""Measure what reading a capture costs: a real loop is recorded to a file, each verb reads it in a new process.

CPU seconds and the most memory beyond what the imports take, per op, for captures of growing size. Writes
reports/reading.md; run it on an idle machine: `python reports/reading.py [--most OPS] [CAPTURE ...]`. Captures that
were recorded before are measured too, after the others.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from workloads import WORKLOADS

import memwatch

HERE = pathlib.Path(__file__).parent
OPS_OF_STEP = 110
VERBS = ("summary", "stats", "report", "diff")
READ = """
import resource, sys, time
import memwatch, memwatch.report.terminal, memwatch.report.page.model
from memwatch.analysis.compare import compare, peak_sites
from memwatch.report.stats import stats
verb, path, page = sys.argv[1:]
before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
reading = memwatch.load(path)
if verb == "summary":
    reading.summary()
elif verb == "stats":
    stats(reading)
elif verb == "report":
    reading.report(page, force=True)
else:
    old = peak_sites(reading._tables)
    del reading
    compare(old, peak_sites(memwatch.load(path)._tables))
print(time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, before << 10)
"""


def record(path: pathlib.Path, ops: int) -> float:
    """Record a loop of about so many ops, and return the CPU seconds that it took."""
    step = WORKLOADS["MLP"]()
    begin = time.process_time()
    with memwatch.profile(path):
        for _ in range(ops // OPS_OF_STEP):
            step()
    return time.process_time() - begin


def rows_of(path: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Return the rows of the table for one capture."""
    ops, page = memwatch.load(path).capture.rows("ops"), folder / "page.html"
    rows = []
    for verb in VERBS:
        done = subprocess.run(
            [sys.executable, "-c", READ, verb, str(path), str(page)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds, most, before = map(float, done.stdout.split())
        size = f"{page.stat().st_size / 1e6:.2f}" if verb == "report" else ""
        rows.append(
            f"| {ops:,} | {path.stat().st_size / ops:.0f} | {verb} | {seconds:.1f} | {1e6 * seconds / ops:.1f} | "
            f"{most / 2**30:.2f} | {(most - before) / ops:.0f} | {size} |"
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=5_000_000)
    parser.add_argument("captures", type=pathlib.Path, nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    sizes = [size for size in (10**4, 10**5, 10**6, 5 * 10**6, 10**7) if size <= options.most]
    lines = [
        "# The cost of reading a capture",
        "",
        f"Written by `python reports/reading.py`: torch {torch.__version__}, one thread, CPU seconds of a process that",
        "reads a capture of the MLP of `workloads.py`. *GiB* is the most memory of the process, imports included;",
        "*B per op* is its memory beyond the imports.",
        "",
        "| ops | file, B per op | verb | s | us per op | GiB | B per op | page, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = pathlib.Path(folder) / f"{size}.memwatch"
            record(path, size)
            lines += rows_of(path, pathlib.Path(folder))
        for path in options.captures:
            lines += rows_of(path, pathlib.Path(folder))
    (HERE / "reading.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
