"""Find the storages that a program used until it ended, whatever kept them.

At the end of a program the variables of its functions are gone. Objects that refer to each other, such as a trainer and
its callbacks, are then garbage. They never took memory that something else needed, so they are no leak. Memory that
each step added to them is a leak, and the searches after some steps find it.

The model shows which garbage was in use. The last step updated it, so an object that leads to it was in use too, if the
object is older than the second step. A newer object may be what that step left behind.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch._torch.modules import BUFFERS, MODULES, PARAMETERS
from memwatch.heap.classes import is_a
from memwatch.heap.module_tables import module_dicts, optimizer_parts, table_entries
from memwatch.heap.search import search, spread
from memwatch.heap.snapshot import Snapshot
from memwatch.heap.tensors import is_tensor
from memwatch.heap.variable_search import living_modules
from memwatch.leaks.diagnose import storages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray
    from torch import nn

    from memwatch.leaks.new_storages import NewStorage


@dataclass
class _Update:
    """The steps of one optimizer.

    Attributes:
        optimizer: the optimizer.
        before_last: the number of its step before the last one, among the steps of all optimizers. After its first
            step, the number before that.
        last: the number of its last step.
        parameters: the parameters that it updates.
    """

    optimizer: weakref.ref[Any]
    before_last: int
    last: int
    parameters: list[weakref.ref[torch.Tensor]]


class Updates:
    """Notes the steps of all optimizers."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._of_optimizer: dict[int, _Update] = {}  # by the id of the optimizer

    def note(self, optimizer: object) -> None:
        """Note that an optimizer has made a step."""
        number = next(self._numbers)
        known = self._of_optimizer.get(id(optimizer))
        if known is not None and known.optimizer() is not optimizer:
            known = None  # another one was at this address
        if known is None:  # a program may make an optimizer for each trial
            gone = [key for key, each in self._of_optimizer.items() if each.optimizer() is None]
            for key in gone:
                del self._of_optimizer[key]
        groups, _ = optimizer_parts(optimizer)
        lists = (dict.get(group, "params") for group in groups or [])
        parameters = [each for found in lists if type(found) is list for each in found]
        if known is None or len(known.parameters) != len(parameters):
            references = [weakref.ref(each) for each in parameters if is_tensor(each)]
            before_last = known.last if known else number - 1
            self._of_optimizer[id(optimizer)] = _Update(
                weakref.ref(optimizer), before_last, number, references
            )
        else:
            known.before_last, known.last = known.last, number

    def state(self) -> list[torch.Tensor]:
        """Return the tensors of the models that the last steps updated, and of their optimizers; drop the list soon."""
        if not self._of_optimizer:
            return []
        newest = max(self._of_optimizer.values(), key=lambda each: each.last)
        # in one round of a GAN several optimizers step; the optimizer of an earlier trial stepped before that
        recent = [each for each in self._of_optimizer.values() if each.last > newest.before_last]
        updated = {id(parameter()) for each in recent for parameter in each.parameters}
        modules = living_modules()
        tables = module_dicts(modules)

        def holding(name: str, values: set[int]) -> set[int]:
            return {
                place
                for place, attributes in enumerate(tables)
                if any(id(value) in values for _, value in table_entries(attributes, name))
            }

        used = holding(PARAMETERS, updated)
        while not (around := holding(MODULES, {id(modules[place]) for place in used})) <= used:
            used |= around
        used = _with_children(used, modules, tables)
        of_modules = [
            value
            for place in used
            for name in (PARAMETERS, BUFFERS)
            for _, value in table_entries(tables[place], name)
        ]
        of_optimizers: list[object] = []
        for each in recent:
            _, state = optimizer_parts(each.optimizer())
            for values in dict.values(state) if state is not None else ():
                of_optimizers += dict.values(values) if is_a(values, dict) else []
        return [each for each in [*of_modules, *of_optimizers] if is_tensor(each)]


def _with_children(used: set[int], modules: list[nn.Module], tables: list[dict[str, Any]]) -> set[int]:
    """Return the places of some modules and of all modules inside them."""
    place_of = {id(module): place for place, module in enumerate(modules)}
    found, left = set(used), list(used)
    while left:
        for _, child in table_entries(tables[left.pop()], MODULES):
            place = place_of.get(id(child))
            if place is not None and place not in found:
                found.add(place)
                left.append(place)
    return found


def storages_beside(
    state: Sequence[torch.Tensor], old: NDArray[np.int64], made: Sequence[NewStorage]
) -> list[torch.UntypedStorage]:
    """Return the storages of garbage that was in use with the state of a model; drop the list soon.

    Args:
        state: the parameters, buffers and optimizer state that the last step used.
        old: identities of the objects from before the second step.
        made: the storages that the program made.
    """
    with Snapshot(storages_of(made), old=old) as snapshot:
        is_garbage = ~search(snapshot, snapshot.root_groups(runner=True)).reached
        of_state = [place for place in snapshot.positions(map(id, state)) if is_garbage[place]]
        leading = spread(*snapshot.reversed(is_garbage), [of_state]).reached
        older = [place for place in np.flatnonzero(leading).tolist() if snapshot.is_old(place)]
        used = search(snapshot, [of_state, older], closed=np.flatnonzero(~is_garbage))
        return [storage for storage in snapshot.storages() if used.reaches(snapshot.position(storage))]
