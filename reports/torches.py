"""Run memwatch's tests with each torch and each Python that it supports, and write reports/torches.md.

Every torch gets an environment of its own: five gigabytes and some minutes each where only builds with CUDA's libraries
are served. In it the native recorder is compiled, then the parts of the test suite below run, whole or every n-th test.
What was measured before is kept beside the environments, so that the versions can be run one by one:

    python reports/torches.py                            # all of them, whole
    python reports/torches.py --every 7 2.15@3.11 2.11@3.11
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = (
    "2.15@3.11", "2.14@3.11", "2.13@3.11", "2.12@3.11", "2.11@3.11",
    "2.15@3.12", "2.15@3.13", "2.15@3.14", "2.13@3.12", "2.13@3.13", "2.13@3.10",
)  # fmt: skip
"""Versions of torch and of Python; the newest first. torch 2.15 is not served for Python 3.10."""
PARTS = {
    "compat matrix": ["tests/compat", "--ignore=tests/compat/test_compat_opinfo.py"],
    "truth": ["tests/integration/test_truth.py", "tests/truth"],
    # the file left out edits the sources of one torch
    "leaks": ["tests/leaks", "tests/heap", "--ignore=tests/leaks/test_leaks_pipelining.py"],
    "native": ["tests/native"],
    "plan, replay": ["tests/replay"],
    "op database": ["tests/compat/test_compat_opinfo.py"],
}
"""Parts of the test suite: a column each."""
NEEDED = (
    "pytest>=9", "pytest-asyncio>=0.24", "pytest-timeout>=2.3", "expecttest>=0.2", "hypothesis>=6.100",
    "hatchling>=1.25", "transformers>=4.44",
)  # fmt: skip
"""What these parts need beside memwatch's own requirements."""
LINES_OF_FAILURES = 12
LIMIT_S = 3600
"""How long one part may run: what hangs does not end the others."""


def main() -> int:
    """Run what is asked for, write the table, and return 1 if any test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", default=RUNS, help="TORCH@PYTHON; all if none is given")
    parser.add_argument("--where", type=pathlib.Path, default=ROOT / "out" / "torches", help="folder to use")
    parser.add_argument(
        "--every", type=int, default=1, help="run every n-th test; odd, for tests come in fours"
    )
    parser.add_argument(
        "--parts", nargs="*", default=PARTS, choices=PARTS, help="parts to run; all if none is given"
    )
    parser.add_argument("--remove", action="store_true", help="delete each environment when it has run")
    options = parser.parse_args()
    options.where.mkdir(parents=True, exist_ok=True)
    for run in options.runs:
        environment = Environment(options.where.resolve() / run, *run.split("@"))
        known = environment.results()
        try:
            environment.make()
            known |= environment.describe()
            for part in options.parts:
                known["parts"][part] = environment.test(part, options.every)
        except subprocess.CalledProcessError as error:
            known["failed"] = f"`{pathlib.Path(error.cmd[0]).name} {' '.join(error.cmd[1:4])}` failed"
        environment.results_file.write_text(json.dumps(known, indent=1))
        write(table(options.where))
        if options.remove:
            shutil.rmtree(environment.folder)
    print(table(options.where))
    return int(any(failures_of(result) for result in all_results(options.where).values()))


def write(text: str) -> None:
    """Write the report. The section about wheels, which `wheels/check.py` writes, stays."""
    report = ROOT / "reports" / "torches.md"
    _, heading, section = report.read_text().partition("\n## The wheels\n")
    report.write_text(text + heading + section)


class Environment:
    """A virtual environment with one torch and one Python."""

    def __init__(self, folder: pathlib.Path, torch: str, python: str) -> None:
        self.folder, self.torch, self.version = folder, torch, python
        self.python = str(folder / "bin" / "python")
        self.results_file = folder.with_name(f"{folder.name}.json")

    def results(self) -> dict[str, Any]:
        """Return what earlier runs came to."""
        return json.loads(self.results_file.read_text()) if self.results_file.exists() else {"parts": {}}

    def make(self) -> None:
        """Make the environment, unless it is there."""
        if not (self.folder / "made").exists():
            subprocess.run([find_python(self.version), "-m", "venv", "--clear", self.folder], check=True)
            pip = [self.python, "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, f"torch=={self.torch}.*", *NEEDED], check=True)
            subprocess.run([*pip, "-e", str(ROOT)], check=True)
            (self.folder / "made").touch()

    def describe(self) -> dict[str, Any]:
        """Compile the native recorder; return the versions, and how that went."""
        code = "import sys, torch; print(torch.__version__, sys.version.split()[0])"
        versions = self.run([self.python, "-c", code]).stdout.split()
        built = self.run([self.python, "-c", "from memwatch.profile import build_recorder; build_recorder()"])
        last = built.stderr.strip().splitlines()[-1:]
        told = "built" if built.returncode == 0 else f"not built: {last}"
        return {"torch": versions[0], "python": versions[1], "native": told}

    def test(self, part: str, every: int) -> dict[str, Any]:
        """Run a part of the tests; return the outcomes."""
        outcomes = self.folder / "outcomes.txt"
        outcomes.unlink(missing_ok=True)
        begin = time.time()
        done = self.run(
            [self.python, "-m", "pytest", "-q", "-p", "sample_tests", "-p", "no:cacheprovider",
             f"--every={every}", f"--outcomes={outcomes}", *PARTS[part]],
        )  # fmt: skip
        (self.folder / f"{part}.log").write_text(done.stdout + done.stderr)
        lines = outcomes.read_text().splitlines() if outcomes.exists() else ["collected 0"]
        found = [line.split(" ", 1) for line in lines[1:]]
        return {
            "seconds": round(time.time() - begin),
            "every": every,
            "collected": int(lines[0].split()[1]),
            "passed": sum(outcome == "passed" for outcome, _ in found),
            "skipped": sum(outcome == "skipped" for outcome, _ in found),
            "failed": [name for outcome, name in found if outcome == "failed"],
            "ended": done.returncode in (0, 1),
        }

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment's, with one thread and a cache for the native recorder of its own."""
        given = {"OMP_NUM_THREADS": "1", "MEMWATCH_CACHE": str(self.folder / "cache")}
        given["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "plugins", ROOT / "reports")))
        try:
            return subprocess.run(
                command, cwd=ROOT, env=os.environ | given, capture_output=True, text=True, check=False,
                timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            told = f"stopped after {LIMIT_S} s"
            return subprocess.CompletedProcess(command, 124, str(error.stdout or ""), told)


def find_python(version: str) -> str:
    """Return the interpreter of a version: one on the path, or pyenv's."""
    on_path = shutil.which(f"python{version}")
    pyenv = sorted(pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for found in filter(None, [*map(str, pyenv), on_path]):
        if subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    sys.exit(f"there is no Python {version} here")


def all_results(where: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return the results of the versions that were run, in the order of `RUNS`."""
    files = {run: where / f"{run}.json" for run in RUNS}
    return {run: json.loads(file.read_text()) for run, file in files.items() if file.exists()}


def failures_of(result: dict[str, Any]) -> list[str]:
    """Return the tests that failed, and the parts that did not come to their end."""
    failed = [name for part in result["parts"].values() for name in part["failed"]]
    return failed + [f"{name}: ended early" for name, part in result["parts"].items() if not part["ended"]]


def table(where: pathlib.Path) -> str:
    """Write all results as Markdown."""
    lines = [
        "# memwatch with each torch and each Python",
        "",
        "Written by `make torches`: for each version a virtual environment, the native recorder compiled in it, and",
        "these parts of the test suite. The compat matrix runs each program with and without memwatch and",
        "compares bit for bit. It uses the key and the mode, with the native and the Python recorder. The op",
        "database is PyTorch's own, every eighth entry. A cell shows: tests passed / tests run (of the total,",
        "if only a sample was run). All ran on the CPU.",
        "",
        f"| torch | Python | native recorder | {' | '.join(PARTS)} |",
        f"| --- | --- | --- |{' ---: |' * len(PARTS)}",
    ]
    results = all_results(where)
    for run, result in results.items():
        cells = [cell_of(result["parts"].get(part)) for part in PARTS]
        torch, python = result.get("torch", run.split("@")[0]), result.get("python", run.split("@")[1])
        native = result.get("native", result.get("failed", "not run"))
        lines.append(f"| {torch} | {python} | {native} | {' | '.join(cells)} |")
    for run in [each for each in RUNS if each not in results]:
        lines += ["", f"Not run: torch {run.replace('@', ' with Python ')}."]
    for result in results.values():
        failed = failures_of(result)
        if failed:
            lines += ["", f"Failed with torch {result['torch']}, Python {result['python']}:", ""]
            lines += [f"* `{name}`" for name in failed[:LINES_OF_FAILURES]]
            lines += (
                [f"* and {len(failed) - LINES_OF_FAILURES} more"] if len(failed) > LINES_OF_FAILURES else []
            )
    return "\n".join([*lines, ""])


def cell_of(part: dict[str, Any] | None) -> str:
    """Write one result."""
    if part is None:
        return "not run"
    run = part["passed"] + len(part["failed"])
    sample = f" (of {part['collected']})" if part["every"] > 1 else ""
    return f"{part['passed']} / {run}{sample}" + ("" if part["ended"] else ", ended early")


if __name__ == "__main__":
    sys.exit(main())
