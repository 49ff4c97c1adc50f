"""Simulate a cross entropy that computes the logits part by part, each part in a checkpoint.

A language model's logits have a row for each token and a column for each word of the vocabulary. The cross entropy
saves the logarithms of the probabilities, a tensor of the same size, and its backward makes the gradient of the logits.
If the last layer, the head, runs within the loss for one part of the tokens at a time, the live bytes change in three
ways:

1. The logits and all tensors of their size are never whole. At any time the forward has those of one part.
2. The backward computes those of one part again, and their gradient.
3. The gradient of the head's weight is alive from the first part on. Each part adds its gradient.

The printed code (`memwatch.way_lines`) gives the head a forward that returns a stand-in for the logits. If
`torch.nn.functional.cross_entropy` gets a stand-in, it computes the logits part by part. So `loss_in_parts` looks for a
linear layer whose result goes only to this function. The program's own code must call the function.
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
"""Parts of the tokens: a guess. The code in `memwatch.way_lines` has the same number."""
_LEAST_SHARE: Final = 1 / 4
"""An allocation with a smaller share of the largest allocation of the forward does not have the size of the logits. A
guess: logits in half precision have 1/2 of it."""
_READ, _OUTPUT = ACCESSES.index("read"), ACCESSES.index("output")
_LOSS: Final = "aten.nll_loss_forward.default"
_LOG_SOFTMAX: Final = "aten._log_softmax.default"
_VIEW: Final = "aten._unsafe_view.default"
_CONVERSION: Final = "aten._to_copy.default"
_COPIES: Final = ("aten.clone.default", _CONVERSION)
_DISTRIBUTED_ROLES: Final = tuple(
    ROLES.index(role) for role in ("unsharded parameter", "bucket", "reducer memory")
)
"""Roles that only DDP and FSDP give. There the code would call the head without its wrapper, so it is not offered."""


class LossInParts(NamedTuple):
    """The effect of a loss in parts.

    Attributes:
        head: the number of the module that makes the logits, in the module tree.
        bytes: the change of the live bytes.
        again_ns: the duration of the ops that run again.
    """

    head: int
    bytes: ChangedBytes
    again_ns: int


class _Loss(NamedTuple):
    """One call of the loss: the ops of its forward, from the head's on, and of its backward."""

    head: int
    head_op: int
    loss_op: int
    forward_ops: tuple[int, ...]  # those that make the logits, copy them or compute the loss of them
    backward_ops: IntArray
    logits: int  # the storage that the head made
    hidden: int  # the storage that the head read
    conversion_nodes: tuple[int, ...]  # the nodes of conversions of the logits to another precision
    softmax_op: int  # the first op of the loss itself


def loss_in_parts(
    facts: Facts, saved: SavedTensors, timeline: Timeline, window: range, rng_bytes: int
) -> LossInParts | None:
    """Return the change with a loss in parts.

    Return None if no loss gets logits from a linear layer, if another op reads the logits, or in a distributed job.

    Args:
        facts: what the recording shows.
        saved: the tensors that autograd saved.
        timeline: the ops and events of the recording.
        window: the ops that are simulated.
        rng_bytes: the state of random numbers that each checkpoint keeps.
    """
    if np.isin(facts.capture.tables["roles"]["role"], _DISTRIBUTED_ROLES).any():
        return None
    losses = _Losses(facts).calls(window)
    if not losses:
        return None
    largest = max(losses, key=lambda loss: int(facts.allocations.nbytes[loss.logits]))
    losses = [loss for loss in losses if loss.head == largest.head]  # the code changes one head
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

    def calls(self, window: range) -> list[_Loss]:
        """Return the losses in a window of ops that have a backward.

        The list is empty if the code of the way would be wrong for one of them.
        """
        phase = self._ops["phase"]
        of_loss = [number for number, name in enumerate(self._names) if name == _LOSS]
        calls = np.flatnonzero(np.isin(self._ops["name"], of_loss) & (phase == FORWARD))
        losses = [self._of(op) for op in calls.tolist() if op in window and len(self._backward_of(op))]
        known = [loss for loss in losses if loss is not None]
        return known if len(known) == len(losses) else []

    def _of(self, loss_op: int) -> _Loss | None:
        """Return the loss that an op computes, if a linear layer made its logits and nothing else reads them."""
        log_softmax_op = self._maker(self._largest_read(loss_op))
        if log_softmax_op == NONE or self._name(log_softmax_op) != _LOG_SOFTMAX:
            return None
        if not self._is_called_by_program(log_softmax_op):
            return None
        # go back over copies to the op of the head; views are not in the way, because they share the storage
        ops = {loss_op, log_softmax_op}
        logits = self._largest_read(log_softmax_op)
        storages = [logits]
        head_op = self._maker(logits)
        while head_op != NONE and self._name(head_op) in _COPIES:
            ops.add(head_op)
            logits = self._largest_read(head_op)
            storages.append(logits)
            head_op = self._maker(logits)
        head = NONE if head_op == NONE else int(self._ops["module"][head_op])
        if head == NONE or self._facts.places.module_tree.classes[head] != "Linear":
            return None
        if any(self._forward_readers(storage) - ops for storage in storages):
            return None  # the program computes something else with the logits, such as an accuracy
        of_backward = self._backward_between(head_op, loss_op)
        if not len(of_backward):
            return None
        conversions = tuple(int(self._ops["sequence"][op]) for op in ops if self._name(op) == _CONVERSION)
        hidden = self._hidden_of(head_op)
        forward_ops = (head_op, *sorted(ops))
        return _Loss(
            head, head_op, loss_op, forward_ops, of_backward, logits, hidden, conversions, log_softmax_op
        )

    def _backward_between(self, first_op: int, last_op: int) -> IntArray:
        """Return the backward ops of all ops from one to another; empty if one of the two has no backward."""
        first, last = self._backward_of(first_op), self._backward_of(last_op)
        if not len(first) or not len(last):
            return np.empty(0, dtype=np.int64)
        # the backward of the last op runs first; nodes have numbers in the order of the forward
        of_backward = np.arange(int(last.min()), int(first.max()) + 1)
        node = self._ops["sequence"][of_backward]
        is_between = (node >= self._ops["sequence"][first_op]) & (node <= self._ops["sequence"][last_op])
        between: IntArray = of_backward[is_between]
        return between

    def _backward_of(self, op: int) -> IntArray:
        node = int(self._ops["sequence"][op])
        if node == NONE:  # it ran under no_grad
            return np.empty(0, dtype=np.int64)
        return self._backward_by_node.within(node, node + 1)

    def _reads(self, op: int) -> IntArray:
        uses = self._uses_by_op.within(op, op + 1)
        storages: IntArray = self._uses["storage"][uses[self._uses["access"][uses] == _READ]]
        return storages

    def _largest_read(self, op: int) -> int:
        storages = self._reads(op)
        return int(storages[np.argmax(self._facts.allocations.nbytes[storages])]) if len(storages) else NONE

    def _hidden_of(self, head_op: int) -> int:
        """Return the input of the head. Parameters are left out: the weight may be larger than the input."""
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


class _Kept(NamedTuple):
    """Bytes that are alive with the change alone, from one event up to another."""

    nbytes: int
    start_event: int
    end_event: int


class _Change:
    """Adds up what changes at each call of the loss."""

    def __init__(self, facts: Facts, saved: SavedTensors, timeline: Timeline, rng_bytes: int) -> None:
        self._facts, self._timeline, self._rng_bytes = facts, timeline, rng_bytes
        self._saved = saved.storage
        self._made_by = Grouped(facts.allocations.op)
        self._uses_by_op = Grouped(facts.capture.tables["uses"]["op"])
        self._gone: list[IntArray] = []
        self._kept: list[_Kept] = []
        self._spikes: list[Spike] = []

    def add(self, loss: _Loss) -> None:
        """Remove the logits of one call, and add those of a part."""
        allocations, nodes = self._facts.allocations, self._facts.capture.tables["ops"]["sequence"]
        logits_bytes, hidden_bytes = (int(allocations.nbytes[each]) for each in (loss.logits, loss.hidden))
        in_forward = self._made(loss.forward_ops)
        is_of_head = nodes[loss.backward_ops] == nodes[loss.head_op]
        in_backward = self._gradients_of_logits(loss, loss.backward_ops[~is_of_head])
        least_bytes = _LEAST_SHARE * allocations.nbytes[in_forward].max(initial=0)
        in_forward = in_forward[allocations.nbytes[in_forward] >= least_bytes]
        in_backward = in_backward[allocations.nbytes[in_backward] >= least_bytes]
        self._gone += [in_forward, in_backward]
        # The program may copy the logits, for example by `reshape`. The printed code reorders rows of the hidden states
        # instead, so no part has such copies.
        in_forward, in_backward = (self._of_parts(rows, loss) for rows in (in_forward, in_backward))

        forward_event = self._timeline.event_of(loss.softmax_op)
        backward_event = self._timeline.event_of(int(loss.backward_ops[0]))
        end_event = self._timeline.event_of(int(loss.backward_ops[-1]) + 1)
        self._kept.append(_Kept(PARTS * self._rng_bytes, forward_event, end_event))
        # the stand-in is the input of the head: a variable for the logits keeps it
        hidden_death, logits_death = (
            int(allocations.death_event[each]) for each in (loss.hidden, loss.logits)
        )
        if hidden_death != NONE and (logits_death == NONE or logits_death > hidden_death):
            self._kept.append(_Kept(hidden_bytes, hidden_death, logits_death))
        forward_bytes = self._most_bytes(in_forward, self._timeline.event_of(loss.loss_op + 1)) // PARTS
        waiting = in_forward[np.isin(allocations.storage[in_forward], self._saved)]
        backward_bytes = self._most_bytes(np.concatenate([waiting, in_backward]), end_event) // PARTS
        self._spikes.append(Spike(forward_event, forward_bytes))

        # The head's backward makes the gradients of its input and of its parameters. The input's is known by its
        # size, so a weight of the same size would be taken for it.
        gradients = allocations.nbytes[self._made(loss.backward_ops[is_of_head].tolist())]
        parameter_bytes = int(gradients.sum()) - (hidden_bytes if hidden_bytes in gradients else 0)
        # with each part the gradient of the head's input grows, and the part's random state is dropped
        growth_bytes = max(0, (PARTS - 1) * (hidden_bytes // PARTS - self._rng_bytes))
        in_a_part = max(forward_bytes, backward_bytes) + parameter_bytes + growth_bytes
        # the parameters' gradients of the earlier parts and of this one are added
        at_the_sum = logits_bytes // PARTS + 2 * parameter_bytes + growth_bytes
        at_the_first_sum = 3 * parameter_bytes
        # the parts of the gradient of the head's input are joined
        at_the_joining = parameter_bytes + 2 * hidden_bytes - PARTS * self._rng_bytes
        most_bytes = max(in_a_part, at_the_sum, at_the_first_sum, at_the_joining)
        self._spikes.append(Spike(backward_event, most_bytes))

    def bytes(self) -> ChangedBytes:
        """Return what changes at all calls."""
        spared = self._timeline.bytes_of(np.concatenate(self._gone))
        kept = self._timeline.bytes_within(*np.array(self._kept).T)
        return ChangedBytes(spared - kept, tuple(self._spikes))

    def _gradients_of_logits(self, loss: _Loss, ops: IntArray) -> IntArray:
        """Return the allocations that the backward of the loss makes for its gradients.

        The program may compute other losses between the head and this one. Their backward is no part of it.

        Args:
            loss: the loss.
            ops: the backward ops from the loss to the head, without the head's.
        """
        uses, nodes = self._facts.capture.tables["uses"], self._facts.capture.tables["ops"]["sequence"]
        of_loss = nodes[[loss.loss_op, loss.softmax_op]]
        found: set[int] = set()
        for op in ops.tolist():
            rows = self._uses_by_op.within(op, op + 1)
            storages, access = uses["storage"][rows], uses["access"][rows]
            if nodes[op] in of_loss or not found.isdisjoint(storages[access == _READ].tolist()):
                found.update(storages[access != _READ].tolist())
        made = self._made(ops.tolist())
        allocations = self._facts.allocations
        is_of_loss = np.isin(nodes[allocations.op[made]], of_loss)
        gradients: IntArray = made[is_of_loss | np.isin(allocations.storage[made], list(found - {NONE}))]
        return gradients

    def _of_parts(self, rows: IntArray, loss: _Loss) -> IntArray:
        """Leave out the copies of logits, and their gradients, that a loss in parts does not make."""
        nodes = self._facts.capture.tables["ops"]["sequence"]
        node = nodes[self._facts.allocations.op[rows]]
        kept = (
            (node <= nodes[loss.head_op])
            | (node >= nodes[loss.softmax_op])
            | np.isin(node, loss.conversion_nodes)
        )
        found: IntArray = rows[kept]
        return found

    def _made(self, ops: Sequence[int]) -> IntArray:
        rows = [self._made_by.within(op, op + 1) for op in ops]
        made: IntArray = np.concatenate([np.empty(0, dtype=np.int64), *rows])
        return made[self._facts.allocations.counted[made]]

    def _most_bytes(self, rows: IntArray, end: int) -> int:
        """Return the most bytes of some allocations that are alive at once, before an event."""
        allocations = self._facts.allocations
        nbytes = allocations.nbytes[rows].astype(np.int64)
        death = np.where(allocations.death_event[rows] == NONE, end, allocations.death_event[rows])
        # a stable sort: at one event, births count before deaths
        events = np.concatenate([allocations.birth_event[rows], death])
        change = np.concatenate([nbytes, -nbytes])[np.argsort(events, kind="stable")]
        return int(np.cumsum(change)[np.sort(events) < end].max(initial=0))
