"""Import rich unnoticed: one of its modules draws a random number at import, and the program's generator is shared."""

from __future__ import annotations

import random


def import_rich() -> None:
    """Import what draws, with the state of Python's random generator put back; to be called before rich is used."""
    state = random.getstate()
    import rich.style  # noqa: F401 # the first import is what matters

    random.setstate(state)
