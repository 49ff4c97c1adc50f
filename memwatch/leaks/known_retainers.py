"""References that are no leak: parameters, buffers, gradients, optimizer state of living parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memwatch._torch.modules import BUFFERS, PARAMETERS
from memwatch.edges import EdgeKind
from memwatch.heap.autograd import plain_gradient
from memwatch.heap.c_held import c_held_edges, keeps_in_c
from memwatch.heap.names import attributes, instance_dict
from memwatch.heap.search import search
from memwatch.heap.snapshot import UNREACHED
from memwatch.heap.tensors import is_composed, is_node_type, is_storage, is_tensor, mro_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.heap.snapshot import Snapshot


Positions = set[tuple[int, int]]
"""References as (parent, child) positions."""


def state_edges(snapshot: Snapshot) -> Positions:
    """Find the references to parameters, buffers, gradients and the optimizer state of living parameters."""
    optimizers = snapshot.instances(torch.optim.Optimizer)
    state = _optimizer_state(snapshot, optimizers) if optimizers else ()
    return listed([*_module_state(snapshot), *state])


def state_storages(snapshot: Snapshot, edges: Positions) -> set[int]:
    """Return the positions of the storages that the targets of state edges are made of.

    What else hangs on them is not meant: a parameter's attributes, its hooks, the graph behind a gradient.
    """
    found: set[int] = set()
    slots = []
    for _, child in edges:
        if is_tensor(snapshot.objects[child]):
            found.update(_parts(snapshot, child))
        else:
            slots.append(child)
    if slots:
        beyond = [
            *snapshot.instances(torch.nn.Module),
            *snapshot.instances(type),
            *snapshot.of_types(is_node_type),
        ]
        tree = search(snapshot, [slots], closed=set(snapshot.positions(map(id, beyond))))
        storages = snapshot.positions(map(id, snapshot.storages()))
        found.update(position for position in storages if tree.reaches(position))
    return found


def _parts(snapshot: Snapshot, tensor: int) -> Iterable[int]:
    """Yield the storages of one tensor: its own, and those of the tensors it is composed of."""
    for child in map(int, snapshot.referents(tensor)):
        native = snapshot.native_edge(tensor, child)
        if is_storage(snapshot.objects[child]):
            yield child
        elif native is not None and native.kind is EdgeKind.SPARSE_PART:
            yield from _parts(snapshot, child)
    if is_composed(type(snapshot.objects[tensor])):
        inner = [value for _, value in attributes(snapshot.objects[tensor]) if is_tensor(value)]
        for part in snapshot.positions(map(id, inner)):
            yield from _parts(snapshot, part)


def listed(edges: Iterable[tuple[int, int]]) -> Positions:
    """Return the edges whose two ends the snapshot lists."""
    return {(parent, child) for parent, child in edges if parent >= 0 and child >= 0}


def _module_state(snapshot: Snapshot) -> Iterable[tuple[int, int]]:
    for module in snapshot.instances(torch.nn.Module):
        values = instance_dict(module) or {}
        for table in (values.get(PARAMETERS), values.get(BUFFERS)):
            if type(table) is dict or type(table).__name__ == "OrderedDict":
                place = snapshot.position(table)
                yield from ((place, snapshot.position(tensor)) for tensor in dict.values(table))  # type: ignore[arg-type]
        if keeps_in_c(type(module)):  # scripted: the tables are in C++
            place = snapshot.position(module)
            yield from ((place, snapshot.position(edge.target)) for edge in c_held_edges(module))
    for tensor in snapshot.instances(torch.Tensor):
        gradient = plain_gradient(tensor)
        if gradient is not None:
            yield snapshot.position(tensor), snapshot.position(gradient)


def _optimizer_state(
    snapshot: Snapshot, optimizers: list[torch.optim.Optimizer]
) -> Iterable[tuple[int, int]]:
    closed = {snapshot.position(optimizer) for optimizer in optimizers} - {UNREACHED}
    alive = search(snapshot, snapshot.root_groups(), closed=closed)
    for optimizer in optimizers:
        state = (instance_dict(optimizer) or {}).get("state")
        if dict not in mro_of(type(state)):
            continue
        table = snapshot.position(state)
        for parameter, slots in list(dict.items(state)):  # type: ignore[arg-type]
            place = snapshot.position(parameter)
            if is_tensor(parameter) and place >= 0 and alive.reaches(place):
                yield table, snapshot.position(slots)
