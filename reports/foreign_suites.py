"""Run tests of other libraries, which nobody wrote for memwatch, under `--memwatch-leaks=all`.

Installs the libraries into a folder with pip, runs some test files of each plainly and checked, and prints a table, and
the causes that the plugin tells. With `--findings`, the checked run has `--memwatch-findings=all` in place of
`--memwatch-leaks=all`, and counts findings of `--least-bytes` or more, by default of 1 KiB.

Run: python reports/foreign_suites.py [--findings [--least-bytes BYTES]] [FOLDER] [LIBRARY...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwatch.sizes import format_bytes

REPOSITORY = Path(__file__).parent.parent


@dataclass(frozen=True)
class Suite:
    """One library.

    Attributes:
        name: on PyPI, with its version.
        tests: the folders or files to run, relative to where they lie.
        where: "wheel" if the tests are in the installed package, "sdist" if in the source distribution.
        needs: other libraries that it imports.
    """

    name: str
    tests: tuple[str, ...]
    where: str = "wheel"
    needs: tuple[str, ...] = ()

    @property
    def library(self) -> str:
        """The name without the version."""
        return self.name.partition("==")[0]


SUITES = (
    Suite("einops==0.8.2", ("einops/tests/test_layers.py", "einops/tests/test_packing.py")),
    Suite("entmax==1.3", ("entmax/test_topk.py",)),
    Suite(
        "torch-optimizer==0.3.0",
        ("tests/test_param_validation.py", "tests/test_optimizer_with_nn.py"),
        "sdist",
        ("pytorch-ranger",),
    ),
    Suite(
        "linear_operator==0.6.1",
        ("test/functions/test_matmul.py", "test/functions/test_solve.py", "test/utils"),
        "sdist",
        ("jaxtyping", "mpmath", "scipy"),
    ),
    Suite(
        "gpytorch==1.15.2",
        (
            "test/likelihoods/test_gaussian_likelihood.py",
            "test/likelihoods/test_bernoulli_likelihood.py",
            "test/variational/test_natural_variational_distribution.py",
            "test/variational/test_variational_strategy.py",
        ),
        "sdist",
        ("linear_operator", "jaxtyping", "mpmath", "scipy", "scikit-learn", "joblib", "threadpoolctl"),
    ),
    Suite(
        "torchsde==0.2.6",
        ("tests/test_brownian_path.py", "tests/test_brownian_tree.py"),
        "sdist",
        ("scipy", "trampoline", "parameterized"),
    ),
    Suite(
        "e3nn==0.6.0",
        ("tests/nn/activation_test.py", "tests/nn/batchnorm_test.py", "tests/nn/dropout_test.py"),
        "sdist",
        ("opt_einsum_fx", "opt_einsum", "scipy", "sympy"),
    ),
    Suite("zuko==1.6.0", ("tests/test_nn.py", "tests/test_utils.py", "tests/test_mixtures.py"), "sdist"),
    Suite(
        "pytorch-ignite==0.5.5",
        (
            "tests/ignite/handlers/test_ema_handler.py",
            "tests/ignite/contrib/engines/test_tbptt.py",
            "tests/ignite/handlers/test_early_stopping.py",
        ),
        "sdist",
        ("pytest-mock",),
    ),
    Suite(
        "opacus==1.6.0",
        (
            "opacus/tests/grad_samples/linear_test.py",
            "opacus/tests/grad_samples/layer_norm_test.py",
            "opacus/tests/poisson_test.py",
        ),
        "sdist",
        ("opt_einsum", "scipy", "parameterized", "hypothesis", "sortedcontainers", "expecttest"),
    ),
    Suite("normflows==1.7.3", ("normflows/distributions", "normflows/flows"), "sdist"),
    Suite(
        "skorch==1.4.0",
        ("skorch/tests/callbacks/test_lr_scheduler.py", "skorch/tests/callbacks/test_regularization.py"),
        needs=(
            "scikit-learn",
            "scipy",
            "joblib",
            "threadpoolctl",
            "tabulate",
            "flaky",
            "cloudpickle",
            "narwhals",
        ),
    ),
)
LEAST_BYTES = 1 << 10
"""The default of `--least-bytes`: few tensors of these suites have the default size of the gate."""
DEFAULT_BYTES = 1 << 20
"""The default of `--memwatch-findings-min-bytes`."""
TITLE = "# Suites of other libraries under `--memwatch-leaks=all`"
HEAD = (
    "| suite | passed plainly | failed plainly | new failures | accused of a leak | causes | kept | cycles "
    "| plain, CPU s | checked, CPU s | ratio |"
)

FINDINGS_TITLE = "# Suites of other libraries under `--memwatch-findings=all`"
FINDINGS_HEAD = (
    "| suite | passed plainly | failed plainly | new failures | accused, 1 MiB | accused, {least} | causes "
    "| of these stale | plain, CPU s | checked, CPU s | ratio |"
)


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def fetch(suite: Suite, folder: Path) -> Path:
    """Install a library, and return the folder to which the paths of its tests are relative."""
    installed = folder / suite.library
    if not installed.exists():
        pip("install", "--no-deps", "--target", str(installed), suite.name, *suite.needs)
    if suite.where == "wheel":
        return installed
    sources = folder / "src" / suite.library
    if not sources.exists():
        pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(sources), suite.name)
        (archive,) = sources.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(sources, filter="data")
    (root,) = (path for path in sources.iterdir() if path.is_dir())
    return root


@dataclass(frozen=True)
class Outcome:
    """What one run of a suite said."""

    passed: int
    failed: set[str]
    accused: set[str]
    causes: str
    kept: int
    cycles: int
    cpu_s: float


def run(suite: Suite, root: Path, folder: Path, *options: str) -> Outcome:
    """Run tests and read what pytest printed; a verbose run lists every test of a cause."""
    path = [folder / suite.library, root, REPOSITORY, REPOSITORY / "plugins"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "EINOPS_TEST_BACKENDS": "numpy,torch",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "-rfE",
        "--tb=no",
        "-W",
        "ignore",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "-c", os.devnull, f"--rootdir={root}", *options, *suite.tests],
        capture_output=True,
        text=True,
        env=environment,
        cwd=root,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return outcome_of(done.stdout, cpu_s)


def outcome_of(text: str, cpu_s: float) -> Outcome:
    """Read what pytest printed."""
    accused = set(re.findall(r"^(?:LEAK|AVOIDABLE) (\S+)", text, re.MULTILINE))
    causes = re.search(r"^(Leaks: \d+ test.*?)(?=^(?!cause-)\w|^=)", text + "\n=", re.MULTILINE | re.DOTALL)
    return Outcome(
        _number(r"(\d+) passed", text),
        accused | set(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)),
        accused,
        causes[1] if causes else "",
        _number(r"Kept by caches.*\((\d+)\)", text),
        _number(r"Not counted: (\d+) cycles", text),
        cpu_s,
    )


def findings_of(results: Path) -> list[dict[str, Any]]:
    """Return each finding that the plugin counted, with the name of its test."""
    tests = json.loads(results.read_text(encoding="utf-8"))["tests"]
    return [{**each, "test": test["nodeid"]} for test in tests for each in test.get("findings", [])]


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def row(name: str, plain: Outcome, checked: Outcome) -> str:
    """Return the line of the table of one suite."""
    cells = (
        name.replace("==", " "),
        plain.passed,
        len(plain.failed),
        len(checked.failed - plain.failed - checked.accused),
        len(checked.accused),
        _number(r"Leaks: \d+ tests?, (\d+)", checked.causes),
        checked.kept,
        checked.cycles,
        f"{plain.cpu_s:.1f}",
        f"{checked.cpu_s:.1f}",
        f"{checked.cpu_s / plain.cpu_s:.2f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def findings_row(name: str, plain: Outcome, checked: Outcome, findings: list[dict[str, Any]]) -> str:
    """Return the line of the table of one suite that was checked for findings."""
    accused = {each["test"] for each in findings}
    large = {each["test"] for each in findings if each["nbytes"] >= DEFAULT_BYTES}
    cells = (
        name.replace("==", " "),
        plain.passed,
        len(plain.failed),
        len(checked.failed - plain.failed - checked.accused),
        len(large),
        len(accused),
        len({each["cause"] for each in findings}),
        len({each["cause"] for each in findings if each["kind"] == "stale"}),
        f"{plain.cpu_s:.1f}",
        f"{checked.cpu_s:.1f}",
        f"{checked.cpu_s / plain.cpu_s:.2f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def causes_of(findings: list[dict[str, Any]]) -> str:
    """Return each cause with its largest finding and the number of its tests."""
    by_cause: dict[str, list[dict[str, Any]]] = {}
    for each in findings:
        by_cause.setdefault(each["cause"], []).append(each)
    lines = []
    for cause, rows in by_cause.items():
        largest = max(rows, key=lambda row: row["nbytes"])
        tests = sorted({row["test"] for row in rows})
        lines.append(
            f"{cause}  {len(tests)} tests, up to {largest['nbytes']:,} bytes  {largest['kind']}: {largest['place']}\n"
            f"  advice: {largest['advice']}\n  first test: {tests[0]}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table, and the causes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--findings", action="store_true")
    parser.add_argument("--least-bytes", type=int, default=LEAST_BYTES)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("library", nargs="*")
    arguments = parser.parse_args()
    title, head = TITLE, HEAD
    if arguments.findings:
        title, head = FINDINGS_TITLE, FINDINGS_HEAD.format(least=format_bytes(arguments.least_bytes))
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        print(f"{title}\n\n{head}\n| --- |" + " --- |" * 10)
        causes = []
        for suite in SUITES:
            if arguments.library and suite.library not in arguments.library:
                continue
            root = fetch(suite, folder)
            plain = run(suite, root, folder, "--no-memwatch")
            if arguments.findings:
                results = Path(temporary) / f"{suite.library}.json"
                least = f"--memwatch-findings-min-bytes={arguments.least_bytes}"
                checked = run(
                    suite, root, folder, "--memwatch-findings=all", least, f"--memwatch-json={results}"
                )
                findings = findings_of(results)
                print(findings_row(suite.name, plain, checked, findings), flush=True)
                text = causes_of(findings)
            else:
                checked = run(suite, root, folder, "--memwatch-leaks=all")
                print(row(suite.name, plain, checked), flush=True)
                text = checked.causes.strip()
            causes += [f"## {suite.name}\n\n```\n{text}\n```\n"] * bool(text)
    print("\n" + "\n".join(causes))


if __name__ == "__main__":
    main()
