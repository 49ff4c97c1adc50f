"""The native recorder is built by `memwatch build`, found by what it was built from, and never needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

import memwatch
from memwatch.errors import MemwatchError
from memwatch.record.native import library

COMMAND = [sys.executable, "-m", "memwatch", "build"]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Give a copy of the sources, where nothing is built yet."""
    shutil.copytree(library._HERE / "src", tmp_path / "src")
    monkeypatch.setattr(library, "_HERE", tmp_path)
    library.path.cache_clear()
    library._load.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    library.path.cache_clear()
    library._load.cache_clear()


def test_the_tests_have_the_native_recorder():
    """`make test` builds it, so a block takes it by itself."""
    with memwatch.profile() as prof:
        torch.ones(3).exp()
    assert prof.capture.meta["recorder"] == "native"


def test_building_again_says_where_it_is():
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=True)
    assert done.stdout == f"already built: {library.path()}\n"


def test_without_it_python_records(elsewhere):
    assert library.load() is None
    with memwatch.profile() as prof:
        torch.ones(3).exp()
    assert prof.capture.meta["recorder"] == "python"
    assert len(prof.ops) == 2


def test_other_sources_are_another_library(elsewhere):
    """A library of older sources is never loaded."""
    before = library.path()
    library.path.cache_clear()
    (elsewhere / "src" / "python.h").write_text("// another\n")
    assert library.path() != before


def test_a_library_that_cannot_be_loaded_is_left_alone(elsewhere):
    library.path().parent.mkdir()
    library.path().write_bytes(b"no library")
    assert library.load() is None


def test_a_compiler_that_fails_is_a_clear_error_and_leaves_nothing(elsewhere, capfd):
    for source in (elsewhere / "src").glob("*.cpp"):
        source.write_text("#error no\n")
    with pytest.raises(
        MemwatchError, match=r"could not be built: .* needs a C\+\+ compiler .* Python recorder"
    ):
        library.build()
    assert not (elsewhere / "built").exists()
    capfd.readouterr()  # the compiler's own words


def test_no_compiler_is_one_line_and_exit_code_1(tmp_path):
    """A machine without a compiler is told so; nothing else fails."""
    package = shutil.copytree(
        os.path.dirname(memwatch.__file__), tmp_path / "memwatch", ignore=shutil.ignore_patterns("built")
    )
    environment = os.environ | {"PYTHONPATH": str(package.parent), "CXX": "no-compiler", "CC": "no-compiler"}
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith("memwatch: error: the native recorder could not be built:")
    assert "Traceback" not in done.stderr
