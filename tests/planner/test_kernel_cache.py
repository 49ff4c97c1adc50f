"""Planning works where numba can keep no compiled kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import memwatch

_SIMULATE = """
from memwatch.planner import Graph, Schedule, simulate

graph = Graph.build([("a", (), {"x": 2}, 1), ("b", ("x",), {"y": 1}, 1)])
print(simulate(graph, Schedule.from_order([0, 1])).peak_bytes)
"""


@pytest.fixture
def package_without_cache(tmp_path: Path) -> Path:
    """Copy the package to a folder where a file stands in the place of every `__pycache__`.

    Permissions would not do: they do not stop root, who runs the tests in many containers.
    """
    source, site = Path(memwatch.__file__).parent, tmp_path / "site"
    shutil.copytree(source, site / "memwatch", ignore=shutil.ignore_patterns("__pycache__", "native"))
    for folder in [site / "memwatch", *(path for path in site.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()
    return site


def test_where_nothing_can_be_written_kernels_are_compiled_in_every_process(package_without_cache):
    """Neither package, home nor NUMBA_CACHE_DIR can be written: numba finds no cache, the simulator runs."""
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), f"{os.devnull}/nothing")
    environment = os.environ | nowhere | {"PYTHONPATH": str(package_without_cache)}
    done = subprocess.run(
        [sys.executable, "-c", _SIMULATE],
        capture_output=True, text=True, check=False, env=environment, cwd=package_without_cache,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("3", "")
