"""References that never leak: parameters, buffers, gradients, optimizer state of living parameters.

Two cases are excluded: parts that a block added to a series of parts of a module (`added_parts`), and the
gradient of a parameter that only an optimizer's state remembers.
"""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from memwatch._torch.modules import BUFFERS, MODULES, PARAMETERS
from memwatch.containers import LISTS
from memwatch.heap.autograd import plain_gradient
from memwatch.heap.c_held import c_held_edges, keeps_in_c
from memwatch.heap.classes import is_a
from memwatch.heap.names import attributes, instance_dict, plain_text
from memwatch.heap.search import search
from memwatch.heap.snapshot import UNREACHED
from memwatch.heap.tensors import is_composed, is_node_type, is_storage, is_tensor, quiet
from memwatch.kinds.edges import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memwatch.heap.snapshot import Snapshot

# Find parts that a block added to a module beside older parts of their kind: a growing model, not one being built.
#
# The third entry of a `ModuleList` that had two counts as an item of a list. A part with a name of its own is the
# model's state. So is everything inside a new module, unless it wraps a module that wraps one of its class. The
# program's own lists, deques, sets and dictionaries are treated alike: one more model, or object with a model in it,
# beside older ones of its class counts as an entry.

_NUMBER: Final = re.compile(r"\d+")
_MOST_ENTRIES: Final = 1_000
"""Entries that are read, from the newest on. A call that adds more than these is not recognized. A guess."""


def added_parts(snapshot: Snapshot) -> set[int]:
    """Return the ids of the modules, parameters and buffers that older modules got as one more of a series."""
    found: set[int] = set()
    for module in snapshot.instances(torch.nn.Module):
        if not snapshot.is_young(module):
            parts = list(_one_more(snapshot, module))
        elif _is_wrapped_again(snapshot, module):
            parts = [module]
        else:
            continue
        found.update(id(part) for part in parts)
        found.update(id(part) for top in parts for part in inside(top) if snapshot.is_young(part))
    return found


def _is_wrapped_again(snapshot: Snapshot, module: Any) -> bool:
    """Return True for a young module around older ones of its class, two deep: each call wraps what is there once more.

    Around a single one it may be a model that is being built.
    """
    for _, name, part in entries(module, MODULES):
        if type(part) is type(module) and not snapshot.is_young(part):
            return any(
                name == inner and type(each) is type(part) for _, inner, each in entries(part, MODULES)
            )
    return False


def has_older_of_its_class(snapshot: Snapshot, values: int, entry: int) -> bool:
    """Return True if a container has an older entry of the same class too, by their positions."""
    owner, cls = snapshot.objects[values], type(snapshot.objects[entry])
    others = [id(other) for other in islice(_entries_of(owner), _MOST_ENTRIES) if type(other) is cls]
    return any(map(snapshot.is_old, snapshot.positions(others)))


def _entries_of(owner: object) -> Iterator[object]:
    """Yield what a container has, the newest first where it has an order; runs none of the program's code."""
    for cls in LISTS:
        if is_a(owner, cls):
            yield from cls.__reversed__(owner)
    if is_a(owner, dict):
        yield from chain.from_iterable(reversed(dict.items(owner)))  # type: ignore[arg-type]
    if is_a(owner, set):
        yield from set.__iter__(owner)  # type: ignore[arg-type]


def entries(module: Any, *tables: str) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the entries of a module's tables, each with its table and its name."""
    values = instance_dict(module) or {}
    for name in tables:
        table = values.get(name)
        if is_a(table, dict):
            items = list(dict.items(table))  # type: ignore[arg-type]
            yield from ((table, plain_text(key) or "", value) for key, value in items)  # type: ignore[misc]


def _one_more(snapshot: Snapshot, module: Any) -> Iterator[Any]:
    """Yield the young parts of an old module whose series has an old part."""
    names_vary = is_a(module, torch.nn.ModuleDict)
    older: set[tuple[int, int, str]] = set()
    young: list[tuple[tuple[int, int, str], Any]] = []
    for table, name, part in entries(module, MODULES, PARAMETERS, BUFFERS):
        series = id(table), id(type(part)), "" if names_vary else _NUMBER.sub("*", name)
        if snapshot.is_young(part):
            young.append((series, part))
        else:
            older.add(series)
    numbered = ((series, part) for series, part in young if series in older)
    yield from (part for series, part in numbered if names_vary or "*" in series[2])


def inside(part: Any) -> Iterator[Any]:
    """Yield the modules below one, and the parameters and buffers of them all."""
    todo, seen = [part], {id(part)}
    while todo:
        for _, _, inner in entries(todo.pop(), MODULES, PARAMETERS, BUFFERS):
            if id(inner) not in seen:
                seen.add(id(inner))
                yield inner
                todo += [inner] if is_a(inner, torch.nn.Module) else []


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
        new_optimizers: references of `optimizers` to the state that the block's own optimizers have. It leaks if an
            older container has the optimizer as one more entry.
    """

    models: Positions
    optimizers: Positions
    replaced: list[Replaced]
    new_optimizers: Positions

    @property
    def edges(self) -> Positions:
        """All of them."""
        return self.models | self.optimizers


NO_STATE: Final = State(set(), set(), [], set())


def state_of(snapshot: Snapshot, own: Positions) -> State:
    """Find the references to parameters, buffers, gradients and the optimizer state of living parameters.

    Args:
        snapshot: the open graph.
        own: the references from names that the block bound. A replaced parameter may have such a name.
    """
    optimizers = snapshot.instances(torch.optim.Optimizer)
    forgotten: set[int] = set()
    replaced: list[Replaced] = []
    models, living = (
        _optimizer_state(snapshot, optimizers, own, forgotten, replaced) if optimizers else ([], [])
    )
    models += [*_module_state(snapshot), *_gradients(snapshot, forgotten)]
    listed_living = listed(living)
    return State(
        listed(models),
        listed_living,
        replaced,
        _state_of_new_optimizers(snapshot, optimizers) & listed_living,
    )


def _state_of_new_optimizers(snapshot: Snapshot, optimizers: list[torch.optim.Optimizer]) -> Positions:
    """Return the references to the state of young optimizers of which an older one has the same parameters.

    The older one is of the same class and has state from before. Without that, a new optimizer is not one of many: it
    may be the first one of another model, or may be in the place of an optimizer that has not made a step.
    """
    tables: list[tuple[bool, int, dict[Any, Any]]] = []
    for optimizer in optimizers:
        state: Any = (instance_dict(optimizer) or {}).get("state")
        if is_a(state, dict):
            tables.append((snapshot.is_young(optimizer), id(type(optimizer)), state))
    young = [(cls, state) for is_young, cls, state in tables if is_young]
    wanted = {(cls, id(parameter)) for cls, state in young for parameter in dict.keys(state)}
    older = {
        (cls, id(parameter))
        for is_young, cls, state in tables
        if not is_young
        for parameter, slots in list(dict.items(state))
        if (cls, id(parameter)) in wanted and any(map(snapshot.is_old, snapshot.positions([id(slots)])))
    }
    return {
        (snapshot.position(state), place)
        for cls, state in young
        if any((cls, id(parameter)) in older for parameter in dict.keys(state))
        for place in snapshot.positions(map(id, dict.values(state)))
    }


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
    own: Positions,
    forgotten: set[int],
    replaced: list[Replaced],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the references to the state of living parameters, of optimizers with state of dead ones and of others.

    The others' references to the living parameters themselves are there too. The ids of the dead ones, which no step
    updates any more, are added to `forgotten`; what each optimizer keeps of such parameters, to `replaced`.
    """
    closed = {snapshot.position(optimizer) for optimizer in optimizers} - {UNREACHED}
    alive_by_any = search(snapshot, snapshot.root_groups(), closed=closed)
    alive_by_others = (
        search(snapshot, snapshot.root_groups(), closed=closed, cut=own) if own else alive_by_any
    )
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
        left_alone = {
            place for place in stepped.values() if place >= 0 and not alive_by_others.reaches(place)
        }
        living = {key for key, place in stepped.items() if place >= 0 and place not in left_alone}
        is_seen = bool(left_alone) and _has_new_parameters(snapshot, living)
        # beside new parameters of its module, a parameter that only a name of the block has was replaced
        alive = alive_by_others if is_seen else alive_by_any
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
    """Return True if a module from before the block got parameters in it, beside older ones with the given ids.

    A part that a series of parts got as one more replaced none.
    """
    added = added_parts(snapshot)
    for module in snapshot.instances(torch.nn.Module):
        if snapshot.is_young(module):
            continue
        modules = [module, *(part for part in inside(module) if not is_tensor(part))]
        parameters = [each for part in modules for _, _, each in entries(part, PARAMETERS) if is_tensor(each)]
        new = [each for each in parameters if snapshot.is_young(each)]
        older = {id(each) for each in parameters} - {id(each) for each in new}
        if not living.isdisjoint(older) and any(id(each) not in added for each in new):
            return True
    return False


def _parameter_lists(groups: Any) -> list[list[Any]]:
    """Return the lists of parameters in the groups of an optimizer."""
    if type(groups) is not list:
        return []
    found = [group.get("params") for group in groups if type(group) is dict]
    return [parameters for parameters in found if type(parameters) is list]
