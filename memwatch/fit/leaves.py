"""What lies in nested lists, tuples and dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield what nested lists, tuples and dictionaries hold, in order."""
    if isinstance(value, dict):
        for each in value.values():
            yield from leaves_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from leaves_of(each)
    else:
        yield value
