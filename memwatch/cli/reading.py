"""Open a capture for a verb: for the device that the user named, or for the main device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from memwatch.reading import Reading


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
