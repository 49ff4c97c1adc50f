"""Simulate an optimizer that updates each parameter in the backward, as soon as its gradient is computed.

A hook on each parameter (`register_post_accumulate_grad_hook`) runs the optimizer's step for this parameter and drops
its gradient. That changes a recording at three places:

1. A gradient dies when the backward node that made it has run, instead of after the optimizer's step.
2. The temporaries of the step are made there, for one parameter at a time, beside the gradient.
3. The optimizer's own step finds no gradients and makes nothing.

The results are the same only if nothing but the optimizer reads the gradients, and if one backward makes all of a
parameter's gradient. For other recordings `step_in_backward` returns the obstacle.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.ways.timeline import ChangedBytes, Spike
from memwatch.capture.schema import ACCESSES, BACKWARD, IN_BACKWARD, NONE, OPTIMIZER
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.columns import IntArray

_GRADIENT: Final = ROLES.index("gradient")
_WRITTEN: Final = ACCESSES.index("write")
OF_JOBS: Final = tuple(
    ROLES.index(role) for role in ("unsharded parameter", "unsharded gradient", "bucket", "reducer memory")
)
"""Roles in a job of many processes: there a gradient is complete only after the processes have exchanged it."""
_ONE_BY_ONE: Final = frozenset(
    f"{name}.step"
    for name in (
        "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop",
        "Rprop", "SGD",
    )
)  # fmt: skip
"""The optimizers of torch 2.13 that update each parameter by its own gradient and state alone.

LBFGS is missing because it needs all gradients at once. SparseAdam is missing because no test covers it.
"""


class StepObstacle(Enum):
    """A reason why a program cannot step in the backward; the value is its key in `memwatch.words.ways`."""

    PROCESSES = "processes"
    GRAPH = "graph"
    ALREADY = "already"
    NO_STEP = "no step"
    READ = "read"
    ACCUMULATED = "accumulated"
    OPTIMIZERS = "optimizers"
    SET = "set"
    NOT_STEPPED = "not stepped"


class StepInBackward(NamedTuple):
    """The optimizer's step, made in the backward.

    Attributes:
        bytes: the effect on the live bytes.
        is_exact: False if a recorded step made temporaries for several parameters together (`foreach`). Then their
            share for one parameter is an estimate.
    """

    bytes: ChangedBytes
    is_exact: bool


class _Part(NamedTuple):
    """A part of a recorded step: from the op that first reads some gradients to the op that first reads others.

    A step that loops over the parameters has a part for each gradient. A `foreach` step has one part for all gradients.
    """

    gradients: IntArray  # storages
    temporaries: IntArray  # allocations
    temporary_most_bytes: int
    state: IntArray  # allocations that outlive the step: state that the first step makes


def step_in_backward(
    facts: Facts, timeline: Timeline, *, is_fused: bool = False
) -> StepInBackward | StepObstacle:
    """Return the changes of a step in the backward, or why the results would not be the same.

    Args:
        facts: what the capture shows.
        timeline: its ops and events.
        is_fused: True for an optimizer whose kernel makes no temporaries.
    """
    tables, allocations = facts.capture.tables, facts.allocations
    roles, uses, ops = tables["roles"], tables["uses"], tables["ops"]
    if np.isin(roles["role"], OF_JOBS).any():
        return StepObstacle.PROCESSES
    if facts.capture.rows("nodes"):
        return StepObstacle.GRAPH
    if steps_in_backward(facts):
        return StepObstacle.ALREADY
    storages, parameters = gradients_of_parameters(facts)
    touching = np.flatnonzero(np.isin(uses["storage"], storages))
    op, storage, access = (uses[name][touching] for name in ("op", "storage", "access"))
    phase, node = ops["phase"][op], ops["sequence"][op]
    in_backward, in_step = np.isin(phase, IN_BACKWARD), phase == OPTIMIZER
    if not in_step.any():
        return StepObstacle.NO_STEP
    if not (in_backward | in_step).all():
        return StepObstacle.READ  # it clips them, or scales the loss
    if (in_backward & (access == _WRITTEN) & (node == NONE)).any():
        return StepObstacle.ACCUMULATED  # a node without a number adds to the gradient of an earlier backward
    parts = _parts(
        facts, timeline, op[in_step], storage[in_step], dict(zip(storages, parameters, strict=True))
    )
    if parts is None:
        return StepObstacle.OPTIMIZERS
    stepped = np.unique(storage[in_step])
    of_optimizer = np.isin(parameters, parameters[np.isin(storages, stepped)])
    rows = allocations.rows_of(storages[of_optimizer])
    rows = rows[allocations.counted[rows]]
    made_by, is_from_before = allocations.op[rows], allocations.birth_event[rows] <= 0
    if not (is_from_before | ((made_by != NONE) & (ops["phase"][made_by] == BACKWARD))).all():
        return StepObstacle.SET
    is_unread = ~np.isin(allocations.storage[rows], stepped) & (allocations.death_event[rows] != NONE)
    if (is_unread & ~is_from_before).any():
        return StepObstacle.NOT_STEPPED  # such as the backward of the loss of another model
    made = [part._replace(temporary_most_bytes=0) for part in parts] if is_fused else parts
    ready = _ready_events(facts, timeline, rows, op[in_backward], storage[in_backward])
    return StepInBackward(
        _changed(facts, timeline, made, rows, ready),
        is_exact=all(len(part.gradients) == 1 or not part.temporary_most_bytes for part in parts),
    )


def steps_in_backward(facts: Facts) -> bool:
    """Return True if a hook of the program runs an optimizer's step in a backward."""
    steps, phase = facts.capture.tables["steps"], facts.capture.tables["ops"]["phase"]
    has_ops = steps["op"] < np.minimum(steps["end_op"], len(phase))
    is_step = np.array([facts.strings[name].endswith(".step") for name in steps["name"].tolist()], dtype=bool)
    return bool(np.isin(phase[steps["op"][has_ops & is_step]], IN_BACKWARD).any())


def _changed(
    facts: Facts, timeline: Timeline, parts: list[_Part], rows: IntArray, ready: IntArray
) -> ChangedBytes:
    """Return what changes.

    Args:
        facts: what the capture shows.
        timeline: its ops and events.
        parts: the recorded steps.
        rows: the gradients.
        ready: the event at which each of them is complete.
    """
    allocations = facts.allocations
    spared = timeline.bytes_within(allocations.nbytes[rows], ready, allocations.death_event[rows])
    temporaries = [part.temporaries for part in parts]
    if temporaries:
        spared += timeline.bytes_of(np.concatenate(temporaries))
    ready_of = dict(zip(allocations.storage[rows].tolist(), ready.tolist(), strict=True))
    spikes, state = [], []
    for part in parts:
        sizes = allocations.nbytes[part.gradients].astype(np.float64)
        state_bytes = int(allocations.nbytes[part.state].sum())
        for gradient, share in zip(
            part.gradients.tolist(), (sizes / max(sizes.sum(), 1)).tolist(), strict=True
        ):
            event = ready_of.get(gradient)
            if event is None:  # only in a damaged capture
                continue
            if event > 0:  # the backward of a gradient from before the block was not recorded
                spikes.append(Spike(event, round(share * (part.temporary_most_bytes + state_bytes))))
                if state_bytes:
                    made = int(allocations.birth_event[part.state].min())
                    state.append((round(share * state_bytes), event, made))
    if state:
        spared -= timeline.bytes_within(*np.array(state).T)
    return ChangedBytes(spared, tuple(spikes))


def gradients_of_parameters(facts: Facts) -> tuple[IntArray, IntArray]:
    """Return the storages of all gradients, each once, and a number for the parameter of each."""
    roles = facts.capture.tables["roles"]
    is_gradient = roles["role"] == _GRADIENT
    keys = np.stack([roles["module"][is_gradient], roles["name"][is_gradient]], axis=1)
    _, parameters = np.unique(keys, axis=0, return_inverse=True)
    storages, first = np.unique(roles["storage"][is_gradient], return_index=True)
    return storages, parameters.reshape(-1)[first]


def _parts(
    facts: Facts, timeline: Timeline, op: IntArray, storage: IntArray, parameter_of: dict[int, int]
) -> list[_Part] | None:
    """Return the parts of all steps. None if several optimizers step, or an optimizer outside `_ONE_BY_ONE`.

    Args:
        facts: what the capture shows.
        timeline: its ops and events.
        op: the ops of steps that read gradients.
        storage: the gradient that each reads.
        parameter_of: the parameter of each gradient.
    """
    steps, allocations = facts.capture.tables["steps"], facts.allocations
    phase = facts.capture.tables["ops"]["phase"]
    made_by = Grouped(allocations.op)
    is_step = np.array([facts.strings[name] in _ONE_BY_ONE for name in steps["name"].tolist()], dtype=bool)
    spans = list(zip(steps["op"][is_step].tolist(), steps["end_op"][is_step].tolist(), strict=True))
    is_known = np.zeros(len(op), dtype=bool)
    for start, end in spans:
        is_known |= (op >= start) & (op < end)
    if not spans or (op[~is_known] < spans[-1][1]).any():
        return None
    if not is_known.all():  # the recording ends in a step
        spans.append((int(op[~is_known].min()), facts.capture.rows("ops")))
    found: list[_Part] = []
    stepped: set[int] = set()
    for start, end in spans:
        within = (op >= start) & (op < end)
        gradients, first = np.unique(storage[within], return_index=True)
        first_op = op[within][first]  # uses are in the order of ops
        parameters = {parameter_of[gradient] for gradient in gradients.tolist()}
        if not parameters:
            continue
        if stepped and not parameters & stepped:
            # None of its parameters is in an earlier step, so there is a second optimizer. The printed code is for one.
            return None
        stepped |= parameters
        over = timeline.event_of(end)  # memory that is still alive then is state
        bounds = np.unique(first_op).tolist()
        for number, (begin, until) in enumerate(pairwise([start, *bounds[1:], end])):
            made = made_by.within(begin, until)
            # a step with a closure runs the forward and the backward, which allocate as before
            made = made[allocations.counted[made] & (phase[allocations.op[made]] == OPTIMIZER)]
            death = allocations.death_event[made]
            stays = (death == NONE) | (death >= over)
            found.append(
                _Part(
                    gradients[first_op == bounds[number]],
                    made[~stays],
                    _most_bytes(facts, made[~stays]),
                    made[stays],
                )
            )
    return found


def _most_bytes(facts: Facts, rows: IntArray) -> int:
    """Return the most bytes of some allocations that are alive at once. Each of them must have a death."""
    allocations = facts.allocations
    nbytes = allocations.nbytes[rows].astype(np.int64)
    events = np.concatenate([allocations.birth_event[rows], allocations.death_event[rows]])
    change = np.concatenate([nbytes, -nbytes])[np.argsort(events, kind="stable")]
    return int(np.cumsum(change).max(initial=0))


def _ready_events(
    facts: Facts, timeline: Timeline, rows: IntArray, op: IntArray, storage: IntArray
) -> IntArray:
    """Return the event at which each gradient is complete: when the last backward node that touched it has run.

    If no recorded node touched it, because it is older than the block, return event 0, the start of the block.
    """
    last = np.full(int(facts.allocations.storage.max(initial=0)) + 1, NONE, dtype=np.int64)
    np.maximum.at(last, storage, op)
    last_op = last[facts.allocations.storage[rows]]
    return np.where(last_op == NONE, 0, timeline.events_after_nodes(last_op))
