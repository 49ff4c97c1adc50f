"""The command line as a user types it, and a capture for the verbs that read one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import memwatch


@pytest.fixture
def command(tmp_path):
    """Run a command in an empty folder and give what it wrote and its exit code."""

    def run(*words, **options):
        options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120, **options}
        options["env"] = {**os.environ, "OMP_NUM_THREADS": "1", **options.get("env", {})}
        return subprocess.run(words, check=False, **options)

    return run


@pytest.fixture(scope="session")
def server():
    """Start the process that runs `memwatch` in forks of itself."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, Path(__file__).with_name("cli_server.py")], **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def shell_memwatch(server, tmp_path, tmp_path_factory):
    """Run `memwatch` in a process and an empty folder of its own."""

    def run(*words):
        outputs = tmp_path_factory.mktemp("outputs")
        request = {"words": words, "folder": str(tmp_path)}
        request |= {name: str(outputs / name) for name in ("stdout", "stderr")}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        returncode = int(server.stdout.readline())
        return subprocess.CompletedProcess(
            words, returncode, (outputs / "stdout").read_text(), (outputs / "stderr").read_text()
        )

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
def narrow(tmp_path_factory):
    return record(tmp_path_factory.mktemp("captures") / "narrow.memwatch", 64)


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    return record(tmp_path_factory.mktemp("captures") / "wide.memwatch", 128)
