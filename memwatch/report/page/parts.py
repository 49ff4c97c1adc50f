"""Parts of the page's model: the tree of modules, phases, lines of source, call stacks, and uses of storages.

The source text of the program's own lines is read when the page is written. Only Python files and cells of this
notebook are read: a capture from elsewhere may name any file of this machine, and none of its secrets must get into a
page. Files changed since the run are not read, because their lines may have moved.
"""

from __future__ import annotations

import linecache
import os
import stat
from typing import TYPE_CHECKING, Final, TypedDict

import numpy as np
import pandas as pd

from memwatch.analysis.tables import TEXT
from memwatch.own_code import CodeOwner
from memwatch.report.page.columns import Block, Packed, Words, pack_frame, pack_ints
from memwatch.words.places import cell_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memwatch.report.source import Reading

NO_PARENT: Final = -1


def module_parents(names: Sequence[str], parents: Sequence[str]) -> list[int]:
    """Return the row of each module's parent, -1 for roots.

    Args:
        names: qualified names, in the order of `Reading.modules`.
        parents: for each the name of the module that holds it, empty for a root.
    """
    row_of = {name: row for row, name in enumerate(names)}
    return [row_of.get(parent, NO_PARENT) if parent else NO_PARENT for parent in parents]


def pack_phases(reading: Reading, words: Words) -> Block:
    """Return the first op of each stretch of ops of one phase and step, with both; the last reaches to the end."""
    ops = reading.part("ops", ["phase", "step"], coded=True)
    phase, step = ops["phase"].astype("category").cat.codes.to_numpy(), ops["step"].to_numpy()
    begins = np.ones(len(ops), dtype=bool)
    begins[1:] = (phase[1:] != phase[:-1]) | (step[1:] != step[:-1])
    first = np.flatnonzero(begins)
    stretches = pd.DataFrame(
        {"op": first, "phase": ops["phase"].iloc[first].astype(str).to_numpy(), "step": step[first]}
    )
    return pack_frame(stretches.astype({"phase": "str"}), words, delta=("op",))


# The program's own lines on the page: those on the call stacks of its storages, and the lines around them.
#
# Each line is stored once; stacks and the section of sources look it up by file and number.
AROUND: Final = 2
"""So many lines before and after are shown, too."""

MOST_LINES: Final = 5_000


def pack_sources(lines: Iterable[tuple[str, int]], words: Words, code: CodeReader | None) -> Block:
    """Return the text of these lines and of those around them; empty where sources stay out of the page.

    Args:
        lines: file and number of each line.
        words: the texts of the page.
        code: reads sources, None to leave them out.
    """
    wanted = sorted({(file, number) for file, number in lines if number > 0})[:MOST_LINES]
    near = {
        (file, number + by) for file, number in wanted for by in range(-AROUND, AROUND + 1) if number + by > 0
    }
    told = [] if code is None else [(*each, text) for each in sorted(near) if (text := code.indented(*each))]
    table = pd.DataFrame(told, columns=["file", "line", "text"], dtype=object)
    return pack_frame(table.astype({"file": TEXT, "line": "int64", "text": TEXT}), words, delta=("line",))


_OwnedFrame = tuple[str, int, str, CodeOwner]
"""File, line, function, and whose code it is."""


class Stacks(TypedDict):
    """The nodes of the tree (parent and frame), and the innermost node of each stack."""

    parent: Packed
    file: Packed
    line: Packed
    function: Packed
    owner: Packed
    """Whose code it is, as a number of `CodeOwner`."""
    stack: Packed
    node: Packed


def pack_stacks(reading: Reading, stack_ids: Iterable[int], words: Words) -> Stacks:
    """Return the stacks with these ids."""
    nodes: dict[tuple[int, _OwnedFrame], int] = {}
    innermost: dict[int, int] = {}
    for stack_id in known(stack_ids):
        node = -1
        for frame in reversed(_frames(reading, stack_id)):
            node = nodes.setdefault((node, frame), len(nodes))
        innermost[stack_id] = node
    frames = [frame for _, frame in nodes]
    return Stacks(
        parent=pack_ints([parent for parent, _ in nodes], delta=True),
        file=pack_ints(words.codes(frame[0] for frame in frames), kind="text"),
        line=pack_ints([frame[1] for frame in frames]),
        function=pack_ints(words.codes(frame[2] for frame in frames), kind="text"),
        owner=pack_ints([frame[3] for frame in frames]),
        stack=pack_ints(list(innermost), delta=True),
        node=pack_ints(list(innermost.values()), delta=True),
    )


def own_lines(reading: Reading, stack_ids: Iterable[int]) -> set[tuple[str, int]]:
    """Return file and number of each line of the program's own code on these stacks, packages' left out."""
    return {
        (file, line)
        for stack_id in known(stack_ids)
        for file, line, _, owner in _frames(reading, stack_id)
        if owner is CodeOwner.PROGRAM
    }


def _frames(reading: Reading, stack_id: int) -> list[_OwnedFrame]:
    owners = reading.code_owners(stack_id)
    return [(*frame[:3], owner) for frame, owner in zip(reading.stack(stack_id), owners, strict=True)]


def known(stack_ids: Iterable[int]) -> list[int]:
    """Return the different ids of known stacks."""
    return sorted({int(stack_id) for stack_id in stack_ids if stack_id >= 0})


# List the ops that used each storage that is alive at the peak, for the chart of a storage's life.
#
# For all other storages the page has only the first and the last use.
MOST_USES: Final = 100_000
"""So many uses are packed, those of the largest storages first."""
_OP_BITS: Final = 32
_OP_MASK: Final = (1 << _OP_BITS) - 1
"""A use as one number: storage and op, which sort as a pair does."""


class Uses(TypedDict):
    """The ops that used each storage, in order."""

    storage: Packed
    count: Packed
    """How many ops used it: so many numbers of `op` are its."""

    op: Packed


def pack_uses(reading: Reading, storages: Sequence[int]) -> Uses:
    """Return the ops that used these storages, as many as there is room for.

    Args:
        reading: the profile.
        storages: numbers of storages, the most important first.
    """
    wanted = np.asarray(storages, dtype=np.int64)
    # one column after the other: nearly all uses of a long run are of parameters, which are alive at the peak
    used = reading.part("uses", ["storage"])["storage"].to_numpy()
    rows = pd.Index(np.flatnonzero(np.isin(used, wanted)))
    del used
    keys = reading.part("uses", ["storage"], rows)["storage"].to_numpy() << _OP_BITS
    keys |= reading.part("uses", ["op"], rows)["op"].to_numpy()
    keys = np.unique(keys)
    starts = np.searchsorted(keys, wanted << _OP_BITS)
    ends = np.searchsorted(keys, (wanted + 1) << _OP_BITS)
    shown = np.flatnonzero(np.cumsum(ends - starts) <= MOST_USES)
    lists = [keys[starts[each] : ends[each]] & _OP_MASK for each in shown.tolist()]
    return Uses(
        storage=pack_ints(wanted[shown], delta=True),
        count=pack_ints([len(ops) for ops in lists]),
        op=pack_ints(np.concatenate(lists) if lists else [], delta=True),
    )


LINE_CHARACTERS: Final = 200


class CodeReader:
    """Reads source lines of files that have not changed since the run started."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._trusted: dict[str, bool] = {}

    def line(self, file: str, number: int) -> str:
        """Return one line without its indentation, or empty text if the file changed or cannot be read."""
        return self.indented(file, number).strip()

    def indented(self, file: str, number: int) -> str:
        """Return one line as it is written, or empty text if the file changed or cannot be read."""
        if not self._is_trusted(file):
            return ""
        return linecache.getline(file, number).expandtabs(4).rstrip()[:LINE_CHARACTERS]

    def text(self, file: str) -> str:
        """Return the text of a file, or empty text if the file changed or cannot be read."""
        return "".join(linecache.getlines(file)) if self._is_trusted(file) else ""

    def _is_trusted(self, file: str) -> bool:
        if file not in self._trusted:
            # IPython keeps the text of each cell of this session, under a name that changes with the text
            self._trusted[file] = bool(cell_name(file)) or self._is_unchanged(file)
        return self._trusted[file]

    def _is_unchanged(self, file: str) -> bool:
        try:
            status = os.stat(file)
        except (OSError, ValueError):  # the file does not exist, or the name is not a path
            return False
        is_python = file.endswith((".py", ".pyw")) and stat.S_ISREG(status.st_mode)
        if is_python:
            linecache.checkcache(file)
        return is_python and status.st_mtime <= self._started_s
