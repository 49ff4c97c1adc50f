"""Estimate micro-batches: the forward and the backward run for one part of the batch at a time; gradients add up.

With n parts, a recording changes at three places:

1. Tensors with a row for each sample of the batch have one n-th of their bytes. The batch itself stays whole.
2. The gradients that the first part has made stay alive during all later parts.
3. The backward of each later part makes a new tensor for each gradient, and adds it to the gradient that is alive.

`micro_batches` takes the first dimension of the model's inputs for the batch. The inputs of the first call must agree
in it; inputs of later calls may be a multiple of it. Then it follows the ops: the result of an op has a row for each
sample if an argument has, and if one of its first two dimensions is a multiple of the batch. The gradient of a
parameter has no such rows. If an op of the forward combines each sample with the others, as a contrastive loss does,
`micro_batches` returns nothing, because parts of the batch would give other results.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.facts.forward_ops import maker_of_node
from memwatch.analysis.ways.other_optimizer import has_one_optimizer
from memwatch.analysis.ways.step_in_backward import OF_JOBS, gradients_of_parameters
from memwatch.analysis.ways.timeline import ChangedBytes, dimensions_of_storages
from memwatch.capture.schema import ACCESSES, FORWARD, IN_BACKWARD, NONE, OPTIMIZER
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.columns import IntArray

_GRADIENT, _INPUT = ROLES.index("gradient"), ROLES.index("input")
_WRITE, _OUTPUT = ACCESSES.index("write"), ACCESSES.index("output")
_LEADING: Final = 2
"""The batch is one of so many leading dimensions: in recurrent networks, time is the first dimension."""
_LARGEST_NUMBER_BYTES: Final = 8
"""Bytes of a float64. `_follow` assumes this type: memory of smaller numbers then counts as a multiple of the batch
wherever it has a value for each sample."""
_MOST_PARTS: Final = 8
"""A guess."""
_LITTLE_RATIO: Final = 0.01
"""A share of the peak increase. Workspace below it is ignored: a simulated peak may be wrong by 2 % anyway."""
_CANDIDATES: Final = 2
"""Numbers of parts that are offered: a way for each would fill the list. A guess."""


_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm", "_euclidean_dist", "_cdist_forward")
"""Ops that combine each row of one matrix with each row or column of another (torch 2.13). `torch.einsum` calls `bmm`
for two matrices too."""
_PAIRED: Final = (
    "sub",
    "add",
    "mul",
    "div",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "maximum",
    "minimum",
    "logical_and",
)
"""Ops that combine values at the same place, after they broadcast their arguments."""


class Pass(NamedTuple):
    """The first and the last event of a forward and its backward, which micro-batches run once for each part."""

    start: int
    end: int


class MicroBatches(NamedTuple):
    """A batch that is divided into parts.

    Attributes:
        parts: the number of parts.
        bytes: the effect on the live bytes.
        is_exact: whether kernels have little workspace. memwatch assumes that workspace scales with the batch, which is
            not always so.
    """

    parts: int
    bytes: ChangedBytes
    is_exact: bool


def micro_batches(facts: Facts, timeline: Timeline, window: range) -> list[MicroBatches]:
    """Return the changes for some numbers of parts. The list is empty if the batch is unknown or two optimizers step.

    Args:
        facts: what the capture shows.
        timeline: its ops and events.
        window: the ops that are simulated.
    """
    roles = facts.capture.tables["roles"]
    if np.isin(roles["role"], OF_JOBS).any() or facts.capture.rows("nodes"):
        return []
    of_input = roles["role"] == _INPUT
    if not of_input.any() or not has_one_optimizer(facts):
        return []
    dimensions_of = dimensions_of_storages(facts)
    sizes = {
        storage: dimensions_of(storage)[:1] for storage in np.unique(roles["storage"][of_input]).tolist()
    }
    first_op = int(roles["op"][of_input].min())
    batches = {
        size
        for each in roles["storage"][of_input & (roles["op"] == first_op)].tolist()
        for size in sizes[each]
    }
    passes = _passes(facts, timeline, range(max(window.start, first_op), window.stop))
    if len(batches) != 1 or not passes:
        return []
    batch = batches.pop()
    followed = _follow(facts, window, batch, {each for each, size in sizes.items() if size == [batch]})
    if followed is None:
        return []
    rows, derived = followed
    # the outermost module may be called with other batches later, and the module of the loss is called with results
    if any(number % batch for each, size in sizes.items() if each not in derived for number in size):
        return []
    workspace = rows[facts.allocations.storage[rows] == NONE]
    largest_bytes = int(facts.allocations.nbytes[workspace].max(initial=0))
    is_exact = largest_bytes <= _LITTLE_RATIO * facts.curve.peak_increase_bytes
    candidates = [parts for parts in range(2, _MOST_PARTS + 1) if batch % parts == 0]
    kept = _kept_gradients(facts, timeline, passes)
    return [
        MicroBatches(parts, ChangedBytes(timeline.bytes_of(rows) * (parts - 1) // parts - kept), is_exact)
        for parts in candidates[:_CANDIDATES]
    ]


def _passes(facts: Facts, timeline: Timeline, window: range) -> list[Pass]:
    """Return the passes in a window.

    A pass begins with the first forward op after a step or after the start of an iteration. It ends with the last
    backward op before the next step or the end of the iteration.
    """
    ops = facts.capture.tables["ops"]
    phase = ops["phase"][window.start : window.stop]
    ends = np.searchsorted(ops["start_ns"], np.sort(facts.kept_across.ends_ns)) - window.start
    steps = np.flatnonzero(phase == OPTIMIZER)
    bounds = np.unique(np.clip(np.concatenate([[0], ends, steps, [len(phase)]]), 0, len(phase)))
    found = []
    for start, end in zip(bounds.tolist(), bounds.tolist()[1:], strict=False):
        backward = start + np.flatnonzero(np.isin(phase[start:end], IN_BACKWARD))
        forward = start + np.flatnonzero(phase[start:end] == FORWARD)
        if len(backward) and len(forward):
            first, last = window.start + int(forward[0]), window.start + int(backward[-1])
            found.append(Pass(timeline.event_of(first), timeline.event_of(last + 1)))
    return found


def _kept_gradients(facts: Facts, timeline: Timeline, passes: list[Pass]) -> IntArray:
    """Return, per event, the bytes of gradients that are alive with micro-batches and were not in the recording."""
    allocations = facts.allocations
    storages, parameters = gradients_of_parameters(facts)
    parameter_of = dict(zip(storages.tolist(), parameters.tolist(), strict=True))
    rows = allocations.rows_of(storages)
    rows = rows[allocations.counted[rows]]
    nbytes = allocations.nbytes[rows].astype(np.int64)
    birth = allocations.birth_event[rows]
    last = len(facts.curve.live_bytes)
    death = np.where(allocations.death_event[rows] == NONE, last, allocations.death_event[rows])
    made_by = allocations.op[rows]
    in_backward = (made_by != NONE) & np.isin(facts.capture.tables["ops"]["phase"][made_by], IN_BACKWARD)
    ready = timeline.events_after_nodes(np.maximum(made_by, 0))
    kept = np.zeros(last, dtype=np.int64)
    for start, end in passes:
        alive = (birth < end) & (death > start)
        largest: dict[int, int] = {}  # the gradient of each parameter
        for storage, size in zip(
            allocations.storage[rows[alive]].tolist(), nbytes[alive].tolist(), strict=True
        ):
            parameter = parameter_of[storage]
            largest[parameter] = max(largest.get(parameter, 0), size)
        kept[start:end] += sum(largest.values())
        kept -= timeline.bytes_within(
            nbytes[alive], np.maximum(birth[alive], start), np.minimum(death[alive], end)
        )
        new = alive & in_backward & (birth >= start)
        kept += timeline.bytes_within(nbytes[new], birth[new], np.minimum(ready[new], end))
    return kept


def _mixes_samples(name: str, given: list[list[int]], results: list[list[int]]) -> bool:
    """Return True if an op whose arguments all come from the batch combines each sample with the others.

    The logits of a contrastive loss are such a product: `z @ z.T` has a row and a column for each sample. So is the
    covariance `z.T @ z`.

    Args:
        name: the op, as `aten.mm.default`.
        given: the sizes of its arguments.
        results: the sizes of its results.
    """
    base = name.split(".")[1] if name.count(".") > 1 else name
    if base in _PRODUCTS:  # the batch of a batched product stays apart, unless it is one
        return any(sum(size > 1 for size in its) <= 2 for its in results)  # a matrix
    if base in _PAIRED and given:
        largest = max(map(math.prod, given))
        leading = {its[0] for its in given if its}
        return any(
            its.count(size) > 1 and math.prod(its) >= size * largest
            for size in leading - {1}
            for its in results
        )
    return False


def _follow(facts: Facts, window: range, batch: int, inputs: set[int]) -> tuple[IntArray, set[int]] | None:
    """Return the allocations that ops made from the batch and that scale with it, and all storages made from it.

    Return None if an op of the forward mixes the samples: the parts of a batch would give other results.

    Args:
        facts: what the capture shows.
        window: the ops to follow.
        batch: the number of samples.
        inputs: the storages of the batch.
    """
    found: list[int] = []
    uses, ops, allocations = facts.capture.tables["uses"], facts.capture.tables["ops"], facts.allocations
    uses_by_op, made_by = Grouped(uses["op"]), Grouped(allocations.op)
    lasting = facts.categories.category.isin(["parameter", "buffer", "optimizer state"])
    roles = facts.capture.tables["roles"]
    of_gradient = set(roles["storage"][roles["role"] == _GRADIENT].tolist())
    maker = maker_of_node(facts.capture)
    storage, access, phase = uses["storage"], uses["access"], ops["phase"]
    dimensions = dimensions_of_storages(facts)
    derived = set(inputs)
    data: set[int] = set()  # made in the window from no parameter, such as targets: they have no gradient
    for op in window:
        if phase[op] == OPTIMIZER:
            continue
        rows = uses_by_op.within(op, op + 1)
        given = storage[rows[access[rows] != _OUTPUT]].tolist()
        results = storage[rows[access[rows] == _OUTPUT]].tolist()
        if derived.isdisjoint(given):
            if phase[op] == FORWARD and data.issuperset(given):
                data.update(number for number in results if not lasting[number])
            continue
        is_of_batch = phase[op] == FORWARD and derived.issuperset(given)
        if is_of_batch and _mixes_samples(
            str(facts.strings[ops["name"][op]]), list(map(dimensions, given)), list(map(dimensions, results))
        ):
            return None
        # results that an op computes from the batch, and memory that it writes with them, belong to the batch
        derived.update(results)
        derived.update(
            number for number in storage[rows[access[rows] == _WRITE]].tolist() if not lasting[number]
        )
        others: list[list[int]] = []
        if maker[op] != NONE:  # an op of backward: the sizes of the parameters that its forward op read
            read = uses_by_op.within(int(maker[op]), int(maker[op]) + 1)
            read = storage[read[access[read] != _OUTPUT]]
            others = [
                sorted(dimensions(each)) for each in read.tolist() if each not in derived and each not in data
            ]
        for row in made_by.within(op, op + 1).tolist():
            number = int(allocations.storage[row])
            if not allocations.counted[row] or lasting[row] or number in of_gradient:
                continue
            if number == NONE:
                found.append(row)  # workspace of a kernel
                continue
            its = dimensions(number)
            if sorted(its) in others:
                continue  # a gradient has the shape of its tensor, or that of its transpose
            if _has_row_per_sample(its, int(allocations.nbytes[row]), batch):
                found.append(row)
    return np.array(found, dtype=np.int64), derived


def _has_row_per_sample(dimensions: list[int], nbytes: int, batch: int) -> bool:
    """Return True if a leading dimension of an allocation is a multiple of the batch."""
    # a loss may be a number in the memory that its kernel took for a value of each sample (mse_loss)
    values = [] if dimensions else [nbytes // _LARGEST_NUMBER_BYTES]
    return any(size and size % batch == 0 for size in dimensions[:_LEADING] or values)
