"""The peak as an indented tree: by default the categories, below each its modules, and below these their lines.

The text can be redirected to a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text
from rich.tree import Tree

from memwatch.report.console import to_text
from memwatch.report.facts import BLANK
from memwatch.sizes import format_bytes
from memwatch.text import visible
from memwatch.words.places import short_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from memwatch.analysis.reading import DeviceReading

LEVELS: Final = ("category", "module", "line")


@dataclass(frozen=True, slots=True)
class Node:
    """A group of storages.

    Attributes:
        name: the common value of the group, such as a category.
        nbytes: its bytes.
        count: its storages.
        children: the groups into which the next column splits it, largest first.
    """

    name: str
    nbytes: int
    count: int
    children: tuple[Node, ...]

    def leaves(self, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Yield each leaf with the names from the root to the leaf."""
        path = (*above, self.name)
        if not self.children:
            yield path, self
        for child in self.children:
            yield from child.leaves(path)


def peak_tree(rows: pd.DataFrame, levels: Sequence[str] = LEVELS, name: str = "peak") -> Node:
    """Group storages into a tree.

    Args:
        rows: storages, with the columns of `Reading.at_peak`.
        levels: columns to split by, from the root down.
        name: name of the root.

    Returns:
        The root. The bytes of the children of a node add up to the bytes of the node.
    """
    children: tuple[Node, ...] = ()
    if levels and len(rows):
        level = levels[0]
        labels = rows[level].where(rows[level] != "", BLANK.get(level, "(none)"))
        groups = (
            peak_tree(group, levels[1:], str(label)) for label, group in rows.groupby(labels, sort=False)
        )
        children = tuple(sorted(groups, key=lambda node: (-node.nbytes, node.name)))
    return Node(name, int(rows["nbytes"].sum()), len(rows), children)


def tree(
    reading: DeviceReading,
    *,
    width: int | None = None,
    color: bool | None = None,
    rows: int = 10,
    levels: Sequence[str] = LEVELS,
) -> str:
    """Return the peak as an indented tree.

    Args:
        reading: a profile.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal.
        rows: most children of a node that are shown; the others share one line.
        levels: columns of `at_peak` to split by.

    Returns:
        The text, ending with a newline.
    """
    root = peak_tree(reading.at_peak, levels)
    return to_text(_draw(root, root.nbytes, rows), width=width, color=color)


def _draw(node: Node, total_bytes: int, rows: int) -> Tree:
    drawn = Tree(_label(node.name, node.nbytes, total_bytes), guide_style="dim")
    for child in node.children[:rows]:
        drawn.children.append(_draw(child, total_bytes, rows))
    rest = node.children[rows:]
    if rest:
        drawn.add(_label(f"{len(rest):,} more", sum(child.nbytes for child in rest), total_bytes))
    return drawn


def _label(name: str, nbytes: int, total_bytes: int) -> Text:
    share = 100 * nbytes / (total_bytes or 1)
    label = Text(f"{format_bytes(nbytes)}  {share:.1f} %  ", no_wrap=True, overflow="ellipsis")
    return label.append(visible(short_place(name)), style="bold")
