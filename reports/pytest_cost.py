"""Measure what a clean test costs under the plugin, in a process with a million objects.

Run: python reports/pytest_cost.py > reports/pytest_cost.md
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OBJECTS = 1_000_000
TESTS = 200
MODES = {
    "plain test, plugin off": ("plain", ("--no-memwatch",)),
    "plain test, plugin on": ("plain", ()),
    "marker `no_tensor_leaks`": ("marked", ()),
    "`--memwatch-leaks=all`": ("plain", ("--memwatch-leaks=all",)),
}
SUITE = """
import time
import pytest
import torch

torch.set_num_threads(1)
MODEL = torch.nn.Linear(16, 16)
X = torch.ones(4, 16)
BODY_S = []

def body():
    begin = time.perf_counter()
    MODEL(X).sum().backward()
    MODEL.zero_grad()
    BODY_S.append(time.perf_counter() - begin)

@pytest.mark.parametrize("n", range({tests}))
def test_plain(n): body()

@pytest.mark.no_tensor_leaks
@pytest.mark.parametrize("n", range({tests}))
def test_marked(n): body()
"""


class Stopwatch:
    """Times the call of each test, and counts the collections in it."""

    def __init__(self) -> None:
        self.call_s: list[float] = []
        self.body_s: list[float] = []
        self.collections = 0
        self.full_collections = 0
        self._inside = False
        gc.callbacks.append(self._count)

    def _count(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and self._inside:
            self.collections += 1
            self.full_collections += info["generation"] == 2

    def pytest_pyfunc_call(self, pyfuncitem):  # noqa: ANN001, ANN201
        """Be the outermost wrapper around the body."""
        bodies = pyfuncitem.module.BODY_S
        bodies.clear()
        self._inside = True
        begin = time.perf_counter()
        result = yield
        self.call_s.append(time.perf_counter() - begin)
        self._inside = False
        self.body_s.append(sum(bodies))
        return result


def measure(name: str, options: tuple[str, ...]) -> None:
    """Run the tests of one mode in this process and print one row."""
    import pytest

    Stopwatch.pytest_pyfunc_call = pytest.hookimpl(wrapper=True, tryfirst=True)(Stopwatch.pytest_pyfunc_call)
    ballast = [{"n": [n]} for n in range(OBJECTS // 2)]
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_cost.py").write_text(SUITE.format(tests=TESTS))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            command = ["-q", "-p", "no:cacheprovider", folder, "-k", name, *options]
            done = pytest.main(command, plugins=[watch])
    assert done == 0, output.getvalue()
    assert len(ballast) * 2 == OBJECTS
    extra = sorted(1e3 * (call - body) for call, body in zip(watch.call_s, watch.body_s, strict=True))[1:-1]
    row = [
        f"{1e3 * statistics.median(watch.body_s):.3f}",
        f"{statistics.median(extra):.3f}",
        f"{extra[int(0.95 * len(extra))]:.3f}",
        str(watch.collections),
        str(watch.full_collections),
    ]
    print(" | ".join(row))


def main() -> None:
    """Measure each mode in a process of its own and print the table."""
    if len(sys.argv) > 1:
        measure(sys.argv[1], tuple(sys.argv[2:]))
        return
    print("# What a clean test costs under the pytest plugin\n")
    print(
        f"{TESTS} tests that leave nothing behind, in a process that holds {OBJECTS:,} further Python objects. "
        "The body is a forward and backward pass of a small layer; `no_tensor_leaks` runs it three times. "
        "Extra is the time of the call phase beyond the runs of the body, in milliseconds. "
        "Written by `reports/pytest_cost.py`.\n"
    )
    print("| test | runs of the body, ms | extra, median ms | extra, 95 % ms | gc runs | full gc runs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for title, (name, options) in MODES.items():
        command = [sys.executable, "-W", "ignore", __file__, name, *options]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"}
        )
        print(f"| {title} | {done.stdout.strip().splitlines()[-1]} |", flush=True)


if __name__ == "__main__":
    main()
