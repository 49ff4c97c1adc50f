"""References that are no leak: parameters, buffers, gradients, optimizer state of living parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from memwatch.heap.autograd import plain_gradient
from memwatch.heap.foreign import foreign_edges, is_foreign_type
from memwatch.heap.names import attributes, instance_dict
from memwatch.heap.search import search
from memwatch.heap.tensors import is_composed, is_node_type, is_storage, is_tensor, mro_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.heap.search import Tree
    from memwatch.heap.snapshot import Snapshot


@dataclass(slots=True)
class Exempt:
    """What one check does not count as holding a tensor.

    Attributes:
        objects: ``id`` of objects the caller of the block holds: arguments, result, the exception in flight.
        locals: ``(id of a frame, words)`` of the names the block itself bound.
        globals: ``(id of a namespace, name)`` of module-level names the block itself bound.
        state: True to exempt parameters, buffers, gradients and optimizer state too.
    """

    objects: set[int] = field(default_factory=set)
    locals: set[tuple[int, str]] = field(default_factory=set)
    globals: set[tuple[int, str]] = field(default_factory=set)
    state: bool = True


Edges = set[tuple[int, int]]
"""References as (parent, child) positions."""


def own_edges(snapshot: Snapshot, exempt: Exempt) -> Edges:
    """Find the references from names that the block itself bound, and from the exception in flight."""
    return _known(_own_names(snapshot, exempt))


def state_edges(snapshot: Snapshot) -> Edges:
    """Find the references to parameters, buffers, gradients and the optimizer state of living parameters."""
    alive = search(snapshot, snapshot.root_groups(), closed=_optimizers(snapshot))
    return _known([*_module_state(snapshot), *_optimizer_state(snapshot, alive)])


def state_storages(snapshot: Snapshot, edges: Edges) -> set[int]:
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
        label = snapshot.label(tensor, child)
        if is_storage(snapshot.objects[child]):
            yield child
        elif label is not None and label[0].startswith("sparse"):
            yield from _parts(snapshot, child)
    if is_composed(type(snapshot.objects[tensor])):
        inner = [value for _, value in attributes(snapshot.objects[tensor]) if is_tensor(value)]
        for part in snapshot.positions(map(id, inner)):
            yield from _parts(snapshot, part)


def _known(edges: Iterable[tuple[int, int]]) -> Edges:
    return {(parent, child) for parent, child in edges if parent >= 0 and child >= 0}


def _own_names(snapshot: Snapshot, exempt: Exempt) -> Iterable[tuple[int, int]]:
    for place, root in enumerate(snapshot.roots):
        if root.kind == "exception":
            yield from (
                (snapshot.first_root + place, snapshot.position(v))
                for _, v in root.entries
                if id(v) in exempt.objects
            )
        names = {words for frame, words in exempt.locals if frame == root.frame_id}
        if root.kind == "frame" and names:
            for label, value in root.entries:
                if label.partition(" ")[2].strip("`") in names and not _also_other_name(
                    root.entries, value, names
                ):
                    yield snapshot.first_root + place, snapshot.position(value)
    if exempt.globals:
        for namespace, name in exempt.globals:
            for place in snapshot.positions([namespace]):
                yield place, snapshot.position(snapshot.objects[place].get(name))


def _also_other_name(entries: list[tuple[str, object]], value: object, names: set[str]) -> bool:
    return any(held is value and label.partition(" ")[2].strip("`") not in names for label, held in entries)


def _module_state(snapshot: Snapshot) -> Iterable[tuple[int, int]]:
    for module in snapshot.instances(torch.nn.Module):
        values = instance_dict(module) or {}
        for table in (values.get("_parameters"), values.get("_buffers")):
            if type(table) is dict or type(table).__name__ == "OrderedDict":
                place = snapshot.position(table)
                yield from ((place, snapshot.position(tensor)) for tensor in dict.values(table))  # type: ignore[arg-type]
        if is_foreign_type(type(module)):  # scripted: the tables are in C++
            place = snapshot.position(module)
            yield from ((place, snapshot.position(edge.target)) for edge in foreign_edges(module))
    for tensor in snapshot.instances(torch.Tensor):
        gradient = plain_gradient(tensor)
        if gradient is not None:
            yield snapshot.position(tensor), snapshot.position(gradient)


def _optimizers(snapshot: Snapshot) -> set[int]:
    return {snapshot.position(optimizer) for optimizer in snapshot.instances(torch.optim.Optimizer)} - {-1}


def _optimizer_state(snapshot: Snapshot, alive: Tree) -> Iterable[tuple[int, int]]:
    for optimizer in snapshot.instances(torch.optim.Optimizer):
        state = (instance_dict(optimizer) or {}).get("state")
        if dict not in mro_of(type(state)):
            continue
        table = snapshot.position(state)
        for parameter, slots in list(dict.items(state)):  # type: ignore[arg-type]
            place = snapshot.position(parameter)
            if is_tensor(parameter) and place >= 0 and alive.reaches(place):
                yield table, snapshot.position(slots)
