"""Random numbers of the kernels: xorshift64*, with its state in an array, the same in Python and in C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MASK = (1 << 64) - 1  # 64 bits
_UNIT = 1 / (1 << 53)  # the distance between two numbers that 53 random bits can give


def random_state(seed: int) -> NDArray[np.uint64]:
    """Return the state that a seed gives."""
    return np.random.default_rng(seed).integers(1, 2**63, size=1, dtype=np.uint64)


def next_word(state: NDArray[np.uint64]) -> int:
    """Return 64 random bits."""
    word = int(state[0])
    word ^= word >> 12
    word ^= (word << 25) & _MASK
    word ^= word >> 27
    state[0] = word
    return (word * 2685821657736338717) & _MASK


def random_below(state: NDArray[np.uint64], limit: int) -> int:
    """Return a random whole number below `limit`."""
    return (next_word(state) >> 33) % int(limit)


def random_unit(state: NDArray[np.uint64]) -> float:
    """Return a random number from 0 to below 1."""
    return (next_word(state) >> 11) * _UNIT


def permutation(state: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """Return the numbers below `size` in a random order (Fisher and Yates)."""
    order = np.arange(size)
    for at in range(size - 1, 0, -1):
        other = random_below(state, at + 1)
        order[at], order[other] = order[other], order[at]
    return order
