"""Estimate embeddings with sparse gradients.

The backward of an `nn.Embedding` makes a gradient of the table's size, though a batch reads only a few rows. With
`sparse=True` the gradient has only these rows, one for each index of the batch, and their indices. That changes a
recording at two places:

1. The gradient of the table has the bytes of its rows.
2. The temporaries of the optimizer's step that have the table's size are gone. `SparseAdam` makes some of the size of
   the sparse gradient instead. The state keeps its size.

It needs an optimizer that takes sparse gradients: SGD without momentum, Adagrad, both without weight decay, or
`SparseAdam`. If another op reads the table too, such as the head of a language model, the gradient is a sum of two.
Such a table is left out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.ways.other_optimizer import has_one_optimizer
from memwatch.analysis.ways.step_in_backward import OF_JOBS
from memwatch.analysis.ways.timeline import ChangedBytes, Spike, dimensions_of_storages
from memwatch.capture.schema import ACCESSES, NONE, OPTIMIZER
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.columns import IntArray

_PARAMETER, _GRADIENT, _STATE = map(ROLES.index, ("parameter", "gradient", "optimizer state"))
_OUTPUT: Final = ACCESSES.index("output")
_LOOKUPS: Final = ("aten.embedding.default", "aten._embedding_bag.default")
_BACKWARDS: Final = ("aten.embedding_dense_backward.default", "aten._embedding_bag_backward.default")
_CLASSES: Final = ("Embedding", "EmbeddingBag")
_INDEX_BYTES: Final = 8
_STATES_OF_ADAM: Final = 2
"""Tensors of the table's size that Adam keeps for it, and `SparseAdam` too."""
_STATE_OF_ADAM: Final = frozenset(
    f"{optimizer}.{key}" for optimizer in ("adam", "adamw") for key in ("exp_avg", "exp_avg_sq", "step")
)
_STEP_COPIES: Final = 6
"""Tensors of the sparse gradient's size that a step of `SparseAdam` has alive at once: measured with torch 2.13, see
`tests/ways/test_ways_sparse_gradients.py`."""
_STATES_OF_ADAGRAD: Final = 1
_STEP_COPIES_OF_ADAGRAD: Final = 3
"""Likewise for Adagrad and one table. With several tables, variables of its loop keep one more of the table before."""
_DENSE_STEP_OF_ADAGRAD: Final = (
    "aten.sqrt.default",
    "aten._foreach_sqrt.default",
    "aten._foreach_mul.ScalarList",
)
"""The ops of a step of Adagrad whose results have the table's size. With weight decay there are other ops, and in a
fused step there are none."""


class SparseGradients(NamedTuple):
    """Sparse gradients for some embeddings, and what they change.

    Attributes:
        modules: the numbers of the embeddings in the module tree.
        needs_sparse_adam: whether the recorded optimizer takes no sparse gradients, so that another one must update
            them.
        bytes: the change of the live bytes.
    """

    modules: tuple[int, ...]
    needs_sparse_adam: bool
    bytes: ChangedBytes


class _Table(NamedTuple):
    """The weight of an embedding.

    Attributes:
        module: the number of the embedding in the module tree.
        dimensions: the sizes of the table.
        gradients: the allocations of its gradients.
        sparse_bytes: the bytes that each of them has as a sparse gradient.
        states: how many tensors of the table's size the optimizer keeps for it.
    """

    module: int
    dimensions: list[int]
    gradients: IntArray
    sparse_bytes: IntArray
    states: int


def sparse_gradients(facts: Facts, timeline: Timeline) -> SparseGradients | None:
    """Return what sparse gradients would change; None without a table that can have them."""
    roles, allocations = facts.capture.tables["roles"], facts.allocations
    if np.isin(roles["role"], OF_JOBS).any() or facts.capture.rows("nodes") or not has_one_optimizer(facts):
        return None
    dimensions_of = dimensions_of_storages(facts)
    tables = list(_tables(facts, dimensions_of))
    temporaries = _temporaries(facts, timeline, dimensions_of)
    states = max((table.states for table in tables), default=0)
    if states == 0:
        # SGD makes temporaries of the table's size if it has weight decay, which takes no sparse gradients
        tables = [table for table in tables if tuple(table.dimensions) not in temporaries]
    elif states == _STATES_OF_ADAGRAD:
        tables = [
            table for table in tables if _are_of_adagrad(facts, temporaries.get(tuple(table.dimensions), []))
        ]
    if not tables or any(table.states != states for table in tables):
        return None
    gradients = np.concatenate([table.gradients for table in tables])
    sparse_bytes = np.concatenate([table.sparse_bytes for table in tables])
    spared = timeline.bytes_of(gradients) - timeline.bytes_within(
        sparse_bytes, allocations.birth_event[gradients], allocations.death_event[gradients]
    )
    for dimensions in {tuple(table.dimensions) for table in tables}:
        spared += timeline.bytes_of(np.array(temporaries.get(dimensions, []), dtype=np.int64))
    if states:
        copies = _STEP_COPIES
        if states == _STATES_OF_ADAGRAD:
            copies = _STEP_COPIES_OF_ADAGRAD + (len(tables) > 1)
        is_step = facts.capture.tables["ops"]["phase"] == OPTIMIZER
        ends = np.flatnonzero(np.diff(is_step.astype(np.int8), append=0) < 0) + 1
        spikes = tuple(
            Spike(event, copies * int(sparse_bytes.max())) for event in timeline.events_of(ends).tolist()
        )
    else:
        spikes = ()
    return SparseGradients(
        tuple(table.module for table in tables), states == _STATES_OF_ADAM, ChangedBytes(spared, spikes)
    )


def _are_of_adagrad(facts: Facts, rows: list[int]) -> bool:
    """Return True if temporaries of a table's size are those of a step of torch's Adagrad without weight decay."""
    names = facts.capture.tables["ops"]["name"][facts.allocations.op[rows]].tolist()
    return bool(rows) and all(facts.strings[name] in _DENSE_STEP_OF_ADAGRAD for name in names)


def _tables(facts: Facts, dimensions_of: Callable[[int], list[int]]) -> Iterator[_Table]:
    """Yield the weights whose gradients come from embeddings alone, and are read by an optimizer alone."""
    roles, uses, ops = (facts.capture.tables[name] for name in ("roles", "uses", "ops"))
    op, storage, is_output = uses["op"], uses["storage"], uses["access"] == _OUTPUT
    is_step = ops["phase"] == OPTIMIZER
    uses_by_op, uses_by_storage = Grouped(op), Grouped(storage)
    allocations, strings = facts.allocations, facts.strings
    known_states = {0, _STATES_OF_ADAM}
    is_fused = np.isin(ops["name"], [number for number, name in enumerate(strings) if "_fused_" in name])
    if facts.capture.meta.get("is_all_adagrad"):
        known_states.add(_STATES_OF_ADAGRAD)
    is_lookup, is_lookup_backward = (
        np.isin(ops["name"], [number for number, name in enumerate(strings) if name in chosen])
        for chosen in (_LOOKUPS, _BACKWARDS)
    )

    def uses_of(storages: IntArray) -> IntArray:
        found = [uses_by_storage.within(each, each + 1) for each in storages.tolist()]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def count_of_indices(lookup: int, width: int) -> int:
        """Return the number of indices of a lookup; 0 if unknown.

        For an `EmbeddingBag`, return the size of its largest argument beside the table, which is at least that number.
        """
        rows = uses_by_op.within(lookup, lookup + 1)
        if strings[ops["name"][lookup]] == _LOOKUPS[0]:
            rows, each_has = rows[is_output[rows]], width
        else:
            rows, each_has = rows[~is_output[rows]][1:], 1  # without the table, which comes first
        return max((math.prod(dimensions_of(each)) for each in storage[rows].tolist()), default=0) // each_has

    for module in [
        number for number, name in enumerate(facts.places.module_tree.classes) if name in _CLASSES
    ]:
        of_module = roles["module"] == module
        weights, gradients, states = (
            np.unique(roles["storage"][of_module & (roles["role"] == role)])
            for role in (_PARAMETER, _GRADIENT, _STATE)
        )
        rows = allocations.rows_of(gradients)
        rows = rows[allocations.counted[rows] & (allocations.op[rows] != NONE)]
        of_weight, of_gradients = op[uses_of(weights)], op[uses_of(gradients)]
        lookups = np.unique(of_weight[is_lookup[of_weight]])
        dimensions = dimensions_of(int(weights[0])) if len(weights) == 1 else []
        if (
            len(dimensions) != 2
            or not all(dimensions)
            or not len(rows)
            or not len(lookups)
            or not (is_lookup_backward | is_step)[of_gradients].all()
            or not is_step[of_gradients].any()
        ):
            continue
        number_of_states = sum(dimensions_of(int(each)) == dimensions for each in states)
        row_bytes = int(allocations.nbytes[rows[0]]) // dimensions[0] + _INDEX_BYTES
        counts = np.array([count_of_indices(each, dimensions[1]) for each in lookups.tolist()])
        # the last lookup before each gradient
        of_lookup = np.maximum(np.searchsorted(lookups, allocations.op[rows]) - 1, 0)
        table = _Table(module, dimensions, rows, counts[of_lookup] * row_bytes, number_of_states)
        if number_of_states == _STATES_OF_ADAM:
            names = {
                str(strings[name]).partition("[")[0]
                for name in roles["name"][of_module & (roles["role"] == _STATE)]
            }
            if not names <= _STATE_OF_ADAM:
                continue  # SparseAdam updates as Adam does, and not as another optimizer with two states does
        elif is_fused[of_gradients].any():
            continue  # a fused step takes no sparse gradients
        if (
            number_of_states in known_states
            and counts.all()
            and table.sparse_bytes.sum() < allocations.nbytes[rows].sum()
        ):
            yield table


def _temporaries(
    facts: Facts, timeline: Timeline, dimensions_of: Callable[[int], list[int]]
) -> dict[tuple[int, ...], list[int]]:
    """Return the allocations that an optimizer's step made and freed, by the sizes of their tensor.

    A step makes the optimizer's state too. It is left out, also if the recording shows its death. The last variables of
    a step die when it returns, which may be the last event of the recording.
    """
    allocations, phase = facts.allocations, facts.capture.tables["ops"]["phase"]
    made = allocations.op
    in_step = (made != NONE) & (phase[np.maximum(made, 0)] == OPTIMIZER)
    rows = np.flatnonzero(
        in_step & allocations.counted & (allocations.death_event != NONE) & (allocations.storage != NONE)
    )
    outside_steps = np.append(np.flatnonzero(phase != OPTIMIZER), len(phase))
    step_end = outside_steps[np.searchsorted(outside_steps, made[rows])]
    rows = rows[allocations.death_event[rows] <= timeline.events_of(step_end)]
    roles = facts.capture.tables["roles"]
    rows = rows[~np.isin(allocations.storage[rows], roles["storage"][roles["role"] == _STATE])]
    found: dict[tuple[int, ...], list[int]] = {}
    for row in rows.tolist():
        found.setdefault(tuple(dimensions_of(int(allocations.storage[row]))), []).append(row)
    return found
