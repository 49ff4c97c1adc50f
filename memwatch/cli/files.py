"""Open the capture that a command reads, and check the files that it will write.

A command replaces an existing file only with `-f`, and never a file that it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.output_files import check_outputs

if TYPE_CHECKING:
    import argparse
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from memwatch.reading import Reading


_EXISTS: Final = "{} exists; choose another name with -o, or replace it with -f"


def make_room(*outputs: Path | None, inputs: Iterable[str | os.PathLike[str]] = (), force: bool) -> None:
    """Raise if an output cannot be written. Every verb calls it first, so that a long run does not fail at its end.

    Args:
        outputs: the files that the verb writes; None for an optional file that is not wanted.
        inputs: the files that it reads.
        force: whether existing files may be replaced.

    Raises:
        OutputError: a file exists and `force` is False, is an input or another output, or its path cannot hold a file.
    """
    check_outputs([path for path in outputs if path is not None], inputs=inputs, force=force, exists=_EXISTS)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option `--device`."""
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="the device to look at, such as cpu or cuda:0; default the accelerator if the program used one, else cpu",
    )


def read(capture: Path, device: str | None) -> Reading:
    """Return the reading of a capture file.

    Raises:
        UnknownDeviceError: the program had no bytes on the device.
        CaptureError: the file cannot be read.
    """
    from memwatch.reading import load

    reading = load(capture)
    return reading if device is None else reading.on(device)
