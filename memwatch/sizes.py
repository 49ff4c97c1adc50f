"""Parse and print byte counts: `MB` is 10**6, `MiB` is 2**20, and only binary units are printed. Print durations."""

from __future__ import annotations

import re
from typing import Final

from memwatch.errors import MemwatchError

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BINARY: Final = (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40))
_MOST_DIGITS: Final = 100
"""More are no size, and Python cannot read all of them as a number."""
_LEAST_WITHOUT_UNIT: Final = 2**10
"""Bytes. A smaller number without a unit, as in `--limit 8`, means gigabytes or a share. A guess."""
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


class SizeError(MemwatchError, ValueError):
    """A size or a budget that cannot be read."""


def parse_bytes(size: int | float | str) -> int:
    """Read a byte count.

    Args:
        size: bytes as a number, or text such as ``"64 MiB"``, ``"1.5GB"`` or ``"4096"``.

    Returns:
        The number of bytes, rounded down.

    Raises:
        SizeError: the text is not a size, or a number below 1,024 without a unit; or the size is negative or not
            finite.
    """
    if isinstance(size, bool) or not isinstance(size, (int, float, str)):
        raise SizeError(f"{size!r} is not a size; write bytes as a number or text such as '64 MiB'")
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None and size.lstrip().startswith("-") and _SIZE.fullmatch(size.lstrip()[1:]):
            raise SizeError(f"{size!r} is negative; a size is zero or more, as in '64 MiB'")
        if match is None or match[2].lower() not in _UNITS:
            raise SizeError(
                f"{size!r} is not a size; write a number and B, KiB, MiB, GiB, kB, MB or GB, as in '64 MiB'"
            )
        if len(match[1]) > _MOST_DIGITS:
            raise SizeError(f"a number of {len(match[1])} digits is not a size; write it as '64 MiB'")
        nbytes = (
            int(float(match[1]) * _UNITS[match[2].lower()])
            if "." in match[1]
            else int(match[1]) * _UNITS[match[2].lower()]
        )
        if not match[2] and 0 < float(match[1]) < _LEAST_WITHOUT_UNIT:
            raise SizeError(
                f"{size!r} has no unit; write '{match[1]} GiB', or '{match[1]} B' if you mean bytes"
            )
        return nbytes
    if not 0 <= size < float("inf"):
        raise SizeError(f"{size!r} is not a size; it must be a finite number of bytes, zero or more")
    return int(size)


def format_bytes(nbytes: float) -> str:
    """Print a byte count (bytes) with a binary unit: ``12.50 MiB``, ``512 B``, ``-3.00 KiB``."""
    magnitude = abs(nbytes)
    if magnitude < 1024:
        return f"{nbytes:.0f} B"
    for unit, scale in _BINARY[:-1]:
        if round(magnitude / scale, 2) < 1024:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes / 2**40:.2f} TiB"


def format_change(nbytes: int) -> str:
    """Print a difference of bytes with its sign: ``+12.50 MiB``, ``-512 B``, ``0 B``."""
    return f"{'+' if nbytes > 0 else ''}{format_bytes(nbytes)}"


def format_bytes_as(nbytes: float, most_bytes: float) -> str:
    """Print a tick of an axis in the unit of its largest one, unless that would print a zero.

    Figures in texts and tables have units of their own, so that the same bytes read the same everywhere.
    """
    scale, unit = max(((scale, unit) for unit, scale in _BINARY if scale <= most_bytes), default=(1, "B"))
    in_unit = f"{nbytes / scale:.2f}"
    return format_bytes(nbytes) if scale == 1 or not float(in_unit) else f"{in_unit} {unit}"


def format_duration(duration_ns: float) -> str:
    """Return a duration (nanoseconds) as text, in a unit that fits: ``1.53 s``, ``12.0 ms``, ``3 min 20 s``."""
    seconds = duration_ns / 1e9
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{duration_ns:.0f} ns"
