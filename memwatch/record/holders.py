"""When to look who holds what, and the rows of `holders`.

A look is taken when the live bytes set a new high, or are near it and much was born since the last look; with
`prof.step()` also at the op at which the last iteration had its peak. It searches from the running calls;
where much is left that no variable reaches, gc's referrers are climbed, once for each storage. Looks are
bounded in objects and in time (a share of the time the block has been open); what they cost is reported.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.capture.schema import NONE
from memwatch.record.climb import climb, living_tensors
from memwatch.record.clock import ticks
from memwatch.record.graphs import Graphs
from memwatch.record.holder_words import Words, describe, same_for_all_items
from memwatch.record.reach import Chain, Reach, Source, namespaces, running, sources
from memwatch.record.storages import NEVER, Alive, Storages, address_of, plain_parts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from memwatch.record.context import Context
    from memwatch.record.saved import SavedTensorRecorder
    from memwatch.record.strings import Strings

_GROWTH_RATIO: Final = 1.02
_NEAR_RATIO: Final = 0.9
_FRESH_RATIO: Final = 0.1
_MAX_AGAIN: Final = 16
_SURE_RATIO: Final = 1.1
_TIME_RATIO: Final = 0.04
_MAX_HOLDERS: Final = 6
_SMALL_RATIO: Final = 0.001
_UNNAMED_RATIO: Final = 0.1
_ASK_RATIO: Final = 0.03
_LOOKS_BETWEEN_SEARCHES: Final = 4
_FREE_ASKS: Final = 2
_FREE_LOOKS: Final = 24

Row = tuple[int, int, int, int]
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
        self.rows: list[int] = []
        self.count = 0
        self.cost_ticks = 0
        self._storages = storages
        self._saved = saved
        self._context = context
        self._strings = strings
        self._ops_started = ops_started
        self._start_ticks = ticks()
        self._base_bytes = storages.live_bytes
        self._first_number = storages.count
        self._high_bytes = storages.live_bytes
        self._born_bytes = 0
        self._again = _MAX_AGAIN
        self._looking = False
        self._told: dict[int, list[Row]] = {}
        self._unnamed: set[int] = set()
        self._ask_ticks = self._asked_count = self._count_at_search = 0
        self._due_op = -1
        self._iteration_start = 0
        self._iteration_high = (0, -1)

    def start(self) -> None:
        """Begin to look at new highs."""
        self._storages.watch(self._near(), self.born)

    def stop(self) -> None:
        """Look no more."""
        self._storages.watch(NEVER, self.born)

    def iteration_starts(self) -> None:
        """Plan a look at the op, in the new iteration, at which the last one had its peak."""
        _, op = self._iteration_high
        start = self._ops_started[0]
        self._due_op = start + op - self._iteration_start if op >= 0 else -1
        self._iteration_start, self._iteration_high = start, (0, -1)
        self._storages.watch(0 if self._due_op >= 0 else self._near(), self.born)

    def _near(self) -> int:
        """Give the live bytes from which on a birth may be worth a look: only a new high once enough was seen."""
        ratio = _NEAR_RATIO if self._again > 0 else _GROWTH_RATIO
        return self._base_bytes + int((self._high_bytes - self._base_bytes) * ratio)

    def born(self, nbytes: int) -> None:
        """Look, if this birth makes it worth while."""
        self._born_bytes += nbytes
        live, op = self._storages.live_bytes, self._ops_started[0]
        if live > self._iteration_high[0]:
            self._iteration_high = (live, op)
        increase, high = live - self._base_bytes, self._high_bytes - self._base_bytes
        due = self._due_op >= 0 and op >= self._due_op
        grown = increase > high * _GROWTH_RATIO
        fresh = increase >= high * _NEAR_RATIO and self._born_bytes >= high * _FRESH_RATIO
        if (
            (grown or fresh or due)
            and not self._looking
            and (due or self._affordable(increase > high * _SURE_RATIO))
        ):
            self._due_op = -1 if due else self._due_op
            self._again = _MAX_AGAIN if grown else self._again - 1
            self._high_bytes = max(self._high_bytes, live)
            self._born_bytes = 0
            self._storages.watch(0 if self._due_op >= 0 else self._near(), self.born)
            self.look()

    def _affordable(self, surely: bool) -> bool:
        spent = self.cost_ticks - self._ask_ticks
        return surely or self.count < _FREE_LOOKS or spent <= _TIME_RATIO * (ticks() - self._start_ticks)

    def may_ask(self) -> bool:
        """Tell whether there is time left to search further and to ask gc, which takes tens of milliseconds."""
        free = self._asked_count < _FREE_ASKS
        return free or self._ask_ticks <= _ASK_RATIO * (ticks() - self._start_ticks)

    def search_again(self) -> bool:
        """Tell whether it is time to look anew for what gc was asked about: a value gets a variable in the end."""
        waiting = self._count_at_search + _LOOKS_BETWEEN_SEARCHES <= self.count
        if waiting and not self._unnamed.isdisjoint(self._told):
            self._count_at_search = self.count
            return True
        return False

    def asked(self, spent_ticks: int) -> None:
        """Note what it took."""
        self._asked_count += 1
        self._ask_ticks += spent_ticks

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
            self.count += 1
            self.cost_ticks += ticks() - start
            self._looking = False


class _Look:
    """One look: what it found so far."""

    def __init__(self, looks: HolderLooks) -> None:
        self._looks = looks
        storages = looks._storages
        self._live = storages.live
        self._smallest = max(int((storages.live_bytes - looks._base_bytes) * _SMALL_RATIO), 1)
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
        self._search(Reach(set(calls), deep=False), sources(frame, spaces))
        fresh = self._unnamed()
        if fresh or self._looks.search_again():
            self._deep = True
            reach = Reach(calls, deep=True)
            self._search(reach, sources(frame, spaces))
            self._search(reach, namespaces(spaces))
            self._looks._told.update(self._told_now)
            if fresh:
                self._ask(fresh, frame)

    def _search(self, reach: Reach, places: Iterable[Source]) -> None:
        for source in places:
            for chain in reach.tensors(source):
                self._held(source, chain)

    def _held(self, source: Source, chain: Chain) -> None:
        row: Row | None = None
        try:
            keys = [address_of(part) for part in plain_parts(chain[-1])]
        except (NotImplementedError, RuntimeError, AttributeError):
            return
        for key in keys:
            number = self._wanted(key)
            if number != NONE:
                row = row or self._words(chain)
                self._append(number, row)
                if self._deep:
                    self._told_now.setdefault(number, []).append(row)
        if not self._deep:
            self._graph(source, chain)

    def _wanted(self, key: int) -> int:
        """Give the number of the storage at an address, if it is large and has not too many holders yet."""
        alive = self._live.get(key)
        if alive is None or alive.nbytes < self._smallest:
            return NONE
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
        return strings(words.kind), strings(words.holder), strings(words.site), strings(words.path)

    def _graph(self, source: Source, chain: Chain) -> None:
        """Tell which saved tensors the graph of a variable keeps, and what a ctx in it holds."""
        row: Row | None = None
        for sequence, held in self._graphs.behind(chain[-1], id(source)):
            for steps in held:
                self._held(source, (*chain, *steps))
            for number in self._saved.get(sequence, ()):
                if (number, id(source)) in self._in_graph:
                    continue
                self._in_graph.add((number, id(source)))
                if row is None:
                    words = describe(chain)
                    row = self._row(
                        words._replace(kind="graph", path=f"{words.path}\n.grad_fn and the graph behind it")
                    )
                self._append(number, row)

    def _unnamed(self) -> dict[int, Alive]:
        """Repeat what is known of storages that no variable holds; give those, unnamed twice, that are many bytes."""
        looks = self._looks
        explained = {
            number for numbers in self._saved.values() for number in numbers
        } | looks._context.owned()
        missing = {
            key: alive
            for key, alive in self._live.items()
            if alive.__class__ is Alive and alive.number >= looks._first_number and alive.nbytes >= self._smallest
            and alive.number not in self._found and alive.number not in explained
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
        enough = nbytes >= _UNNAMED_RATIO * (looks._storages.live_bytes - looks._base_bytes)
        return fresh if enough and looks.may_ask() else {}

    def _ask(self, fresh: dict[int, Alive], frame: FrameType | None) -> None:
        """Ask gc who refers to the storages that the deep search did not find either."""
        looks = self._looks
        start = ticks()
        left = [key for key, alive in fresh.items() if alive.number not in looks._told]
        looks._told.update((fresh[key].number, []) for key in left)
        left.sort(key=lambda key: -fresh[key].nbytes)
        found = (
            climb(living_tensors({key: fresh[key].number for key in left}, address_of), running(frame))
            if left
            else {}
        )
        for number, words in found.items():
            row = self._row(words)
            looks._told[number] = [row]
            self._append(number, row)
        looks.asked(ticks() - start)
