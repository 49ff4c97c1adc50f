"""Shared by all tests: pytest's own testing fixture, and the check that memwatch keeps none of their objects."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import subprocess
import sys
import zlib
from collections import defaultdict
from pathlib import Path

import pytest
import scrambled_words
from forked import MEMWATCH, run_forked
from kept_objects import assert_memwatch_keeps_nothing
from late_dynamo import put_in_place

pytest_plugins = ["pytester"]

if scrambled_words.VARIABLE in os.environ:  # see test_words_are_last.py
    scrambled_words.scramble()

_SEARCH_WHOLE_HEAP = ("leaks", "heap", "plugin", "known_leaks", "monitor")
_FIRST = ("leaks", "heap")
_LAST = (
    # these import pandas, as a recording does
    "test_leaks_watch.py", "test_heap_bounded_searches.py", "test_leaks_profiled.py", "test_leaks_devices.py",
    "test_heap_looks_wait.py", "test_heap_half_made.py", "test_heap_pause.py", "test_heap_binding_lines.py",
    "monitor", "plugin",
    # with all cases, the first optimizer of these imports torch's compiler
    "test_leaks_advice_taken.py", "test_leaks_programs_training.py", "test_leaks_replaced_parameters.py",
    "test_leaks_hook_growth.py", "test_leaks_replaced_values.py",
    # this traces, which imports sympy
    "test_leaks_known_causes.py",
    # these import torch's compiler
    "test_plugin_compiler.py", "test_leaks_innocent.py", "test_leaks_zoo.py", "test_leaks_advice_last.py",
    "test_leaks_pipelining.py", "test_heap_graph.py", "test_heap_peeks.py",
    # these import lightning as well
    "test_leaks_compiler.py", "test_known_leaks.py",
    # its classes define `__eq__`, and while they live the callbacks at exit are not listed
    "test_heap_runs_no_program_code.py",
    # these import modules that the test before them did not: libraries, and torch's op database
    "test_truth.py", "test_truth_transformers.py", "test_truth_lightning.py", "test_truth_diffusers.py",
    "test_truth_accelerate.py", "test_compat_opinfo.py",
)  # fmt: skip
"""Files, and a folder, whose tests come last, in this order; of those alike the longest first, for two workers."""


_PAGES = "tests/docs/"
"""The pages of the documentation always run all: a page shows outputs that any change of words may make wrong."""


_IN_TURNS = {
    "test_cli_leaks.py": 3, "leaks": 2, "plugin": 2, "monitor": 2, "fit": 2,
    # a program of these has its leak in one test and its twin in the other
    "test_leaks_programs_autograd.py": 1, "test_leaks_programs_python.py": 1, "test_leaks_compiler.py": 1,
    "test_leaks_programs_services.py": 1, "test_leaks_programs_training.py": 1,
}  # fmt: skip
"""Files and folders with many tests of alike programs: with `--turn`, a sample has one in so many of a file's tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=int,
        default=0,
        help="a sample: at most so many cases of a parametrized test, and no test marked `whole`; 0: everything",
    )
    parser.addoption(
        "--turn",
        type=int,
        help="a number that chooses which tests of the files with many alike are in the sample; without it, all are",
    )


def _in_turn(items: list[pytest.Item], turn: int) -> list[pytest.Item]:
    """Return the items whose turn it is. A commit has one turn, and the next commits have the others."""
    tests: dict[Path, dict[str, int]] = defaultdict(dict)
    chosen = []
    for item in items:
        parts = _IN_TURNS.get(item.path.name) or _IN_TURNS.get(item.path.parent.name, 1)
        of_file = tests[item.path]
        if of_file.setdefault(item.nodeid.partition("[")[0], len(of_file)) % parts == turn % parts:
            chosen.append(item)
    return chosen


def _sample(items: list[pytest.Item], most: int) -> set[pytest.Item]:
    """Return the items that run if a test has at most `most` cases, without the tests marked `whole`.

    The mark is for tests that took 6 to 58 s on two quiet cores and have a quicker neighbour for the same promise.
    The checksum of its parameters chooses a case. So the choice is the same in every run and every worker. Tests of a
    file that share their parameters choose the same cases, and a program that they share runs once for all of them.
    """
    cases: dict[str, list] = defaultdict(list)
    for item in (item for item in items if not item.get_closest_marker("whole")):
        name, _, parameters = item.nodeid.partition("[")
        cases[name].append((zlib.crc32(parameters.encode()), item))
    return {
        item
        for name, each in cases.items()
        for _, item in sorted(each, key=lambda case: case[0])[: None if name.startswith(_PAGES) else most]
    }


def _searches_whole_heap(path: Path) -> bool:
    return path.parent.name in _SEARCH_WHOLE_HEAP


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files that search the whole heap first, because the time of a search grows with the imported modules."""
    if most := config.getoption("--cases"):
        turn = config.getoption("--turn")
        chosen = _sample(items if turn is None else _in_turn(items, turn), most)
        # a worker of xdist would keep the items, 15,000 objects, for a count that it never prints
        if not hasattr(config, "workerinput"):
            config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
        if all(_searches_whole_heap(item.path) for item in items):
            put_in_place()

    def place(item: pytest.Item) -> tuple[int, int]:
        folder, file = item.path.parent.name, item.path.name
        first = _FIRST.index(folder) if folder in _FIRST else len(_FIRST)
        name = file if file in _LAST else folder
        return _LAST.index(name) + 1 if name in _LAST else 0, first

    items.sort(key=place)


@pytest.fixture
def sampled(pytestconfig):
    """Return the items of a long loop inside a test that run: with `--cases`, one of so many."""

    def of(items, one_of):
        return itertools.islice(items, None, None, one_of if pytestconfig.getoption("--cases") else None)

    return of


@pytest.fixture
def intercept(request, monkeypatch):
    """Return the way to intercept, and choose the recorder that the parameter names."""
    way, _, recorder = request.param.partition("-")
    monkeypatch.setenv("MEMWATCH_NATIVE", "0" if recorder == "python" else "1")
    return way


@pytest.fixture
def one_thread():
    """Small tensors, two cores shared with others: one thread each."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def _started_fork_server(config, *options):
    """Start the process of `fork_server.py`."""
    command = [sys.executable, Path(__file__).with_name("fork_server.py"), *options]
    if config.getoption("--cases"):
        command.append("--late-dynamo")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture(scope="session")
def _fork_server(pytestconfig):
    with _started_fork_server(pytestconfig) as process:
        yield process


@pytest.fixture(scope="session")
def _leaks_fork_server(pytestconfig):
    with _started_fork_server(pytestconfig, "--for-leaks") as process:
        yield process


@pytest.fixture
def _forked_python(request, tmp_path, tmp_path_factory):
    """Run code with arguments in a fork of the process of a fixture, which starts when it is first named."""

    def run(server, code, *arguments, **environment):
        places = {"folder": tmp_path, "outputs": tmp_path_factory.mktemp("outputs")}
        return run_forked(request.getfixturevalue(server), code, *arguments, **places, **environment)

    return run


@pytest.fixture
def fresh_python(_forked_python):
    """Run code with arguments as `python -c` does, in a process and an empty folder of its own, but quickly."""

    def run(code, *arguments, **environment):
        return _forked_python("_fork_server", code, *arguments, **environment)

    return run


@pytest.fixture
def shell_memwatch(_forked_python):
    """Run `memwatch` in a process and an empty folder of its own."""

    def run(*words, **environment):
        server = "_leaks_fork_server" if words[:1] == ("leaks",) else "_fork_server"
        return _forked_python(server, MEMWATCH, *words, **environment)

    return run


@pytest.fixture(autouse=True, scope="module")
def _memwatch_keeps_nothing(request):
    """Check after each file of tests that memwatch is off and holds no tensor of the tests.

    Objects from before the file are frozen, because each block visits all objects at its beginning, and so does every
    collection. Most tests make few objects, beside the hundreds of thousands of torch, of libraries and of other
    tests.
    """
    gc.collect()
    if _searches_whole_heap(request.path):
        gc.unfreeze()
    else:
        gc.freeze()
    yield
    gc.collect()
    assert_memwatch_keeps_nothing()
