"""Numbers on the command line; a wrong one is reported as wrong usage."""

from __future__ import annotations

import argparse

from memwatch.sizes import SizeError, parse_bytes


def positive(text: str) -> int:
    """Return a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def not_negative(text: str) -> int:
    """Return a whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def size(text: str) -> str:
    """Return the text of a size such as `8GiB`."""
    try:
        parse_bytes(text)
    except SizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def size_of_device(text: str) -> str:
    """Return the text of a size, or of a device and a size as `cuda:0=8GiB`."""
    size(text.rpartition("=")[2])
    return text


def budget(text: str) -> str:
    """Return the text of a size or of a share of a program's peak, such as `60%`."""
    from memwatch.planner.request import parse_budget

    try:
        parse_budget(text, 0)
    except SizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


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
