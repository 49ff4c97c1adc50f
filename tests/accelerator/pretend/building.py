"""Build the pretend accelerator once for each machine, torch and state of the sources: `python building.py`."""

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

SOURCES = pathlib.Path(__file__).parent / "src"
NAME = "_pretend"
FLAGS = ("-O1", "-g0", "-std=c++20", "-fvisibility=hidden")


def library() -> pathlib.Path:
    """Return the library, which is compiled now unless it lies in the user's cache folder."""
    digest = hashlib.sha256(f"{torch.__version__} {torch.version.git_version} {sys.version} {FLAGS}".encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    file = build_cache.folder() / f"{NAME}-{digest.hexdigest()[:16]}.so"
    if not file.exists():
        build_cache.require_writable("the pretend accelerator", "its tests are skipped")
        _build(file)
    return file


def _build(file: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        command = [sys.executable, "-P", recorder.COMPILE, NAME, folder, *FLAGS, "--", SOURCES / "module.cpp"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if child.returncode:
            raise RuntimeError(f"the pretend accelerator was not built:\n{child.stdout}{child.stderr}")
        made = next(pathlib.Path(folder).rglob(f"{NAME}*.so"))
        made.replace(file)  # whole at once: another process may be loading it


if __name__ == "__main__":
    sys.stdout.write(f"{library()}\n")
