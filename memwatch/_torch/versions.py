"""The versions of torch that memwatch supports. `reports/torches.md` has the results of the test runs.

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
"""The oldest torch, as (major, minor), that the matrix of versions tests."""
LAST: Final = (2, 15)
"""The newest such torch."""


def is_older_than(major: int, minor: int) -> bool:
    """Return True for a torch before that version. Use it only if nothing but the version can decide."""
    return _version() < (major, minor)


def require_known_torch() -> None:
    """Raise MemwatchError if memwatch does not support this version of torch.

    The private names and the C++ that memwatch uses change from version to version. A wrong figure without a warning is
    worse than an error.
    """
    if not FIRST <= _version() <= LAST:
        first, last = (".".join(map(str, version)) for version in (FIRST, LAST))
        raise MemwatchError(
            f"memwatch knows torch {first} to {last}, and this is torch {torch.__version__}: "
            "install a torch of these, or a memwatch that knows yours"
        )


def _version() -> tuple[int, int]:
    """Return major and minor version. Zeros if the text has none."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
