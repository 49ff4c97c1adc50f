"""Compile the planner's library and move it into place.

This is a process of its own, so that it goes on if the planner stops waiting.

Usage: `python compile.py TARGET COMPILER FLAG... SOURCE`
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile


def main(target: pathlib.Path, command: list[str]) -> int:
    """Compile to a folder beside the target, then move the library to its name in one step."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = pathlib.Path(folder, target.name)
        status = subprocess.run([*command, "-o", str(made)], check=False).returncode  # noqa: S603  # our own command
        if status == 0:
            made.chmod(0o755)  # a umask of 002 would let a group write to it, and then it is not loaded
            made.replace(target)
    return status


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
