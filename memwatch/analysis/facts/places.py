"""Where the ops of a capture ran: the call stacks, the lines of the program's own code, and the modules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.forward_ops import Makers, compiled_call_of_node, forward_makers
from memwatch.analysis.facts.module_tree import ModuleTree, read_modules
from memwatch.capture.schema import ACCESSES, BACKWARD, NONE, RECOMPUTE
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

_BODY: Final = "<module>"
"""The name that Python gives to the body of a module."""


class Call(NamedTuple):
    """One frame of a call stack."""

    file: str
    line: int
    function: str
    calls_torch: bool  # the program's or an installed package's; False for torch and Python


class CallStacks:
    """The recorded call stacks, looked up by number."""

    def __init__(self, capture: Capture) -> None:
        self._text, self._columns = capture.text, capture.tables["stacks"]
        self._order = np.lexsort((self._columns["depth"], self._columns["stack"]))
        self._numbers = self._columns["stack"][self._order]
        files = capture.text(self._columns["file"])
        self.owner_of_file: dict[str, int] = dict(zip(files, self._columns["owner"].tolist(), strict=True))
        """Whose code each file is, as an index into OWNERS."""

    def frames(self, stack: int) -> list[Call]:
        """Return the frames of a call stack, innermost first."""
        rows, columns = self._rows(stack), self._columns
        return list(
            map(
                Call,
                self._text(columns["file"][rows]),
                columns["line"][rows].tolist(),
                self._text(columns["function"][rows]),
                (columns["owner"][rows] <= CodeOwner.INSTALLED).tolist(),
            )
        )

    def owners(self, stack: int) -> list[CodeOwner]:
        """Return whose code each frame of a call stack is, innermost first."""
        return [CodeOwner(owner) for owner in self._columns["owner"][self._rows(stack)].tolist()]

    def _rows(self, stack: int) -> IntArray:
        start = np.searchsorted(self._numbers, stack)
        return self._order[start : np.searchsorted(self._numbers, stack, side="right")]

    @cached_property
    def files_of_running_modules(self) -> frozenset[str]:
        """The files whose module's body ran ops, or called code that ran ops."""
        bodies = np.array(self._text(self._columns["function"]), dtype=object) == _BODY
        return frozenset(self._text(self._columns["file"][bodies]))

    @property
    def has_program_code(self) -> bool:
        """Whether any recorded frame is the program's own, and not only of torch and installed packages."""
        return bool((self._columns["owner"] == CodeOwner.PROGRAM).any())


CALLS_ENGINE: Final = ("torch/autograd/graph.py", "torch\\autograd\\graph.py")
"""The ends of the file of torch's that calls autograd's engine."""
_DEEPEST: Final = 1 << 30  # deeper than any stack

Texts = np.ndarray[Any, Any]
"""An array of str objects."""


class _Lines(NamedTuple):
    lines: list[str]
    own_lines: list[str]
    functions: list[str]


@dataclass(frozen=True)
class Places:
    """The lines and the function of each stack, and for each op the stack and module that reports name.

    The line of a stack is the line of the innermost frame outside torch. If this frame lies in an installed package,
    the program's own line is a different one.
    """

    line_of_stack: list[str]
    own_line_of_stack: list[str]
    function_of_stack: list[str]
    stack_of_op: IntArray  # in backward, the stack of the op or view that made the node, if it is known
    module_of_op: IntArray  # likewise
    module_tree: ModuleTree

    def lines(self, stacks: IntArray | slice) -> Texts:
        """Return `file:line` of each stack; empty for -1."""
        return with_empty_end(self.line_of_stack)[stacks]

    def own_lines(self, stacks: IntArray) -> Texts:
        """Return `file:line` of the innermost frame of the program's own code, empty for -1 or where there is none."""
        return with_empty_end(self.own_line_of_stack)[stacks]

    def functions(self, stacks: IntArray) -> Texts:
        """Return the function of each stack, empty for -1."""
        return with_empty_end(self.function_of_stack)[stacks]

    def modules(self, numbers: IntArray) -> Texts:
        """Return the qualified name of each module, empty for -1."""
        return with_empty_end(self.module_tree.names)[numbers]

    def classes(self, numbers: IntArray) -> Texts:
        """Return the class of each module, empty for -1."""
        return with_empty_end(self.module_tree.classes)[numbers]


def with_empty_end(texts: list[str]) -> Texts:
    """Return texts as an array with an empty text at its end, which the number -1 (none) selects."""
    return np.array([*texts, ""], dtype=object)


def find_places(capture: Capture, op: int) -> Places:
    """Return the place of every op of a capture. Modules have the names of the time when one op runs."""
    ops, views = capture.tables["ops"], capture.tables["views"]
    made = _within_regions(capture, forward_makers(capture))
    shows_engine, calls_code = _below_engine(capture)
    by_engine = ~np.append(calls_code, False)[ops["stack"]]
    by_op, by_view = (np.flatnonzero((maker != NONE) & by_engine) for maker in (made.op, made.view))
    calls, made_in = capture.tables["compiled_nodes"], compiled_call_of_node(capture, ops["sequence"])
    is_known = (made.op != NONE) | (made.view != NONE) | (ops["phase"] != BACKWARD)
    by_call = np.flatnonzero((made_in != NONE) & ~is_known & by_engine)
    stack, module = ops["stack"].copy(), ops["module"].copy()
    for column, name in ((stack, "stack"), (module, "module")):
        column[by_op] = ops[name][made.op[by_op]]
        column[by_view] = views[name][made.view[by_view]]
        column[by_call] = calls[name][made_in[by_call]]
    region = _stack_of_region(capture, shows_engine & ~calls_code)
    again = np.flatnonzero((ops["phase"] == RECOMPUTE) & by_engine & (region != NONE))
    stack[again] = region[again]
    return Places(*_lines_of_stacks(capture), stack, module, read_modules(capture, op))


def _below_engine(capture: Capture) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which stacks show autograd's engine, and which of these show code that it called outside torch.

    An allocation in a custom Function's backward, or in a hook, belongs to the line of that code. Its node must not
    decide: no op made the node of a Function, so the node's number may lead to the next forward op.
    """
    stacks = capture.tables["stacks"]
    calls_engine = np.array([file.endswith(CALLS_ENGINE) for file in capture.strings], dtype=bool)
    is_engine = calls_engine[stacks["file"]] & (stacks["file"] != NONE)
    count = int(stacks["stack"].max()) + 1 if len(stacks["stack"]) else 0
    engine, caller = (np.full(count, _DEEPEST, dtype=np.int64) for _ in range(2))
    for depths, rows in ((engine, is_engine), (caller, stacks["owner"] <= CodeOwner.INSTALLED)):
        np.minimum.at(depths, stacks["stack"][rows], stacks["depth"][rows])
    return engine < _DEEPEST, (engine < _DEEPEST) & (caller < engine)


def runs_in_backward(capture: Capture) -> NDArray[np.bool_]:
    """Return which ops ran while autograd's engine ran. Any code may have called them: a hook may step an optimizer."""
    shows_engine, _ = _below_engine(capture)
    return np.append(shows_engine, False)[capture.tables["ops"]["stack"]]


def _stack_of_region(capture: Capture, is_of_engine: NDArray[np.bool_]) -> IntArray:
    """Return, for each op, the forward call of the innermost region that recomputed it; -1 if unknown.

    If a region has modules of torch only, this is the program's line that computed the region.

    Args:
        capture: the recorded tables.
        is_of_engine: which stacks lack a call of a forward: autograd's engine calls torch's functions directly.
    """
    runs, found = capture.tables["recomputes"], np.full(capture.rows("ops"), NONE, dtype=np.int64)
    is_known = (runs["stack"] != NONE) & ~np.append(is_of_engine, False)[runs["stack"]]
    # the inner of two nested regions has ended first, so its row comes first: write it last, so that it stays
    for row in np.flatnonzero(is_known)[::-1].tolist():
        found[int(runs["start_op"][row]) : int(runs["end_op"][row])] = runs["stack"][row]
    return found


def _innermost_callers(capture: Capture, owner: CodeOwner) -> IntArray:
    """Return, per stack, the row of its innermost frame of code whose owner is at most `owner`; -1 for none."""
    stacks = capture.tables["stacks"]
    count = int(stacks["stack"].max()) + 1 if len(stacks["stack"]) else 0
    rows = np.full(count, NONE, dtype=np.int64)
    index = np.flatnonzero(stacks["owner"] <= owner)[::-1]
    rows[stacks["stack"][index]] = index
    return rows


def _lines_of_stacks(capture: Capture) -> _Lines:
    """Return the lines and the function of each stack.

    A stack with frames of torch alone has only the innermost line.
    """
    stacks, strings = capture.tables["stacks"], capture.strings
    callers = _innermost_callers(capture, CodeOwner.INSTALLED)
    rows = np.where(callers == NONE, _innermost_callers(capture, CodeOwner.MEMWATCH), callers)

    def line(row: int) -> str:
        return "" if row == NONE else f"{strings[stacks['file'][row]]}:{stacks['line'][row]}"

    own = _innermost_callers(capture, CodeOwner.PROGRAM)
    functions = ["" if row == NONE else strings[stacks["function"][row]] for row in rows.tolist()]
    return _Lines(list(map(line, rows.tolist())), list(map(line, own.tolist())), functions)


def _within_regions(capture: Capture, made: Makers) -> Makers:
    """Return the makers, with those of backward ops in a reentrant region searched within the same run of the region.

    Each thread numbers its nodes from the start. On an accelerator, a region runs again in a thread of autograd, so its
    numbers may be those of other nodes.
    """
    runs = capture.tables["recomputes"]
    reentrant = runs["sequence"] != NONE
    spans = zip(runs["start_op"][reentrant].tolist(), runs["end_op"][reentrant].tolist(), strict=True)
    for start, end in reversed(list(spans)):  # likewise, the inner of two nested regions is written last
        inside = forward_makers(capture, start, end)
        made.op[start:end], made.view[start:end] = inside.op, inside.view
    return made


# Find the lines of storages that torch made below every op and handed to Python.
#
# `torch.tensor(list)` passes its storage through an op that makes no bytes; the recorder notes it in `lifts`.
# `torch.load`, a deep copy and a worker of a `DataLoader` give a storage to an empty tensor with the op `set_`, which
# is the first to see it.
OF_DATA: Final = "data"
"""The text in place of an op's name."""
_GIVES_STORAGE: Final = "aten.set_.source_Storage"
_WRITE: Final = ACCESSES.index("write")
_FOREVER: Final = np.iinfo(np.int64).max


class Lifts(NamedTuple):
    """Per storage: whether torch made it below every op, and the stack and the module of the call; else -1.

    The last entry is for the storage -1 (none).
    """

    is_lift: NDArray[np.bool_]
    stack: IntArray
    module: IntArray


def lifts(capture: Capture, storages: int) -> Lifts:
    """Return which storages were made below every op, and where."""
    stack, module = (np.full(storages + 1, NONE, dtype=np.int64) for _ in range(2))
    found = Lifts(np.zeros(storages + 1, dtype=bool), stack, module)
    rows, ops = capture.tables["lifts"], capture.tables["ops"]
    noted = rows["storage"] < storages
    given, by_op = _given_by_set(capture)
    is_one = given < storages
    given, by_op = given[is_one], by_op[is_one]
    for storage, place in (
        (given, {name: ops[name][by_op] for name in ("stack", "module")}),
        (rows["storage"][noted], {name: rows[name][noted] for name in ("stack", "module")}),
    ):
        found.is_lift[storage] = True
        stack[storage], module[storage] = place["stack"], place["module"]
    return found


def gives_storage(capture: Capture) -> NDArray[np.bool_]:
    """Return which ops give a storage to a tensor: they write nothing into it."""
    names = [number for number, text in enumerate(capture.strings) if text.startswith(_GIVES_STORAGE)]
    found: NDArray[np.bool_] = np.isin(capture.tables["ops"]["name"], names)
    return found


def _given_by_set(capture: Capture) -> tuple[IntArray, IntArray]:
    """Return the storages that no op made and that were first seen as `set_` gave them to a tensor, and that op."""
    uses, births = capture.tables["uses"], capture.tables["births"]
    starts_ns = np.append(capture.tables["ops"]["start_ns"], _FOREVER)
    gives = gives_storage(capture)
    if not gives.any():
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing
    rows = np.flatnonzero((uses["access"] == _WRITE) & gives[uses["op"]])
    storage: Any = uses["storage"][rows]
    op: Any = uses["op"][rows]
    seen_ns = births["time_ns"][storage]
    first = (births["op"][storage] == NONE) & (starts_ns[op] <= seen_ns) & (seen_ns < starts_ns[op + 1])
    return storage[first], op[first]
