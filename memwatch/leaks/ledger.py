"""The changes of each run: storages born and left, storages that died, storages that grew in place."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memwatch._torch.autograd_state import autograd_state
from memwatch.heap.tensors import is_tensor, quiet
from memwatch.leaks.elders import close_block, is_from_block, open_block
from memwatch.leaks.new_storages import NewStorages, YoungWatch, behind, tensors_among

if TYPE_CHECKING:
    import torch

    from memwatch.leaks.new_storages import NewStorage


@dataclass(slots=True)
class Change:
    """The changes of one run to the storages that outlive it.

    Attributes:
        born: storages that the run made and left.
        died: storages from before the run that it freed.
        grown: storages from before the run that are larger after it, each with the bytes added.
        nodes: living autograd nodes behind the tensors that the runs made, and behind older ones that got a graph.
    """

    born: list[NewStorage] = field(default_factory=list)
    died: list[NewStorage] = field(default_factory=list)
    grown: list[NewStorage] = field(default_factory=list)
    nodes: int = 0

    def added(self) -> Counter[tuple[str, int]]:
        """Count the storages left beyond those that replaced dead ones of the same size and device."""
        return _sizes(self.born) - _sizes(self.died) + _sizes(self.grown)

    def hides_growth(self, run: int) -> bool:
        """Return True if the figures alone cannot show growth, so that the holders are needed.

        The figures are enough in three cases: nothing died; just as much was born; or the born storages include, by
        size, all dead ones, and these came from the previous run, as with a value that each run replaces.
        """
        born, died = _sizes(self.born), _sizes(self.died)
        if self.grown or not died or born == died:
            return bool(self.grown)
        return not (died <= born and all(made.run == run - 1 for made in self.died))

    def may_hide_growth(self) -> bool:
        """Return True if a new storage may be an enlarged copy of a smaller dead one, as by `torch.cat`.

        If lines are noted, the sources of each storage are known instead.
        """
        born, died = _sizes(self.born), _sizes(self.died)
        smallest: dict[str, int] = {}
        for device, nbytes in died - born:
            smallest[device] = min(nbytes, smallest.get(device, nbytes))
        return any(nbytes > smallest.get(device, nbytes) for device, nbytes in born - died)


def _sizes(storages: list[NewStorage]) -> Counter[tuple[str, int]]:
    return _CountBySize(made.size for made in storages)


class _CountBySize(Counter[tuple[str, int]]):
    """Storages counted by size; a class of its own, so that ours are not counted as the program's objects."""


class Ledger:
    """Holds gc still over some runs and keeps the book of their storages, by weak references."""

    def __init__(self) -> None:
        self._young = YoungWatch(self._at_collection)
        self._known: dict[int, NewStorage] = {}
        self._bytes: dict[int, int] = {}  # of the storages that changed their size in a run
        self._grown: list[NewStorage] = []
        self._waiting: set[int] = set()  # storages that were dead before gc ran
        self._older_tensors: list[weakref.ref[torch.Tensor]] = []

    def start(self) -> None:
        """Begin the first run."""
        self._young.start()
        try:
            self._known, self._bytes = open_block()
        except BaseException:
            self._young.stop()
            raise
        self._young.begin()

    def follow_older_tensors(self) -> None:
        """Count also the nodes of tensors that are there now and get a graph in a run, as by `total += loss`."""
        with quiet():
            tensors: list[Any] = [obj for obj in tensors_among(gc.get_objects()) if is_tensor(obj)]
            self._older_tensors = [
                weakref.ref(each) for each in tensors if not autograd_state(each).requires_grad
            ]

    def _older_ends(self) -> list[torch.Tensor]:
        """Return the older tensors that got a graph; drop the list soon."""
        with quiet():
            tensors = [tensor for ref in self._older_tensors if (tensor := ref()) is not None]
            return [tensor for tensor in tensors if not autograd_state(tensor).is_leaf]

    def stop(self) -> None:
        """End the last run and give gc back."""
        try:
            close_block()
        finally:
            self._young.stop()

    def _at_collection(self, phase: str) -> None:
        """Forget what gc frees in a run: garbage from before made room for nothing."""
        dead = {key for key, made in self._known.items() if not made.alive}
        if phase == "start":
            self._waiting = dead
            return
        for key in dead - self._waiting:
            del self._known[key]

    def survives(self) -> bool:
        """Return True if something that a run made is alive, or grew."""
        return bool(self._grown) or any(made.run >= 0 and made.alive for made in self._known.values())

    def end_run(self, run: int, watched: NewStorages | None = None) -> Change:
        """Note what a run did.

        Args:
            run: its index.
            watched: the storages that were seen being made in it.
        """
        change = Change()
        born = watched or NewStorages()
        for key, made in list(self._known.items()):
            if not made.alive:
                del self._known[key]
                change.died += [made] * bool(made.nbytes)
            elif (more := made.bytes_now() - self._bytes.get(key, made.nbytes)) != 0:
                # a storage that gets its first memory was born, it did not grow
                if more > 0 and self._bytes.get(key, made.nbytes):
                    site, caller = born.resized_at.get(key, (made.site, made.caller))
                    grown = replace(
                        made, nbytes=more, run=run, certain=True, site=site, caller=caller, grew=True
                    )
                    change.grown.append(grown)
                self._bytes[key] = made.bytes_now()
        self._grown += change.grown
        dead_bytes = {id(made.ref): made.nbytes for made in change.died}
        storages, change.nodes = behind([*self._older_ends(), *self._young.survivors()])
        for storage in storages:
            born.add(storage, run, certain=is_from_block(storage))
        for key, made in list(born.by_id.items()):
            if made.alive and key not in self._known:  # which the living alone are left in
                made.replaced_bytes = max(
                    (dead_bytes.get(id(source), 0) for source in made.sources), default=0
                )
                made.grew = made.replaced_bytes > 0
                self._known[key] = made
                self._bytes.pop(key, None)
                change.born.append(made)
        return change

    def skip(self, seconds: float) -> None:
        """Exclude a time in which the program did not run from the ages of its storages."""
        for made in self._known.values():
            made.time_s += seconds

    def alive(self, first_run: int) -> list[NewStorage]:
        """Return the living storages that a run from this one on made or made larger, each once."""
        grown = {id(made.ref): made for made in self._grown if made.run >= first_run and made.alive}
        born = (made for made in self._known.values() if made.run >= first_run and made.alive)
        return [*(made for made in born if id(made.ref) not in grown), *grown.values()]

    def young(self) -> list[object]:
        """Return the living tensors, nodes and storages that the runs made; drop the list soon."""
        return self._young.survivors()

    def graph_ends(self) -> list[torch.Tensor]:
        """Return the living tensors to which the runs gave a graph, the older ones first; drop the list soon."""
        with quiet():
            tensors: list[Any] = [obj for obj in self._young.survivors() if is_tensor(obj)]
            return self._older_ends() + [each for each in tensors if not autograd_state(each).is_leaf]

    def older(self) -> list[NewStorage]:
        """Return the living storages from before the first run."""
        return [made for made in self._known.values() if made.run < 0 and made.alive]
