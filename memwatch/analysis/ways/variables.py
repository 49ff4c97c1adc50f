"""How long variables of running calls, and autocast's cache, keep a tensor in a forward beside autograd.

A checkpoint lets autograd free a saved tensor after its last use in the forward. A variable of a call, such as `h` in
`h = self.up(x)`, still keeps it for a while. Samples are rare, so one of them also counts for other calls of the same
function: where a sample saw a tensor in a variable while its call was at a line, each tensor that another call made in
the same way stays until that call has left the line.

Autocast's cache keeps converted weights until the region of autocast ends. The recorder sees that for the weights that
nothing else keeps, such as most biases. Others are in the same region if they were made in between.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.facts.names import CONVERSION
from memwatch.analysis.holders.paths import HolderPath
from memwatch.analysis.holders.running import defined_name
from memwatch.capture.paths import read_paths
from memwatch.capture.schema import ACCESSES, FORWARD, NONE
from memwatch.kinds.holders import HolderKind
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.facts.places import Call
    from memwatch.capture.columns import IntArray

_OUTPUT: Final = ACCESSES.index("output")
_CAST: Final = ROLES.index("autocast copy")
_PARAMETER: Final = ROLES.index("parameter")


class _Way(NamedTuple):
    """How a call made a tensor: the op, which of its results it is, and the frames at the time.

    The frames are the call's own, and those that it called.
    """

    op_name: int
    result: int
    frames: tuple[Call, ...]


class _Place(NamedTuple):
    """Where a call of the program was, and how many of the module calls around the making op were over by then."""

    line: int
    left_calls: int


class HeldByCalls:
    """Answers how long variables of running calls keep a tensor."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._ops = facts.capture.tables["ops"]
        self._stacks = self._ops["stack"]
        uses, calls = facts.capture.tables["uses"], facts.capture.tables["calls"]
        is_result = uses["access"] == _OUTPUT
        self._results, self._results_by_op = uses["storage"][is_result], Grouped(uses["op"][is_result])
        self._starts, self._ends = calls["start_op"], calls["end_op"]
        self._frames_of, self._line_of = cache(self._read_frames), cache(self._read_line)

    def ops_until_left(self, row: int) -> int:
        """Return how many ops had started when the calls let go of an allocation, as far as that is known; else 0."""
        made = int(self._facts.allocations.op[row])
        if made == NONE or not self._places_by_way:
            return 0
        frames, storage = self._frames(made), int(self._facts.allocations.storage[row])
        return max(
            (
                self._left(made, depth, place)
                for depth in range(len(frames))
                for place in self._places_by_way.get(self._way(made, storage, frames[depth:]), ())
            ),
            default=0,
        )

    @cached_property
    def _places_by_way(self) -> dict[_Way, set[_Place]]:
        """Where calls were when samples saw in their variables what they had made in some way."""
        table, found = self._facts.capture.tables["holders"], dict[_Way, set[_Place]]()
        variables = {
            number: path[0].owner
            for number, path in read_paths(self._facts.capture).items()
            if path[0].owner is not None and HolderPath(path).kind is HolderKind.LOCAL
        }
        made_by = self._facts.allocations.op
        for op, storage, path in zip(
            (table["op"] - 1).tolist(), table["storage"].tolist(), table["path"].tolist(), strict=True
        ):
            made, call = int(made_by[storage]), variables.get(path)
            if call is None or made == NONE or op < 0 or self._ops["phase"][op] != FORWARD:
                continue
            now, then = self._frames(op), self._frames(made)
            for depth in reversed(range(min(len(now), len(then)))):
                frame = now[depth]
                is_call = (frame.file, frame.line) == (call.file, call.line)
                if is_call and defined_name(frame.function) == call.name:
                    if _is_same_call(now, then, depth):
                        way = self._way(made, storage, then[depth:])
                        left_calls = int((self._ends_of_calls(made) <= op).sum())
                        found.setdefault(way, set()).add(_Place(frame.line, left_calls))
                    break
        return found

    def _way(self, made: int, storage: int, frames: tuple[Call, ...]) -> _Way:
        """Return how an op made a storage.

        A sample that saw the output of a recurrent layer in a variable tells nothing about the workspace, which only
        autograd keeps.
        """
        results = self._results[self._results_by_op.within(made, made + 1)].tolist()
        number = results.index(storage) if storage in results else NONE
        return _Way(int(self._ops["name"][made]), number, frames)

    def _left(self, made: int, depth: int, place: _Place) -> int:
        """Return how many ops had started when a call left a line, before it jumps back or returns.

        Args:
            made: an op that ran in the call.
            depth: the position of the call in the call stack.
            place: the line.
        """
        stack, ends = int(self._stacks[made]), self._ends_of_calls(made)
        # the next call of the same function has the same stack, and belongs to another call of a module
        end = int(ends[place.left_calls]) if place.left_calls < len(ends) else len(self._stacks)
        line, left = self._line_of(stack, stack, depth), 0
        for op, other in enumerate(self._stacks[made + 1 : end].tolist(), made + 1):
            before, line = line, self._line_of(stack, other, depth)
            if line < before:
                break
            if line == place.line:
                left = op + 1
        return left

    def _read_line(self, stack: int, other: int, depth: int) -> int:
        """Return the line in a second stack of the call that a first one has at a depth; -1 if it is not there."""
        first, now = self._frames_of(stack), self._frames_of(other)
        return now[depth].line if depth < len(now) and _is_same_call(now, first, depth) else NONE

    def _ends_of_calls(self, op: int) -> IntArray:
        """Return the ends of the module calls around an op, the innermost first."""
        return np.sort(self._ends[(self._starts <= op) & (op < self._ends)])

    def _frames(self, op: int) -> tuple[Call, ...]:
        return self._frames_of(int(self._stacks[op]))

    def _read_frames(self, stack: int) -> tuple[Call, ...]:
        """Return the calls of a stack, the outermost first."""
        return () if stack == NONE else tuple(reversed(self._facts.call_stacks.frames(stack)))


def _is_same_call(one: tuple[Call, ...], other: tuple[Call, ...], depth: int) -> bool:
    """Return True if two stacks may have the same call at a depth: each call around it is at the same line."""
    ends = one[depth], other[depth]
    return one[:depth] == other[:depth] and len({(call.file, call.function) for call in ends}) == 1


def ends_of_casts(facts: Facts) -> dict[int, int]:
    """Return how many ops had started when autocast's cache let go of each converted parameter, by its storage.

    If no end of a region was seen around a conversion, the result has the end of the outermost call of a module. This
    is a guess. It promises too high a peak rather than too low a one.
    """
    tables, made_by = facts.capture.tables, facts.allocations.op
    ops, uses, roles, calls = (tables[name] for name in ("ops", "uses", "roles", "calls"))
    is_name = np.array([str(text).startswith(CONVERSION) for text in facts.strings], dtype=bool)
    rows = np.flatnonzero((facts.allocations.storage != NONE) & (made_by != NONE))
    rows = rows[is_name[ops["name"][made_by[rows]]] & (ops["phase"][made_by[rows]] == FORWARD)]
    if not len(rows):
        return {}
    is_noted = roles["role"] == _CAST
    noted, end_of_noted = roles["storage"][is_noted], roles["op"][is_noted]
    ends, number = np.unique(end_of_noted, return_inverse=True)
    starts = np.full(len(ends), len(ops["stack"]), dtype=np.int64)
    np.minimum.at(starts, number, tables["births"]["op"][noted])
    parameters = set(roles["storage"][roles["role"] == _PARAMETER].tolist())
    uses_by_op, uses_by_storage = Grouped(uses["op"]), Grouped(uses["storage"])
    found: dict[int, int] = {}
    for row in rows.tolist():
        op, storage = int(made_by[row]), int(facts.allocations.storage[row])
        if parameters.isdisjoint(uses["storage"][uses_by_op.within(op, op + 1)].tolist()):
            continue
        readers = uses["op"][uses_by_storage.within(storage, storage + 1)]
        reader = int(readers[readers > op].min(initial=len(ops["stack"])))
        # autocast converts in the call that needs the result, and the program in a call of its own
        if reader == len(ops["stack"]) or ops["stack"][reader] != ops["stack"][op]:
            continue
        around = np.flatnonzero((starts <= op) & (op < ends))
        is_call = (calls["start_op"] <= op) & (op < calls["end_op"])
        if len(around):
            found[storage] = int(ends[around[0]])
        elif is_call.any():
            found[storage] = int(calls["end_op"][is_call].max())
    return found
