"""Which versions of torch memwatch was made for and run with; `reports/torches.md` has what was run.

| torch | here |
| --- | --- |
| torch.__version__ | require_known_torch() |
"""

from __future__ import annotations

import re
from typing import Final

import torch

from memwatch.errors import MemwatchError

FIRST: Final = (2, 11)
LAST: Final = (2, 15)


def require_known_torch() -> None:
    """Raise MemwatchError if this torch is older or newer than those that memwatch knows.

    The names and the C++ that memwatch stands on change from version to version, and a figure that is wrong in
    silence is worse than none.
    """
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None or not FIRST <= (int(found[1]), int(found[2])) <= LAST:
        first, last = (".".join(map(str, version)) for version in (FIRST, LAST))
        raise MemwatchError(
            f"memwatch knows torch {first} to {last}, and this is torch {torch.__version__}: "
            "install a torch of these, or a memwatch that knows yours"
        )
