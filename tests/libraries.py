"""Build the C++ parts of the tests, once for each machine, torch and state of the sources: `python libraries.py`."""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

from memwatch import build_cache
from memwatch.record.native import library as recorder

HERE = pathlib.Path(__file__).parent
PRETEND, HOST_COUNT = "_pretend", "_host_count"
SOURCES = {PRETEND: HERE / "accelerator" / "pretend" / "src", HOST_COUNT: HERE / "ranks" / "src"}
FLAGS = ("-O1", "-g0", "-std=c++20", "-fvisibility=hidden")


def library(name: str) -> pathlib.Path:
    """Return a library, which is compiled now unless it lies in the user's cache folder."""
    digest = hashlib.sha256(f"{torch.__version__} {torch.version.git_version} {sys.version} {FLAGS}".encode())
    for source in sorted(SOURCES[name].iterdir()):
        digest.update(source.read_bytes())
    file = build_cache.folder() / f"{name}-{digest.hexdigest()[:16]}.so"
    if not file.exists():
        build_cache.require_writable(name, "the tests that need it fail")
        _build(name, file)
    return file


def _build(name: str, file: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        sources = SOURCES[name] / "module.cpp"
        command = [sys.executable, "-P", recorder.COMPILE, name, folder, *FLAGS, "--", sources]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if child.returncode:
            raise RuntimeError(f"{name} was not built:\n{child.stdout}{child.stderr}")
        made = next(pathlib.Path(folder).rglob(f"{name}*.so"))
        made.replace(file)  # whole at once: another process may be loading it


if __name__ == "__main__":
    for name in SOURCES:
        sys.stdout.write(f"{library(name)}\n")
