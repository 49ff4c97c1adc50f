"""Parts of the page's model: the tree of modules, phases, lines of source, call stacks, and uses of storages.

memwatch reads the source text of the program's own lines when it writes the page. It reads only Python files, and cells
of the notebook that writes the page: a capture from another machine may name any file of this one, and the page must
contain no secret of this machine. memwatch does not read a file that has changed since the run started, because its
lines may have moved.
"""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Final, TypedDict

import numpy as np
import pandas as pd

from memwatch.analysis.tables import TEXT
from memwatch.own_code import CodeOwner
from memwatch.program_text import is_unchanged
from memwatch.report.page.columns import Block, Packed, Words, pack_frame, pack_ints
from memwatch.words.places import cell_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memwatch.analysis.reading import DeviceReading


def pack_phases(reading: DeviceReading, words: Words) -> Block:
    """Return the stretches of ops with the same phase and step: the first op, the phase and the step of each.

    A stretch ends before the first op of the next one.
    """
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
# The page stores each line once. Its stacks and its section of sources look a line up by file and number.
AROUND: Final = 2
"""Lines that the page shows before and after each of the program's own lines. A guess."""

MOST_LINES: Final = 5_000
"""Lines that the page shows with the lines around them; of more, the first by file and number. A guess."""


def pack_sources(lines: Iterable[tuple[str, int]], words: Words, code: CodeReader | None) -> Block:
    """Return the text of some lines and of the lines around them.

    Args:
        lines: file and number of each line.
        words: the texts of the page.
        code: reads sources; None to return an empty table.
    """
    wanted = sorted({(file, number) for file, number in lines if number > 0})[:MOST_LINES]
    near = {
        (file, number + by) for file, number in wanted for by in range(-AROUND, AROUND + 1) if number + by > 0
    }
    rows = [] if code is None else [(*each, text) for each in sorted(near) if (text := code.indented(*each))]
    table = pd.DataFrame(rows, columns=["file", "line", "text"], dtype=object)
    return pack_frame(table.astype({"file": TEXT, "line": "int64", "text": TEXT}), words, delta=("line",))


_OwnedFrame = tuple[str, int, str, CodeOwner]
"""File, line, function, and the owner of the code."""


class Stacks(TypedDict):
    """Call stacks as a tree. A node is a frame below its caller, and a stack is the node of its innermost frame.

    Attributes:
        parent: for each node the number of its caller's node, -1 for an outermost frame.
        file: for each node its file.
        line: for each node its line.
        function: for each node its function.
        owner: for each node the number of the `CodeOwner` of its code.
        stack: the ids of the stacks.
        node: for each stack its innermost node, -1 for a stack without frames.
    """

    parent: Packed
    file: Packed
    line: Packed
    function: Packed
    owner: Packed
    stack: Packed
    node: Packed


def pack_stacks(reading: DeviceReading, stack_ids: Iterable[int], words: Words) -> Stacks:
    """Return the stacks with some ids as a tree. Negative ids mean that the stack is unknown."""
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


def own_lines(reading: DeviceReading, stack_ids: Iterable[int]) -> set[tuple[str, int]]:
    """Return file and number of each line on some stacks that is code of the program, not of a package."""
    return {
        (file, line)
        for stack_id in known(stack_ids)
        for file, line, _, owner in _frames(reading, stack_id)
        if owner is CodeOwner.PROGRAM
    }


def _frames(reading: DeviceReading, stack_id: int) -> list[_OwnedFrame]:
    owners = reading.code_owners(stack_id)
    return [(*frame[:3], owner) for frame, owner in zip(reading.stack(stack_id), owners, strict=True)]


def known(stack_ids: Iterable[int]) -> list[int]:
    """Return each id of a stack once, in order. Negative ids mean that the stack is unknown, and are dropped."""
    return sorted({int(stack_id) for stack_id in stack_ids if stack_id >= 0})


# The uses of each storage that is alive at the peak, for the chart of a storage's life. The page has only the first and
# the last use of all other storages.
MOST_USES: Final = 100_000
"""Uses that the page contains; the largest storages come first. A guess."""
_OP_BITS: Final = 32
_OP_MASK: Final = (1 << _OP_BITS) - 1
"""A use is one number: the storage in the upper bits and the op in the lower ones, so that uses sort by both."""


class Uses(TypedDict):
    """The ops that used each storage.

    Attributes:
        storage: the storages.
        count: for each storage the number of ops that used it.
        op: the ops: first those of the first storage, then those of the second, and so on.
    """

    storage: Packed
    count: Packed
    op: Packed


def pack_uses(reading: DeviceReading, storages: Sequence[int]) -> Uses:
    """Return the ops that used some storages. The first storages with at most `MOST_USES` uses together are included.

    Args:
        reading: the profile.
        storages: numbers of storages, the most important first.
    """
    wanted = np.asarray(storages, dtype=np.int64)
    # A long run mostly uses parameters, and these are alive at the peak. So `rows` has nearly all rows of the table.
    # Read one column at a time, to save memory.
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
"""Characters of a source line that a page shows. A guess."""


class CodeReader:
    """Reads the source of files that have not changed since the run started.

    Args:
        started_s: unix time of the start of the run, seconds.
    """

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

    @property
    def unread(self) -> list[str]:
        """The files of lines that the reader was asked for and did not read: they changed, or are not there."""
        files = (file for file, is_trusted in self._trusted.items() if file and not is_trusted)
        return sorted(file for file in files if not file.startswith("<"))  # `<stdin>` is no file

    def text(self, file: str) -> str:
        """Return the text of a file, or empty text if the file changed or cannot be read."""
        return "".join(linecache.getlines(file)) if self._is_trusted(file) else ""

    def _is_trusted(self, file: str) -> bool:
        if file not in self._trusted:
            # IPython gives each text of a cell a name of its own and keeps the text, so it cannot have changed
            self._trusted[file] = bool(cell_name(file)) or is_unchanged(file, self._started_s)
        return self._trusted[file]
