"""Read JSON of a file that anybody may have written: it ends in a value or in one error, in little time."""

from __future__ import annotations

import json
from typing import Any, Final

from memwatch.errors import MemwatchError

_MOST_LEVELS: Final = 64
"""Lists in lists. A guess: arguments of ops nest a few levels, and json itself overflows at about a thousand."""
_MOST_DIGITS: Final = 400
"""Python needs seconds for a number of a million digits (before 3.10.7). Floats have up to 309 before the point."""


class JsonError(MemwatchError, ValueError):
    """The text is not JSON, or memwatch refuses it."""


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        JsonError: the text is not JSON, is nested too deeply, or contains a number with too many digits.
    """
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise JsonError("its JSON is nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError is one
        raise JsonError(f"it is not JSON: {error}") from error
    _check_depth(value)
    return value


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, (dict, list))
        ] if isinstance(value, (dict, list)) else []  # fmt: skip
        if not level:
            return
    raise JsonError("its JSON is nested too deeply")
