"""A budget as users write it: bytes, "512 MiB", or a share of the program's own peak increase."""

from __future__ import annotations

import re
from typing import Final

from memwatch.sizes import SizeError, parse_bytes

_DECIMAL: Final = re.compile(r"0?\.\d+")
"""A number below one without a unit."""


def parse_budget(budget: int | float | str, program_increase_bytes: int) -> int:
    """Return a budget in bytes.

    Args:
        budget: bytes, text such as ``"512 MiB"``, or ``"60%"`` of the program's own peak increase.
        program_increase_bytes: that peak increase (bytes).

    Returns:
        The peak increase that a plan may have (bytes), rounded down.

    Raises:
        SizeError: the text is neither a size nor a percentage, or the number is negative, not finite, or a
            share such as 0.5, which would be no byte.
    """
    if isinstance(budget, float) and 0 <= budget < 1:
        raise _less_than_a_byte(budget, budget)
    if isinstance(budget, str) and _DECIMAL.fullmatch(budget.strip()):  # as the command line gives it
        raise _less_than_a_byte(budget, float(budget))
    if not (isinstance(budget, str) and budget.strip().endswith("%")):
        return parse_bytes(budget)
    digits = budget.strip()[:-1].strip()
    try:
        share = float(digits)
    except ValueError:
        raise SizeError(f"{budget!r} is not a budget; write a percentage such as '60%'") from None
    if not 0 <= share < float("inf"):
        raise SizeError(f"{budget!r} is not a budget; a percentage is zero or more")
    # whole percentages are computed in integers, so that no byte is lost to binary fractions
    return (
        program_increase_bytes * int(share) // 100
        if share.is_integer()
        else int(program_increase_bytes * share / 100)
    )


def _less_than_a_byte(budget: float | str, share_ratio: float) -> SizeError:
    percentage = f"{share_ratio * 100:g}%"
    return SizeError(
        f"{budget!r} is less than a byte; write {percentage!r} for that share of the program's own"
    )
