"""Which versions of torch memwatch was made for and run with; `reports/torches.md` has what was run.

| torch | here |
| --- | --- |
| torch.__version__ | require_known_torch(), is_older_than(major, minor) |
"""

from __future__ import annotations

import re
from typing import Final

import torch

from memwatch.errors import MemwatchError

FIRST: Final = (2, 11)
LAST: Final = (2, 15)


def is_older_than(major: int, minor: int) -> bool:
    """Return True for a torch before that version: the last resort, where nothing but the version tells."""
    return _version() < (major, minor)


def require_known_torch() -> None:
    """Raise MemwatchError if this torch is older or newer than those that memwatch knows.

    The names and the C++ that memwatch stands on change from version to version, and a figure that is wrong in
    silence is worse than none.
    """
    if not FIRST <= _version() <= LAST:
        first, last = (".".join(map(str, version)) for version in (FIRST, LAST))
        raise MemwatchError(
            f"memwatch knows torch {first} to {last}, and this is torch {torch.__version__}: "
            "install a torch of these, or a memwatch that knows yours"
        )


def _version() -> tuple[int, int]:
    """Return major and minor version; zeros if the text is none."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
