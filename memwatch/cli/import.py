# ruff: noqa: N999  # a verb is a module of its own name
"""Make a capture of a memory snapshot that torch wrote (`_dump_snapshot()`).

memwatch runs no code from the file. Its reader accepts only containers, numbers and text. A snapshot has no ops,
modules, categories or holders, so the capture marks them as not recorded.

    memwatch import dump_snapshot.pickle
    memwatch import --device xpu dump_snapshot.pickle -o run.memwatch
"""

from __future__ import annotations

import argparse
from pathlib import Path

from memwatch.cli.common import command_line, emit_path, make_room, memwatch_command, say
from memwatch.errors import MemwatchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("snapshot", type=Path, help="a file that torch wrote")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the capture; default the snapshot's name with .memwatch",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the capture if it exists")
    parser.add_argument(
        "--device",
        metavar="TYPE",
        type=_device_type,
        default="cuda",
        help="the type of its devices, which the file does not say (default %(default)s)",
    )


def _device_type(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not a type of device; give a type such as cuda or xpu")
    return text


def execute(options: argparse.Namespace) -> int:
    """Write the capture and print its path; return 0."""
    from memwatch.capture import save
    from memwatch.memory_snapshot import read_snapshot

    target = options.output or options.snapshot.with_suffix(".memwatch")
    if target == options.snapshot:
        raise MemwatchError(
            f"{target} is the input and cannot be the output too; name another output with -o"
        )
    make_room(target, inputs=[options.snapshot], force=options.force)
    save(read_snapshot(options.snapshot, device=options.device), target, force=options.force)
    emit_path(target)
    say(f"next, type {command_line(*memwatch_command(), 'summary', target)}")
    return 0
