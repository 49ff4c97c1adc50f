"""The tree of modules: the row of each module's parent in `Reading.modules`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_PARENT: Final = -1


def module_parents(names: Sequence[str], parents: Sequence[str]) -> list[int]:
    """Return the row of each module's parent, -1 for roots.

    Args:
        names: qualified names, in the order of `Reading.modules`.
        parents: for each the name of the module that holds it, empty for a root.
    """
    row_of = {name: row for row, name in enumerate(names)}
    return [row_of.get(parent, NO_PARENT) if parent else NO_PARENT for parent in parents]
