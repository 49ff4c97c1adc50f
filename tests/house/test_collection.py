"""Tests that search the heap are collected without torch's compiler: with it each search takes far longer."""

from __future__ import annotations

from pathlib import Path

COLLECT = """
import sys
import pytest

had_compiler = "torch._dynamo" in sys.modules  # some versions of torch import it with torch
code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]])
assert code == 0, code
assert had_compiler or "torch._dynamo" not in sys.modules
"""


def test_no_file_of_heap_tests_imports_the_compiler_when_it_is_collected(fresh_python):
    tests = Path(__file__).parents[1]
    run = fresh_python(COLLECT, *(str(tests / name) for name in ("leaks", "heap", "plugin")))
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr
