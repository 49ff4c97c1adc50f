"""Simulate changes of some modules: saved tensors on the host, no graph, results over inputs, or single precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.facts.forward_ops import maker_of_node
from memwatch.analysis.findings.finding import ops_until_return
from memwatch.analysis.findings.loops import Loops
from memwatch.analysis.ways.timeline import LAST, ChangedBytes, ChangedModules
from memwatch.capture.schema import ACCESSES, IN_BACKWARD, NONE
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.columns import IntArray


# Simulate an accelerator on which some modules keep their saved tensors on the host.
#
# `torch.autograd.graph.save_on_cpu` copies each saved tensor to the host, parameters included, and copies it back
# when the backward reads it. That changes a recording of the accelerator at two places:
#
# 1. Tensors that only autograd kept, for nodes of these modules, die after their last use in the forward.
# 2. A backward node that reads saved tensors has a copy of each while it runs.
def offloaded(
    facts: Facts, saved: SavedTensors, timeline: Timeline, spans: Iterable[tuple[int, int]]
) -> ChangedBytes:
    """Return what changes if the tensors that some calls save are on the host until the backward reads them.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        timeline: the ops and events of the capture.
        spans: the first op of each call, and the op after its last.
    """
    allocations, uses = facts.allocations, facts.capture.tables["uses"]
    of_calls = np.zeros(len(saved), dtype=bool)
    for start, end in spans:
        of_calls |= (saved.saving_op >= start) & (saved.saving_op < end)
    of_calls &= (saved.storage != NONE) & ~saved.of_region
    packs = np.flatnonzero(of_calls)
    read = packs[saved.used_op[packs] != NONE]
    used = saved.used_op[read]
    copies = timeline.bytes_within(
        saved.nbytes[read], timeline.events_of(used), timeline.events_after_nodes(used)
    )
    rows = np.unique(saved.storage[packs])
    lasting = facts.categories.category.isin(["parameter", "buffer"])
    rows = rows[~lasting[rows] & allocations.counted[rows]]
    in_backward = np.isin(facts.capture.tables["ops"]["phase"], IN_BACKWARD)
    uses_by_storage, packs_by_storage = Grouped(uses["storage"]), Grouped(saved.storage)
    last_ops = []
    for row in rows.tolist():
        used_by = uses["op"][uses_by_storage.within(row, row + 1)]
        last = used_by[~in_backward[used_by]].max(initial=max(int(allocations.op[row]), 0)) + 1
        others = packs_by_storage.within(row, row + 1)
        released = saved.released_op[others[~of_calls[others]]]
        last_ops.append(LAST if (released == NONE).any() else int(released.max(initial=last)))
    free = timeline.events_of(np.array(last_ops, dtype=np.int64))
    death = allocations.death_event[rows]
    waits = (death == NONE) | (death > free)
    gone = timeline.bytes_within(allocations.nbytes[rows][waits], free[waits], death[waits])
    return ChangedBytes(gone - copies)


# Simulate `torch.no_grad` for modules whose backward never runs: nothing that they save for it is kept.
#
# That changes a recording at two places:
#
# 1. Tensors that the call made and autograd saved die after their last use in the call. Tensors that an op outside
#    reads later are left as they are, because a variable of the program may keep them.
# 2. The call reads tensors from outside, such as the batch. If the graph is the last to keep such a tensor, it dies
#    earlier without the graph: when the program's variable gets the next batch.
def without_graph(facts: Facts, saved: SavedTensors, timeline: Timeline) -> ChangedModules | None:
    """Return the change if some outermost modules run without a graph; None if each of them needs its graph.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        timeline: the ops and events of the capture.
    """
    calls = facts.capture.tables["calls"]
    outermost = np.flatnonzero((calls["depth"] == 0) & (calls["start_op"] < calls["end_op"]))
    ran = np.unique(maker_of_node(facts.capture))
    uses = facts.capture.tables["uses"]
    uses_by_storage, packs_by_op = Grouped(uses["storage"]), Grouped(saved.saved_op)
    allocations = facts.allocations
    lasting = facts.categories.category.isin(["parameter", "buffer"])
    modules: list[int] = []
    rows: list[int] = []
    last_ops: list[int] = []
    in_calls = np.zeros(len(saved), dtype=bool)  # the saved tensors of these modules
    for module in dict.fromkeys(calls["module"][outermost].tolist()):
        of_module: dict[int, int] = {}
        packs_of_module: list[IntArray] = []
        for call in outermost[calls["module"][outermost] == module].tolist():
            first_op, end_op = int(calls["start_op"][call]), int(calls["end_op"][call])
            packs = packs_by_op.within(first_op, end_op + 1)
            packs = packs[(saved.saving_op[packs] >= first_op) & (saved.saving_op[packs] < end_op)]
            has_run = bool(((ran >= first_op) & (ran < end_op)).any())
            is_pending = (saved.released_op[packs] == NONE) | (saved.used_op[packs] != NONE)
            if has_run or is_pending.any():
                of_module.clear()
                break
            packs_of_module.append(packs)
            for storage in np.unique(saved.storage[packs]).tolist():
                last_op = int(uses["op"][uses_by_storage.within(storage, storage + 1)].max(initial=NONE))
                if (
                    storage != NONE
                    and not lasting[storage]
                    and first_op <= allocations.op[storage]
                    and last_op < end_op
                ):
                    of_module[storage] = ops_until_return(calls, int(allocations.op[storage]), last_op)
        if of_module:
            modules.append(module)
            rows += [*of_module]
            last_ops += [*of_module.values()]
            in_calls[np.concatenate(packs_of_module)] = True
    if not modules:
        return None
    known = set(rows)
    for row, op in _given_until(facts, saved, timeline, in_calls).items():
        if row not in known:
            rows.append(row)
            last_ops.append(op)
    start = timeline.events_of(np.array(last_ops))
    death = allocations.death_event[rows]
    is_gap = allocations.counted[rows] & ((death == NONE) | (death > start))
    nbytes = allocations.nbytes[rows][is_gap]
    return ChangedModules(
        tuple(modules), ChangedBytes(timeline.bytes_within(nbytes, start[is_gap], death[is_gap]))
    )


def _given_until(
    facts: Facts, saved: SavedTensors, timeline: Timeline, in_calls: NDArray[np.bool_]
) -> dict[int, int]:
    """Return the tensors from outside that the graphs of some calls keep longest, with the op that frees each instead.

    If the same line of the program makes the next such tensor, the variable no longer refers to this one. A tensor
    that no other follows is left out, because its variable may stay.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        timeline: the ops and events of the capture.
        in_calls: the saved tensors of these calls.
    """
    calls, allocations, loops = facts.capture.tables["calls"], facts.allocations, Loops(facts)
    lasting = facts.categories.category.isin(["parameter", "buffer"])
    packs_by_storage = Grouped(saved.storage)
    storages = np.unique(saved.storage[in_calls])
    rows = allocations.rows_of(storages[storages != NONE])
    found: dict[int, int] = {}
    for row in rows[~lasting[rows] & (allocations.death_event[rows] != NONE)].tolist():
        storage = int(allocations.storage[row])
        packs = packs_by_storage.within(storage, storage + 1)
        released, rest = saved.released_op[packs], saved.released_op[packs[~in_calls[packs]]]
        if (released == NONE).any():
            continue
        if allocations.death_event[row] > timeline.event_of(int(released.max()) + 1):
            continue  # something else keeps it for longer than the graph
        last_op = int(facts.use_bounds.last_op[row])
        next_op = loops.next_made(row, last_op)
        if next_op != NONE:
            returned = ops_until_return(calls, int(allocations.op[row]), last_op)
            found[row] = max(next_op + 1, returned, int(rest.max(initial=0)))
    return found


# Simulate activations that write their result over their input, as `nn.ReLU(inplace=True)` does.
#
# Autograd allows that for an activation whose backward needs its result and not its input, if nothing else needs the
# input. A recording then changes at one place: the input and the result are one piece of memory, which lives from the
# birth of the input to the death of the later of both.
_OP_OF_CLASS: Final = {
    "ReLU": "aten.relu.default",
    "LeakyReLU": "aten.leaky_relu.default",
    "ELU": "aten.elu.default",
}
"""Modules of torch with `inplace`, whose backward needs only the result, and the op that they call (torch 2.13)."""
_READ, _OUTPUT = ACCESSES.index("read"), ACCESSES.index("output")


def in_place(facts: Facts, saved: SavedTensors, timeline: Timeline) -> ChangedModules | None:
    """Return what changes if the activations write over their inputs where autograd allows it; None if it never does.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        timeline: the ops and events of the capture.
    """
    tree, strings = facts.places.module_tree, facts.strings
    ops, uses, allocations = facts.capture.tables["ops"], facts.capture.tables["uses"], facts.allocations
    uses_by_op, uses_by_storage = Grouped(uses["op"]), Grouped(uses["storage"])
    packs_by_storage = Grouped(saved.storage)
    lasting = facts.categories.category.isin(["parameter", "buffer"])

    def pair_of(op: int) -> tuple[int, int] | None:
        """Return the input and the result of an activation, if the result may take the place of the input."""
        rows = uses_by_op.within(op, op + 1)
        read = uses["storage"][rows[uses["access"][rows] == _READ]].tolist()
        made = uses["storage"][rows[uses["access"][rows] == _OUTPUT]].tolist()
        if len(read) != 1 or len(made) != 1 or read == made:
            return None
        (given,), (result,) = read, made
        users = set(uses["op"][uses_by_storage.within(given, given + 1)].tolist())
        savers = set(saved.op[packs_by_storage.within(given, given + 1)].tolist())
        backward = {each for each in users if each > op and ops["sequence"][each] == ops["sequence"][op]}
        is_own = users - backward <= {op, int(allocations.op[given])} and savers <= {op}
        is_made = allocations.op[given] != NONE and not lasting[given]
        return (
            (given, result)
            if is_own and is_made and allocations.nbytes[given] == allocations.nbytes[result]
            else None
        )

    modules: list[int] = []
    pairs: list[tuple[int, int]] = []
    module_of_op = facts.places.module_of_op
    for module, class_name in enumerate(tree.classes):
        if class_name not in _OP_OF_CLASS:
            continue
        ops_of_module = np.flatnonzero(module_of_op == module).tolist()
        found = [pair_of(op) for op in ops_of_module if strings[ops["name"][op]] == _OP_OF_CLASS[class_name]]
        if found and all(found):
            modules.append(module)
            pairs += [pair for pair in found if pair is not None]
    if not modules:
        return None
    given, result = np.array(pairs).T
    end = len(facts.curve.live_bytes)
    deaths = [
        np.where(allocations.death_event[rows] == NONE, end, allocations.death_event[rows])
        for rows in (given, result)
    ]
    spared = timeline.bytes_of(np.concatenate([given, result]))
    kept = timeline.bytes_within(
        allocations.nbytes[given], allocations.birth_event[given], np.maximum(*deaths)
    )
    return ChangedModules(tuple(modules), ChangedBytes(spared - kept))


# Estimate models in float32 in place of float64, which NumPy gives a program that never asked for it.
#
# All tensors that a float64 model computes are float64, also the gradients and the optimizer's state. In float32 they
# have half the bytes. The same holds for the tensors that a float32 model computes with a float64 buffer. The inputs
# stay as the program makes them, and each gets a copy in float32.
_DOUBLE: Final = "float64["
_STATE: Final = tuple(map(ROLES.index, ("parameter", "buffer")))
_INPUT: Final = ROLES.index("input")
_CONVERSION: Final = "aten._to_copy.default"


def in_single_precision(facts: Facts, timeline: Timeline) -> ChangedModules | None:
    """Return the change if the models with float64 parameters or buffers compute in float32; None without such a model.

    Args:
        facts: what the capture shows.
        timeline: its ops and events.
    """
    roles, allocations = facts.capture.tables["roles"], facts.allocations
    is_double = np.isin(
        facts.capture.tables["births"]["shape"],
        [number for number, text in enumerate(facts.strings) if str(text).startswith(_DOUBLE)],
    )
    rows = np.flatnonzero((allocations.storage != NONE) & allocations.counted)
    rows = rows[is_double[allocations.storage[rows]]]
    of_state = np.isin(roles["role"], _STATE) & is_double[roles["storage"]]
    tree = facts.places.module_tree
    owners = np.unique(roles["module"][of_state & (roles["module"] != NONE)]).tolist()
    roots = {list(tree.with_ancestors(module))[-1] for module in owners}
    if not roots:
        return None
    inputs = np.unique(roles["storage"][roles["role"] == _INPUT])
    is_input = np.isin(allocations.storage[rows], inputs)
    # an input stays, and its float32 copy takes half of its bytes more
    halves = (timeline.bytes_of(rows[~is_input]) - timeline.bytes_of(rows[is_input])) // 2
    copies = _bytes_of_conversions(facts, timeline, is_double, inputs)
    return ChangedModules(tuple(sorted(roots)), ChangedBytes(halves + copies))


def _bytes_of_conversions(
    facts: Facts, timeline: Timeline, is_double: NDArray[np.bool_], inputs: IntArray
) -> IntArray:
    """Return, per event, the bytes that conversions between float32 and float64 no longer take.

    In a float32 model, such a conversion (`tensor.to`) returns its input. So one tensor lives in place of two.

    Args:
        facts: what the capture shows.
        timeline: its ops and events.
        is_double: which storages are float64.
        inputs: the storages of inputs. They stay float64, so they are still converted.
    """
    uses, ops, allocations = facts.capture.tables["uses"], facts.capture.tables["ops"], facts.allocations
    names = [number for number, text in enumerate(facts.strings) if str(text) == _CONVERSION]
    uses_by_op, kept = Grouped(uses["op"]), set(inputs.tolist())
    pairs = []
    for op in np.flatnonzero(np.isin(ops["name"], names)).tolist():
        rows = uses_by_op.within(op, op + 1)
        read = uses["storage"][rows[uses["access"][rows] == _READ]].tolist()
        made = uses["storage"][rows[uses["access"][rows] == _OUTPUT]].tolist()
        if len(read) == len(made) == 1 and is_double[read[0]] != is_double[made[0]] and read[0] not in kept:
            pairs.append((read[0], made[0]))
    given, result = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    end = len(facts.curve.live_bytes)
    births = [allocations.birth_event[rows] for rows in (given, result)]
    deaths = [
        np.where(allocations.death_event[rows] == NONE, end, allocations.death_event[rows])
        for rows in (given, result)
    ]
    nbytes = np.minimum(allocations.nbytes[given], allocations.nbytes[result])
    apart = sum(timeline.bytes_within(nbytes, *span) for span in zip(births, deaths, strict=True))
    together = timeline.bytes_within(nbytes, np.minimum(*births), np.maximum(*deaths))
    found: IntArray = apart - together
    return found
