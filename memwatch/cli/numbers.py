"""Numbers on the command line; a wrong one is reported as wrong usage."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Return a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def share(text: str) -> float:
    """Return a share such as `5%` as a ratio, 0.05."""
    number = text.removesuffix("%")
    try:
        ratio = float(number) / 100
    except ValueError:
        ratio = -1.0
    if number == text or not 0 <= ratio < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write it as 5%")
    return ratio
