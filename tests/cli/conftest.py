"""The command line as a user types it, and a capture for the verbs that read one."""

from __future__ import annotations

import gc
import os
import subprocess
from pathlib import Path

import pytest
import torch

import memwatch


@pytest.fixture
def command(tmp_path):
    """Run a command in an empty folder and return its output and its exit code."""

    def run(*words, **options):
        options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120, **options}
        options["env"] = {**os.environ, "OMP_NUM_THREADS": "1", **options.get("env", {})}
        return subprocess.run(words, check=False, **options)

    return run


def record(path: Path, width: int) -> Path:
    """Record one training step of a network, wider or narrower, into a file."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    with memwatch.profile(path):
        model(torch.ones(16, 8)).sum().backward()
        optimizer.step()
    return path


@pytest.fixture(scope="session")
def _captures(tmp_path_factory):
    """Record both one after the other: peaks include memory that is alive at entry, and so leftovers of other tests."""
    gc.collect()
    folder = tmp_path_factory.mktemp("captures")
    return record(folder / "narrow.memwatch", 64), record(folder / "wide.memwatch", 128)


@pytest.fixture(scope="session")
def narrow(_captures):
    return _captures[0]


@pytest.fixture(scope="session")
def wide(_captures):
    return _captures[1]
