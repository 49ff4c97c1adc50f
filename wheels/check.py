"""Try the wheels in dist: install each beside a torch, record a program, and write a table into reports/torches.md.

    python wheels/check.py                             # all rows: an hour, and 5 GB of disk for one row at a time
    python wheels/check.py 2.13@3.11 2.13@3.11:plain   # two rows; the table keeps the results of the others

A row is a torch, a Python and a package. It gets an environment of its own, which is removed afterwards. The PATH
contains only this environment, so no compiler. The measured time begins with `pip install memwatch`, beside an
installed torch, and ends with the printed summary. It includes downloads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple
from xml.etree import ElementTree

from build import ROOT, find_python

ROWS = (
    "2.15@3.11", "2.14@3.11", "2.13@3.11", "2.12@3.11", "2.11@3.11", "2.13@3.10", "2.13@3.12", "2.13@3.13",
    "2.15@3.14", "2.13@3.11:unknown", "2.13@3.11:plain", "2.13@3.11:sdist",
)  # fmt: skip
PACKAGES = {
    "wheel": "the wheel of this Python",
    "unknown": "the same wheel without the recorder of this torch",
    "plain": "the `py3-none-any` wheel",
    "sdist": "the sdist",
}
"""What is installed. Only the first one has a native recorder for the torch of the row."""
TESTS = (
    "tests/truth/test_truth_patterns.py", "tests/integration/test_truth.py", "tests/leaks/test_leaks_check.py",
    "tests/replay/test_replay_windows.py",
)  # fmt: skip
"""Tests of holders, peaks, leaks and plans: one case of each, with the installed memwatch."""
SUITE = """
import pytest
import torch

kept = []


@pytest.mark.no_tensor_leaks
def test_that_leaks():
    kept.append((torch.ones(1000, requires_grad=True) * 2).exp().sum())


@pytest.mark.no_tensor_leaks
def test_that_keeps_a_number():
    kept.append((torch.ones(1000, requires_grad=True) * 2).exp().sum().item())
"""
CYCLE = """
import torch


class Node:
    pass


node = Node()
node.itself, node.tensor = node, torch.ones(1000)
del node
"""
SAMPLED = """
import runpy
from pathlib import Path

runpy.run_path("train.py")
found = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "_malloc_sampler" in line]
print("the sampler is", found[0] if found else "missing")
"""
COMPILED = """
from pathlib import Path

import memwatch
from memwatch.devices.cuda_allocator.torchs_own import build_driver
from memwatch.monitor.malloc_sampler import build_sampler
from memwatch.planner.native.library import build

files = [build_driver()[0], build_sampler()[0], build()[0]]
package = Path(memwatch.__file__).parent
print("from the wheel:", all(file.is_relative_to(package) for file in files))
"""
MOVED = """
import torch

torch.ones(1 << 20).cuda()
"""
PROGRAMS = {
    "test_suite.py": SUITE, "cycle.py": CYCLE, "sampled.py": SAMPLED, "compiled.py": COMPILED, "moved.py": MOVED,
}  # fmt: skip
"""Files that lie beside `train.py`."""
NEEDED_BY_TESTS = (
    "pytest>=9", "pytest-asyncio>=0.24", "pytest-timeout>=2.3", "expecttest>=0.2", "hypothesis>=6.100",
)  # fmt: skip
REPORT = ROOT / "reports" / "torches.md"
HEADING = "## The wheels"
"""`reports/torches.py` keeps the section with this heading."""
MOST_PACKAGES = 12
LIMIT_S = 1800
"""How long one command may run."""
READ = """
import json, sys, memwatch
prof = memwatch.load(sys.argv[1])
print(json.dumps({"recorder": prof.meta["recorder"], "peak_bytes": prof.peak_bytes, "folder": memwatch.__file__}))
"""


class Use(NamedTuple):
    """A command of memwatch, and how it ends.

    Attributes:
        name: the name in the table of failures.
        words: the command, whose programs lie in the environment.
        said: what it prints, on stdout or stderr. `{environment}` is the folder of the environment, `{allocator}` the
            allocator whose figures `tune` prints, and `...` any text.
        status: its exit code.
        setting: the value of the variable MEMWATCH.
        packages: those that have what it needs; there is no compiler.
    """

    name: str
    words: str
    said: str
    status: int = 0
    setting: str | None = None
    packages: tuple[str, ...] = tuple(PACKAGES)


USES = (
    Use("leaks, none", "memwatch leaks train.py", "memwatch: no leaks"),
    Use("leaks, a cycle", "memwatch leaks cycle.py", "through attribute .itself of Node", 1),
    Use("estimate", "memwatch estimate train.py", "Estimated peak 24.0"),
    Use(
        "estimate for CUDA", "memwatch estimate --device cuda moved.py",
        "Estimated peak 4.00 MiB on cuda", packages=("wheel", "unknown"),
    ),
    Use("run --replay", "memwatch run --replay -o plan.memwatch train.py", "wrote plan.memwatch"),
    Use("plan", "memwatch plan plan.memwatch --budget 80% -o train.plan", "lower bound"),
    Use("replay", "memwatch replay plan.memwatch --plan train.plan", "as planned, to the byte"),
    Use("tune", "memwatch tune plan.memwatch", "These figures come from {allocator}"),
    Use("report", "memwatch report plan.memwatch -o train.html", "train.html"),
    Use("MEMWATCH=monitor", "python train.py", "memwatch: process", setting="monitor"),
    Use(
        "MEMWATCH=monitor,native=1", "python sampled.py",
        "the sampler is {environment}", setting="monitor,native=1", packages=("wheel", "unknown"),
    ),
    Use("compiled libraries", "python compiled.py", "from the wheel: True", packages=("wheel", "unknown")),
    Use("build", "memwatch build", "already built: {environment}", packages=("wheel",)),
    Use("pytest", "python -m pytest test_suite.py", "kept alive by global `kept` ... 1 failed, 1 passed", 1),
)  # fmt: skip
"""These run in each environment, beside `train.py` and `PROGRAMS`."""


class Row(NamedTuple):
    """A torch, a Python, and the package of memwatch that is installed."""

    torch: str
    python: str
    package: str

    @classmethod
    def parse(cls, text: str) -> Row:
        """Return the row that a text such as 2.13@3.11:plain names."""
        torch, _, rest = text.partition("@")
        python, _, package = rest.partition(":")
        row = cls(torch, python, package or "wheel")
        if not python or row.package not in PACKAGES:
            sys.exit(f"{text} is no row; write TORCH@PYTHON or TORCH@PYTHON:PACKAGE ({', '.join(PACKAGES)})")
        return row


def main() -> int:
    """Try the rows, write the table, and return 1 if a result breaks a promise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", default=ROWS, help="TORCH@PYTHON[:PACKAGE]; all if none is given")
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "dist", help="folder with the wheels")
    parser.add_argument("--where", type=pathlib.Path, default=ROOT / "out" / "checks", help="folder to use")
    parser.add_argument("--no-tests", action="store_true", help="record the program only")
    options = parser.parse_args()
    rows = {text: Row.parse(text) for text in options.rows}
    options.where.mkdir(parents=True, exist_ok=True)
    known_file = options.where / "results.json"
    known: dict[str, dict[str, Any]] = {}
    for text, row in rows.items():
        with tempfile.TemporaryDirectory(dir=options.where.resolve()) as folder:
            result = check(row, options.dist.resolve(), pathlib.Path(folder), not options.no_tests)
        known = (
            json.loads(known_file.read_text()) if known_file.exists() else {}
        )  # another run may have added rows
        known[text] = result
        known_file.write_text(json.dumps(known, indent=1))
        print(text, json.dumps(result), flush=True)
        write_table(known)
    faults = faults_of(known)
    print("\n".join(faults))
    return int(bool(faults))


def check(row: Row, dist: pathlib.Path, folder: pathlib.Path, with_tests: bool) -> dict[str, Any]:
    """Install torch and memwatch into a fresh environment and record a program; return what happened."""
    environment = folder / "environment"
    subprocess.run([find_python(row.python), "-m", "venv", environment], check=True)
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "install", "--quiet"]
    # the import in the next line compiles the modules of torch that are needed: pip would spend a minute on all of them
    run(folder, [*pip, "--no-compile", f"torch=={row.torch}.*"])
    result: dict[str, Any] = {"torch": said_by(folder, python, "import torch; print(torch.__version__)")}
    result["python"] = said_by(folder, python, "import platform; print(platform.python_version())")
    before = packages(folder, python)

    times = [time.monotonic()]
    before_s = cpu_s()
    source = {"plain": "memwatch-*-none-any.whl", "sdist": "memwatch-*.tar.gz"}.get(row.package)
    asked = [str(next(dist.glob(source)))] if source else ["--find-links", str(dist), "memwatch"]
    run(folder, [*pip, *asked])
    times.append(time.monotonic())
    if row.package == "unknown":
        (built,) = environment.glob("lib/python*/site-packages/memwatch/record/native/built")
        for recorder in built.glob(f"_recorder-torch{row.torch}.*"):
            recorder.unlink()
    memwatch, capture = str(environment / "bin" / "memwatch"), str(folder / "train.memwatch")
    shutil.copy(ROOT / "examples" / "train.py", folder)
    recorded = run(folder, [memwatch, "run", "-o", capture, "train.py"])
    times.append(time.monotonic())
    summary = run(folder, [memwatch, "summary", capture])
    times.append(time.monotonic())
    result["seconds"] = round(times[-1] - times[0])
    result["seconds_of_each"] = [round(end - begin) for begin, end in itertools.pairwise(times)]
    result["cpu_seconds"] = round(cpu_s() - before_s)

    result |= json.loads(run(folder, [python, "-c", READ, capture]).stdout)
    assert pathlib.Path(result.pop("folder")).is_relative_to(environment), "another memwatch was imported"
    result["summary"] = summary.stdout.splitlines()[0]
    result["remarks"] = [line for line in recorded.stderr.splitlines() if "recorder" in line]
    result["packages"] = sorted(packages(folder, python) - before)
    run(folder, [*pip, *NEEDED_BY_TESTS])
    result["uses"] = use(folder, row.package)
    if (
        with_tests and row.package == "wheel"
    ):  # the others have no native recorder, and some of the tests need it
        result["tests"] = test(folder, python)
    return result


def use(folder: pathlib.Path, package: str) -> dict[str, Any]:
    """Run the commands of `USES` in the environment; return how many ran, and which ended otherwise than expected."""
    environment = folder / "environment"
    allocator = "the allocator of torch" if is_cuda_build(folder) else "memwatch's model of torch's allocator"
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
    wanted = [each for each in USES if package in each.packages]
    failed = []
    for each in wanted:
        program, *arguments = each.words.split()
        done = run(folder, [str(environment / "bin" / program), *arguments], None, setting=each.setting)
        output = " ".join((done.stdout + done.stderr).split())
        said = each.said.format(environment=environment, allocator=allocator).split(" ... ")
        is_as_said = re.search(".*".join(map(re.escape, said)), output)
        if done.returncode != each.status or not is_as_said:
            print(f"{each.name} ended with {done.returncode}: {output[-2000:]}", flush=True)
            failed.append(each.name)
    return {"run": len(wanted), "failed": failed}


def cpu_s() -> float:
    """Return the CPU time of the commands that have ended. Unlike a clock, it does not count waiting."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_cuda_build(folder: pathlib.Path) -> bool:
    """Return whether the torch of the environment is a CUDA build."""
    return any(folder.glob("environment/lib/python*/site-packages/torch/lib/libc10_cuda.so"))


def run(
    folder: pathlib.Path,
    command: list[str],
    expected: tuple[int, ...] | None = (0,),
    setting: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command that finds only the environment on the PATH, and an empty cache. None expects any exit code."""
    ours = ("PYTHONPATH", "PYTHONHOME", "CC", "CXX", "PYTEST_ADDOPTS")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith("MEMWATCH")
    }
    given = {"PATH": str(folder / "environment" / "bin"), "MEMWATCH_CACHE": str(folder / "cache")}
    if setting is not None:
        given["MEMWATCH"] = setting
    done = subprocess.run(
        command, cwd=folder, env=kept | given, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    if expected is not None and done.returncode not in expected:
        sys.exit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done


def said_by(folder: pathlib.Path, python: str, code: str) -> str:
    """Return what a line of Python prints in the environment."""
    return run(folder, [python, "-c", code]).stdout.strip()


def packages(folder: pathlib.Path, python: str) -> set[str]:
    """Return the names of the packages that are installed."""
    listed = run(folder, [python, "-m", "pip", "--disable-pip-version-check", "list", "--format", "json"])
    return {package["name"] for package in json.loads(listed.stdout)}


def test(folder: pathlib.Path, python: str) -> dict[str, Any]:
    """Run some tests of a copy of `tests`, which has no sources of memwatch beside it; return the outcomes."""
    copy = folder / "copy"
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    outcome = folder / "outcome.xml"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(copy), "--cases=1"]
    command += [f"--junit-xml={outcome}", "-c", str(copy / "pyproject.toml")]
    run(folder, [*command, *(str(copy / file) for file in TESTS)], expected=(0, 1))
    suite = ElementTree.parse(outcome).getroot()[0]
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {"run": len(list(suite.iter("testcase"))), "failed": failed}


def faults_of(known: dict[str, dict[str, Any]]) -> list[str]:
    """Compare the results with our promises; return a line for each difference."""
    faults = []
    peaks: dict[str, set[int]] = {}
    for text, result in known.items():
        row = Row.parse(text)
        peaks.setdefault(row.torch, set()).add(result["peak_bytes"])
        if (result["recorder"] == "native") != (row.package == "wheel"):
            faults.append(f"{text}: the recorder is {result['recorder']}")
        if len(result["remarks"]) != (row.package != "wheel"):
            faults.append(f"{text}: {len(result['remarks'])} lines about the recorder: {result['remarks']}")
        if len(result["packages"]) > MOST_PACKAGES:
            faults.append(f"{text}: {len(result['packages'])} packages: {' '.join(result['packages'])}")
        if not result["summary"].startswith("Peak "):
            faults.append(f"{text}: the summary starts with {result['summary']}")
        for part in ("uses", "tests"):
            faults += [f"{text}: {name} failed" for name in result.get(part, {}).get("failed", [])]
    faults += [
        f"torch {torch}: the peaks differ: {found}" for torch, found in peaks.items() if len(found) > 1
    ]
    return faults


def write_table(known: dict[str, dict[str, Any]]) -> None:
    """Replace the section about wheels at the end of the report."""
    text = [
        HEADING,
        "",
        "Written by `wheels/check.py`. Each row is a fresh environment with this torch. Its `PATH` has no compiler.",
        "`pip install` installs a package that `make wheels` built. `memwatch run` records `examples/train.py`, and",
        "`memwatch summary` prints the result. The column of packages counts memwatch and the packages that `pip`",
        "adds to torch's own. The seconds go from `pip install memwatch`, with its downloads, to the summary. Other",
        "programs used the two cores at the same time. The CPU seconds leave those programs out.",
        "The uses are `leaks`, `estimate`, `plan`, `replay`, `tune`, `report`, the monitor with and without its",
        "sampler, and a test suite with a leak. The tests check recording, holders, leaks and plans, with one case of",
        "each test.",
        "",
        "| torch | Python | installed | recorder | packages | peak in bytes | seconds | CPU seconds | uses | tests |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in [name for name in ROWS if name in known]:
        result = known[name]
        uses, tests = (
            f"{part['run'] - len(part['failed'])} / {part['run']}" if part else "not run"
            for part in (result.get("uses"), result.get("tests"))
        )
        cells = [
            result["torch"], result["python"], PACKAGES[Row.parse(name).package], result["recorder"],
            str(len(result["packages"])), f"{result['peak_bytes']:,}", str(result["seconds"]),
            str(result["cpu_seconds"]), uses, tests,
        ]  # fmt: skip
        text.append(f"| {' | '.join(cells)} |")
    faults = faults_of(known)
    text += ["", *(f"* {fault}" for fault in faults)] if faults else []
    before = REPORT.read_text().split(HEADING)[0].rstrip()
    REPORT.write_text("\n".join([before, "", *text, ""]))


if __name__ == "__main__":
    sys.exit(main())
