"""The tree of the modules: which row holds which."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_PARENT: Final = -1


def module_parents(names: Sequence[str], classes: Sequence[str]) -> list[int]:
    """Find the row of each module's parent.

    A tree of modules starts with its root, which is listed under its class name (numbered where several share
    it), or under none; the rows after it, up to the next root, are below it. Their names are attribute paths,
    led by the root's name where two trees would share them.

    Args:
        names: qualified names, in the order of `Reading.modules`.
        classes: their classes.

    Returns:
        For each row that of its parent, -1 for roots.
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
