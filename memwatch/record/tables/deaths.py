"""Where deaths are noted until their rows are written, by whichever thread they come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Deaths(Protocol):
    """Weak references whose callback ran, in the order of the deaths."""

    @property
    def append(self) -> Callable[[Any], None]:
        """Note one, in whatever thread it died: a function of C's."""

    def clear(self) -> None:
        """Forget all."""

    def __len__(self) -> int:
        """Count them."""

    def __iter__(self) -> Iterator[Any]:
        """Yield them, the first one first."""
