"""Estimate an optimizer that keeps less state: SGD with momentum, or Adafactor, in place of Adam and the like.

That changes a recording at two places:

1. The state has other sizes. SGD keeps one tensor of a parameter's size. Adafactor keeps a row and a column of a
   matrix, and the whole of a vector.
2. The step has other temporaries. With `foreach=False` SGD needs none. Adafactor makes an update of the parameter's
   size. Meanwhile a variable still keeps the update of the parameter before (torch 2.13).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from memwatch.analysis.ways.step_in_backward import steps_in_backward
from memwatch.analysis.ways.timeline import ChangedBytes, dimensions_of_storages
from memwatch.capture.schema import BACKWARD, NONE, OPTIMIZER
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.columns import IntArray

OptimizerName = Literal["sgd", "adafactor"]
_ENDED_ITERATIONS = 2
"""Iterations after which all optimizers of a program have stepped. A guess."""
_CRITIC_STEPS = 5
"""Steps of one model before the first step of another: in the paper on WGAN, the critic has so many before its
generator."""
_GRADIENT, _STATE = ROLES.index("gradient"), ROLES.index("optimizer state")
_PARAMETER = ROLES.index("parameter")


class OtherOptimizer(NamedTuple):
    """An optimizer with less state, and what it changes."""

    name: OptimizerName
    bytes: ChangedBytes


class _State(NamedTuple):
    """The state of one parameter.

    Attributes:
        row: the allocation of its largest tensor, which has the size of the parameter.
        nbytes: the bytes of that tensor.
        dimensions: its sizes.
    """

    row: int
    nbytes: int
    dimensions: list[int]


def other_optimizers(facts: Facts, timeline: Timeline) -> list[OtherOptimizer]:
    """Return the optimizers that would keep less state; empty if there is no single optimizer with state.

    It is also empty in two more cases. If the optimizer steps in the backward, the program's hooks would still use the
    former optimizer. If the optimizer reads sparse gradients, Adafactor and SGD with momentum refuse them or keep dense
    state for them.
    """
    if steps_in_backward(facts) or _has_sparse_gradients(facts):
        return []
    allocations, phase = facts.allocations, facts.capture.tables["ops"]["phase"]
    roles = facts.capture.tables["roles"]
    rows = allocations.rows_of(np.unique(roles["storage"][roles["role"] == _STATE]))
    rows = rows[allocations.counted[rows]]
    states = _states(facts, rows)
    if not states or not has_one_optimizer(facts):
        return []
    op = allocations.op
    in_step = (op != NONE) & (phase[np.maximum(op, 0)] == OPTIMIZER) & allocations.counted
    temporaries = np.flatnonzero(
        in_step & (allocations.death_event != NONE) & ~np.isin(np.arange(len(op)), rows)
    )
    spared = timeline.bytes_of(np.union1d(rows, temporaries))
    is_step = phase == OPTIMIZER
    starts = np.flatnonzero(np.diff(is_step.astype(np.int8), prepend=0) > 0)
    ends = np.flatnonzero(np.diff(is_step.astype(np.int8), append=0) < 0) + 1
    kept_rows = np.array([state.row for state in states], dtype=np.int64)
    found: list[OtherOptimizer] = []
    choices: tuple[tuple[OptimizerName, list[int], int], ...] = (
        ("sgd", [state.nbytes for state in states], 0),
        ("adafactor", [_factored_bytes(state) for state in states], _two_updates_bytes(states)),
    )
    for name, sizes, step_bytes in choices:
        if sum(sizes) >= int(allocations.nbytes[rows].sum()):
            continue
        kept = timeline.bytes_within(
            np.array(sizes), allocations.birth_event[kept_rows], allocations.death_event[kept_rows]
        )
        in_steps = timeline.bytes_within(
            np.full(len(starts), step_bytes), timeline.events_of(starts), timeline.events_of(ends)
        )
        found.append(OtherOptimizer(name, ChangedBytes(spared - kept - in_steps)))
    return found


def _has_sparse_gradients(facts: Facts) -> bool:
    """Return True if the backward or the steps of an optimizer make sparse tensors.

    SGD with momentum makes none in its step: it keeps dense state.
    """
    ops = facts.capture.tables["ops"]
    names = np.unique(ops["name"][np.isin(ops["phase"], (BACKWARD, OPTIMIZER))]).tolist()
    return any(str(facts.strings[name]).startswith("aten._sparse_") for name in names)


def ends_within_two_iterations(facts: Facts) -> bool:
    """Return True if the recording was cut off before two iterations had ended, or if it has no sign of iterations.

    Then some optimizer of the program may not have stepped yet. One iteration is not enough: a step of one of two
    optimizers ends an iteration too.
    """
    return facts.cut_off is not None and (facts.cut_off.iterations or 0) < _ENDED_ITERATIONS


def _may_have_another_optimizer(facts: Facts, name_of: dict[int, tuple[int, int]], stepped: set[int]) -> bool:
    """Return True if another optimizer may step later than the end of a recording that was cut off.

    There may be a model that no recorded step updates, such as the generator of a GAN while only the discriminator has
    trained so far. Its gradients may not exist yet.

    Args:
        facts: what the capture shows.
        name_of: the parameter of each gradient.
        stepped: the gradients that a step has read.
    """
    if facts.cut_off is None:
        return False
    if (facts.cut_off.iterations or 0) <= _CRITIC_STEPS:
        model_of = _models_of_parameters(facts)
        waiting = set(model_of.values()) - {model_of.get(name_of[each][0], NONE) for each in stepped}
        if waiting and len(set(model_of.values())) > 1:
            return True
    if not stepped or not ends_within_two_iterations(facts):
        return False
    if facts.capture.tables["ops"]["phase"][-1] == OPTIMIZER:
        return False  # the recording ends in a step, which may not have reached all its parameters yet
    return not {name_of[each] for each in stepped}.issuperset(name_of.values())


def _models_of_parameters(facts: Facts) -> dict[int, int]:
    """Return the model of each module that has parameters: the outermost module that the program calls.

    A part that it does not call belongs to the outermost module with no called module around or in it.
    """
    roles, tree = facts.capture.tables["roles"], facts.places.module_tree
    called = set(facts.capture.tables["calls"]["module"].tolist())
    has_called_part = {above for module in called for above in tree.with_ancestors(tree.parents[module])}
    found = {}
    for module in np.unique(roles["module"][roles["role"] == _PARAMETER]).tolist():
        model = module
        for above in tree.with_ancestors(module):
            if above in called or above not in has_called_part:
                model = above
        found[module] = model
    found.pop(NONE, None)
    return found


def has_one_optimizer(facts: Facts) -> bool:
    """Return True if all steps read gradients of the same parameters, or there is no step.

    Optimizers that step one right after the other count as one: together they read all gradients in each step. A
    recording that was cut off soon may lack the step of another optimizer.
    """
    roles, uses, ops = (facts.capture.tables[name] for name in ("roles", "uses", "ops"))
    is_gradient = roles["role"] == _GRADIENT
    names = zip(roles["module"][is_gradient].tolist(), roles["name"][is_gradient].tolist(), strict=True)
    name_of = dict(zip(roles["storage"][is_gradient].tolist(), names, strict=True))
    in_step = ops["phase"] == OPTIMIZER
    step_of = np.cumsum(np.diff(in_step.astype(np.int8), prepend=0) > 0)
    rows = np.flatnonzero(in_step[uses["op"]] & np.isin(uses["storage"], list(name_of)))
    stepped: dict[int, set[tuple[int, int]]] = {}
    for step, storage in zip(step_of[uses["op"][rows]].tolist(), uses["storage"][rows].tolist(), strict=True):
        stepped.setdefault(step, set()).add(name_of[storage])
    if _may_have_another_optimizer(facts, name_of, set(uses["storage"][rows].tolist())):
        return False
    return all(one == other for one, other in pairwise(stepped.values()))


def _states(facts: Facts, rows: IntArray) -> list[_State]:
    """Return the state of each parameter that has some, in the order in which it was noted."""
    allocations, roles = facts.allocations, facts.capture.tables["roles"]
    of_state = np.flatnonzero(roles["role"] == _STATE)
    parameter_of = {
        storage: (module, str(facts.strings[name]).rpartition("[")[2])
        for storage, module, name in zip(
            roles["storage"][of_state].tolist(), roles["module"][of_state].tolist(), roles["name"][of_state].tolist(),
            strict=True,
        )
    }  # fmt: skip
    dimensions_of = dimensions_of_storages(facts)
    largest: dict[tuple[int, str], _State] = {}
    for row in rows.tolist():
        storage, nbytes = int(allocations.storage[row]), int(allocations.nbytes[row])
        parameter = parameter_of[storage]
        if parameter not in largest or nbytes > largest[parameter].nbytes:
            largest[parameter] = _State(row, nbytes, dimensions_of(storage))
    return [*largest.values()]


def _factored_bytes(state: _State) -> int:
    """Return the bytes of Adafactor's state for a parameter."""
    count = math.prod(state.dimensions)
    if len(state.dimensions) < 2 or not count:
        return state.nbytes
    *_, height, width = state.dimensions
    return state.nbytes * (count // height + count // width) // count


def _two_updates_bytes(states: list[_State]) -> int:
    """Return the most bytes of the updates of two parameters, one after the other."""
    sizes = [0, *(state.nbytes for state in states)]
    return max(one + other for one, other in pairwise(sizes))
