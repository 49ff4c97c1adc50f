"""Simulate `requires_grad_(False)` for modules whose gradients nobody reads, such as a reference model.

A forward without `no_grad` builds a graph, and the backward computes gradients, though no optimizer has the parameters.
Without these gradients a recording changes at three places:

1. The backward ops that lead to these gradients alone never run, and make no memory.
2. The gradients do not exist.
3. The tensors that such nodes saved die when the program drops them in the forward.

An op of the backward is needless if each of its results is such a gradient, or is read only by needless ops. Autograd
decides in the same way: it computes nothing that no leaf needs. An op that only makes a view is needless if only
needless ops read the memory of the view later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.facts.forward_ops import maker_of_node
from memwatch.analysis.ways.independence import MATRIX_PRODUCTS, base_of
from memwatch.analysis.ways.other_optimizer import ends_within_two_iterations
from memwatch.analysis.ways.step_in_backward import OF_JOBS
from memwatch.analysis.ways.timeline import LAST, ChangedBytes
from memwatch.capture.schema import ACCESSES, BACKWARD, IN_BACKWARD, NONE, OPTIMIZER
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.facts.places import Call
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.columns import IntArray

_GRADIENT, _STATE = map(ROLES.index, ("gradient", "optimizer state"))
_READ, _OUTPUT = ACCESSES.index("read"), ACCESSES.index("output")
_ZEROING: Final = ("aten.zero_", "aten._foreach_zero_")
_VIEWS: Final = ("aten._unsafe_view.", "aten._reshape_alias.", "aten.alias.", "aten.detach.")
"""Ops whose result is a view of what they read. Other ops without new memory give values to the program, as `item()`.
`reshape` calls the first after `clone`, as in the backward of attention."""

_PRODUCTS: Final = ("div", "mul", *MATRIX_PRODUCTS)
"""Ops of torch whose node saves each factor only if the gradient of the other one is needed (torch 2.13)."""


class UnreadGradients(NamedTuple):
    """Modules without gradients, and what that changes.

    Attributes:
        modules: the outermost of these modules, by their numbers in the module tree.
        bytes: the change of the live bytes.
        spared_ns: the duration of the ops that do not run.
    """

    modules: tuple[int, ...]
    bytes: ChangedBytes
    spared_ns: int


def unread_gradients(facts: Facts, saved: SavedTensors, timeline: Timeline) -> UnreadGradients | None:
    """Return the change if the modules whose gradients nobody reads have none; None without such a module.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        timeline: the ops and events of the capture.
    """
    capture = facts.capture
    ops, roles = capture.tables["ops"], capture.tables["roles"]
    if (
        np.isin(roles["role"], OF_JOBS).any()
        or any(map(capture.rows, ("nodes", "recomputes", "compiled_calls")))
        or not (ops["phase"] == OPTIMIZER).any()
        or ends_within_two_iterations(facts)
    ):
        return None
    backward = _Backward(facts, timeline)
    of_module = backward.gradients_of_modules()
    modules = _outermost(facts, of_module)
    if not modules:
        return None
    tree = facts.places.module_tree
    gradients = [
        each
        for module in of_module
        if not set(modules).isdisjoint(tree.with_ancestors(module))
        for each in of_module[module]
    ]
    is_needless = backward.needless_ops(gradients)
    if not backward.ends_with(gradients, is_needless):
        return None
    rows = facts.allocations.rows_of(np.array(sorted(gradients)))
    made = facts.allocations.op
    rows = np.union1d(rows, np.flatnonzero((made != NONE) & is_needless[np.maximum(made, 0)]))
    rows = np.union1d(rows, backward.made_for(is_needless))
    rows = rows[facts.allocations.counted[rows]]
    spared = timeline.bytes_of(rows) + _saved_bytes(backward, saved, is_needless, rows)
    spared_ns = int((ops["end_ns"] - ops["start_ns"])[is_needless].sum())
    return UnreadGradients(tuple(modules), ChangedBytes(spared), spared_ns)


class _Backward:
    """The ops of all backwards, and who reads what they make."""

    def __init__(self, facts: Facts, timeline: Timeline) -> None:
        self.facts, self.timeline = facts, timeline
        tables = facts.capture.tables
        ops, uses = tables["ops"], tables["uses"]
        self.op, self.storage, self.access = uses["op"], uses["storage"], uses["access"]
        self.is_backward = ops["phase"] == BACKWARD
        self._node = ops["sequence"]
        # no recorded op made its node
        self._is_of_custom_function = (
            self.is_backward & (self._node != NONE) & (maker_of_node(facts.capture) == NONE)
        )
        self._is_zeroing, self._makes_view = (
            np.isin(
                ops["name"],
                [number for number, text in enumerate(facts.strings) if str(text).startswith(names)],
            )
            for names in (_ZEROING, _VIEWS)
        )
        self.by_op, self.by_storage = Grouped(self.op), Grouped(self.storage)
        outside = np.append(np.flatnonzero(~np.isin(ops["phase"], IN_BACKWARD)), len(self._node))
        self._end_of_op = timeline.events_of(outside[np.searchsorted(outside, np.arange(len(self._node)))])

    def _uses_of(self, storage: int) -> IntArray:
        return self.by_storage.within(storage, storage + 1)

    def gradients_of_modules(self) -> dict[int, set[int]]:
        """Return the storages of the gradients of each module; a module whose gradients anybody reads has none."""
        roles = self.facts.capture.tables["roles"]
        rows = np.flatnonzero(roles["role"] == _GRADIENT)
        found: dict[int, set[int]] = {}
        # an optimizer with state for a module's parameters reads their gradients, maybe after the recording
        read = {NONE, *roles["module"][roles["role"] == _STATE].tolist()}
        for storage, module in zip(
            roles["storage"][rows].tolist(), roles["module"][rows].tolist(), strict=True
        ):
            uses = self._uses_of(storage)
            if not self.is_backward[self.op[uses]].any():
                continue  # of a backward before the recording
            found.setdefault(module, set()).add(storage)
            used = self.op[uses]
            # an op that adds to a gradient reads it too; a hook may read it in the backward
            alters = np.isin(used, used[self.access[uses] != _READ])
            if not ((self.is_backward[used] & alters) | self._is_zeroing[used]).all():
                read.add(module)
        return {module: set() if module in read else storages for module, storages in found.items()}

    def needless_ops(self, gradients: list[int]) -> NDArray[np.bool_]:
        """Return the ops of the backward that lead to nothing but some gradients.

        A node of torch computes only the gradients that are needed. A custom autograd function, whose node no op made,
        runs all its ops if one of them is needed.
        """
        runs = np.zeros(len(self._node), dtype=bool)
        while True:
            is_needless = self._needless_ops_but(runs, gradients)
            needed = np.unique(self._node[self._is_of_custom_function & ~is_needless])
            is_more = self._is_of_custom_function & is_needless & np.isin(self._node, needed)
            if not is_more.any():
                return is_needless
            runs |= is_more

    def _needless_ops_but(self, runs: NDArray[np.bool_], gradients: list[int]) -> NDArray[np.bool_]:
        """Return the ops of the backward that lead to nothing but some gradients, without those that run anyway."""
        is_needless = np.zeros(len(self._node) + 1, dtype=bool)
        unread = set(gradients)
        owned = set(self.facts.capture.tables["roles"]["storage"].tolist())
        deaths = self.facts.allocations.death_event
        for op in np.flatnonzero(self.is_backward & ~runs)[::-1].tolist():
            rows = self.by_op.within(op, op + 1)
            made = set(self.storage[rows[self.access[rows] != _READ]].tolist())
            if not made and self._makes_view[op]:
                viewed = set(self.storage[rows].tolist())
                is_needless[op] = owned.isdisjoint(viewed) and all(
                    self._is_read_by(each, op, is_needless) for each in viewed
                )
                continue
            is_needless[op] = bool(made) and all(
                each in unread
                or (
                    each not in owned
                    and NONE < deaths[each] <= self._end_of_op[op]
                    and self._is_read_by(each, op, is_needless)
                )
                for each in made
            )
        return is_needless[:-1]

    def _is_read_by(self, storage: int, op: int, is_needless: NDArray[np.bool_]) -> bool:
        """Return True if only needless ops use a storage after an op. Earlier uses do not count."""
        used = self.op[self._uses_of(storage)]
        return bool(is_needless[used[used > op]].all())

    def ends_with(self, gradients: list[int], is_needless: NDArray[np.bool_]) -> bool:
        """Return True if no node that computes one of some gradients computes anything else.

        Otherwise gradients flow through the module, as to its input.
        """
        made = np.flatnonzero(np.isin(self.storage, gradients) & (self.access != _READ))
        makers = [self.op[made]]
        # If a gradient exists already, autograd adds the result of a node to it. Find the ops that made this result.
        adding = np.unique(self.op[made[self.access[made] != _OUTPUT]])
        added = self.storage[np.isin(self.op, adding) & (self.access == _READ)]
        makers.append(self.op[np.isin(self.storage, added) & (self.access == _OUTPUT)])
        nodes = np.unique(self._node[np.concatenate(makers)])
        of_nodes = self.is_backward & np.isin(self._node, nodes[nodes != NONE])
        return bool(of_nodes.any() and is_needless[of_nodes].all())

    def made_for(self, is_needless: NDArray[np.bool_]) -> IntArray:
        """Return the allocations that ops which are not needless make, and that only needless ops read."""
        made = self.facts.allocations.op
        at = np.maximum(made, 0)
        rows = np.flatnonzero(
            (made != NONE) & self.is_backward[at] & ~(is_needless | self._is_of_custom_function)[at]
        )
        rows = rows[self.facts.allocations.storage[rows] != NONE]
        found = []
        for row in rows.tolist():
            used = self.op[self._uses_of(int(self.facts.allocations.storage[row]))]
            used = used[used > made[row]]
            if len(used) and is_needless[used].all():
                found.append(row)
        return np.array(found, dtype=np.int64)


def _outermost(facts: Facts, of_module: dict[int, set[int]]) -> list[int]:
    """Return the outermost modules that have gradients, in them or in modules inside, none of which is read."""
    tree = facts.places.module_tree
    with_read = {
        above for module, unread in of_module.items() if not unread for above in tree.with_ancestors(module)
    }
    return sorted(
        {
            [each for each in tree.with_ancestors(module) if each not in with_read][-1]
            for module, unread in of_module.items()
            if unread
        }
    )


def _saved_bytes(
    backward: _Backward, saved: SavedTensors, is_needless: NDArray[np.bool_], gone: IntArray
) -> IntArray:
    """Return, per event, the bytes that autograd keeps for needless ops alone.

    A node saves nothing if all its ops are needless. A product of two tensors has an op for the gradient of each
    factor. If one of them is needless, the node does not save the tensor that this op reads. That holds for the
    products of torch. A custom autograd function saves what its forward names.
    """
    facts, timeline = backward.facts, backward.timeline
    node, allocations = facts.capture.tables["ops"]["sequence"], facts.allocations
    packs_node = facts.capture.tables["packs"]["sequence"]
    needed = np.unique(node[backward.is_backward & ~is_needless])
    dropped = np.setdiff1d(node[is_needless & (node != NONE)], needed)
    is_dropped = np.isin(packs_node, dropped)
    count = len(backward.facts.capture.tables["births"]["op"]) + 1
    is_read = (backward.access == _READ) & _is_of_product(facts)[backward.op] & (node[backward.op] != NONE)
    needlessly = is_needless[backward.op]
    pairs = node[backward.op] * count + backward.storage
    for_needless = np.setdiff1d(pairs[is_read & needlessly], pairs[is_read & ~needlessly])
    is_dropped |= (saved.storage != NONE) & np.isin(packs_node * count + saved.storage, for_needless)
    lasting = facts.categories.category.isin(["parameter", "buffer"])
    rows = np.unique(saved.storage[is_dropped & (saved.storage != NONE)])
    made, death = allocations.op, allocations.death_event
    rows = rows[~lasting[rows] & allocations.counted[rows] & (made[rows] != NONE) & (death[rows] != NONE)]
    rows = np.setdiff1d(rows, gone)
    # leave out a tensor that dies outside a backward: a variable keeps it, also without a graph
    rows = rows[backward.is_backward[np.maximum(facts.ops_at(death[rows]), 0)]]
    packs_by_storage, scopes = Grouped(saved.storage), _Scopes(facts)
    free = []
    for row in rows.tolist():
        used = backward.op[backward.by_storage.within(row, row + 1)]
        last = int(used[~is_needless[used]].max(initial=int(made[row])))
        others = packs_by_storage.within(row, row + 1)
        released = saved.released_op[others[~is_dropped[others]]]
        end = max(scopes.end_of_variable(int(made[row]), last), int(released.max(initial=0)))
        free.append(LAST if (released == NONE).any() else end)
    start = timeline.events_of(np.array(free, dtype=np.int64))
    is_gap = death[rows] > start
    return timeline.bytes_within(allocations.nbytes[rows][is_gap], start[is_gap], death[rows][is_gap])


def _is_of_product(facts: Facts) -> NDArray[np.bool_]:
    """Return for each op whether it belongs to the backward of a product of two tensors, or of a quotient."""
    names, maker = facts.capture.tables["ops"]["name"], maker_of_node(facts.capture)
    chosen = [
        number for number in np.unique(names).tolist() if base_of(str(facts.strings[number])) in _PRODUCTS
    ]
    is_of_product: NDArray[np.bool_] = (maker != NONE) & np.isin(names[maker], chosen)
    return is_of_product


class _Scopes:
    """The ends of the variables of calls, from the call stacks of ops.

    A tensor that is used in the line that made it, and not later, is taken for a temporary of that line. Any other is
    taken for a variable of the innermost call that both ops have in common, and lives until that call returns. The
    tests of `tests/ways/test_ways_unread_gradients.py` measure peaks against this rule.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._calls = facts.capture.tables["calls"]
        self._stack = facts.capture.tables["ops"]["stack"]
        self._frames: dict[int, list[Call]] = {}

    def end_of_variable(self, made: int, last: int) -> int:
        """Return the op before which a tensor is dropped, if an op made it and another was the last to use it."""
        calls = self._calls
        was_given = (calls["start_op"] > made) & (calls["start_op"] <= last) & (calls["end_op"] > last)
        end = int(calls["end_op"][was_given].max(initial=last + 1))
        first, second = (self._frames_of(int(self._stack[op])) for op in (made, last))
        depth = 0
        for mine, other in zip(first, second, strict=False):
            if (mine.file, mine.function) != (other.file, other.function):
                break
            depth += 1
            if mine.line != other.line:
                break
        if not depth or first[depth - 1].line == second[depth - 1].line:
            return end
        outer, innermost = second[: depth - 1], second[depth - 1]
        # the next call of a module may have the same stack, and its variables are others
        is_around = (calls["start_op"] <= made) & (calls["end_op"] > last)
        returned = max(int(calls["end_op"][is_around].min(initial=len(self._stack))), end)
        for op in range(end, returned):
            frames = self._frames_of(int(self._stack[op]))
            if frames[: depth - 1] != outer or len(frames) < depth:
                return op
            if (frames[depth - 1].file, frames[depth - 1].function) != (innermost.file, innermost.function):
                return op
        return returned

    def _frames_of(self, stack: int) -> list[Call]:
        """Return the frames of a stack, outermost first."""
        if stack not in self._frames:
            self._frames[stack] = [] if stack == NONE else self._facts.call_stacks.frames(stack)[::-1]
        return self._frames[stack]
