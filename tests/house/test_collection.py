"""Tests that search the heap are collected without torch's compiler and pandas: with them each search takes longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

COLLECT = """
import sys
import torch
import pytest

had_compiler = "torch._dynamo" in sys.modules  # some versions of torch import it with torch
code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]])
assert code == 0, code
assert had_compiler or "torch._dynamo" not in sys.modules
assert "pandas" not in sys.modules
"""


def test_no_file_of_heap_tests_imports_the_compiler_or_pandas_when_it_is_collected():
    tests = Path(__file__).parents[1]
    folders = [str(tests / name) for name in ("leaks", "heap", "monitor", "plugin", "known_leaks")]
    run = subprocess.run(
        [sys.executable, "-c", COLLECT, *folders], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr


def test_every_test_has_its_turn_with_all_its_cases(request):
    """Each commit runs a part of the tests of `_IN_TURNS`. The leak of a program and its twin run always."""
    (conftest,) = (each for each in request.config.pluginmanager.get_plugins() if hasattr(each, "_in_turn"))
    tests = Path(__file__).parents[1]
    files = {tests / "cli/test_cli_leaks.py": 3, tests / "leaks/test_leaks_names.py": 2}
    files |= {tests / "leaks/test_leaks_programs_python.py": 1, tests / "report/test_report_text.py": 1}
    for path, parts in files.items():
        assert path.exists()
        names = [f"test_{number}[{case}]" for number in range(6) for case in "ab"]
        items = [SimpleNamespace(path=path, nodeid=f"{path.name}::{name}") for name in names]
        turns = [conftest._in_turn(items, 10**9 + turn) for turn in range(parts)]
        assert [len(turn) for turn in turns] == [len(items) // parts] * parts
        assert {item.nodeid for turn in turns for item in turn} == {item.nodeid for item in items}
    for name in (*conftest._IN_TURNS, *conftest._LAST):
        assert list(tests.glob(name)) or list(tests.glob(f"*/{name}")), f"{name} was renamed"
