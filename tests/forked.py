"""Let the process of `fork_server.py` run a program in a fork of itself."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import memwatch

MEMWATCH = f"""
import sys
from memwatch.cli import main
sys.argv[0] = {str(Path(memwatch.__file__).with_name("__main__.py"))!r}
sys.exit(main())
"""
"""The program that runs `memwatch` with its arguments."""


def run_forked(server, code, *arguments, folder, outputs, whole_end=False, unfrozen=False, **environment):
    """Run code as `python -c` does, in a process of its own; return the same as `subprocess.run`.

    Args:
        server: the process of `fork_server.py`.
        code: the program.
        *arguments: its arguments.
        folder: where it runs.
        outputs: where its stdout and stderr are kept.
        whole_end: end it as every process ends, also beyond its last exit handler, where `fork_server.py` stops.
        unfrozen: let gc list all objects, for a program that searches the heap.
        **environment: environment variables that differ from this process's.
    """
    request = {
        "code": textwrap.dedent(code),
        "arguments": arguments,
        "folder": str(folder),
        "whole_end": whole_end,
        "unfrozen": unfrozen,
    }
    request["environment"] = {**os.environ, **environment}
    request |= {name: str(outputs / name) for name in ("stdout", "stderr")}
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    returncode = int(server.stdout.readline())
    return subprocess.CompletedProcess(
        code, returncode, (outputs / "stdout").read_text(), (outputs / "stderr").read_text()
    )
