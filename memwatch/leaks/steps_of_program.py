"""Find growth from one optimizer step of a program to the next, while the program runs.

At the end of a program the variables of its functions are gone, and a list at its top level may be its result. Only
the steps in between show growth: a holder that keeps a tensor of each step, with its graph. The program's own
optimizer marks the end of a step.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from torch.optim.optimizer import register_optimizer_step_post_hook

from memwatch._torch.autograd_state import autograd_state
from memwatch.heap.ids import identities
from memwatch.heap.tensors import is_tensor, quiet, storage_of
from memwatch.leaks.diagnose import diagnose
from memwatch.leaks.exemptions import Exemptions
from memwatch.leaks.groups import leaks_of
from memwatch.leaks.hook_growth import leaks_of_hooks, next_hook_number
from memwatch.leaks.new_storages import tensors_among

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memwatch.leaks.leak import Leak
    from memwatch.leaks.new_storage_mode import NewStorageMode
    from memwatch.leaks.new_storages import NewStorages
    from memwatch.leaks.survivor import Survivor

_FIRST_SEARCH: Final = 6
"""The step after which the heap is searched first, and again each time the number of steps has doubled. The first step
makes lazy state, and the last tensors are in variables still: four steps are left to show growth. Guess."""
_MOST_S: Final = 30.0
"""No more searches once they took longer: the last one decides."""


class ProgramSteps:
    """Counts the steps of the first optimizer that steps, and searches for the tensors that each step left.

    Attributes:
        leaks: holders of a tensor with its graph, or of a hook, of each step, at the last search; per step.
    """

    def __init__(self, book: NewStorages, mode: NewStorageMode) -> None:
        self.leaks: list[Leak] = []
        self._book = book
        self._mode = mode
        self._handle: Any = None
        self._optimizer: int | None = None
        self._steps = 0
        self._next_search = _FIRST_SEARCH
        self._search_s = 0.0
        self._hook_numbers: list[int] = []  # after each step
        self._old: NDArray[np.int64] | None = None  # identities of the objects from before the second step

    def start(self) -> None:
        """Have torch call after each optimizer step."""
        self._handle = register_optimizer_step_post_hook(self._after_step)

    def stop(self) -> None:
        """End the calls."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _after_step(self, optimizer: object, _args: Any, _kwargs: Any) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._optimizer != id(optimizer):
            return
        self._steps += 1
        self._hook_numbers.append(next_hook_number())
        if self._old is None:
            self._old = identities(gc.get_objects())
        if self._steps >= self._next_search and self._search_s < _MOST_S:
            start_s = time.monotonic()
            self._next_search *= 2
            self.leaks = self._search()
            self._search_s += time.monotonic() - start_s
        self._mode.run = self._steps

    def _search(self) -> list[Leak]:
        """Return the holders that keep a tensor with its graph, or a hook, of each step but the first and the last."""
        measured = range(1, self._steps - 1)
        made = [storage for storage in self._book.alive() if storage.run in measured]
        look = diagnose(made, Exemptions(state=False), per_call=True, old=self._old)
        with_graph = _storages_with_graph()
        kept = [each for each in look.retained if _keeps_graph(each, with_graph)]
        found = leaks_of(kept, measured, per_call=True)
        leaks = [replace(leak, keeps_graph=True) for leak in found if leak.every == 1]
        return leaks + leaks_of_hooks(self._hook_numbers, (), leaks)


def _keeps_graph(survivor: Survivor, with_graph: set[int]) -> bool:
    return survivor.through_graph or id(survivor.storage.ref()) in with_graph


def _storages_with_graph() -> set[int]:
    """Return the ids of the storages of tensors that lead to a graph."""
    with quiet():
        tensors: list[Any] = [obj for obj in tensors_among(gc.get_objects()) if is_tensor(obj)]
        ends = (tensor for tensor in tensors if not autograd_state(tensor).is_leaf)
        return {id(storage_of(tensor)) for tensor in ends}
