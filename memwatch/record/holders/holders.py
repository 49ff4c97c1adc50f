"""Who holds what: the looks at the running program, and the rows of `holders` that they append.

A look searches from the running calls; where much is left that no variable reaches, it searches deeper, once
for each storage, and asks gc for who refers to it. `look_times` says when to look.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from memwatch.capture.schema import NONE
from memwatch.own_code import code_owner
from memwatch.record.clock import ticks
from memwatch.record.holders.climb import climb, in_variables, living_tensors, young_objects
from memwatch.record.holders.graphs import Graphs
from memwatch.record.holders.holder_words import Words, describe, same_for_all_items
from memwatch.record.holders.look_times import LookTimes
from memwatch.record.holders.reach import Chain, Reach
from memwatch.record.holders.sources import Source, context_variables, namespaces, running, sources
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import (
    NEVER,
    Alive,
    Passing,
    Storages,
    address_of,
    plain_parts,
)
from memwatch.record.tables.storages import _address_or_zero as address_or_zero

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from memwatch.record.context import Context
    from memwatch.record.python.saved import SavedTensorRecorder
    from memwatch.record.tables.strings import Strings

_MAX_HOLDERS: Final = 6
_SMALL_RATIO: Final = 0.001
_UNNAMED_RATIO: Final = 0.1
_LOOKS_BETWEEN_SEARCHES: Final = 4

Row = tuple[int, int, int, int, int]
"""String ids of kind, holder, site and path."""


class HolderLooks:
    """Append rows of `holders` for the storages that running calls can reach."""

    def __init__(
        self,
        storages: Storages,
        saved: SavedTensorRecorder,
        context: Context,
        strings: Strings,
        ops_started: list[int],
    ) -> None:
        self.rows = Rows()
        self.cut_count = 0
        """Looks that came to a search's limit: they may have missed a holder."""
        self._times = LookTimes(storages.live_bytes)
        self._storages = storages
        self._saved = saved
        self._context = context
        self._strings = strings
        self._ops_started = ops_started
        self._base_bytes = storages.live_bytes
        self._first_number = storages.entry_count = storages.count
        self._looking = False
        self._told: dict[int, list[Row]] = {}
        self._unnamed: set[int] = set()
        self._barren: set[int] = set()
        self._count_at_search = 0

    @property
    def count(self) -> int:
        """The looks taken so far."""
        return self._times.count

    @property
    def cost_ticks(self) -> int:
        """What they took."""
        return self._times.cost_ticks

    @property
    def increase_bytes(self) -> int:
        """What the block made and lives."""
        storages = self._storages
        return storages.live_bytes + storages.entry_gone_bytes - self._base_bytes

    def start(self) -> None:
        """Begin to look at new highs."""
        self._storages.watch(self._times.worth_from_bytes(), self.born)

    def stop(self) -> None:
        """Look no more."""
        self._storages.watch(NEVER, self.born)

    def iteration_starts(self) -> None:
        """Plan a look at the op, in the new iteration, at which the last one had its peak."""
        self._times.iteration_starts(self._ops_started[0])
        self.start()

    def born(self, nbytes: int) -> None:
        """Look, if this birth makes it worth while."""
        times = self._times
        live_bytes = self._base_bytes + self.increase_bytes
        if not self._looking and times.is_worth_it(nbytes, live_bytes, self._ops_started[0]):
            self.start()
            self.look()

    def search_again(self) -> bool:
        """Tell whether it is time to look anew for what gc was asked about: a value gets a variable in the end."""
        waiting = self._count_at_search + _LOOKS_BETWEEN_SEARCHES <= self.count
        if waiting and not self._unnamed.isdisjoint(self._told):
            self._count_at_search = self.count
            return True
        return False

    def look(self) -> None:
        """Find the holders now."""
        self._looking = True
        start = ticks()
        enabled = gc.isenabled()
        gc.disable()  # a collection now would run the program's finalizers inside an op
        try:
            with torch._C.DisableTorchFunction():
                _Look(self).run(sys._getframe(1))
        finally:
            if enabled:
                gc.enable()
            self._times.looked(ticks() - start)
            self._looking = False


class _Look:
    """One look: what it found so far."""

    def __init__(self, looks: HolderLooks) -> None:
        self._looks = looks
        storages = looks._storages
        self._live = storages.live
        self._smallest = max(int(looks.increase_bytes * _SMALL_RATIO), 1)
        self._found: dict[int, int] = {}
        self._deep = False
        self._told_now: dict[int, list[Row]] = {}
        self._graphs = Graphs()
        self._saved = looks._saved.living_by_sequence()
        self._in_graph: set[tuple[int, int]] = set()
        self._items: dict[tuple[int, int], Row] = {}

    def run(self, frame: FrameType | None) -> None:
        calls = {id(call) for call in running(frame)}
        spaces: dict[int, dict[str, Any]] = {}
        barren = self._looks._barren
        near = Reach(set(calls), deep=False, barren=barren)
        self._search(near, sources(frame, spaces))
        self._looks.cut_count += near.cut_count > 0
        fresh = self._unnamed()
        if fresh or self._looks.search_again():
            self._deep = True
            reach = Reach(calls, deep=True, barren=barren)
            self._search(reach, sources(frame, spaces))
            self._search(reach, (*namespaces(spaces), context_variables()))
            for chain in reach.rest():
                self._held(chain[0], chain)
            self._looks._told.update(self._told_now)
            if fresh:
                self._ask(fresh, frame)

    def _search(self, reach: Reach, places: Iterable[Source]) -> None:
        for source in places:
            for chain in reach.tensors(source):
                self._held(source, chain)

    def _held(self, source: Source, chain: Chain) -> None:
        row: Row | None = None
        for part in _parts(chain[-1]):
            number = self._wanted(part)
            if number != NONE:
                row = row or self._words(chain)
                self._append(number, row)
                if self._deep:
                    self._told_now.setdefault(number, []).append(row)
        if not self._deep:
            self._graph(source, chain)

    def _wanted(self, tensor: Tensor) -> int:
        """Give the number of a tensor's storage, if it is large and has not too many holders yet."""
        alive = self._live.get(address_of(tensor))
        if alive is None or alive.nbytes < self._smallest:
            return NONE
        if alive.__class__ is Passing and alive.address != address_or_zero(tensor):
            return NONE  # a storage of backward that is gone; another lies where it lay
        if self._deep and alive.number not in self._looks._unnamed:
            return NONE
        count = self._found.get(alive.number, 0)
        self._found[alive.number] = count + 1
        return alive.number if count < _MAX_HOLDERS else NONE

    def _append(self, number: int, row: Row) -> None:
        looks = self._looks
        looks.rows += (looks.count, looks._ops_started[0], number, *row)

    def _words(self, chain: Chain) -> Row:
        """Name a chain; the items of one container share a name, for naming costs more than finding."""
        place = (id(chain[0]), id(chain[1]))
        shared = same_for_all_items(chain)
        if shared and place in self._items:
            return self._items[place]
        row = self._row(describe(chain))
        if shared:
            self._items[place] = row
        return row

    def _row(self, words: Words) -> Row:
        strings = self._looks._strings
        file = words.site.rpartition(":")[0]
        owner = code_owner(file) if file else NONE
        kind, holder, site, path = (strings(text) for text in words)
        return kind, holder, site, path, int(owner)

    def _graph(self, source: Source, chain: Chain) -> None:
        """Tell which saved tensors the graph of a variable keeps, and what a ctx in it holds."""
        row: Row | None = None
        place = id(source) if source.own else 0  # torch's calls pass one graph on: it is walked once for all
        for sequence, held in self._graphs.behind(chain[-1], place):
            for steps in held:
                self._held(source, (*chain, *steps))
            for number in self._saved.get(sequence, ()):
                if (number, place) in self._in_graph:
                    continue
                self._in_graph.add((number, place))
                if row is None:
                    words = describe(chain)
                    row = self._row(
                        words._replace(kind="graph", path=f"{words.path}\n.grad_fn and the graph behind it")
                    )
                self._append(number, row)

    def _unnamed(self) -> dict[int, Alive]:
        """Repeat what is known of storages that no variable holds; give those, unnamed twice, that are many bytes."""
        looks = self._looks
        explained = {number for numbers in self._saved.values() for number in numbers}
        missing = {
            alive.key: alive
            for alive in list(self._live.values())
            if alive.__class__ is Alive and alive.number >= looks._first_number and alive.nbytes >= self._smallest
            and alive.number not in self._found and alive.number not in explained
            and not looks._context.owns(alive.number)
        }  # fmt: skip
        before, looks._unnamed = looks._unnamed, {alive.number for alive in missing.values()}
        fresh = {}
        for key, alive in missing.items():
            rows = looks._told.get(alive.number)
            if rows is not None:
                for row in rows:
                    self._append(alive.number, row)
            elif alive.number in before:
                fresh[key] = alive
        nbytes = sum(alive.nbytes for alive in fresh.values())
        enough = nbytes >= _UNNAMED_RATIO * looks.increase_bytes
        return fresh if enough and not looks._context.optimizing else {}

    def _ask(self, fresh: dict[int, Alive], frame: FrameType | None) -> None:
        """Ask gc who refers to the storages that the deep search did not find either: young objects first."""
        looks = self._looks
        left = {key: alive.number for key, alive in fresh.items() if alive.number not in looks._told}
        left = dict(sorted(left.items(), key=lambda item: -fresh[item[0]].nbytes))
        looks._told.update((number, []) for number in left.values())
        variables = in_variables(
            running(frame)
        )  # now, for a list of all objects holds the frames' dictionaries
        objects = young_objects()
        tensors = living_tensors(left, address_of, objects)
        self._climbed(climb(tensors, variables, objects))
        old = {key: number for key, number in left.items() if number not in tensors}
        objects.clear()
        tensors.clear()
        if old and looks._times.may_ask():
            start = ticks()
            objects = gc.get_objects()
            tensors = living_tensors(old, address_of, objects)
            objects.clear()  # it holds every container there is, perhaps one of this call's own
            self._climbed(climb(tensors, variables))
            looks._times.asked(ticks() - start)

    def _climbed(self, found: dict[int, Words]) -> None:
        for number, words in found.items():
            row = self._row(words)
            self._looks._told[number] = [row]
            self._append(number, row)


def _parts(tensor: Tensor) -> list[Tensor]:
    """Give the tensors in which a tensor lies; none where it shows no storage."""
    try:
        parts = (
            [tensor]
            if type(tensor) in (Tensor, Parameter) and tensor.layout is torch.strided
            else list(plain_parts(tensor))
        )
        return [part for part in parts if address_of(part)]
    except (NotImplementedError, RuntimeError, AttributeError):
        return []
