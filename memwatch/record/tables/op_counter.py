"""How many ops have started: one number that every recorder of a block, C++ included, reads and writes."""

from __future__ import annotations

from typing import TypeAlias

OpCounter: TypeAlias = list[int]
"""A list of one element, the number of ops that have started; so it is also the number of the next op.

It is a plain list and no class of its own, because it is read several times for every op: Python indexes an
exact list without a call, and C++ reads the element where it lies.
"""


def new_op_counter() -> OpCounter:
    """Return the counter of a block in which no op has started."""
    return [0]
