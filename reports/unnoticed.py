"""Run PyTorch's own tests plainly and in a block that samples holders at every op, and compare the outcomes.

A program must not notice that it is recorded. So each test must end as it does plainly: it passes or fails with the
same exception. The tests come from a checkout of PyTorch's sources, because they are in no package. Its version should
be the one that is installed. Nothing is hidden from the garbage collector, as our own tests do with `gc.freeze`. Writes
reports/unnoticed.md: `python reports/unnoticed.py --pytorch PATH`. With `--log FOLDER`, a run that was stopped goes on
where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from unnoticed_tests import AGAIN, BLOCK, EMPTY_MODE, EVERY_OP, NO_SAMPLES, PLAIN, ROOT, USUAL, differ, read

WHOLE: Final = ("test_autograd.py", "test_view_ops.py")
SAMPLED: Final = (
    "test_nn.py",
    "functorch/test_eager_transforms.py",
    "functorch/test_vmap.py",
    "functorch/test_ops.py",
    "functorch/test_aotdispatch.py",
)
"""Of these one test of 20 runs: they have thousands, most of them the same program for another op."""
TESTS: Final = str(ROOT / "reports" / "unnoticed_tests.py")
HEAD: Final = (
    "| file | tests run | passed plainly | same in a block | different | as under any mode | not repeatable "
    "| samples | minutes |"
)
ASKED: Final = ("names", "intercept", "samples", "stacks", "deep_every", "whole_ops", "limit_s", "jobs")


@dataclass
class Result:
    """The outcomes of one file.

    Attributes:
        done: the outcome by test and way.
    """

    file: str
    every: int
    done: dict[tuple[str, str], dict[str, Any]]
    wall_s: float
    different: list[str] = field(default_factory=list)
    not_repeatable: list[str] = field(default_factory=list)
    as_under_any_mode: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for test in self.tests:
            plain, block = self.done[test, PLAIN], self.done[test, BLOCK]
            if not differ(plain, block):
                continue
            if differ(plain, self.done[test, AGAIN]):
                self.not_repeatable.append(test)
            elif (test, EMPTY_MODE) in self.done and not differ(block, self.done[test, EMPTY_MODE]):
                self.as_under_any_mode.append(test)
            else:
                self.different.append(test)

    @property
    def tests(self) -> list[str]:
        """The tests that ran: those that are skipped plainly are not run in a block."""
        return [test for test, way in self.done if way == BLOCK]

    @property
    def samples(self) -> int:
        """All samples that the blocks took."""
        return sum(line.get("samples", 0) for line in self.done.values())

    def row(self) -> str:
        """Return the file's line of the table."""
        passed = sum(self.done[test, PLAIN]["kind"] == "passed" for test in self.tests)
        others = [*self.different, *self.not_repeatable, *self.as_under_any_mode]
        cells = (
            f"{self.file}{f', 1 test of {self.every}' * (self.every > 1)}",
            len(self.tests),
            passed,
            len(self.tests) - len(others),
            len(self.different),
            len(self.as_under_any_mode),
            len(self.not_repeatable),
            f"{self.samples:,}",
            f"{self.wall_s / 60:.0f}",
        )
        return "| " + " | ".join(map(str, cells)) + " |"


def run_file(file: str, every: int, options: argparse.Namespace, folder: Path) -> Result:
    """Run a file's tests in processes that load the file."""
    log = folder / re.sub(r"\W+", "_", file)
    log.mkdir(exist_ok=True)
    asked = {"every": every, **{name: getattr(options, name) for name in ASKED}}
    paths = [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "MEMWATCH_NATIVE": str(int(options.recorder == "native")),
    }

    def run(job: int) -> None:
        command = [
            sys.executable,
            TESTS,
            str(options.pytorch),
            file,
            str(log),
            json.dumps({**asked, "job": job}),
        ]
        with (log / f"{job}.txt").open("w") as output:
            subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True
            )

    started = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, range(options.jobs)))
    return Result(file, every, read(log), time.monotonic() - started)


def told(line: dict[str, Any]) -> str:
    """Return an outcome in words."""
    return f"{line['kind']}: {line['what']}" if line["what"] else str(line["kind"])


def page(results: list[Result], options: argparse.Namespace) -> str:
    """Write the results as Markdown."""
    whole = Counter[str]()
    for each in results:
        whole.update(tests=len(each.tests), different=len(each.different))
    version = (options.pytorch / "version.txt").read_text().strip()
    samples = {
        EVERY_OP: f"a holder sample at the end of each of the first {options.whole_ops} ops of a test, and then at "
        f"growing gaps. One sample of {options.deep_every} searched the heap.",
        USUAL: "the samples that a block takes by itself.",
        NO_SAMPLES: "no holder samples.",
    }[options.samples]
    lines = [
        "# PyTorch's own tests in a block",
        "",
        f"torch {torch.__version__}, CPU; interceptor {options.intercept}, {options.recorder} recorder.",
        "Each test ran plainly and in a block, each time in a fresh fork of a process that had loaded the file.",
        f"The block took {samples}",
        f"The tests come from PyTorch's sources, version {version}.",
        "",
        "*Same* means: the same kind of outcome and, for a failure, the same type and first line of the exception.",
        "A test that differs runs plainly once more. If it then ends in another way, it is *not repeatable*.",
        "*As under any mode*: the test ends in the same way under a dispatch mode that does nothing.",
        "Tests that are skipped plainly are not counted.",
        "",
        HEAD,
        "| --- |" + " ---: |" * (HEAD.count("|") - 2),
        *(each.row() for each in results),
        "",
        f"{whole['different']} of {whole['tests']} tests differ.",
        "",
        "To run it again: `python reports/unnoticed.py --pytorch PATH`.",
    ]
    for title in ("Different", "As under any mode", "Not repeatable"):
        rows = [
            f"| {_cell(test)} | {_cell(told(each.done[test, PLAIN]))} | {_cell(told(each.done[test, BLOCK]))} |"
            for each in results
            for test in getattr(each, title.lower().replace(" ", "_"))
        ]
        if rows:
            lines += ["", f"## {title}", "", "| test | plainly | in a block |", "| --- | --- | --- |", *rows]
    remarks = Counter(
        remark for each in results for line in each.done.values() for remark in line.get("remarks", ())
    )
    if remarks:
        lines += ["", "## What the recorder could not record", ""]
        lines += [f"- {remark} ({count} tests)" for remark, count in remarks.most_common()]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--pytorch", type=Path, required=True, help="a checkout of PyTorch's sources, with `test/`"
    )
    parser.add_argument("--files", nargs="+", help="files below `test/`; default: those of the report")
    parser.add_argument(
        "--every", type=int, default=20, help="of test_nn.py and functorch, one test of so many runs"
    )
    parser.add_argument("--names", default="", help="run only the tests whose names match this pattern")
    parser.add_argument("--intercept", choices=("key", "mode"), default="key")
    parser.add_argument("--recorder", choices=("native", "python"), default="native")
    parser.add_argument("--samples", choices=(EVERY_OP, USUAL, NO_SAMPLES), default=EVERY_OP)
    parser.add_argument("--deep-every", type=int, default=60, help="one sample of so many searches the heap")
    parser.add_argument(
        "--whole-ops", type=int, default=30, help="after so many ops of a test the samples thin out"
    )
    parser.add_argument("--no-stacks", dest="stacks", action="store_false", help="record no stacks")
    parser.add_argument("--limit-s", type=float, default=300, help="seconds for one test")
    parser.add_argument(
        "--log", type=Path, help="a folder for the outcomes; a run that was stopped goes on from it"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--output", type=Path, default=ROOT / "reports" / "unnoticed.md")
    options = parser.parse_args()
    options.pytorch = options.pytorch.resolve()
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.log or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for file in options.files or (*WHOLE, *SAMPLED):
            results.append(run_file(file, 1 if file in WHOLE else options.every, options, folder))
            print(results[-1].row(), flush=True)
    text = page(results, options)
    options.output.write_text(text)
    print(text)
    return int(any(each.different for each in results))


if __name__ == "__main__":
    sys.exit(main())
