"""Run the tests of one file of PyTorch plainly and inside a block, and write each outcome as a line of JSON.

`unnoticed.py` starts this for each file. The process loads the file and forks for every run of a test. So no run finds
what another one left behind: caches, warnings that are given once, global settings, or a crash. Tests whose outcomes
are in the log already do not run again.
"""

# ruff: noqa: D102, N802  # unittest chose the names of the methods of a test result

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import select
import signal
import sys
import time
import unittest
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.testing._internal import common_device_type
from torch.utils._python_dispatch import TorchDispatchMode

import memwatch
from memwatch.profile import build_recorder

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT), str(ROOT / "tests")]
from sampled_ops import sample_every_op  # noqa: E402  # found in tests

PLAIN, BLOCK, AGAIN, EMPTY_MODE = "plain", "block", "again", "empty mode"
"""A test runs plainly, and in a block unless it was skipped. If these two outcomes differ, it runs plainly once more.
For the interceptor `mode` it then also runs under a dispatch mode that does nothing: ATen differs under any mode."""
EVERY_OP, USUAL, NO_SAMPLES = "every-op", "usual", "none"
CRASHED, TIMED_OUT = "crashed", "timed out"
SEED: Final = 0
TEXT_LENGTH: Final = 300
MOST_BYTES: Final = 2 << 30
"""PyTorch's tests that need more than this skip themselves: some take 16 GB and minutes."""


class EmptyMode(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Outcome(NamedTuple):
    """How a test ended.

    Attributes:
        kind: passed, failed, error, skipped, expected failure, unexpected success, crashed or timed out.
        what: the type and the first line of the exception, or the reason for a skip.
    """

    kind: str
    what: str = ""


class FirstOutcome(unittest.TestResult):
    """Keep how a test ended, without the exception: its traceback would keep the test's tensors alive."""

    def __init__(self) -> None:
        super().__init__()
        self._outcomes: list[Outcome] = []

    def addSuccess(self, test: Any) -> None:
        self._outcomes.append(Outcome("passed"))

    def addFailure(self, test: Any, err: Any) -> None:
        self._outcomes.append(Outcome("failed", first_line(err[1])))

    def addError(self, test: Any, err: Any) -> None:
        self._outcomes.append(Outcome("error", first_line(err[1])))

    def addSkip(self, test: Any, reason: str) -> None:
        self._outcomes.append(Outcome("skipped", normalized(reason)))

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._outcomes.append(Outcome("expected failure", first_line(err[1])))

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._outcomes.append(Outcome("unexpected success"))

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            kind = "failed" if issubclass(err[0], test.failureException) else "error"
            self._outcomes.append(Outcome(kind, first_line(err[1])))

    @property
    def outcome(self) -> Outcome:
        """The first outcome that is not a pass: a test with subtests has several."""
        others = (each for each in self._outcomes if each.kind != "passed")
        return next(others, self._outcomes[0] if self._outcomes else Outcome("not run"))


def first_line(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return normalized(f"{type(error).__name__}: {lines[0] if lines else ''}")


def normalized(text: str) -> str:
    """Replace what differs from run to run: addresses, paths of temporary files, process ids and times."""
    text = re.sub(r"0x[0-9a-fA-F]+", "0x...", text)
    text = re.sub(r"/tmp/[\w./-]+", "/tmp/...", text)
    text = re.sub(r"\bpid \d+", "pid ...", text)
    return re.sub(r"\d+(\.\d+)?\s?(s|ms|us|seconds)\b", "... s", text)[:TEXT_LENGTH]


def load(folder: Path, file: str) -> list[unittest.TestCase]:
    """Import a test file as PyTorch's own runner does, from its own folder, and return its tests by name."""
    path = folder / "test" / file
    os.chdir(path.parent)
    sys.path[:0] = [str(path.parent), str(folder / "test")]
    sys.argv = [str(path)]
    common_device_type._has_sufficient_memory = lambda device, nbytes: nbytes <= MOST_BYTES
    module = importlib.import_module(path.stem)
    found: list[unittest.TestCase] = []
    suites: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while suites:
        each = suites.pop()
        if isinstance(each, unittest.TestSuite):
            suites += each
        else:
            found.append(each)
    return sorted(found, key=lambda test: test.id())


def chosen(tests: list[unittest.TestCase], every: int, names: str) -> list[unittest.TestCase]:
    """Return every so manieth test, or those whose names match a pattern."""
    return [test for test in tests if re.search(names, test.id())] if names else tests[::every]


def run_plainly(test: unittest.TestCase) -> Outcome:
    """Run a test with the fixtures of its class, and with the same random numbers each time."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(SEED)
    result = FirstOutcome()
    unittest.TestSuite([test]).run(result)
    return result.outcome


def run_in_block(test: unittest.TestCase, block: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
    """Run a test in a block.

    Args:
        test: the test.
        block: the options: `intercept`, `samples`, `deep_every` and `whole_ops`.

    Returns:
        The outcome, and the figures of the block: its ops, its samples, and what the recorder could not record.
    """
    forced = sample_every_op(deep_every=block["deep_every"], whole_ops=block["whole_ops"])
    with forced if block["samples"] == EVERY_OP else contextlib.nullcontext([0]) as samples:
        profile = memwatch.profile(
            intercept=block["intercept"], holders=block["samples"] != NO_SAMPLES, stacks=block["stacks"]
        )
        try:
            profile.__enter__()
        except Exception as error:
            return Outcome("the block did not start", first_line(error)), {}
        outcome = run_plainly(test)
        ops = profile.num_ops_started
        try:
            profile.__exit__(None, None, None)
        except Exception as error:
            return Outcome("the block did not end", f"{first_line(error)}; {outcome.kind}"), {}
    return outcome, {"ops": ops, "samples": samples[0], "remarks": profile.remarks("recorder")}


def run_in_fork(run: Callable[[], tuple[Outcome, dict[str, Any]]], limit_s: float) -> dict[str, Any]:
    """Run a test in a fork of this process, and return its line of the log."""
    started = time.perf_counter()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        outcome, figures = run()
        os.write(writes, json.dumps({**outcome._asdict(), **figures}).encode())
        sys.stdout.flush()
        os._exit(0)  # without the end of the interpreter, which copies the memory of all modules
    os.close(writes)
    is_ready, _, _ = select.select([reads], [], [], limit_s)
    text = os.read(reads, 1 << 16) if is_ready else b""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also the processes that the test started
    _, status = os.waitpid(child, 0)
    os.close(reads)
    if text:
        line = json.loads(text)
    elif is_ready:
        code = os.waitstatus_to_exitcode(status)
        line = {"kind": CRASHED, "what": signal.Signals(-code).name if code < 0 else f"exit code {code}"}
    else:
        line = {"kind": TIMED_OUT, "what": ""}
    return {**line, "wall_s": round(time.perf_counter() - started, 3)}


def read(log: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the outcomes in a folder of logs, by test and way."""
    texts = (path.read_text() for path in sorted(log.glob("*.jsonl")))
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return {(line["test"], line["way"]): line for line in lines}


def differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two outcomes of a test are of another kind, or of another exception."""
    return (one["kind"], one["what"]) != (other["kind"], other["what"])


def is_needed(test: str, way: str, done: dict[tuple[str, str], dict[str, Any]]) -> bool:
    """Return whether a test must run in a way, after its outcomes so far."""
    if way == PLAIN:
        return True
    if way == BLOCK:
        return bool(done[test, PLAIN]["kind"] != "skipped")
    return (test, BLOCK) in done and differ(done[test, PLAIN], done[test, BLOCK])


def run_all(tests: list[unittest.TestCase], log: Path, asked: dict[str, Any]) -> None:
    """Run every test that has no outcome yet."""
    done = read(log)
    with (log / f"{asked['job']}.jsonl").open("a", buffering=1) as file:
        for test in tests[asked["job"] :: asked["jobs"]]:
            name = test.id()
            for way in (PLAIN, BLOCK, AGAIN, *[EMPTY_MODE] * (asked["intercept"] == "mode")):
                if (name, way) in done or not is_needed(name, way, done):
                    continue

                def run(test: unittest.TestCase = test, way: str = way) -> tuple[Outcome, dict[str, Any]]:
                    if way == BLOCK:
                        return run_in_block(test, asked)
                    with EmptyMode() if way == EMPTY_MODE else contextlib.nullcontext():
                        return run_plainly(test), {}

                line = {"test": name, "way": way, **run_in_fork(run, asked["limit_s"])}
                done[name, way] = line
                file.write(json.dumps(line) + "\n")


def main() -> None:
    folder, file, log, options = sys.argv[1:]
    asked = json.loads(options)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    build_recorder()
    memwatch.profile()  # loads what the first block loads
    run_all(chosen(load(Path(folder), file), asked["every"], asked["names"]), Path(log), asked)


if __name__ == "__main__":
    main()
