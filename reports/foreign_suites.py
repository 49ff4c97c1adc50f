"""Run test suites of other libraries, which nobody wrote for memwatch, under `--memwatch-leaks=all`.

Installs the libraries into a temporary folder with pip, runs each suite plainly and checked, and prints a table.
Run: python reports/foreign_suites.py > reports/foreign_suites.md
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Suite:
    """One library.

    Attributes:
        name: on PyPI, with its version.
        tests: the folder or files to run, inside the installed package or the source distribution.
        source: True if the tests are in the source distribution only.
    """

    name: str
    tests: tuple[str, ...]
    source: bool = False


SUITES = (
    Suite("einops==0.8.2", ("einops/tests",)),
    Suite("entmax==1.3", ("entmax",)),
    Suite("torch-optimizer==0.3.0", ("tests",), source=True),
    Suite("linear_operator==0.6.1", ("test/functions", "test/utils"), source=True),
)
NEEDED = ("jaxtyping", "mpmath", "parameterized", "pytorch-ranger", "scipy", "wadler-lindig")


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def fetch(suite: Suite, folder: Path) -> list[str]:
    """Install a library and return the paths of its tests."""
    installed = folder / "installed"
    pip("install", "--no-deps", "--upgrade", "--target", str(installed), suite.name)
    if not suite.source:
        return [str(installed / part) for part in suite.tests]
    pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), suite.name)
    name, version = suite.name.split("==")
    (archive,) = folder.glob(f"{name}-{version}.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return [str(folder / archive.name.removesuffix(".tar.gz") / part) for part in suite.tests]


@dataclass(frozen=True)
class Outcome:
    """What one run of a suite said."""

    passed: int
    failed: set[str]
    accused: set[str]
    kept: int
    cycles: int
    duration_s: float


def run(paths: list[str], folder: Path, *options: str) -> Outcome:
    """Run tests and read what pytest printed; a verbose run lists every test of a cause."""
    root = os.path.commonpath(paths) if len(paths) > 1 else str(Path(paths[0]).parent)
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "no:cacheprovider", "-rfE", "--tb=no"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "installed"), str(Path(root).parent)]),
        "EINOPS_TEST_BACKENDS": "numpy,torch",
        "OMP_NUM_THREADS": "1",
    }
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "-c", os.devnull, f"--rootdir={root}", "-W", "ignore", *options, *paths],
        capture_output=True,
        text=True,
        env=environment,
        cwd=root,
        check=False,
    )
    accused = set(re.findall(r"^LEAK (\S+)", done.stdout, re.MULTILINE))
    return Outcome(
        _number(r"(\d+) passed", done.stdout),
        accused | set(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)),
        accused,
        _number(r"Kept by caches.*\((\d+)\)", done.stdout),
        _number(r"Not counted: (\d+) cycles", done.stdout),
        time.perf_counter() - begin,
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def row(suite: Suite, folder: Path) -> str:
    """Run one suite both ways and return its line of the table."""
    paths = fetch(suite, folder)
    plain = run(paths, folder, "--no-memwatch")
    checked = run(paths, folder, "--memwatch-leaks=all")
    for node in sorted(checked.failed - plain.failed):
        print(f"{'LEAK' if node in checked.accused else 'NEW FAILURE'} {node}", file=sys.stderr)
    cells = (
        suite.name.replace("==", " "),
        plain.passed,
        len(plain.failed),
        checked.passed,
        len(checked.failed),
        len(checked.failed - plain.failed),
        len(checked.accused),
        checked.kept,
        checked.cycles,
        f"{plain.duration_s:.0f}",
        f"{checked.duration_s:.0f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Print the table."""
    chosen = [suite for suite in SUITES if len(sys.argv) < 2 or suite.name.partition("==")[0] in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip("install", "--no-deps", "--target", str(folder / "installed"), *NEEDED)
        rows = [row(suite, folder) for suite in chosen]
    print("# Suites of other libraries under `--memwatch-leaks=all`\n")
    print(
        "Every test runs once, and what it leaves behind is judged. A new failure is a test "
        "that passes without memwatch and fails with it. *Kept* is what caches took in, *cycles* those that pytest, "
        "mock, an import or torch itself closes: both are listed by the plugin and accuse nobody. Two workers. "
        "Those accused in torch-optimizer are: its tests call `backward(create_graph=True)`, and so leave the "
        "graph of every step behind for ever, as torch itself warns. "
        "Written by `reports/foreign_suites.py`.\n"
    )
    print(
        "| suite | passed plainly | failed plainly | passed checked | failed checked | new failures "
        "| accused of a leak | kept | cycles | plain, s | checked, s |"
    )
    print("| --- |" + " --- |" * 10)
    print("\n".join(rows))


if __name__ == "__main__":
    main()
