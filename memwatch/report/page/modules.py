"""The tree of modules: the parent of each row of `Reading.modules`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_PARENT: Final = -1


def module_parents(names: Sequence[str], classes: Sequence[str]) -> list[int]:
    """Return the row of each module's parent.

    A tree of modules begins with its root, whose name is its class name (numbered where several roots share
    it) or empty. The rows up to the next root are below it. Their names are attribute paths, preceded by the
    root's name where two trees would have the same names.

    Args:
        names: qualified names, in the order of `Reading.modules`.
        classes: names of their classes.

    Returns:
        For each row the row of its parent, -1 for roots.
    """
    parents: list[int] = []
    root, root_name = NO_PARENT, ""
    rows: dict[str, int] = {}
    for row, (name, class_name) in enumerate(zip(names, classes, strict=True)):
        if not name or re.fullmatch(rf"{re.escape(class_name)}(#\d+)?", name):
            root, root_name, rows = row, name, {}
            parents.append(NO_PARENT)
            continue
        local = name.removeprefix(f"{root_name}.") if root_name else name
        rows[local] = row
        parents.append(_nearest(local, rows, root))
    return parents


def _nearest(name: str, rows: dict[str, int], root: int) -> int:
    while "." in name:
        name = name.rpartition(".")[0]
        if name in rows:
            return rows[name]
    return root
