"""Estimate the peak with micro-batches: forward and backward run for one part of the batch at a time.

With n parts, the live bytes differ from the recording in four respects:

1. A tensor with a row for each sample has one n-th of its bytes. The batch itself stays whole.
2. The gradients from the first part stay alive during all later parts.
3. The backward of each later part makes a new tensor for each gradient, and adds it to the gradient that is alive.
4. The code of this change calls a function for the forward. A result that only a variable of the step keeps, such as
   the logits, dies when this function returns, unless autograd saved it.

All bytes of a result stay if the program keeps it beyond the next pass, or reads it together with results of other
passes. The parts together then keep as many bytes as the whole batch. Results outside a pass stay as large too. An
evaluation, for example, joins the outputs of all steps, or calls the model with a batch of its own. The metric of a
single step scales with the batch: the function may compute it for each part.

The batch size is the first dimension of the model's inputs. It must be the same for all inputs of the first call. For
inputs of later calls it may be a multiple.

`micro_batches` follows the batch through the ops. The result of an op has a row for each sample if an argument has one,
and if one of the first two dimensions of the result is a multiple of the batch size. It also has one if it has the
values of such an argument in another order. The gradient of a parameter has none.

`micro_batches` returns a refusal if the parts of a batch train differently from the whole batch (`independence.py`). It
also does so if the code of this change does not fit the step. That is so if a later call of the model gets only
results, and among them results of its earlier calls, as in a rollout. It is also so if several backwards run through
one forward, or if a library calls the backward.
"""

from __future__ import annotations

import bisect
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped, different_rows
from memwatch.analysis.facts.forward_ops import maker_of_node
from memwatch.analysis.ways.checkpointing import changed_attributes
from memwatch.analysis.ways.independence import (
    LEADING,
    MATRIX_PRODUCTS,
    REDUCED_BY_MEAN,
    BatchMeans,
    CarriedResults,
    Obstacle,
    Refusal,
    base_of,
    is_cross_entropy,
    mixes_samples,
    runs_nodes_again,
    state_of_forward,
    weighs_classes,
)
from memwatch.analysis.ways.other_optimizer import has_one_optimizer
from memwatch.analysis.ways.reads_in_python import ReadInPython, read_before_backward
from memwatch.analysis.ways.step_in_backward import OF_JOBS, gradients_of_parameters
from memwatch.analysis.ways.timeline import ChangedBytes, dimensions_of_storages
from memwatch.capture.schema import ACCESSES, BACKWARD, FORWARD, IN_BACKWARD, NONE, OPTIMIZER, RECOMPUTE
from memwatch.kinds.roles import ROLES
from memwatch.own_code import CodeOwner
from memwatch.words import ways as words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.columns import IntArray

_GRADIENT, _INPUT = ROLES.index("gradient"), ROLES.index("input")
_WRITE, _OUTPUT = ACCESSES.index("write"), ACCESSES.index("output")
_SMALLEST_NUMBER_BYTES: Final = 2
"""Bytes of a bfloat16 number, the smallest number that a loss may be. The bytes of a larger type are a multiple of
these 2 bytes, so memory for one number per sample is found for each type. One number of 4 to 16 bytes may be mistaken
for a batch of 2, 4 or 8 samples. That is an error of at most 16 bytes."""
_CALLS_OF_BACKWARD: Final = ("backward", "grad")
"""Functions of torch that run a backward."""
_MOST_PARTS: Final = 8
"""The largest number of parts that is tried. A guess."""
_LITTLE_RATIO: Final = 0.01
"""Workspace of an op below this share of the peak increase is ignored. `tests/ways` allow an error of 2 %, and this
stays below it. A guess."""
_OUTSIDE: Final = -1
"""In place of the number of a pass: memory that an op outside the passes made."""
_CANDIDATES: Final = 2
"""Numbers of parts that memwatch offers, such as 2 and 4, so that they do not fill the list of ways. A guess."""


class Pass(NamedTuple):
    """A forward and its backward, which micro-batches run once for each part.

    Attributes:
        start: the first event.
        end: the last event.
        start_op: the first op.
        end_op: the op after the last one.
    """

    start: int
    end: int
    start_op: int
    end_op: int


class MicroBatches(NamedTuple):
    """A batch that is divided into parts.

    Attributes:
        parts: the number of parts.
        bytes: the effect on the live bytes.
        is_exact: True if kernels have little workspace, the program does not divide the batch itself, and no mask picks
            much of it. Otherwise the peak is an estimate. It assumes that workspace scales with the batch, that the
            program divides each part as it divides the batch, and that picked values do not become fewer.
        counts_targets: True if the loss is a cross entropy, which may ignore some targets. Then the code weights each
            part by the number of its targets that are not ignored.
    """

    parts: int
    bytes: ChangedBytes
    is_exact: bool
    counts_targets: bool


class Split(NamedTuple):
    """The division of a batch into parts.

    Attributes:
        choices: the effect of some numbers of parts; empty if the step has no batch.
        refusal: why the batch should not be divided; None if it may be.
        prepared_by: an op that reduces data of the whole batch before the program calls its model, and whose result
            reaches the loss; -1 for none.
        read_by: an op that gives a number of the whole batch to the program (`item()`); -1 for none.
        read_in_python: a line before a backward that gives the values of some tensor to Python; None for none.
        has_other_terms: True if the loss has terms beside a cross entropy, which counts its targets.
    """

    choices: list[MicroBatches]
    refusal: Refusal | None = None
    prepared_by: int = NONE
    read_by: int = NONE
    has_other_terms: bool = False
    read_in_python: ReadInPython | None = None


def micro_batches(
    facts: Facts,
    saved: SavedTensors,
    timeline: Timeline,
    window: range,
    repetitions: Iterable[range] = (),
) -> Split:
    """Return the change of the live bytes for some numbers of parts, also for a batch that should not be divided.

    Args:
        facts: the facts of the capture.
        saved: the tensors that autograd saved.
        timeline: relates ops to events of the live curve.
        window: the ops that are simulated.
        repetitions: the ops of iterations that repeat those of the window.
    """
    roles = facts.capture.tables["roles"]
    of_input = roles["role"] == _INPUT
    if not of_input.any():
        return Split([])
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
    is_of_part = _ops_of_parts(facts, range(max(window.start, first_op), window.stop))
    for each in repetitions:
        is_of_part[each.start : each.stop] = False
    passes = _passes(facts, timeline, range(max(window.start, first_op), window.stop), is_of_part)
    if not passes or batches in (set(), {0}):
        return Split([])
    if len(batches) != 1:
        return Split([], Refusal(Obstacle.INPUTS))
    batch = batches.pop()
    inputs = {each for each, size in sizes.items() if size == [batch]}
    followed = _follow(facts, window, batch, inputs, passes, is_of_part=is_of_part)
    refusal = followed.refusal
    # Later calls may have inputs that no op made from the batch. Their sizes must be multiples of it. The other inputs
    # of later calls are results, such as the logits that the module of the loss gets. An evaluation stays whole.
    of_parts = _inputs_of_parts(facts, is_of_part)
    if any(number % batch for each in of_parts - followed.derived for number in sizes[each]):
        refusal = Refusal(Obstacle.LATER_INPUTS)
    if runs_nodes_again(facts, passes[0].start_op, passes[-1].end_op):
        refusal = Refusal(Obstacle.RETAINED)  # the code of this change replaces one call of backward()
    if not has_one_optimizer(facts):
        refusal = Refusal(Obstacle.OPTIMIZERS if facts.cut_off is None else Obstacle.CUT_OFF)
    if facts.capture.rows("nodes"):
        refusal = Refusal(Obstacle.CREATED)
    if np.isin(roles["role"], OF_JOBS).any():
        refusal = Refusal(Obstacle.PROCESSES)
    # This refusal suggests to accumulate smaller batches in the library. After another refusal, this would be wrong.
    if refusal is None:
        refusal = _backward_in_library(facts, passes)
    is_kept = _are_kept_by_each_part(facts, followed.rows, passes)
    is_kept |= np.isin(facts.allocations.storage[followed.rows], sorted(followed.read_outside))
    rows = followed.rows[~is_kept]
    is_exact = not (
        _has_large_workspace(facts, rows)
        or _divides_the_batch_itself(facts, passes)
        or _has_large_picks(facts, followed.picked)
    )
    candidates = [parts for parts in range(2, _MOST_PARTS + 1) if batch % parts == 0]
    kept = _kept_gradients(facts, timeline, passes)
    whole, of_dead = timeline.bytes_of(rows), _bytes_dead_after_forward(facts, saved, timeline, rows, passes)
    choices = [
        MicroBatches(
            parts,
            # The first term leaves one part of each tensor. The second removes this part too, once a result is dead.
            ChangedBytes(whole * (parts - 1) // parts + of_dead // parts - kept),
            is_exact,
            followed.counts_targets,
        )
        for parts in candidates[:_CANDIDATES]
    ]
    return Split(
        choices,
        refusal,
        followed.prepared_by,
        followed.read_by,
        followed.has_other_terms,
        read_before_backward(facts, [range(each.start_op, each.end_op) for each in passes]),
    )


def left_out(facts: Facts) -> str:
    """Return a sentence about the state of the model that forbids micro-batches; "" if there is none."""
    if not facts.capture.rows("unpacks") or not (facts.capture.tables["roles"]["role"] == _INPUT).any():
        return ""
    state = state_of_forward(facts, changed_attributes(facts))
    return words.state_between_parts(state.read) if state.read else ""


def _backward_in_library(facts: Facts, passes: list[Pass]) -> Refusal | None:
    """Return a refusal if a library, such as a trainer, calls backward. The printed code cannot replace that call."""
    ops = facts.capture.tables["ops"]
    is_backward = np.isin(ops["phase"], IN_BACKWARD)
    for each in passes:
        first = each.start_op + int(np.argmax(is_backward[each.start_op : each.end_op]))
        stack = int(ops["stack"][first])
        if stack == NONE:
            continue
        frames, owners = facts.call_stacks.frames(stack), facts.call_stacks.owners(stack)
        # from the outermost frame, because torch's backward may call a custom Function of a library
        caller = None
        for frame, owner in zip(reversed(frames), reversed(owners), strict=True):
            if owner is CodeOwner.TORCH and frame.function in _CALLS_OF_BACKWARD:
                break
            caller = owner if owner.calls_torch else caller
        else:
            continue
        if caller is CodeOwner.INSTALLED:
            return Refusal(Obstacle.LIBRARY, first)
    return None


def _has_large_workspace(facts: Facts, rows: IntArray) -> bool:
    """Return True if the workspace of any one op is more than `_LITTLE_RATIO` of the peak increase."""
    allocations = facts.allocations
    workspace = rows[allocations.storage[rows] == NONE]
    _, op = np.unique(allocations.op[workspace], return_inverse=True)
    nbytes = np.bincount(op, weights=allocations.nbytes[workspace])
    return float(nbytes.max(initial=0)) > _LITTLE_RATIO * facts.curve.peak_increase_bytes


def _has_large_picks(facts: Facts, picked: Collection[int]) -> bool:
    """Return True if values that a mask picked from the batch take more than `_LITTLE_RATIO` of the peak increase."""
    rows = facts.allocations.rows_of(np.array(sorted(picked), dtype=np.int64))
    nbytes = int(facts.allocations.nbytes[rows].sum())
    return nbytes > _LITTLE_RATIO * facts.curve.peak_increase_bytes


def _divides_the_batch_itself(facts: Facts, passes: list[Pass]) -> bool:
    """Return True if the program calls its model for one chunk of a tensor at a time.

    A part of the batch may then not be a whole number of chunks. The recording notes each storage as an input only
    once. So the call for the first chunk has an input, and the calls for later chunks of the same storage have none.
    """
    calls, roles = facts.capture.tables["calls"], facts.capture.tables["roles"]
    in_backward = np.isin(facts.capture.tables["ops"]["phase"], IN_BACKWARD)
    with_input = set(roles["op"][roles["role"] == _INPUT].tolist())
    is_outermost = calls["depth"] == 0
    called = list(
        zip(calls["start_op"][is_outermost].tolist(), calls["module"][is_outermost].tolist(), strict=True)
    )
    for each in passes:
        known: dict[int, int] = {}  # by module, the first op of its last call with an input
        for op, module in sorted(called):
            if not each.start_op <= op < each.end_op:
                continue
            if op in with_input:
                known[module] = op
            elif module in known and not in_backward[known[module] : op].any():
                return True
    return False


def _bytes_dead_after_forward(
    facts: Facts, saved: SavedTensors, timeline: Timeline, rows: IntArray, passes: list[Pass]
) -> IntArray:
    """Return for each event the bytes of forward results that only variables of the step still keep.

    Such a result becomes a local variable of the function in the printed code, so it dies when the function returns.
    Two kinds of results are not counted, because the function must return them: results that an op outside the
    backward reads after the backward has begun, and results that live longer than the next pass.
    """
    allocations, ops, uses = facts.allocations, facts.capture.tables["ops"], facts.capture.tables["uses"]
    count = len(ops["op"])
    is_backward = np.isin(ops["phase"], IN_BACKWARD)
    backwards = np.append(np.flatnonzero(is_backward), count)
    uses_by_storage, saved_by_storage = Grouped(uses["storage"]), Grouped(saved.storage)
    rows = rows[(allocations.storage[rows] != NONE) & (ops["phase"][allocations.op[rows]] == FORWARD)]
    starts = np.array([each.start_op for each in passes], dtype=np.int64)
    found: list[tuple[int, int, int]] = []
    for row in rows.tolist():
        number, made_by = int(allocations.storage[row]), int(allocations.op[row])
        place = int(np.searchsorted(starts, made_by, side="right")) - 1
        death = int(allocations.death_event[row])
        if place < 0 or made_by >= passes[place].end_op:
            continue
        if place + 1 < len(passes) and (death == NONE or death > passes[place + 1].end):
            continue
        begin = int(backwards[np.searchsorted(backwards, made_by)])
        used_by = uses["op"][uses_by_storage.within(number, number + 1)]
        used_by = used_by[used_by >= begin]
        if not is_backward[used_by].all():
            continue
        released = saved.released_op[saved_by_storage.within(number, number + 1)]
        end = max(begin, int(used_by.max(initial=NONE)) + 1, int(released.max(initial=NONE)))
        if (released != NONE).all() and end < count:
            found.append((int(allocations.nbytes[row]), timeline.event_of(end), death))
    found = [each for each in found if each[2] == NONE or each[1] < each[2]]
    return timeline.bytes_within(*np.array(found, dtype=np.int64).reshape(-1, 3).T)


def _are_kept_by_each_part(facts: Facts, rows: IntArray, passes: list[Pass]) -> NDArray[np.bool_]:
    """Return for each allocation whether it outlives the pass after its own, as an output in a list does.

    With micro-batches, the program keeps one such output for each part, so all bytes stay. The recording ends too early
    to show this for the last passes. There, an allocation is kept if the same op at the same line made allocations of
    the same size in earlier passes, and all of these were kept.
    """
    allocations, last, ops = facts.allocations, len(facts.curve.live_bytes), facts.capture.tables["ops"]
    place = np.searchsorted([each.end_op for each in passes], allocations.op[rows], side="right")
    ends = np.array([each.end for each in passes[1:]] + [last, last])
    is_known = place + 1 < len(passes)
    death = np.where(allocations.death_event[rows] == NONE, last, allocations.death_event[rows])
    is_kept: NDArray[np.bool_] = is_known & (death > ends[place])
    columns = (facts.made_by.stack[rows], ops["name"][allocations.op[rows]], allocations.nbytes[rows])
    _, group = different_rows([np.asarray(column, dtype=np.int64) for column in columns])
    for number in np.unique(group[is_kept]).tolist():
        alike = group == number
        if is_kept[alike & is_known].all():
            is_kept |= alike
    return is_kept


def _stretches(facts: Facts, window: range) -> list[range]:
    """Divide a window of ops at each optimizer step and at each end of an iteration."""
    ops = facts.capture.tables["ops"]
    ends = np.searchsorted(ops["start_ns"], np.sort(facts.kept_across.ends_ns))
    steps = window.start + np.flatnonzero(ops["phase"][window.start : window.stop] == OPTIMIZER)
    bounds = np.clip(np.concatenate([[window.start], ends, steps, [window.stop]]), window.start, window.stop)
    return [range(*pair) for pair in pairwise(np.unique(bounds).tolist())]


def _ops_of_parts(facts: Facts, window: range) -> NDArray[np.bool_]:
    """Return for each op of the recording whether the parts of a batch would run it.

    They are the ops of a stretch (`_stretches`) that are connected to its backward:

    - A backward runs through the op.
    - The op's results reach such an op, as those of a teacher do.
    - The op reads results of such an op, as a metric does, or its inputs, such as the number of valid targets.

    An evaluation is not connected. It shares parameters and buffers with the training, and may share the batch. So the
    ops of an outermost call of a module count as readers of an input only if another rule connects one of them. In a
    stretch without a backward, no op is connected.
    """
    uses, phase = facts.capture.tables["uses"], facts.capture.tables["ops"]["phase"]
    uses_by_op, storage, is_output = Grouped(uses["op"]), uses["storage"], uses["access"] == _OUTPUT
    is_changed = is_output | (uses["access"] == _WRITE)
    lasting = facts.categories.category.isin(["parameter", "buffer", "optimizer state"])
    in_backward = np.isin(phase, IN_BACKWARD)
    maker = maker_of_node(facts.capture)
    found = np.ones(len(phase), dtype=bool)
    for stretch in _stretches(facts, window):
        if not in_backward[stretch.start : stretch.stop].any():
            found[stretch.start : stretch.stop] = False
            continue
        is_connected = in_backward.copy()
        is_connected[maker[maker != NONE]] = True
        is_read_alone = _are_of_separate_calls(facts, stretch, is_connected, is_changed, lasting)
        trained: set[int] = set()
        for op in stretch:
            if is_connected[op] and not in_backward[op]:
                rows = uses_by_op.within(op, op + 1)
                trained.update(each for each in storage[rows[~is_output[rows]]].tolist() if not lasting[each])
        for op in stretch:
            if is_read_alone[op]:
                continue
            rows = uses_by_op.within(op, op + 1)
            is_connected[op] |= not trained.isdisjoint(storage[rows[~is_output[rows]]].tolist())
            if is_connected[op]:
                trained.update(each for each in storage[rows[is_changed[rows]]].tolist() if not lasting[each])
        needed: set[int] = set()
        for op in reversed(stretch):
            rows = uses_by_op.within(op, op + 1)
            is_connected[op] |= not needed.isdisjoint(storage[rows[is_changed[rows]]].tolist())
            if is_connected[op]:
                needed.update(each for each in storage[rows[~is_output[rows]]].tolist() if not lasting[each])
        found[stretch.start : stretch.stop] = is_connected[stretch.start : stretch.stop]
    return found


def _are_of_separate_calls(
    facts: Facts,
    stretch: range,
    is_connected: NDArray[np.bool_],
    is_changed: NDArray[np.bool_],
    lasting: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return for each op whether its outermost call of a module has nothing to do with the training in a stretch.

    In such a call, no op is connected, reads a result of a connected op, or makes a value that reaches one.

    Args:
        facts: the facts of the capture.
        stretch: the ops.
        is_connected: for each op of the recording, whether a backward runs through it.
        is_changed: for each row of the table `uses`, whether the op makes or writes the storage.
        lasting: for each storage, whether it outlives an iteration, as parameters do.
    """
    uses, calls = facts.capture.tables["uses"], facts.capture.tables["calls"]
    uses_by_op, storage = Grouped(uses["op"]), uses["storage"]
    given, made = [], []
    for op in stretch:
        rows = uses_by_op.within(op, op + 1)
        given.append({each for each in storage[rows[~is_changed[rows]]].tolist() if not lasting[each]})
        made.append({each for each in storage[rows[is_changed[rows]]].tolist() if not lasting[each]})
    is_related = is_connected.copy()
    results: set[int] = set()
    for op, read, changed in zip(stretch, given, made, strict=True):
        is_related[op] |= not results.isdisjoint(read | changed)
        if is_related[op]:
            results |= changed
    needed: set[int] = set()
    for op, read, changed in reversed([*zip(stretch, given, made, strict=True)]):
        is_related[op] |= not needed.isdisjoint(changed)
        if is_related[op]:
            needed |= read
    related_before = np.concatenate([[0], np.cumsum(is_related)])
    found = np.zeros(len(is_connected), dtype=bool)
    is_outermost = calls["depth"] == 0
    for start, end in zip(
        calls["start_op"][is_outermost].tolist(), calls["end_op"][is_outermost].tolist(), strict=True
    ):
        found[start:end] = related_before[end] == related_before[start]
    return found


def _inputs_of_parts(facts: Facts, is_of_part: NDArray[np.bool_]) -> set[int]:
    """Return the storages that are inputs of the calls that the parts of a batch would make."""
    roles, calls = facts.capture.tables["roles"], facts.capture.tables["calls"]
    called_before = np.concatenate([[0], np.cumsum(is_of_part)])
    has_part = called_before[calls["end_op"]] > called_before[calls["start_op"]]
    is_input = roles["role"] == _INPUT
    # the op of an input is the first op of its call, and of the calls around that begin there too
    return set(roles["storage"][is_input & np.isin(roles["op"], calls["start_op"][has_part])].tolist())


def _passes(facts: Facts, timeline: Timeline, window: range, is_of_part: NDArray[np.bool_]) -> list[Pass]:
    """Return the passes in a window.

    A pass begins with the first forward op of the parts after a step or after the start of an iteration. It ends with
    the last backward op before the next step or the end of the iteration.
    """
    phase = facts.capture.tables["ops"]["phase"]
    found = []
    for start, end in ((each.start, each.stop) for each in _stretches(facts, window)):
        backward = start + np.flatnonzero(np.isin(phase[start:end], IN_BACKWARD))
        forward = start + np.flatnonzero((phase[start:end] == FORWARD) & is_of_part[start:end])
        if len(backward) and len(forward):
            first, last = int(forward[0]), int(backward[-1])
            found.append(Pass(timeline.event_of(first), timeline.event_of(last + 1), first, last + 1))
    return found


def _kept_gradients(facts: Facts, timeline: Timeline, passes: list[Pass]) -> IntArray:
    """Return for each event how many more bytes of gradients are alive with micro-batches than in the recording."""
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
    ready = timeline.events_after_nodes(_last_additions(facts, allocations.storage[rows], made_by))
    kept = np.zeros(last, dtype=np.int64)
    for start, end, *_ in passes:
        alive = (birth < end) & (death > start)
        largest: dict[int, int] = {}  # by parameter, the bytes of its largest gradient
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


def _last_additions(facts: Facts, gradients: IntArray, made_by: IntArray) -> IntArray:
    """Return the last op that adds to each gradient in the backward that made it.

    If a forward uses a weight several times, its gradient is a sum, to which several ops add.
    """
    ops, uses = facts.capture.tables["ops"], facts.capture.tables["uses"]
    others = np.cumsum(~np.isin(ops["phase"], IN_BACKWARD))
    last = np.maximum(made_by, 0)
    writes = np.flatnonzero((uses["access"] == _WRITE) & np.isin(uses["storage"], gradients))
    place = {storage: number for number, storage in enumerate(gradients.tolist())}
    for storage, op in zip(uses["storage"][writes].tolist(), uses["op"][writes].tolist(), strict=True):
        number = place[storage]
        if op > last[number] and others[op] == others[last[number]]:
            last[number] = op
    return last


class _Followed(NamedTuple):
    """The memory that the ops of a window make from the batch.

    Attributes:
        rows: the allocations that scale with the batch, as rows of `facts.allocations`.
        derived: the storages of the batch, and all storages that ops made from it.
        read_outside: the results of a pass that an op outside the passes reads together with results of other passes.
        counts_targets: True if one of the ops is a cross entropy, which may ignore some targets.
        picked: the storages with values that a mask or an index picked.
        refusal: why the parts would train differently (`independence.py`), or that the pass is a rollout
            (`_ResultsOfModels`); None if neither was found.
        prepared_by: as in `Split`.
        read_by: as in `Split`.
        has_other_terms: as in `Split`.
    """

    rows: IntArray
    derived: set[int]
    read_outside: set[int]
    counts_targets: bool
    picked: Collection[int]
    refusal: Refusal | None
    prepared_by: int
    read_by: int
    has_other_terms: bool


def _follow(
    facts: Facts,
    window: range,
    batch: int,
    inputs: set[int],
    passes: list[Pass],
    *,
    is_of_part: NDArray[np.bool_],
) -> _Followed:
    """Follow the batch through the ops of a window.

    Args:
        facts: the facts of the capture.
        window: the ops to follow.
        batch: the number of samples.
        inputs: the storages of the batch.
        passes: the passes of the window.
        is_of_part: for each op of the recording, whether the parts of a batch would run it.
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
    base_names = {name: base_of(str(facts.strings[name])) for name in np.unique(ops["name"]).tolist()}
    means, counts_targets = BatchMeans(facts, batch, dimensions, len(passes)), False
    refusals: list[Refusal] = []
    results_of_models, carried = _ResultsOfModels(facts), CarriedResults(facts, lasting)
    starts = {each.start_op for each in passes}
    outside = _Outside(facts, passes, inputs, means)
    derived = set(inputs)
    rearranged: set[tuple[int, ...]] = set()  # shapes whose batch dimension is not among the first two
    # made from neither the batch nor parameters, such as targets: they get no gradient
    data: set[int] = set()
    of_weights: set[int] = set()  # made from parameters and buffers alone, such as the norm of a weight
    was_backward = False
    for op in window:
        if phase[op] == OPTIMIZER:
            continue
        if was_backward and phase[op] == FORWARD:
            means.begin_forward()
        was_backward = phase[op] != FORWARD
        rows = uses_by_op.within(op, op + 1)
        given = storage[rows[access[rows] != _OUTPUT]].tolist()
        results = storage[rows[access[rows] == _OUTPUT]].tolist()
        written = [number for number in storage[rows[access[rows] == _WRITE]].tolist() if not lasting[number]]
        if not is_of_part[op]:
            if not derived.isdisjoint(given):
                outside.leave(derived.intersection(given), results + written)
                derived.update([*results, *written])
            continue
        if op in starts:
            means.begin_pass()
            results_of_models.forget()
        if phase[op] == FORWARD:
            if results_of_models.are_the_inputs_of_call(op):
                refusals.append(Refusal(Obstacle.ROLLOUT, op))
            results_of_models.take(op, given, [*results, *written])
            if not refusals and means.is_differentiated(op) and carried.are_read_by(op, given):
                refusals.append(Refusal(Obstacle.CARRIED, op))
        if derived.isdisjoint(given):
            if phase[op] == FORWARD and given and all(lasting[each] or each in of_weights for each in given):
                of_weights.update(results)
            elif phase[op] == FORWARD and not any(map(lasting.__getitem__, given)):
                means.follow_data(op, base_names[int(ops["name"][op])], given, [*results, *written])
            if phase[op] == FORWARD and data.issuperset(given):
                data.update(number for number in results if not lasting[number])
            continue
        if phase[op] in (
            FORWARD,
            RECOMPUTE,
        ):  # a reentrant checkpoint makes nodes only when it computes again
            base = base_names[int(ops["name"][op])]
            if not means.knows_dimension(op, given) and mixes_samples(
                base,
                list(map(dimensions, given)),
                list(map(dimensions, results)),
                derived=[each in derived for each in given],
                batch=batch,
                is_differentiated=means.is_differentiated(op),
            ):
                refusals.append(Refusal(Obstacle.MIXED, op))
            if (
                base == "ones_like"
                and op + 1 in window
                and phase[op + 1] == BACKWARD
                and means.is_sum(given[0])
            ):
                # `ones_like(loss)` begins a backward, so the loss itself is a sum
                refusals.append(Refusal(Obstacle.SUM, op))
            refusals += filter(None, [means.refusal(op, base, given, [*results, *written], derived)])
            if (
                weighs_classes(base, given)
                and means.reduction(op) in (NONE, REDUCED_BY_MEAN)
                and not any(dimensions(results[0]))
            ):
                refusals.append(Refusal(Obstacle.WEIGHED, op))
            counts_targets |= is_cross_entropy(base) and means.reduction(op) in (NONE, REDUCED_BY_MEAN)
        # Results that an op computes from the batch depend on it. So does memory that the op writes to.
        derived.update(results)
        derived.update(written)
        is_trained = phase[op] != FORWARD or means.is_differentiated(op)
        if outside.takes(op, derived.intersection(given), [*results, *written], is_trained=is_trained):
            continue  # its results are as large with micro-batches
        others: list[list[int]] = []
        if maker[op] != NONE:  # an op of a backward: get the sizes of the parameters that its forward op read
            read = uses_by_op.within(int(maker[op]), int(maker[op]) + 1)
            read = storage[read[access[read] != _OUTPUT]]
            weights = [each for each in read.tolist() if each not in derived and each not in data]
            # A product that reads a weight is the gradient of the other factor. This may have the shape of the weight.
            if base_names[int(ops["name"][op])] not in MATRIX_PRODUCTS or not set(weights) & set(given):
                others = [sorted(dimensions(each)) for each in weights]
        for row in made_by.within(op, op + 1).tolist():
            number = int(allocations.storage[row])
            if not allocations.counted[row] or lasting[row] or number in of_gradient:
                continue
            if number == NONE:
                found.append(row)  # workspace of a kernel
                continue
            shape = dimensions(number)
            if sorted(shape) in others:
                continue  # a gradient of a parameter: it has the shape of the parameter, maybe transposed
            if _has_batch_further_on(shape, map(dimensions, derived.intersection(given)), batch):
                rearranged.add(tuple(shape))
            if tuple(shape) in rearranged or _has_row_per_sample(shape, int(allocations.nbytes[row]), batch):
                found.append(row)
    rows = np.array(found, dtype=np.int64)
    refusal = refusals[0] if refusals else None
    return _Followed(
        rows,
        derived,
        outside.read,
        counts_targets,
        means.picked(),
        refusal,
        means.prepared_by,
        means.read_by,
        means.has_other_terms,
    )


class _Outside:
    """Finds ops that no part of the batch runs: they read only results of earlier passes.

    Attributes:
        read: the results that such an op reads together with those of other passes.
    """

    def __init__(self, facts: Facts, passes: list[Pass], inputs: set[int], means: BatchMeans) -> None:
        self._ends = [each.end_op for each in passes]
        self.read: set[int] = set()
        roles = facts.capture.tables["roles"]
        self._pass_of: dict[int, int] = {}  # by storage, the number of the pass that got it or made it
        self._inputs = inputs
        for op, storage in zip(roles["op"].tolist(), roles["storage"].tolist(), strict=True):
            if storage in inputs:
                self._pass_of.setdefault(storage, self._place(op))
        # a recording may end in the forward of one more pass
        after = range(self._ends[-1], facts.capture.rows("ops"))
        self._ends_in_forward = any(map(means.is_differentiated, after))

    def _place(self, op: int) -> int:
        return bisect.bisect_right(self._ends, op)

    def takes(self, op: int, given: set[int], changed: list[int], *, is_trained: bool) -> bool:
        """Return True if an op runs outside the parts. Note what it reads and changes.

        Args:
            op: its number.
            given: the storages that it reads and that depend on the batch.
            changed: the storages that it makes or writes.
            is_trained: whether a backward runs the op or runs through it. Such an op belongs to a part.
        """
        place = self._place(op)
        passes = {self._pass_of.get(each, place) for each in given}
        results = given - self._inputs
        # One batch may serve all passes. So an op that reads nothing but one batch belongs to its own pass.
        is_outside = place not in passes and (bool(results) or len(passes) > 1)
        is_outside |= place == len(self._ends) and not self._ends_in_forward
        is_outside &= not is_trained
        if is_outside and len(passes) > 1:
            self.read |= results
        self._pass_of.update(dict.fromkeys(changed, _OUTSIDE if is_outside else place))
        return is_outside

    def leave(self, given: set[int], changed: list[int]) -> None:
        """Note the storages that an op reads and changes if no part of the batch runs it, as in `takes`."""
        if len({self._pass_of.get(each) for each in given}) > 1:
            self.read |= given - self._inputs
        self._pass_of.update(dict.fromkeys(changed, _OUTSIDE))


class _ResultsOfModels:
    """Finds rollouts: passes in which a model is called again with results only, some of which are its own.

    A recurrent network is not a rollout, because each call also gets a new input. A head is not one either, if it gets
    several results of another model.
    """

    def __init__(self, facts: Facts) -> None:
        roles, calls = facts.capture.tables["roles"], facts.capture.tables["calls"]
        self._module_of_op = facts.capture.tables["ops"]["module"]
        self._model_of_op = self._module_of_op.copy()
        is_outermost = calls["depth"] == 0
        for start, end, model in zip(
            *(calls[name][is_outermost].tolist() for name in ("start_op", "end_op", "module")), strict=True
        ):
            self._model_of_op[start:end] = model
        # the input storages of calls, by the first op of the call and by the name in `roles`
        self._inputs: dict[int, dict[int, list[int]]] = {}
        rows = np.flatnonzero(roles["role"] == _INPUT)
        for op, name, storage in zip(
            *(roles[key][rows].tolist() for key in ("op", "name", "storage")), strict=True
        ):
            self._inputs.setdefault(op, {}).setdefault(name, []).append(storage)
        self._called: set[int] = set()
        self._models_of: dict[int, frozenset[int]] = {}  # by result, the models that it was computed with

    def forget(self) -> None:
        """Forget the calls and results of the pass before."""
        self._called.clear()
        self._models_of.clear()

    def are_the_inputs_of_call(self, op: int) -> bool:
        """Return True if an op begins a repeated call whose inputs are results only, some of the model itself."""
        found, model = False, int(self._model_of_op[op])
        for name, storages in self._inputs.get(op, {}).items():
            models = [self._models_of.get(each, frozenset()) for each in storages]
            is_own = any(model in each for each in models)
            found |= name in self._called and all(models) and is_own
            self._called.add(name)
        return found

    def take(self, op: int, given: list[int], changed: list[int]) -> None:
        """Note the storages that an op changes as results, if a module runs the op or the op reads a result.

        Args:
            op: its number.
            given: the storages that it reads.
            changed: the storages that it makes or writes.
        """
        models = frozenset[int]().union(*(self._models_of.get(each, ()) for each in given))
        if self._module_of_op[op] != NONE:
            models |= {int(self._model_of_op[op])}
        if models:
            self._models_of.update(dict.fromkeys(changed, models))


def _has_batch_further_on(shape: list[int], given: Iterable[list[int]], batch: int) -> bool:
    """Return True if a result may have the values of an argument with a row for each sample, in another layout.

    It has as many values, and a dimension after the first two that is a multiple of the batch. For example,
    `nn.MultiheadAttention` computes queries, keys and values as `[3, time, batch, width]`.
    """
    return any(size and size % batch == 0 for size in shape[LEADING:]) and any(
        math.prod(each) == math.prod(shape) and _has_row_per_sample(each, 0, batch) for each in given
    )


def _has_row_per_sample(dimensions: list[int], nbytes: int, batch: int) -> bool:
    """Return True if a leading dimension of an allocation is a multiple of the batch."""
    # The kernel of mse_loss allocates memory for a value of each sample. Its result is one number in this memory.
    values = [] if dimensions else [nbytes // _SMALLEST_NUMBER_BYTES]
    return any(size and size % batch == 0 for size in dimensions[:LEADING] or values)
