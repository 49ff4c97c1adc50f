"""References that never leak: parameters, buffers, gradients, optimizer state of living parameters.

Two cases are excluded: parts that a block added to a series of parts of a module (`leaks/module_growth.py`), and the
gradient of a parameter that only an optimizer's state remembers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from memwatch._torch.modules import BUFFERS, PARAMETERS
from memwatch.edges import EdgeKind
from memwatch.heap.autograd import plain_gradient
from memwatch.heap.c_held import c_held_edges, keeps_in_c
from memwatch.heap.class_checks import is_a
from memwatch.heap.names import attributes, instance_dict
from memwatch.heap.search import search
from memwatch.heap.snapshot import UNREACHED
from memwatch.heap.tensors import is_composed, is_node_type, is_storage, is_tensor, quiet
from memwatch.leaks.module_growth import added_parts, entries, inside

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.heap.snapshot import Snapshot


Positions = set[tuple[int, int]]
"""References as (parent, child) positions."""


class Replaced(NamedTuple):
    """Parameters that one optimizer keeps, though nothing else does: the program has replaced them.

    Attributes:
        owners: the parameters, and their entries in the optimizer's state.
        containers: the table of the state, and the lists of parameters.
        is_seen: True if the block gave a module that this optimizer steps new parameters. A parameter that an
            optimizer lists and nothing else holds may be meant so; beside such a module it was replaced.
    """

    owners: set[int]
    containers: set[int]
    is_seen: bool


class State(NamedTuple):
    """The references that do not leak.

    Attributes:
        models: references to parameters, buffers and gradients from their owners. If an optimizer also has state of
            dead parameters, its references to the state of living ones.
        optimizers: references to living parameters and their state from other optimizers. The other holder of the
            parameter decides whether it leaks.
        replaced: the parameters that optimizers alone keep.
    """

    models: Positions
    optimizers: Positions
    replaced: list[Replaced]

    @property
    def edges(self) -> Positions:
        """All of them."""
        return self.models | self.optimizers


NO_STATE: Final = State(set(), set(), [])


def state_of(snapshot: Snapshot) -> State:
    """Find the references to parameters, buffers, gradients and the optimizer state of living parameters."""
    optimizers = snapshot.instances(torch.optim.Optimizer)
    forgotten: set[int] = set()
    replaced: list[Replaced] = []
    models, living = _optimizer_state(snapshot, optimizers, forgotten, replaced) if optimizers else ([], [])
    models += [*_module_state(snapshot), *_gradients(snapshot, forgotten)]
    return State(listed(models), listed(living), replaced)


def state_storages(snapshot: Snapshot, edges: Positions) -> set[int]:
    """Return the positions of the storages of the tensors that state edges lead to.

    Other objects behind these tensors are not included: a parameter's attributes, its hooks, a gradient's graph.
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
    """Yield the storages of one tensor: its own, and those of the tensors of which it is composed."""
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
    added = added_parts(snapshot)
    for module in snapshot.instances(torch.nn.Module):
        for table, _, tensor in entries(module, PARAMETERS, BUFFERS):
            if id(tensor) not in added:
                yield snapshot.position(table), snapshot.position(tensor)
        if keeps_in_c(type(module)):  # scripted: the tables are in C++
            place = snapshot.position(module)
            yield from ((place, snapshot.position(edge.target)) for edge in c_held_edges(module))


def _gradients(snapshot: Snapshot, forgotten: set[int]) -> Iterable[tuple[int, int]]:
    tensors = snapshot.instances(torch.Tensor)
    with quiet():
        gradients = [plain_gradient(tensor) for tensor in tensors]
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if gradient is not None and id(tensor) not in forgotten:
            yield snapshot.position(tensor), snapshot.position(gradient)


def _optimizer_state(
    snapshot: Snapshot,
    optimizers: list[torch.optim.Optimizer],
    forgotten: set[int],
    replaced: list[Replaced],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the references to the state of living parameters, of optimizers with state of dead ones and of others.

    The others' references to the living parameters themselves are there too. The ids of the dead ones, which no step
    updates any more, are added to `forgotten`; what each optimizer keeps of such parameters, to `replaced`.
    """
    closed = {snapshot.position(optimizer) for optimizer in optimizers} - {UNREACHED}
    alive = search(snapshot, snapshot.root_groups(), closed=closed)
    growing: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    for optimizer in optimizers:
        values = instance_dict(optimizer) or {}
        state: Any = values.get("state")
        if not is_a(state, dict):
            continue
        table = snapshot.position(state)
        groups = _parameter_lists(values.get("param_groups"))
        stepped = {id(parameter): snapshot.position(parameter) for each in groups for parameter in each}
        left_alone = {place for place in stepped.values() if place >= 0 and not alive.reaches(place)}
        slots_of_living = {}
        dead = set()
        for parameter, slots in list(dict.items(state)):
            place = snapshot.position(parameter)
            if not is_tensor(parameter) or place < 0:
                continue
            if alive.reaches(place):
                slots_of_living[place] = snapshot.position(slots)
            elif id(parameter) not in stepped:
                dead.add(id(parameter))
        forgotten |= dead
        if dead or left_alone:
            living = {key for key, place in stepped.items() if place >= 0 and alive.reaches(place)}
            is_seen = bool(left_alone) and _has_new_parameters(snapshot, living)
            gone = set(snapshot.positions(dead)) | (left_alone if is_seen else set())
            entries_of_gone = [each for key, each in dict.items(state) if snapshot.position(key) in gone]
            slots = {snapshot.position(each) for each in entries_of_gone}
            containers = {table, *(snapshot.position(each) for each in groups)} - {UNREACHED}
            replaced.append(Replaced((gone | slots) - {UNREACHED}, containers, is_seen))
        (growing if dead else others).extend((table, slots) for slots in slots_of_living.values())
        if not dead:
            others += [(table, place) for place in slots_of_living]
            for parameters in groups:
                listing = snapshot.position(parameters)
                places = [snapshot.position(parameter) for parameter in parameters]
                others += [(listing, place) for place in places if place >= 0 and alive.reaches(place)]
    return growing, others


def _has_new_parameters(snapshot: Snapshot, living: set[int]) -> bool:
    """Return True if a module from before the block got parameters in it, beside some with the given ids."""
    for module in snapshot.instances(torch.nn.Module):
        if snapshot.is_young(module):
            continue
        modules = [module, *(part for part in inside(module) if not is_tensor(part))]
        parameters = [each for part in modules for _, _, each in entries(part, PARAMETERS) if is_tensor(each)]
        if any(map(snapshot.is_young, parameters)) and not living.isdisjoint(map(id, parameters)):
            return True
    return False


def _parameter_lists(groups: Any) -> list[list[Any]]:
    """Return the lists of parameters in the groups of an optimizer."""
    if type(groups) is not list:
        return []
    found = [group.get("params") for group in groups if type(group) is dict]
    return [parameters for parameters in found if type(parameters) is list]
