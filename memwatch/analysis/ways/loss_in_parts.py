"""Simulate a cross entropy that computes the logits part by part, each part in a checkpoint.

A language model's logits have a row for each token and a column for each word of the vocabulary. The cross entropy
saves their logarithms, and its backward makes their gradient. If the last layer, the head, runs within the loss for
one part of the tokens at a time, a recording changes at three places:

1. The logits and all tensors of their size are not alive. The forward has those of one part.
2. The backward computes those of one part again, and their gradient.
3. The gradient of the head's weight is alive from the first part on. A part adds its own to it.

The lines replace the head's forward and `torch.nn.functional.cross_entropy`. So `loss_in_parts` looks for a linear
layer whose result goes to that function, called by the program's own code, and to nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.ways.timeline import ChangedBytes, Spike
from memwatch.capture.schema import ACCESSES, BACKWARD, FORWARD, NONE
from memwatch.kinds.roles import ROLES
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.columns import IntArray

PARTS: Final = 8
"""Parts of the tokens; the lines of `memwatch.way_lines` have the same number."""
_LEAST_SHARE: Final = 1 / 4
"""Smaller tensors than this share of the logarithms are not of the logits' size; half-precision logits are 1/2."""
_READ, _OUTPUT = ACCESSES.index("read"), ACCESSES.index("output")
_LOSS: Final = "aten.nll_loss_forward.default"
_LOGARITHMS: Final = "aten._log_softmax.default"
_VIEW: Final = "aten._unsafe_view.default"
_COPIES: Final = ("aten.clone.default", "aten._to_copy.default")
_OF_JOBS: Final = tuple(ROLES.index(role) for role in ("unsharded parameter", "bucket", "reducer memory"))
"""Roles in a job of many processes, where a module must not be called past its wrapper."""


class LossInParts(NamedTuple):
    """A loss in parts.

    Attributes:
        head: the module that makes the logits.
        bytes: what changes.
        again_ns: the time of the ops that run again.
    """

    head: int
    bytes: ChangedBytes
    again_ns: int


class _Loss(NamedTuple):
    """One call of the loss: the ops of its forward, from the head's on, and of its backward."""

    head: int
    head_op: int
    loss_op: int
    backward_ops: IntArray
    logits: int  # the storage that the head made
    hidden: int  # the storage that the head read


def loss_in_parts(
    facts: Facts, saved: SavedTensors, timeline: Timeline, window: range, rng_bytes: int
) -> LossInParts | None:
    """Return the changes of a loss in parts; None without a head whose result only a loss reads.

    Args:
        facts: the facts of the capture.
        saved: the tensors that autograd saved.
        timeline: the ops and events of the capture.
        window: the ops that are simulated.
        rng_bytes: the state of random numbers that each checkpoint keeps.
    """
    if np.isin(facts.capture.tables["roles"]["role"], _OF_JOBS).any():
        return None
    losses = _Losses(facts).found(window)
    if not losses:
        return None
    largest = max(losses, key=lambda loss: int(facts.allocations.nbytes[loss.logits]))
    losses = [loss for loss in losses if loss.head == largest.head]
    ops = facts.capture.tables["ops"]
    durations_ns = ops["end_ns"] - ops["start_ns"]
    change = _Change(facts, saved, timeline, rng_bytes)
    for loss in losses:
        change.add(loss)
    again_ns = sum(int(durations_ns[loss.head_op : loss.loss_op + 1].sum()) for loss in losses)
    return LossInParts(largest.head, change.bytes(), again_ns)


class _Losses:
    """Finds the calls of `cross_entropy` whose logits a linear layer made."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._ops, self._uses = facts.capture.tables["ops"], facts.capture.tables["uses"]
        self._uses_by_op, self._uses_by_storage = Grouped(self._uses["op"]), Grouped(self._uses["storage"])
        self._backward_by_node = Grouped(
            np.where(self._ops["phase"] == BACKWARD, self._ops["sequence"], NONE)
        )
        self._names = facts.capture.strings

    def found(self, window: range) -> list[_Loss]:
        """Return the calls in some ops. The list is empty if one of them does not fit the lines."""
        phase = self._ops["phase"]
        of_loss = [number for number, name in enumerate(self._names) if name == _LOSS]
        calls = np.flatnonzero(np.isin(self._ops["name"], of_loss) & (phase == FORWARD))
        losses = [self._of(op) for op in calls.tolist() if op in window and len(self._backward_of(op))]
        known = [loss for loss in losses if loss is not None]
        return known if len(known) == len(losses) else []

    def _of(self, loss_op: int) -> _Loss | None:
        logarithms_op = self._maker(self._largest_read(loss_op))
        if logarithms_op == NONE or self._name(logarithms_op) != _LOGARITHMS:
            return None
        if not self._is_called_by_program(logarithms_op):
            return None
        chain = [loss_op, logarithms_op]
        storage = self._largest_read(logarithms_op)
        read = [storage]
        while (maker := self._maker(storage)) != NONE and self._name(maker) in _COPIES:
            chain.append(maker)
            storage = self._largest_read(maker)
            read.append(storage)
        module = NONE if maker == NONE else int(self._ops["module"][maker])
        if module == NONE or self._facts.places.module_tree.classes[module] != "Linear":
            return None
        if any(self._forward_readers(each) - set(chain) for each in read):
            return None  # the program computes something else with the logits, such as an accuracy
        backward = self._backward_of(loss_op)
        nodes = self._ops["sequence"]
        last = self._backward_by_node.within(int(nodes[maker]), int(nodes[maker]) + 1).max(initial=NONE)
        of_backward = np.arange(int(backward.min()), int(last) + 1)
        node = nodes[of_backward]
        of_backward = of_backward[(node >= nodes[maker]) & (node <= nodes[loss_op])]
        return _Loss(module, maker, loss_op, of_backward, storage, self._hidden_of(maker))

    def _backward_of(self, op: int) -> IntArray:
        node = int(self._ops["sequence"][op])
        return self._backward_by_node.within(node, node + 1)

    def _reads(self, op: int) -> IntArray:
        uses = self._uses_by_op.within(op, op + 1)
        storages: IntArray = self._uses["storage"][uses[self._uses["access"][uses] == _READ]]
        return storages

    def _largest_read(self, op: int) -> int:
        storages = self._reads(op)
        return int(storages[np.argmax(self._facts.allocations.nbytes[storages])]) if len(storages) else NONE

    def _hidden_of(self, head_op: int) -> int:
        storages = self._reads(head_op)
        lasting = self._facts.categories.category.isin(["parameter", "buffer"])
        storages = storages[~lasting[storages]]
        return int(storages[np.argmax(self._facts.allocations.nbytes[storages])]) if len(storages) else NONE

    def _maker(self, storage: int) -> int:
        return NONE if storage == NONE else int(self._facts.allocations.op[storage])

    def _name(self, op: int) -> str:
        return str(self._names[self._ops["name"][op]])

    def _forward_readers(self, storage: int) -> set[int]:
        uses = self._uses_by_storage.within(storage, storage + 1)
        op = self._uses["op"][uses[self._uses["access"][uses] != _OUTPUT]]
        op = op[self._ops["phase"][op] == FORWARD]
        return {each for each in op.tolist() if self._name(each) != _VIEW}

    def _is_called_by_program(self, op: int) -> bool:
        """Return True if the program's own code calls `cross_entropy`, or torch's module for it."""
        stack = int(self._ops["stack"][op])
        if stack == NONE:
            return False
        frames, owners = self._facts.call_stacks.frames(stack), self._facts.call_stacks.owners(stack)
        callers = [owner for owner in owners if owner not in (CodeOwner.TORCH, CodeOwner.PYTHON)]
        return frames[0].function == "cross_entropy" and bool(callers) and callers[0] is CodeOwner.PROGRAM


class _Change:
    """Adds up what changes at each call of the loss."""

    def __init__(self, facts: Facts, saved: SavedTensors, timeline: Timeline, rng_bytes: int) -> None:
        self._facts, self._timeline, self._rng_bytes = facts, timeline, rng_bytes
        self._saved = saved.storage
        self._made_by = Grouped(facts.allocations.op)
        self._gone: list[IntArray] = []
        self._kept: list[tuple[int, int, int]] = []
        self._spikes: list[Spike] = []

    def add(self, loss: _Loss) -> None:
        """Remove the logits of one call, and add those of a part."""
        allocations, nodes = self._facts.allocations, self._facts.capture.tables["ops"]["sequence"]
        logits_bytes, hidden_bytes = (int(allocations.nbytes[each]) for each in (loss.logits, loss.hidden))
        in_forward = self._made(range(loss.head_op, loss.loss_op + 1))
        of_head = nodes[loss.backward_ops] == nodes[loss.head_op]
        in_backward = self._made(loss.backward_ops[~of_head].tolist())
        least_bytes = _LEAST_SHARE * allocations.nbytes[in_forward].max(initial=0)
        in_forward = in_forward[allocations.nbytes[in_forward] >= least_bytes]
        in_backward = in_backward[allocations.nbytes[in_backward] >= least_bytes]
        self._gone += [in_forward, in_backward]
        start, begin = (
            self._timeline.event_of(loss.head_op),
            self._timeline.event_of(int(loss.backward_ops[0])),
        )
        over = self._timeline.event_of(int(loss.backward_ops[-1]) + 1)
        self._kept.append((PARTS * self._rng_bytes, start, over))
        part_forward = self._most_bytes(in_forward, self._timeline.event_of(loss.loss_op + 1)) // PARTS
        waiting = in_forward[np.isin(allocations.storage[in_forward], self._saved)]
        part_backward = self._most_bytes(np.concatenate([waiting, in_backward]), over) // PARTS
        # the head's backward makes the gradients of its input and of its parameters
        gradients = allocations.nbytes[self._made(loss.backward_ops[of_head].tolist())]
        parameter_bytes = int(gradients.sum()) - (hidden_bytes if hidden_bytes in gradients else 0)
        self._spikes.append(Spike(start, part_forward))
        # with each part the gradient of the head's input grows, and the part's random state is dropped
        growth_bytes = max(0, (PARTS - 1) * (hidden_bytes // PARTS - self._rng_bytes))
        self._spikes.append(
            Spike(
                begin,
                max(
                    max(part_forward, part_backward) + parameter_bytes + growth_bytes,
                    logits_bytes // PARTS + 2 * parameter_bytes + growth_bytes,
                    3 * parameter_bytes,  # the sum of the first two parts' gradients
                    parameter_bytes
                    + 2 * hidden_bytes
                    - PARTS * self._rng_bytes,  # the parts are put together
                ),
            )
        )

    def bytes(self) -> ChangedBytes:
        """Return what changes at all calls."""
        spared = self._timeline.bytes_of(np.concatenate(self._gone))
        return ChangedBytes(
            spared - self._timeline.bytes_within(*np.array(self._kept).T), tuple(self._spikes)
        )

    def _made(self, ops: Sequence[int] | range) -> IntArray:
        rows = [self._made_by.within(op, op + 1) for op in ops]
        made: IntArray = np.concatenate([np.empty(0, dtype=np.int64), *rows])
        return made[self._facts.allocations.counted[made]]

    def _most_bytes(self, rows: IntArray, end: int) -> int:
        """Return the most bytes of some allocations that are alive at once, before an event."""
        allocations = self._facts.allocations
        nbytes = allocations.nbytes[rows].astype(np.int64)
        death = np.where(allocations.death_event[rows] == NONE, end, allocations.death_event[rows])
        events = np.concatenate([allocations.birth_event[rows], death])
        change = np.concatenate([nbytes, -nbytes])[np.argsort(events, kind="stable")]
        return int(np.cumsum(change)[np.sort(events) < end].max(initial=0))
