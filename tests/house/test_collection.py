"""Tests that search the heap are collected without torch's compiler and pandas: with them each search takes longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
