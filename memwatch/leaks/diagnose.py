"""Explain each storage that survived: the kind of leak, and the reference that holds it.

A numpy array or another object that gc does not show may be the holder. A cheap guess about this decides whether
the whole heap is searched.
"""

from __future__ import annotations

import dis
import gc
import re
import sys
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import torch

from memwatch._torch.autograd import AccumulateGrad
from memwatch._torch.autograd_state import autograd_state, base_of
from memwatch._torch.tensors import device_of
from memwatch.gc_pause import HAS_THREE_GENERATIONS, collect
from memwatch.heap.autograd import is_sparse, sparse_parts
from memwatch.heap.c_held import borrowed_memories
from memwatch.heap.frames import is_import, is_own_code
from memwatch.heap.names import instance_dict
from memwatch.heap.paths import Step, steps_of
from memwatch.heap.roots import Root, RootKind
from memwatch.heap.search import search
from memwatch.heap.shapes import key_of
from memwatch.heap.snapshot import Snapshot
from memwatch.heap.tensors import is_node, is_tensor, nbytes_of, quiet, storage_bytes, storage_of
from memwatch.heap.vertices import describe
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.leaks import LeakKind
from memwatch.leaks.advice import are_arguments_in_c, is_of_weak_keys
from memwatch.leaks.cause import entry_step, series_of, sort_of
from memwatch.leaks.excuses import (
    Case,
    are_old,
    end_that_read,
    excuse_for,
    exempt_edges,
    identity,
    is_certainly_old,
    latest_references,
    may_have_latest,
    older_items_follow,
    registers_itself,
    shows_all,
)
from memwatch.leaks.known_causes import KnownCauses
from memwatch.leaks.known_retainers import NO_STATE, has_older_of_its_class, state_of, state_storages
from memwatch.leaks.leak import Holding, Survivor
from memwatch.leaks.loops import Loops
from memwatch.leaks.new_storages import NewStorages, tensors_among
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from memwatch.heap.roots import Held
    from memwatch.heap.search import Tree
    from memwatch.kinds.edges import Vertex
    from memwatch.leaks.excuses import Exemptions
    from memwatch.leaks.known_retainers import Positions, Replaced
    from memwatch.leaks.loops import Loop
    from memwatch.leaks.new_storages import NewStorage

# The objects that the roots of a program reach past legitimate holders. Each search runs on first use.


class Reached:
    """The objects that some roots reach. Each search covers the whole heap, so it runs on first use."""

    def __init__(self, snapshot: Snapshot, exempt: Exemptions) -> None:
        self._snapshot = snapshot
        self._exempt = exempt
        self._own = exempt_edges(snapshot, exempt)
        self._state = state_of(snapshot, self._own) if exempt.state else NO_STATE

    @cached_property
    def past_state(self) -> Tree:
        """The objects that the program's roots reach past legitimate holders.

        A parameter does not leak, but objects behind it may: a graph behind its gradient, its attributes.
        """
        return self._from_program(self._own | self._state.edges)

    @cached_property
    def from_modules(self) -> Tree:
        """The objects that the variables of modules reach past legitimate holders."""
        snapshot = self._snapshot
        modules = [
            place
            for place, root in enumerate(snapshot.roots, start=snapshot.first_root)
            if root.kind is RootKind.MODULES and not root.runner
        ]
        cut = self._own | self._state.edges
        return search(snapshot, [modules], closed=snapshot.barriers(), cut=cut)

    @cached_property
    def through_state(self) -> Tree:
        """The program's roots, through the state of models too, but not from the optimizers that step them."""
        state = self._state
        return self._from_program(self._own | state.optimizers) if state.edges else self.past_state

    @property
    def new_optimizers(self) -> Positions:
        """The references from optimizers that the block made to the state of living parameters."""
        return self._state.new_optimizers

    def through_new_optimizers(self, cut: Positions, containers: Collection[int]) -> Tree:
        """The program's roots, through the state of models and of the block's own optimizers.

        Args:
            cut: references that do not count.
            containers: objects whose references do not count.
        """
        state = self._state
        return self._from_program(self._own | (state.optimizers - state.new_optimizers) | cut, containers)

    @cached_property
    def legitimate(self) -> set[int]:
        """The storages of the state of models."""
        return state_storages(self._snapshot, self._state.edges)

    @cached_property
    def results(self) -> Tree:
        """The objects that the names of the block lead to, but not through modules and what these define.

        A name for something that another module defines, such as an imported cache, does not make it a result.
        """
        snapshot = self._snapshot
        own = {namespace for namespace, _ in self._exempt.globals}
        tables_of = {id(module): id(instance_dict(module)) for module in snapshot.instances(ModuleType)}
        modules = snapshot.positions(module for module, table in tables_of.items() if table not in own)
        tables = snapshot.positions(table for table in tables_of.values() if table not in own)
        defined = [place for table in tables for place in snapshot.referents(table).tolist()]
        closed = {*snapshot.barriers(), *modules, *tables, *defined}
        return search(snapshot, [[value for _, value in self._own]], closed=closed)

    @property
    def replaced(self) -> list[Replaced]:
        """The parameters that optimizers alone keep."""
        return self._state.replaced

    @cached_property
    def everyone(self) -> Tree:
        """The objects that all roots reach, including those of the test runner and of the caller."""
        exempt = self._snapshot.positions(self._exempt.objects)
        return search(self._snapshot, [*self._snapshot.root_groups(runner=True), exempt])

    def released_with_names(self) -> set[int]:
        """Return the ids of the storages that nothing but the names of the block keeps alive."""
        if not self._own:
            return set()
        snapshot = self._snapshot
        caller = snapshot.positions(self._exempt.objects)
        roots = [*snapshot.root_groups(runner=True), caller]
        others = search(snapshot, roots, closed=snapshot.running_coroutines(), cut=self._own)
        named = search(snapshot, [[value for _, value in self._own]])
        places = ((id(storage), snapshot.position(storage)) for storage in snapshot.storages())
        return {key for key, place in places if named.reaches(place) and not others.reaches(place)}

    def without(self, cut: Positions) -> Tree:
        """Return what the program's roots reach past what is legitimate and past some references."""
        return self._from_program(self._own | self._state.edges | cut)

    def beside(self, containers: Collection[int]) -> Tree:
        """Return what the program's roots reach past what is legitimate, and by no way through some containers."""
        return self._from_program(self._own | self._state.edges, containers)

    def _from_program(self, cut: Positions, containers: Collection[int] = ()) -> Tree:
        snapshot = self._snapshot
        closed = snapshot.barriers().union(containers)
        return search(snapshot, snapshot.root_groups(), closed=closed, cut=cut)


def gradient_accumulators(snapshot: Snapshot) -> list[int]:
    """Return the positions of the nodes by which a graph leads to the parameters that it trains."""
    return [place for place, obj in enumerate(snapshot.objects) if type(obj) is AccumulateGrad]


def nodes_of_graphs(snapshot: Snapshot) -> list[int]:
    """Return the positions of the nodes of autograd graphs."""
    return [place for place, obj in enumerate(snapshot.objects) if is_node(obj)]


def _reference_of(survivor: Survivor, chain: Sequence[int]) -> Positions:
    """Return the reference to cut of a survivor, as positions in the snapshot."""
    cut = survivor.cut
    return set() if cut is None else {(chain[cut.end - 1], chain[cut.end])}


def is_carried(steps: Sequence[Step]) -> bool:
    """Return False if a path begins at a variable that says nothing of the next pass of a loop.

    It is a variable that each pass assigns before it reads it, or an argument, which the caller has too.
    """
    edge = steps[0].edge if steps else None
    if edge is None or not edge.kind.row.is_variable or not edge.name:
        return True
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        is_call = edge.owner is not None and (code.co_filename, code.co_name) == (
            edge.owner.file,
            edge.owner.name,
        )
        is_module = (
            edge.kind is EdgeKind.GLOBAL and code.co_name == _OF_MODULE and code.co_filename == edge.file
        )
        if is_call or is_module:
            is_argument = (
                edge.kind is not EdgeKind.GLOBAL and edge.name in code.co_varnames[: code.co_argcount]
            )
            if is_argument and not _is_assigned(code, edge.name):
                return False
            return not is_assigned_first(code, frame.f_lasti, edge.name)
        frame = frame.f_back
    return True


def _is_assigned(code: CodeType, name: str) -> bool:
    return any(use == (name, _STORE) for _, use in _uses(code))


def is_assigned_first(code: CodeType, offset: int, name: str) -> bool:
    """Return True if the innermost loop around an instruction assigns a variable before it reads it."""
    jumps = [each for each in dis.get_instructions(code) if each.opcode in _JUMPS]
    loops = [(each.argval, each.offset) for each in jumps if each.argval <= offset <= each.offset]
    start, end = max(loops, default=(0, -1))
    uses = [how for at, (used, how) in _uses(code) if start <= at <= end and used == name]
    return bool(uses) and uses[0] == _STORE


def _uses(code: CodeType) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield where a function reads and assigns variables: the offset, and the name with the operation."""
    for each in dis.get_instructions(code):
        # newer Pythons use two variables in one instruction
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        for how, name in zip(_USES.findall(each.opname), names, strict=False):
            if isinstance(name, str):
                yield each.offset, (name, how)


def _is_behind_hooks(chain: Sequence[Any]) -> bool:
    """Return True for a path that leads through a graph to the hooks of a parameter."""
    return any(
        type(node) is AccumulateGrad and type(table) is OrderedDict
        for node, table in zip(chain, chain[2:], strict=False)
    )


def tensor_words(objects: list[Any]) -> str:
    """Return the last tensor of a path, described."""
    return describe(next((obj for obj in reversed(objects) if is_tensor(obj)), objects[-1]))


def shown_bytes(tensors: Sequence[torch.Tensor]) -> Counter[int]:
    """Return how many bytes of each storage some tensors show, by the id of the storage.

    The base of a view shows all of it, but the program may have the view alone.
    """
    shown: Counter[int] = Counter()
    with quiet():
        bases = {id(base_of(tensor)) for tensor in tensors}
        for tensor in tensors:
            if id(tensor) not in bases:
                shown[id(storage_of(tensor))] += _known_bytes(tensor)
    return shown


def results_alone(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Return the ids of the storages over which some tensor is the result of an op, and no view.

    On the CPU the storage of such a result may be much larger than the result: `mse_loss` computes its mean in the
    memory of the squares. The base of a view does not count, because the program may have the view alone.
    """
    with quiet():
        views = [(id(tensor), base_of(tensor)) for tensor in tensors]
        no_results = {view for view, base in views if base is not None} | {id(base) for _, base in views}
        return {
            id(storage_of(tensor))
            for tensor in tensors
            if id(tensor) not in no_results and not autograd_state(tensor).is_leaf
        }


def _known_bytes(tensor: torch.Tensor) -> int:
    try:
        return int(nbytes_of(tensor))
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        # nested, sparse and opaque tensors
        pass_on(error)
        return 0


def is_hidden(storages: Sequence[NewStorage]) -> bool:
    """Return True if gc shows no reference to the young tensors over the last one of some storages.

    To ask gc who refers to an object takes a thirtieth of the time of a look that would find nobody.
    """
    storage = storages[-1].ref() if storages else None
    tensors = [] if storage is None else _young_over(storage)
    return bool(tensors) and not is_one_shown(tensors)


def _young_over(storage: Any) -> list[Any]:
    with quiet():
        young: list[Any] = [obj for obj in tensors_among(gc.get_objects(0)) if is_tensor(obj)]
        parts = [part for tensor in young if is_sparse(tensor) for _, part in sparse_parts(tensor)]
        if any(part is not None and storage_of(part) is storage for part in parts):
            return []  # the sparse tensor shows it
        return [tensor for tensor in young if storage_of(tensor) is storage]


def is_one_shown(tensors: list[Any]) -> bool:
    """Return True if gc shows a holder of some tensors outside memwatch and this list."""
    referrers = [obj for obj in gc.get_referrers(*tensors) if obj is not tensors]
    return any(type(obj) is not FrameType or not is_own_code(obj.f_code) for obj in referrers)


_OLDEST: Final = 2  # gc's oldest generation
_SINCE_THE_RUNS: Final = 1 if HAS_THREE_GENERATIONS else _OLDEST
"""The oldest of gc's generations that what the runs made is in: a collection of young objects may have moved it up."""
_MOST_EXCUSES: Final = 3  # searches for what holds a storage beside containers that are no leak; a guess
_MOST_OTHERS: Final = 3  # searches for further holders of what the first run left; a guess
_STORE: Final = "STORE"
_USES: Final = re.compile(f"LOAD|{_STORE}")
_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
_OF_MODULE: Final = "<module>"
_FAR: Final = 24  # references between a loop and what hangs on it; a guess
Keepers = Callable[[], Mapping[str, object]]
"""Returns objects by name; called while a snapshot is open, so that nothing else holds them meanwhile."""
Explained = tuple["Survivor", list[int]]
"""A survivor, and its path from a root as positions in the snapshot."""


@dataclass(slots=True)
class Diagnosis:
    """The result of one snapshot of the heap; keeps nothing of the program alive.

    Attributes:
        retained: storages that a live root reaches.
        unreachable: storages that no root reaches. Only a collection shows their kind.
        elders: storages from before the runs at the same holders.
        released: ids of storages that only names of the block keep alive; for one pass that left something.
        kept: storages that no root of the program reaches, but a named object of the check's caller, with its name.
        oldest_generation: the oldest of gc's generations with a holder of an unreachable storage.
        time_s: clock before the snapshot, in seconds.
    """

    retained: list[Survivor] = field(default_factory=list)
    unreachable: list[Survivor] = field(default_factory=list)
    elders: list[Holding] = field(default_factory=list)
    released: set[int] = field(default_factory=set)
    kept: list[tuple[str, NewStorage]] = field(default_factory=list)
    oldest_generation: int = _OLDEST
    time_s: float = field(default_factory=time.monotonic)

    def add(self, survivor: Survivor | None, *, reachable: bool = True) -> None:
        """Take a survivor, unless its holder is exempt."""
        if survivor is not None:
            (self.retained if reachable else self.unreachable).append(survivor)

    @property
    def survivors(self) -> list[Survivor]:
        """All that survived."""
        return self.retained + self.unreachable

    def tell_kinds(self, *, by_c_alone: bool, arguments: bool = False) -> None:
        """Collect garbage once, and find out what of the unreachable it freed.

        Args:
            by_c_alone: False to leave out what C++ alone holds: once, that may be a cache of torch.
            arguments: True to keep of these the tuples of arguments.
        """
        if not self.unreachable:
            return
        collect(self.oldest_generation)
        self.unreachable = [
            each
            for each in (found.of_kind() for found in self.unreachable)
            if by_c_alone
            or each.kind is not LeakKind.RETAINED
            or (arguments and are_arguments_in_c([step.edge for step in each.steps[:1]]))
        ]


def diagnose(
    storages: Sequence[NewStorage],
    exempt: Exemptions,
    *,
    per_call: bool,
    held: Iterable[Held] = (),
    elders: bool = False,
    known: KnownCauses | None = None,
    young: NDArray[np.int64] | None = None,
    old: NDArray[np.int64] | None = None,
    deep: bool = False,
    threads: Collection[int] = (),
    keepers: Keepers = dict,
) -> Diagnosis:
    """Find the holders of the storages that outlived the runs that made them.

    Args:
        storages: the survivors.
        exempt: references that do not count as leaks.
        per_call: True if the runs were repeated, so that growth in a single run does not count.
        held: objects that live on after the runs: the function and its arguments.
        elders: True to list also the other storages at their holders.
        known: the place to note the results.
        young: the ids of the objects that the runs made, if they have left gc's youngest generation.
        old: identities of the objects from before the runs; by default those out of gc's youngest generation.
        deep: True if an object that gc does not show is known to hold one of them.
        threads: identifiers of the threads that the runs started.
        keepers: returns objects of the check's caller that may keep what the runs made, by name.
    """
    time_s = time.monotonic()
    if not storages:
        return Diagnosis(time_s=time_s)
    search_ = HolderSearch(storages, exempt, list(held), per_call=per_call, elders=elders, known=known)
    search_.young, search_.old, search_.threads, search_.keepers = young, old, threads, keepers
    diagnosis = search_.run(deep=deep or is_hidden(storages))
    if diagnosis is None:  # something holds a survivor that gc does not show
        diagnosis = search_.run(deep=True)
    assert diagnosis is not None
    diagnosis.time_s = time_s
    return diagnosis


class HolderSearch:
    """Searches the heap for the holders of survivors."""

    def __init__(
        self,
        storages: Sequence[NewStorage],
        exempt: Exemptions,
        held: Sequence[Held],
        *,
        per_call: bool,
        elders: bool = False,
        known: KnownCauses | None = None,
    ) -> None:
        self._storages = storages
        self._exempt = exempt
        self._held = held
        self._per_call = per_call
        self._elders = elders
        self._known = KnownCauses() if known is None else known
        self.young: NDArray[np.int64] | None = None
        self.old: NDArray[np.int64] | None = None
        self.threads: Collection[int] = ()
        self.keepers: Keepers = dict
        self._borrowed: set[int] = set()  # ids of storages with no memory of their own
        self._owners: set[int] = set()  # positions of what holds the survivors
        self._excusing: set[int] = set()  # and of containers that are no leak
        self._placed: dict[int, Explained] = {}  # by position of a storage in a place of a list or array
        self._one_more: dict[tuple[int, int], bool] = {}  # by position of a container and id of a class
        self._shown: Counter[int] | None = None  # bytes of each storage that tensors show
        self._results: set[int] = set()  # ids of storages over which a tensor is no view

    def run(self, *, deep: bool = False) -> Diagnosis | None:
        """Explain the survivors, or return None if only a deep snapshot can find a holder."""
        storages = storages_of(self._storages)
        with Snapshot(storages, self._held, deep=deep, young=self.young, old=self.old) as snapshot:
            return self._explain(snapshot, deep=deep)

    def _explain(self, snapshot: Snapshot, *, deep: bool) -> Diagnosis | None:
        diagnosis = Diagnosis()
        self._shown = None
        for noted in (self._owners, self._excusing, self._placed, self._one_more):
            noted.clear()
        reached = Reached(snapshot, self._exempt)
        self._borrowed = borrowed_memories(snapshot.storages(), lambda: snapshot.instances(torch.Tensor))
        loops: Loops | None = None
        explained: list[tuple[Survivor | None, list[int]]] = []
        in_program: dict[int, NewStorage] = {}
        in_everyone: dict[int, NewStorage] = {}
        tensors = snapshot.instances(torch.Tensor)
        old = set(snapshot.positions(ids_behind(t for t in tensors if not snapshot.is_young(t))))
        for made in self._storages:
            position = snapshot.position(made.ref())
            if position < 0 or (not made.certain and position in old):
                continue
            if id(made.ref()) in self._borrowed:
                continue
            if self._exempt.shared_state and position in reached.legitimate:
                continue
            if self._exempt.results and reached.results.reaches(position):
                continue
            if reached.past_state.reaches(position):
                in_program[position] = made
            elif reached.through_state.reaches(position):
                chain = reached.through_state.path(position)
                survivor = self.explain_retained(snapshot, chain, made)
                is_one_more = survivor is not None and survivor.is_one_more
                if made.grew or is_one_more or position not in reached.legitimate:
                    explained.append((survivor, chain))
            elif not reached.everyone.reaches(position):
                loops = loops or Loops(snapshot, reached.everyone)
                if loops.is_of_tools(position):
                    continue
                loop, chain = loops.find(position)
                if not loop.positions and not deep:
                    return None
                survivor = explain_unreachable(snapshot, loops, (loop, chain), made)
                diagnosis.add(survivor, reachable=False)
            else:
                in_everyone[position] = made
        if in_everyone:
            diagnosis.kept = list(self._by_keeper(snapshot, reached, in_everyone))
        if in_everyone and reached.new_optimizers and not self._per_call:
            explained += self._of_added_optimizers(snapshot, reached, in_everyone)
        if loops is not None and loops.are_young and self.old is None:
            diagnosis.oldest_generation = _SINCE_THE_RUNS
        tree, held = self._past_excuses(snapshot, reached, in_program)
        explained += held
        if reached.replaced and not self._per_call:
            explained = list(self._with_replaced(snapshot, reached, explained))
        chosen = list(self._by_container(snapshot, reached, explained))
        for survivor, chain in chosen:
            self._learn(snapshot, survivor, chain)
            diagnosis.add(survivor)
        if diagnosis.retained and not self._per_call:
            diagnosis.released = reached.released_with_names()
        if self._elders:
            diagnosis.elders = list(self._beside(snapshot, tree))
        if self._per_call:
            diagnosis.retained = self._with_other_holders(snapshot, reached, chosen)
        return diagnosis

    def _by_keeper(
        self, snapshot: Snapshot, reached: Reached, storages: dict[int, NewStorage]
    ) -> Iterator[tuple[str, NewStorage]]:
        """Yield the storages that a named object of the caller reaches, except for the state of models.

        The ways to both are remembered.
        """
        left = dict(storages)
        for name, keeper in self.keepers().items():
            place = snapshot.position(keeper)
            if place < 0 or not left:
                continue
            modules = snapshot.positions(map(id, snapshot.instances(ModuleType)))
            tree = search(snapshot, [[place]], closed=snapshot.barriers().union(modules) - {place})
            for position in [each for each in left if tree.reaches(each)]:
                made, chain = left.pop(position), tree.path(position)
                is_state = position in reached.legitimate
                # the keeper itself is older, though a dictionary that was empty looks young
                old = [True, *are_old(snapshot, chain)[1:]]
                end = old.index(False) if False in old else len(old)
                if not reached.past_state.reaches(chain[end - 1]):
                    objects = [snapshot.objects[at] for at in chain[:end]]
                    self._known.learn_way_of_keeper(name, objects, is_state=is_state)
                if not is_state:
                    yield name, made

    def _with_other_holders(
        self, snapshot: Snapshot, reached: Reached, explained: Sequence[Explained]
    ) -> list[Survivor]:
        """Return the survivors; those of the first run have the holders that keep them once the others are cut.

        The graph of each value may lead to all earlier ones, and several variables have such values. One variable
        carries the graph from pass to pass, so it comes before one that each pass assigns before it reads it.
        """
        first: dict[Hashable, int] = {}
        cuts: Positions = set()
        for survivor, chain in explained:
            run = survivor.storage.run
            first[survivor.key] = min(run, first.get(survivor.key, run))
            cuts |= _reference_of(survivor, chain)
        of_weak_keys = [
            survivor.cut is not None
            and is_of_weak_keys(survivor.cut.edge, [step.edge for step in survivor.steps])
            for survivor, _ in explained
        ]
        # a value may refer to its key, so the ways through the values do not count
        to_keys = reached.without(cuts) if any(of_weak_keys) else None
        passing = {survivor.key for survivor, _ in explained if not is_carried(survivor.steps)}
        others: list[list[Survivor]] = [[] for _ in explained]
        for _ in range(_MOST_OTHERS):
            before = len(cuts)
            tree = reached.without(cuts) if cuts else None
            for number, (survivor, chain) in enumerate(explained):
                is_wanted = survivor.storage.run == first[survivor.key] or survivor.key in passing
                if tree is None or not is_wanted or not tree.reaches(chain[-1]):
                    continue
                other_chain = tree.path(chain[-1])
                other = self.explain_retained(snapshot, other_chain, survivor.storage)
                if other is None:
                    continue
                if is_carried(other.steps):
                    others[number].append(other)
                    cuts |= _reference_of(other, other_chain)
                else:  # all that the variable leads to
                    cuts.add((other_chain[other.steps[0].end - 1], other_chain[other.steps[0].end]))
            if len(cuts) == before:
                break
        found = []
        for (survivor, chain), also, is_of_key in zip(explained, others, of_weak_keys, strict=True):
            if survivor.key in passing and also:
                found.append(also[0])
            else:
                key_holder = (
                    self._key_holder(snapshot, to_keys, survivor, chain) if is_of_key and to_keys else None
                )
                found.append(replace(survivor, others=tuple(also), key_holder=key_holder))
        return found

    def _key_holder(
        self, snapshot: Snapshot, tree: Tree, survivor: Survivor, chain: Sequence[int]
    ) -> Survivor | None:
        """Return the explanation of the key of an entry of a `WeakKeyDictionary`, if a root keeps the key.

        Args:
            snapshot: the open graph.
            tree: what the roots reach past the entries.
            survivor: the storage behind the entry.
            chain: its path.
        """
        if survivor.cut is None:
            return None
        table, value = (snapshot.objects[chain[at]] for at in (survivor.cut.end - 1, survivor.cut.end))
        _, reference = key_of(table, value)
        key = reference() if type(reference) is weakref.ref else None
        position = -1 if key is None else snapshot.position(key)
        if position < 0 or not tree.reaches(position):
            return None
        return self.explain_retained(snapshot, tree.path(position), survivor.storage)

    def _with_replaced(
        self, snapshot: Snapshot, reached: Reached, explained: Iterable[tuple[Survivor | None, list[int]]]
    ) -> Iterator[tuple[Survivor | None, list[int]]]:
        """Name the replaced parameters that an optimizer keeps, and not the living ones that took their place.

        The block made the new parameters and their state. The reference to cut is the one to the old parameters.
        """
        wanted = [each for each in reached.replaced if each.is_seen]
        for survivor, chain in explained:
            keepers = [each for each in reached.replaced if not each.containers.isdisjoint(chain)]
            is_living = chain[-1] in reached.legitimate
            if survivor is None or not keepers or not is_living:
                yield survivor, chain
            else:
                wanted += [each for each in keepers if each not in wanted]
        made = {id(each.ref()) for each in self._storages}
        for storage in snapshot.storages() if wanted else ():
            chain = reached.past_state.path(snapshot.position(storage))
            owner = next(
                (at for at, place in enumerate(chain) if any(place in each.owners for each in wanted)), 0
            )
            older = NewStorages().add(storage, 0, certain=True) if owner and id(storage) not in made else None
            if older is not None:
                survivor = self.explain_retained(snapshot, chain, older, cut_at=owner)
                if survivor is not None:
                    yield survivor, chain

    def _of_added_optimizers(
        self, snapshot: Snapshot, reached: Reached, storages: dict[int, NewStorage]
    ) -> Iterator[Explained]:
        """Yield the state of optimizers that an older container got as one more entry.

        The state of a living parameter is no leak, but each more optimizer of the same parameter is. A name for the
        latest optimizer may be nearer than the container, and so may a bounded container.
        """
        left, latest = dict(storages), set[tuple[int, int]]()
        for _ in range(_MOST_OTHERS):
            before = len(latest), len(self._excusing)
            tree = reached.through_new_optimizers(latest, frozenset(self._excusing))
            for position in [each for each in left if tree.reaches(each)]:
                chain = tree.path(position)
                # thousands of storages may be behind one name: one explanation is enough
                if not latest.isdisjoint(pairwise(chain)):
                    continue
                survivor = self.explain_retained(snapshot, chain, left[position])
                if survivor is not None and survivor.is_one_more:
                    del left[position]
                    yield survivor, chain
                elif survivor is not None:
                    latest |= _reference_of(survivor, chain)
            if (len(latest), len(self._excusing)) == before:
                break

    def _past_excuses(
        self, snapshot: Snapshot, reached: Reached, storages: dict[int, NewStorage]
    ) -> tuple[Tree, list[Explained]]:
        """Explain storages. A storage in an excused container is explained by another holder if it has one.

        Returns:
            The objects that the roots reach past those containers, and the explained storages.
        """
        tree = reached.past_state
        explained = list(self._of_program(snapshot, reached, tree, storages))
        for _ in range(_MOST_EXCUSES):
            excusing = len(self._excusing)
            if not excusing:
                break
            tree = reached.beside(self._excusing)
            explained += self._of_program(snapshot, reached, tree, storages)
            if len(self._excusing) == excusing:
                break
        return tree, [*explained, *(self._placed[at] for at in storages if at in self._placed)]

    def _of_program(
        self, snapshot: Snapshot, reached: Reached, tree: Tree, storages: dict[int, NewStorage]
    ) -> Iterator[Explained]:
        """Explain storages that the program's roots reach, and remove them from the given ones.

        The graph of each loss leads to the parameters, and to their hooks. A loss goes with its step, so a path to the
        hooks by another way comes first.
        """
        past_graphs: Tree | None = None
        past_ends: dict[frozenset[int], Tree] = {}
        for position in [position for position in storages if tree.reaches(position)]:
            chain = tree.path(position)
            if _is_behind_hooks([snapshot.objects[place] for place in chain]):
                if past_graphs is None:
                    past_graphs = reached.beside(self._excusing.union(gradient_accumulators(snapshot)))
                if past_graphs.reaches(position):
                    chain = past_graphs.path(position)
            chain = self._by_lagging_end(snapshot, reached, chain, past_ends)
            chain = _from_lasting_root(snapshot, reached, chain)
            survivor = self.explain_retained(snapshot, chain, storages[position])
            if survivor is not None:
                del storages[position]
                yield survivor, chain

    def _by_lagging_end(
        self, snapshot: Snapshot, reached: Reached, chain: list[int], trees: dict[frozenset[int], Tree]
    ) -> list[int]:
        """Return the path by the end of a tee that has not read an item, in place of one by an end that has.

        Args:
            snapshot: the open graph.
            reached: what its roots reach.
            chain: the path.
            trees: what the roots reach past some ends; searches are added.
        """
        ends: frozenset[int] = frozenset()
        other = chain
        for _ in range(_MOST_OTHERS):
            at = end_that_read([snapshot.objects[place] for place in other])
            if at is None:
                return other
            ends |= {other[at]}
            if ends not in trees:
                trees[ends] = reached.beside(self._excusing.union(ends))
            if not trees[ends].reaches(chain[-1]):
                break
            other = trees[ends].path(chain[-1])
        return chain

    def _beside(self, snapshot: Snapshot, tree: Tree) -> Iterator[Holding]:
        """Yield the other storages that the survivors' holders hold."""
        found = self._borrowed.union(id(made.ref()) for made in self._storages)
        for storage in snapshot.storages():
            chain = [] if id(storage) in found else tree.path(snapshot.position(storage))
            at = max((at for at, place in enumerate(chain) if place in self._owners), default=None)
            steps = [] if at is None else steps_of(snapshot, chain[at:])
            if at is not None and steps:
                edge = steps[0].edge
                key = identity(snapshot, chain, at), series_of(edge)
                place = str(device_of(storage)), key
                yield Holding(place, (edge.name, edge.position), storage_bytes(storage))

    def _by_container(
        self, snapshot: Snapshot, reached: Reached, explained: Iterable[tuple[Survivor | None, list[int]]]
    ) -> Iterator[Explained]:
        """Yield the survivors, by a container that keeps them where another holder may have but the latest value."""
        found = [(survivor, chain) for survivor, chain in explained if survivor is not None]
        latest = latest_references(found, per_call=self._per_call)
        tree = reached.without(latest) if latest else None
        for survivor, chain in found:
            position = chain[-1]
            may_be = may_have_latest(survivor, per_call=self._per_call)
            if tree is None or not may_be or not tree.reaches(position):
                yield survivor, chain
                continue
            other_chain = tree.path(position)
            other = self.explain_retained(snapshot, other_chain, survivor.storage)
            is_better = other is not None and shows_all(other) > shows_all(survivor)
            yield (other, other_chain) if other is not None and is_better else (survivor, chain)

    def _learn(self, snapshot: Snapshot, survivor: Survivor, chain: list[int]) -> None:
        cut = survivor.cut
        if cut and all(are_old(snapshot, chain)[1 : cut.start + 1]):
            self._known.learn_way([snapshot.objects[place] for place in chain[: cut.start + 1]])

    def explain_retained(
        self, snapshot: Snapshot, chain: list[int], made: NewStorage, *, cut_at: int | None = None
    ) -> Survivor | None:
        """Explain a storage by the path from a root, or return None if that is exempt.

        Args:
            snapshot: the open graph.
            chain: the path.
            made: the storage.
            cut_at: the place on the path of a replaced parameter, to which the reference to cut leads; by default
                that reference leads to the first new object.
        """
        objects = [snapshot.objects[place] for place in chain]
        steps = steps_of(snapshot, chain)
        if cut_at is None:
            cut = entry_step(steps, [not is_old for is_old in are_old(snapshot, chain)])
        else:
            cut = next(step for step in steps if step.end >= cut_at)
        is_one_more = self._is_one_more(snapshot, chain, cut)
        case = Case(
            objects,
            steps,
            cut,
            self._known.slots,
            growth_counts=self._per_call or made.grew,
            one_pass=not self._per_call,
            is_one_more=is_one_more,
        )
        excused = excuse_for(case)
        is_placed = False
        if excused is not None:
            excuse, at = excused
            if excuse.is_container:
                self._excusing.add(chain[at])
            is_placed = not self._exempt.places and excuse.has_room(objects[at])
            if not is_placed:
                return None
        work = None if cut is None else self._work_of(snapshot, chain[: cut.start + 1])
        key: Hashable = (identity(snapshot, chain, cut.start), series_of(cut.edge)) if cut else None
        if work is not None:
            key = sort_of(work)
        if cut:
            self._owners.add(chain[cut.start])
        words = tensor_words(objects)
        nbytes = made.bytes_now()
        survivor = Survivor(
            made,
            key,
            _to_tensor(steps),
            cut,
            words,
            nbytes=nbytes,
            work=work,
            is_one_more=is_one_more or cut_at is not None,
            is_replaced=cut_at is not None,
            older_items_follow=cut is not None and older_items_follow(snapshot, objects[cut.start], cut),
            is_view=self._is_view(snapshot, made.ref(), nbytes),
            is_result=id(made.ref()) in self._results,
            registers_itself=cut is not None
            and registers_itself(objects[cut.end], steps[: steps.index(cut)]),
            in_place=is_placed,
        )
        if is_placed:  # another holder of the storage comes first
            self._placed[chain[-1]] = survivor, chain
            return None
        return survivor

    def _is_view(self, snapshot: Snapshot, storage: object, nbytes: int) -> bool:
        """Return True if all tensors over a storage together show half of it at most."""
        if self._shown is None:
            tensors = snapshot.instances(torch.Tensor)
            self._shown, self._results = shown_bytes(tensors), results_alone(tensors)
        return 0 < 2 * self._shown[id(storage)] <= nbytes

    def _work_of(self, snapshot: Snapshot, owners: Sequence[int]) -> Vertex | None:
        """Return the function of a thread that the runs started, if a call of it alone leads to the last owner."""
        root = snapshot.objects[owners[0]]
        is_started = type(root) is Root and root.thread_id in self.threads
        return root.work if is_started and not any(map(snapshot.is_old, owners[1:])) else None

    def _is_one_more(self, snapshot: Snapshot, chain: list[int], cut: Step | None) -> bool:
        """Return True if a new entry of a container has older ones of its class beside it."""
        if cut is None or not cut.edge.kind.row.is_entry or snapshot.is_old(chain[cut.end]):
            return False
        values, entry = chain[cut.end - 1], chain[cut.end]
        kind = values, id(type(snapshot.objects[entry]))
        if kind not in self._one_more:
            self._one_more[kind] = has_older_of_its_class(snapshot, values, entry)
        return self._one_more[kind]


def _from_lasting_root(snapshot: Snapshot, reached: Reached, chain: list[int]) -> list[int]:
    """Return a path from a module, in place of a path from a running call, to the same container.

    The call ends, and then the module alone keeps the container. The shortest path is mostly the call's.

    Args:
        snapshot: the open graph.
        reached: what its roots reach.
        chain: the path.
    """
    root = snapshot.objects[chain[0]]
    if type(root) is not Root or root.kind is not RootKind.FRAME:
        return chain
    olds = [bool(is_old) for is_old in are_old(snapshot, chain)]
    owner = next((at for at, is_old in enumerate(olds) if at and not is_old), 1) - 1
    if not owner:  # a new object in the variable leads to an old container, as by its class
        owner = max((at for at, place in enumerate(chain) if is_certainly_old(snapshot, place)), default=0)
    if not owner or not reached.from_modules.reaches(chain[owner]):
        return chain
    return [*reached.from_modules.path(chain[owner]), *chain[owner + 1 :]]


def storages_of(made: Iterable[NewStorage]) -> Iterator[torch.UntypedStorage]:
    """Return an iterator over the storages that are alive.

    It is no generator: Python 3.10 lists a generator's frame for gc. A snapshot keeps the frame, and so its variables,
    and it would look as if memwatch alone held the last storage.
    """
    return filter(_is_alive, map(_living, made))


def _living(made: NewStorage) -> torch.UntypedStorage | None:
    return made.ref()


def _is_alive(storage: torch.UntypedStorage | None) -> TypeGuard[torch.UntypedStorage]:
    return storage is not None


def ids_behind(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the ids of the storages of tensors."""
    with quiet():
        return {id(storage) for tensor in tensors if (storage := storage_of(tensor)) is not None}


def explain_unreachable(
    snapshot: Snapshot, loops: Loops, found: tuple[Loop, list[int]], storage: NewStorage
) -> Survivor | None:
    """Explain a storage by the loop above it, or return None if that is exempt.

    Args:
        snapshot: the open graph.
        loops: the loops in it.
        found: the nearest loop, and the chain from there.
        storage: the survivor.
    """
    loop, chain = found
    objects = [snapshot.objects[place] for place in [*loop.positions, *chain]]
    if any(map(is_import, objects)):
        return None
    survivor = _in_loop(snapshot, loop, chain, storage)
    if not loop.positions:
        return survivor
    cuts = loops.cuts_above(chain[-1])
    unseen = None if loop.is_unseen else loops.find_unseen(chain[-1])
    if_kept = None if unseen is None else _in_loop(snapshot, *unseen, storage)
    return replace(survivor, cuts=cuts, if_kept=if_kept)


def _in_loop(snapshot: Snapshot, loop: Loop, chain: list[int], storage: NewStorage) -> Survivor:
    # Only the nearest storage of a loop is reported: thousands of tensors may hang far down on one graph.
    is_named = len(chain) <= _FAR or not loop.is_told
    loop.is_told = loop.is_told or is_named
    tail = _to_tensor(steps_of(snapshot, chain)) if is_named else []
    cut_set = loop.cut_set
    return Survivor(
        storage,
        key=loop.key,
        steps=loop.steps + tail,
        is_named=is_named,
        cut=loop.cut,
        tensor=tensor_words([snapshot.objects[place] for place in chain]),
        looped=bool(loop.positions),
        cycle_length=len(loop.steps or tail),
        cuts=cut_set.cuts if cut_set else (),
        has_more_cycles=cut_set is not None and not cut_set.is_complete,
        main=(cut_set.cuts[0], cut_set.main) if cut_set else None,
        branch=_branch(loop.steps, loop.positions.index(chain[0])) if loop.positions else 0,
        unreachable=True,
        nbytes=storage.bytes_now(),
    )


def _branch(cycle: list[Step], place: int) -> int:
    """Return the last step of a cycle that begins at or before a place in it."""
    return max((number for number, step in enumerate(cycle) if step.start <= place), default=0)


def _to_tensor(steps: list[Step]) -> list[Step]:
    """Leave out the last reference, from a tensor to its storage."""
    return steps[:-1] if steps and steps[-1].edge.kind is EdgeKind.STORAGE else steps
