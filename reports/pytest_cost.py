"""Measure what tests cost under the plugin in a process with a million objects: clean ones, and ones that leak.

`--memwatch-findings=all` records each test. Its cost is a ratio: of the CPU time of the calls with it to that without,
for tests of a small layer and for tests that train a model.

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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

FINDINGS = """
import pytest
import torch

torch.set_num_threads(1)
BODY_S = []
WIDTHS = {{"a small layer": (16, 1), "a training of 4 steps": (512, 4)}}

@pytest.mark.parametrize("n", range({tests}))
@pytest.mark.parametrize("name", WIDTHS)
def test_body(name, n):
    width, steps = WIDTHS[name]
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(1 if steps == 1 else 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(width, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

LEAKS = """
import numpy as np
import pytest
import torch

torch.set_num_threads(1)
KEPT = []
BODY_S = []

def retained(): KEPT.append(torch.randn(1000))
def cycle():
    ring = [torch.randn(1000)]
    ring.append(ring)
def uncollectable():
    y = torch.randn(1000, requires_grad=True).exp()
    y.register_hook(lambda grad: grad * y)
def array(): KEPT.append((1, torch.randn(1000).numpy()))
PROGRAMS = {"retained": retained, "cycle": cycle, "uncollectable": uncollectable, "held by a numpy array": array}

@pytest.mark.parametrize("n", range(3))
@pytest.mark.parametrize("name", PROGRAMS)
def test_all(name, n): PROGRAMS[name]()

@pytest.mark.no_tensor_leaks
@pytest.mark.parametrize("n", range(3))
@pytest.mark.parametrize("name", PROGRAMS)
def test_marked(name, n): PROGRAMS[name]()
"""


class Stopwatch:
    """Times the call of each test, and counts the collections in it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.call_s: list[float] = []
        self.names: list[str] = []
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
        begin = self.clock()
        try:
            return (yield)
        finally:
            self.call_s.append(self.clock() - begin)
            self.names.append(pyfuncitem.name)
            self._inside = False
            self.body_s.append(sum(bodies))


def session(suite: str, expected: int, clock: Callable[[], float], *options: str) -> Stopwatch:
    """Run a test file in this process, beside a million objects."""
    import pytest

    Stopwatch.pytest_pyfunc_call = pytest.hookimpl(wrapper=True, tryfirst=True)(Stopwatch.pytest_pyfunc_call)
    ballast = [{"n": [n]} for n in range(OBJECTS // 2)]
    watch = Stopwatch(clock)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_cost.py").write_text(suite)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            done = pytest.main(["-q", "-p", "no:cacheprovider", folder, *options], plugins=[watch])
    assert done == expected, output.getvalue()
    assert len(ballast) * 2 == OBJECTS
    return watch


def measure_clean(name: str, options: tuple[str, ...]) -> None:
    """Run the clean tests of one mode and print a row."""
    watch = session(SUITE.format(tests=TESTS), 0, time.perf_counter, "-k", name, *options)
    extra = sorted(1e3 * (call - body) for call, body in zip(watch.call_s, watch.body_s, strict=True))[1:-1]
    row = [
        f"{1e3 * statistics.median(watch.body_s):.3f}",
        f"{statistics.median(extra):.3f}",
        f"{extra[int(0.95 * len(extra))]:.3f}",
        str(watch.collections),
        str(watch.full_collections),
    ]
    print(" | ".join(row))


def measure_leaks() -> None:
    """Time the diagnosis of each kind of leak: by function, by block, and by the plugin; print rows."""
    namespace: dict[str, Any] = {}
    exec(LEAKS, namespace)
    # first: pytest keeps the frames of its last failure, and our objects
    times = _direct(namespace["PROGRAMS"])
    watch = session(LEAKS, 1, time.process_time, "--memwatch-leaks=all")
    for name in namespace["PROGRAMS"]:
        for kind in ("test_marked", "test_all"):
            calls = zip(watch.call_s, watch.names, strict=True)
            times[name].append(max(call for call, test in calls if test.startswith(f"{kind}[{name}-")))
        print("| " + " | ".join([name, *(f"{1e3 * seconds:.0f}" for seconds in times[name])]) + " |")


def _direct(programs: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    ballast = [{"n": [n]} for n in range(OBJECTS // 2)]
    times = {
        name: [_slowest(function, program) for function in (_find, _check)]
        for name, program in programs.items()
    }
    assert len(ballast) * 2 == OBJECTS
    return times


def _find(program: Callable[[], object]) -> None:
    from memwatch.leaks import find_leaks

    assert find_leaks(program)


def _check(program: Callable[[], object]) -> None:
    from memwatch.leaks import TensorLeakError, check_leaks

    with contextlib.suppress(TensorLeakError):
        check_leaks()(program)()
        raise AssertionError("no leak was found")


def _slowest(function: Callable[..., None], program: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        begin = time.process_time()
        function(program)
        times.append(time.process_time() - begin)
    return max(times)


def measure_findings(mode: str) -> None:
    """Print the median CPU time of the calls of each kind of test, in milliseconds."""
    tests = 30
    watch = session(FINDINGS.format(tests=tests), 0, time.process_time, f"--memwatch-findings={mode}")
    times: dict[str, list[float]] = {}
    for call, name in zip(watch.call_s, watch.names, strict=True):
        times.setdefault(name.partition("[")[2].partition("-")[0], []).append(call)
    for name, calls in times.items():
        print(f"{name}={1e3 * statistics.median(calls):.3f}")


def findings_rows() -> list[str]:
    """Return the rows of the table about avoidable memory."""
    found = {
        mode: dict(line.split("=") for line in in_a_process_of_its_own("findings", mode))
        for mode in ("off", "all")
    }
    return [
        f"| {name} | {off} | {found['all'][name]} | {float(found['all'][name]) / float(off):.1f} |"
        for name, off in found["off"].items()
    ]


def measure_memory(name: str) -> None:
    """Print how much memory the process has before its first diagnosis, and at most in it."""
    namespace: dict[str, Any] = {}
    exec(LEAKS, namespace)
    from memwatch.leaks import find_leaks

    find_leaks(gc.isenabled)  # import what a look needs
    ballast = [{"n": [n]} for n in range(OBJECTS // 2)]
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the process begins anew
    before_kib = _status_kib("VmRSS")
    _find(namespace["PROGRAMS"][name])
    most_kib = _status_kib("VmHWM")
    assert len(ballast) * 2 == OBJECTS
    more_percent = 100 * (most_kib / before_kib - 1)
    print(f"| {name} | {before_kib / 1024:.0f} | {most_kib / 1024:.0f} | {more_percent:.0f} % |")


def _status_kib(field: str) -> int:
    """Return a figure of this process from Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def in_a_process_of_its_own(*arguments: str) -> list[str]:
    """Run this script again and return the lines it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    return done.stdout.strip().splitlines()


def main() -> None:
    """Measure each mode in a process of its own and print the tables."""
    if sys.argv[1:] == ["leaks"]:
        measure_leaks()
        return
    if sys.argv[1:2] == ["findings"]:
        if len(sys.argv) > 2:
            measure_findings(sys.argv[2])
        else:
            print("\n".join(findings_rows()))
        return
    if sys.argv[1:2] == ["memory"]:
        measure_memory(sys.argv[2])
        return
    if len(sys.argv) > 1:
        measure_clean(sys.argv[1], tuple(sys.argv[2:]))
        return
    print("# What tests cost under the pytest plugin\n")
    print(
        f"In a process that holds {OBJECTS:,} Python objects beside torch's. Written by `reports/pytest_cost.py`.\n\n"
        f"## Clean tests\n\n{TESTS} tests that leave nothing behind. The body is a forward and backward pass of a "
        "small layer; `no_tensor_leaks` runs it three times. Extra is the time of the call beyond the runs of the "
        "body, in milliseconds.\n"
    )
    print("| test | runs of the body, ms | extra, median ms | extra, 95 % ms | gc runs | full gc runs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for title, (name, options) in MODES.items():
        print(f"| {title} | {in_a_process_of_its_own(name, *options)[-1]} |", flush=True)
    print(
        "\n## Tests that leak\n\n"
        "The whole call, runs and diagnosis included, in milliseconds of CPU time (one thread: the wall time of an "
        "idle machine); the slowest of three. "
        "gc does not list tensors that a numpy array holds, so memwatch also searches for those.\n"
    )
    print("| leak | `find_leaks` | `check_leaks` | marker `no_tensor_leaks` | `--memwatch-leaks=all` |")
    print("| --- | --- | --- | --- | --- |")
    print("\n".join(in_a_process_of_its_own("leaks")))
    print(
        "\n## Avoidable memory\n\nCalls of tests under `--memwatch-findings=off` and `=all`, median CPU time in "
        "milliseconds, and the ratio. `python reports/pytest_cost.py findings` measures these rows alone.\n"
    )
    print("| test | off | all | ratio |")
    print("| --- | --- | --- | --- |")
    print("\n".join(findings_rows()))
    print(
        "\n## Memory of a diagnosis\n\nThe resident memory of a process with these objects, torch included, before its "
        "first `find_leaks` that finds a leak, and the most in it (Linux).\n"
    )
    print("| leak | before, MiB | at most, MiB | more |")
    print("| --- | --- | --- | --- |")
    for name in ("retained", "cycle", "uncollectable", "held by a numpy array"):
        print(in_a_process_of_its_own("memory", name)[-1], flush=True)


if __name__ == "__main__":
    main()
