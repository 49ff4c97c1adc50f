"""check_leaks: report what one run of a block left behind.

Names that the block binds itself may go on holding what it made.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import sys
import time
from collections import Counter
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import torch

from memwatch._torch.autograd import next_sequence_nr
from memwatch._torch.lookup import is_older_than
from memwatch._torch.tensors import use_count_of
from memwatch.gc_pause import collect
from memwatch.heap.c_held import borrowed_memories
from memwatch.heap.classes import derives, ids_of, of_classes
from memwatch.heap.frames import is_own_code
from memwatch.heap.roots import count_hidden_callbacks_at_exit
from memwatch.heap.search import search
from memwatch.heap.snapshot import UNREACHED, Snapshot
from memwatch.heap.tensors import is_tensor, quiet, storage_of
from memwatch.leaks.cause import series_of
from memwatch.leaks.diagnose import (
    Diagnosis,
    HolderSearch,
    Reached,
    diagnose,
    explain_unreachable,
    ids_behind,
    is_one_shown,
    storages_of,
)
from memwatch.leaks.excuses import Exemptions, unbalanced
from memwatch.leaks.groups import leaks_of, merge_and_sort
from memwatch.leaks.known_causes import KnownCauses, is_optimizer
from memwatch.leaks.leak import TensorLeakError
from memwatch.leaks.ledger import Ledger, Threads, older_tables
from memwatch.leaks.loops import Loops, is_unseen
from memwatch.leaks.new_storages import NewStorageMode, NewStorages, OtherThreads
from memwatch.leaks.program_growth import ProgramGrowth
from memwatch.leaks.without_tensors import leaks_of_continued_graphs, leaks_of_new_hooks, next_hook_number

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import FrameType, TracebackType

    from memwatch.leaks.diagnose import Keepers
    from memwatch.leaks.leak import Leak, Survivor
    from memwatch.leaks.ledger import Change
    from memwatch.leaks.new_storages import NewStorage

# Explain the survivors of a block from its own objects and from known causes, without a search of the whole heap.
#
# A cycle that the block made consists of young objects. To find it or to collect it, the rest of the heap is not
# needed. Only young garbage held the memory that such a collection frees.


class NearbySearch(HolderSearch):
    """Searches the young objects, and the ways to known causes, for the holders of survivors.

    Attributes:
        rest: the survivors that this does not explain.
        deep: True if something that gc does not show, such as a numpy array, holds one of them.
        may_be_in_c: the ids of the survivors above which there are tensors at most, which C++ may hold.
        young: the ids of the young objects.
        kept: storages that only a keeper keeps, each with its name, by their ids; see `check_leaks.name_keepers`.
    """

    def __init__(
        self, storages: Sequence[NewStorage], exempt: Exemptions, known: KnownCauses, keepers: Keepers = dict
    ) -> None:
        borrowed = borrowed_memories(storages_of(storages), _all_tensors)
        owned = [each for each in storages if id(each.ref()) not in borrowed]
        super().__init__(owned, exempt, [], per_call=False, known=known)
        self.rest: list[NewStorage] = []
        self.deep = False
        self.may_be_in_c: set[int] = set()
        self._new: set[int] = set()
        self.keepers = keepers
        self.kept: dict[int, tuple[str, NewStorage]] = {}
        self._state_of_keepers: set[int] = set()

    def explain(self) -> Diagnosis:
        """Explain what can be explained here, the kinds of leaks included; garbage of young objects is collected."""
        guesses = self._guesses()
        collect(0)
        old: set[int] | None = None
        diagnosis = Diagnosis()
        for made, guess in zip(self._storages, guesses, strict=True):
            if id(made) in self.kept or id(made) in self._state_of_keepers:
                continue
            held = guess
            if guess is not None and (guess.unreachable or not made.alive):
                held = guess.of_kind()
            if not made.alive:
                diagnosis.add(held, reachable=False)
            elif held is not None and self._is_known(held):
                if not (made.certain or id(made.ref()) in self._new):
                    old = self._older_storages() if old is None else old
                if old is None or id(made.ref()) not in old:
                    diagnosis.add(held, reachable=not held.unreachable)
            else:
                self.rest.append(made)
        return diagnosis

    def rest_is_in_c(self) -> bool:
        """Return True if the rest is of the sorts that C++ alone is known to hold, and gc shows no holder of it."""
        if not self.rest or not all(id(made) in self.may_be_in_c for made in self.rest):
            return False
        if not self._known.are_held_by_c(self.rest):
            return False
        storages = set(map(id, storages_of(self.rest)))
        with quiet():
            over = [tensor for tensor in _all_tensors() if id(storage_of(tensor)) in storages]
        return not is_one_shown(over)

    def _is_known(self, guess: Survivor) -> bool:
        """Return True for a storage on a known path or in a known loop with references that gc does not see."""
        if not guess.unreachable:
            return True
        cycle = guess.steps[: guess.cycle_length]
        return guess.looped and is_unseen(cycle) and self._known.has_loop(guess.key)

    def _guesses(self) -> list[Survivor | None]:
        """Return for each survivor the explanation by young objects and known causes alone, or None."""
        roots, along_ways = self._known.walk()
        ways = self._known.walk_keepers(self.keepers())
        count = len(ways.roots)
        more = [obj for obj in along_ways if id(obj) not in ways.objects]
        # no list: it would be listed, and refer to them
        extra = chain(storages_of(self._storages), more, ways.objects.values())
        with Snapshot(extra, deep=True, roots=[*ways.roots, *roots]) as snapshot:
            of_state, of_keepers = ways.of_state, set(ways.objects)
            ways.roots.clear()
            ways.objects.clear()
            more.clear()
            del along_ways, extra, ways
            self.young = snapshot.young
            if count or not all(made.certain for made in self._storages):
                self._note_new(snapshot)
            if count:
                self._note_kept(snapshot, count, of_keepers, of_state)
            return list(self._nearby(snapshot))

    def _note_kept(self, snapshot: Snapshot, count: int, of_keepers: set[int], of_state: set[int]) -> None:
        """Note the storages that a keeper reaches and nothing else holds, by the references to all objects above them.

        Args:
            snapshot: the open graph.
            count: number of roots that stand for keepers, the first ones.
            of_keepers: ids of the older objects along the ways from keepers, which the program does not reach.
            of_state: ids of older objects that lead only to the state of models.
        """
        references = References(snapshot, of_keepers)
        for place, root in enumerate(snapshot.roots[:count], start=snapshot.first_root):
            tree = search(snapshot, [[place]])
            for made in self._storages:
                storage = made.ref()
                position = UNREACHED if storage is None else snapshot.position(storage)
                if position < 0 or id(storage) not in self._new or not tree.reaches(position):
                    continue
                if not references.are_all_listed(position):
                    continue
                above = (snapshot.objects[at] for at in reversed(tree.path(position)[1:-1]))
                holder = next((id(obj) for obj in above if id(obj) in of_keepers), 0)
                if holder in of_state:
                    self._state_of_keepers.add(id(made))
                else:
                    self.kept[id(made)] = str(root.entries[0].name), made

    def _nearby(self, snapshot: Snapshot) -> Iterator[Survivor | None]:
        reached = Reached(snapshot, self._exempt)
        along_ways = search(snapshot, snapshot.root_groups())
        loops = Loops(snapshot, along_ways)
        for made in self._storages:
            position = snapshot.position(made.ref())
            is_hanging = not along_ways.reaches(position)
            if position < 0 or (is_hanging and loops.is_of_tools(position)):
                yield None
            elif is_hanging:
                loop, way = loops.find(position)
                above = [snapshot.objects[place] for place in way[:-1]]
                # else no tensor that gc lists has it
                is_shown = bool(above) and all(map(gc.is_tracked, above))
                self.deep = self.deep or not (loop.positions or is_shown)
                if not loop.positions and all(map(is_tensor, above)):
                    self.may_be_in_c.add(id(made))
                # Without a loop among the young objects, a collection of them frees nothing, and to name the references
                # would be in vain. A first step of AdamW makes thousands of such storages.
                yield explain_unreachable(snapshot, loops, (loop, way), made) if loop.positions else None
            elif reached.past_state.reaches(position):
                way = reached.past_state.path(position)
                # The living parameters decide whether an optimizer's state leaks, and this snapshot does not list all
                # of them.
                through_optimizer = any(is_optimizer(snapshot.objects[place]) for place in way)
                yield None if through_optimizer else self.explain_retained(snapshot, way, made)
            else:
                yield None

    def _note_new(self, snapshot: Snapshot) -> None:
        """Note the storages whose owners are all young. No tensor from before the block has them."""
        owners: Counter[int] = Counter()
        with quiet():
            for tensor in filter(snapshot.is_young, snapshot.instances(torch.Tensor)):
                storage = storage_of(tensor)
                if storage is not None:
                    owners[id(storage)] += 1
            for storage in storages_of(self._storages):
                count = use_count_of(storage)
                if count is not None and count <= owners[id(storage)] + 1:  # its Python object is one
                    self._new.add(id(storage))

    def _older_storages(self) -> set[int]:
        tensors = _tensors_of(gc.get_objects(2))
        young = () if self.young is None else self.young
        is_old = ~np.isin(ids_of(tensors), young)
        return ids_behind(compress(tensors, is_old.tolist()))


class References:
    """Compares the references to objects that Python counts with those in a snapshot of young objects.

    Args:
        snapshot: the open graph.
        allowed: ids of the older objects that may refer to young ones.
    """

    # The list of objects, and the argument of `getrefcount`. A variable is no argument: Python 3.14 does not count one.
    _OWN: Final = 2
    # All of C++ together holds the Python object of a tensor or node once. Measured with torch 2.13; with an older one
    # the references do not add up, and the whole heap is searched.
    _CPP_HOLDS: Final = not is_older_than(2, 13)

    def __init__(self, snapshot: Snapshot, allowed: set[int]) -> None:
        self._snapshot = snapshot
        self._allowed = set(snapshot.positions(allowed))
        self._starts, self._referrers = snapshot.reversed()
        self._listed: dict[int, bool] = {}

    def are_all_listed(self, position: int) -> bool:
        """Return True if the young objects above a storage have no holders but each other and the allowed ones."""
        snapshot = self._snapshot
        todo, seen = [position], {position}
        while todo:
            place = todo.pop()
            if place != position and not self._is_listed(place):
                return False
            # by positions: a variable for the owner would be one more reference to it
            for owner in self._above(place):
                if owner in seen or owner in self._allowed:
                    continue
                if snapshot.is_old(owner) or owner >= snapshot.first_root:
                    return False
                seen.add(owner)
                todo.append(owner)
        return True

    def _above(self, place: int) -> list[int]:
        owners: list[int] = self._referrers[self._starts[place] : self._starts[place + 1]].tolist()
        return owners

    def _is_listed(self, place: int) -> bool:
        if place not in self._listed:
            owners = self._above(place)
            native = {at for at in owners if self._snapshot.native_edge(at, place) is not None}
            # the snapshot keeps a record of each reference in C++
            known = self._OWN + sum(at not in native for at in owners) + len(native)
            known += bool(native) and self._CPP_HOLDS
            self._listed[place] = sys.getrefcount(self._snapshot.objects[place]) <= known
        return self._listed[place]


def _all_tensors() -> list[Any]:
    return _tensors_of(gc.get_objects())


def _tensors_of(objects: list[Any]) -> list[Any]:
    return of_classes(objects, lambda cls: derives(cls, torch.Tensor))


_STORES: Final = {
    "STORE_FAST",
    "STORE_DEREF",
    "STORE_NAME",
    "STORE_GLOBAL",
    "STORE_FAST_LOAD_FAST",
    "STORE_FAST_STORE_FAST",
}


def calling_frame() -> FrameType | None:
    """Return the innermost running call outside memwatch and contextlib."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        is_own_code(frame.f_code) or frame.f_code.co_filename.endswith("contextlib.py")
    ):
        frame = frame.f_back
    return frame


class NamesBoundInBlock:
    """Remembers where a block begins; keeps no frame alive."""

    def __init__(self) -> None:
        frame = calling_frame()
        self._frame_id = id(frame)
        self._code_id = id(frame.f_code) if frame else 0
        self._begin = frame.f_lasti if frame else -1

    def exempt(self, exempt: Exemptions) -> None:
        """Add the names bound since the beginning, if the block ends in the call in which it began."""
        frame = calling_frame()
        if frame is None or id(frame) != self._frame_id or id(frame.f_code) != self._code_id:
            return
        end = frame.f_lasti if frame.f_lasti > self._begin else sys.maxsize
        names: set[str] = set()
        for instruction in dis.get_instructions(frame.f_code):
            if self._begin < instruction.offset <= end and instruction.opname in _STORES:
                stored = instruction.argval
                names.update(stored if isinstance(stored, tuple) else (stored,))
        if frame.f_code.co_name == "<module>":
            exempt.globals |= {(id(frame.f_globals), name) for name in names}
        exempt.locals |= {(id(frame), name) for name in names}


F = TypeVar("F", bound="Callable[..., Any]")


class check_leaks:  # noqa: N801 - used like a function
    """Raise :class:`TensorLeakError` if tensors made in the block outlive it without a good reason.

    This is a context manager and a decorator. It reports cycles, loops that gc cannot free, and tensors that an
    object from before the block holds. A tensor that replaced an equally large one is not reported, as in a moving
    average. If the block left a context of autocast open, tensors that only C code holds are reported too. So are
    the arguments of a function that the block registered with `atexit`, a hook that was registered beside an older
    hook of the same function, and a value whose graph goes on into an older graph of the same op, as in
    ``total = total + loss`` and ``total += loss``.

    It does not report names that the block binds, the result of the decorated function, parameters, buffers,
    gradients and optimizer state of living parameters, contents of bounded caches, items in empty slots of a list,
    and objects that pytest holds. There are two exceptions. A list is reported if it got one more model of the same
    class, or one more optimizer of the same class and the same parameters. So is a replaced parameter that an optimizer
    still keeps, even if a name of the block has it too.

    If the block raises, the error is chained to that exception.

    Args:
        sites: True to note the line that made each tensor, at a few microseconds per op.
        known: causes from earlier checks. A leak with a known cause is reported without a search of the whole heap.

    Example:
        >>> with check_leaks():
        ...     train_step(model, batch)
    """

    def __init__(self, *, sites: bool = True, known: KnownCauses | None = None) -> None:
        self._sites = sites
        self._known = KnownCauses() if known is None else known
        self._blocks: list[_Block] = []
        self._may_have_grown = False
        self._noted_ops: int | None = None
        self._leaked: dict[str, list[weakref.ref[torch.UntypedStorage]]] = {}
        self._kept: list[tuple[str, NewStorage]] = []

    @property
    def kept(self) -> list[tuple[str, NewStorage]]:
        """The storages of the last block that only a keeper keeps, with its name; see `name_keepers`."""
        return self._kept

    @property
    def may_have_grown(self) -> bool:
        """Whether the last block made a larger tensor where a smaller one died, and only `sites` could tell more."""
        return self._may_have_grown

    @property
    def noted_ops(self) -> int | None:
        """Number of ops of the last block whose lines were noted; None without `sites`."""
        return self._noted_ops

    def __enter__(self) -> check_leaks:
        block = _Block(NamesBoundInBlock(), sites=self._sites, known=self._known)
        self._blocks.append(block)
        block.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._blocks.pop()
        try:
            is_judged = not block.is_given_up and (error is None or isinstance(error, Exception))
            leaks = block.finish(error) if is_judged else []
        finally:
            block.stop()
        self._may_have_grown, self._noted_ops = block.may_have_grown, block.noted_ops
        self._leaked, self._kept = block.leaked, block.kept
        if leaks:
            raise TensorLeakError(leaks) from error

    def follow_rounds(self) -> ProgramGrowth:
        """Search the heap after some rounds of the block's work too; the caller ends this with `stop()`."""
        block = self._blocks[-1]
        assert block.watch is not None
        assert block.other_threads is not None
        block.other_threads.stop()  # it follows threads itself, each with the clock of its own rounds
        block.watch.is_over = False
        growth = ProgramGrowth(block.made, block.watch, block.young)
        growth.start()
        return growth

    def give_up(self) -> None:
        """Report nothing of the running block, whose exception is the caller's."""
        self._blocks[-1].is_given_up = True

    def leaked_storages(self, cause: str) -> list[weakref.ref[torch.UntypedStorage]]:
        """Return the storages of the leaks of the last block with a cause, those in cycles included."""
        return self._leaked.get(cause, [])

    def told_storages(self, causes: Collection[str]) -> list[weakref.ref[torch.UntypedStorage]]:
        """Return the storages of the leaks with some causes that a live root holds."""
        return [ref for cause, refs in self._known.told.items() if cause in causes for ref in refs]

    def keep(self, *objects: object) -> None:
        """Exempt what the caller of the block holds: its arguments and its result."""
        self._blocks[-1].exempt.objects.update(map(id, objects))

    def name_keepers(self, keepers: Keepers) -> None:
        """Name objects of the caller that outlive the block. Storages that only they keep are not leaks, but `kept`."""
        self._blocks[-1].keepers = keepers

    def set_aside(self, storages: Sequence[torch.UntypedStorage]) -> None:
        """Report none of these storages, whatever keeps them."""
        self._blocks[-1].aside |= set(map(id, storages))

    def set_aside_names(self, namespace: Mapping[str, object]) -> None:
        """Report nothing that the names of a module lead to, whatever else keeps it."""
        exempt = self._blocks[-1].exempt
        exempt.results = True
        exempt.globals |= {(id(namespace), name) for name in namespace}

    def __call__(self, fn: F) -> F:
        """Check every call of a function, plain or ``async``."""
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def checked_async(*args: Any, **kwargs: Any) -> Any:
                with check_leaks(sites=self._sites, known=self._known) as check:
                    result = await fn(*args, **kwargs)
                    check.keep(args, kwargs, result)
                return result

            return cast("F", checked_async)

        @functools.wraps(fn)
        def checked(*args: Any, **kwargs: Any) -> Any:
            with check_leaks(sites=self._sites, known=self._known) as check:
                result = fn(*args, **kwargs)
                check.keep(args, kwargs, result)
            return result

        return cast("F", checked)


def autocast_depth() -> int:
    """Return how many contexts of autocast are open in this thread: the outermost one's end clears its casts."""
    depth: int = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth - 1


class _Block:
    """One entry of the block: its watches, and the objects that it may keep."""

    def __init__(self, names: NamesBoundInBlock, *, sites: bool, known: KnownCauses) -> None:
        self.exempt = Exemptions()
        self._known = known
        self._names = names
        self._ledger = Ledger()
        self.made = NewStorages()
        self.watch = NewStorageMode(self.made, 0) if sites else None
        self.other_threads = None if self.watch is None else OtherThreads(self.watch)
        self._autocast_depth = autocast_depth()
        self._callbacks_at_exit = count_hidden_callbacks_at_exit()
        self._threads = Threads()
        self._first_hook, self._first_node = next_hook_number(), next_sequence_nr()
        self.may_have_grown = False
        self.aside: set[int] = set()  # ids of storages that are not reported
        self.leaked: dict[str, list[weakref.ref[torch.UntypedStorage]]] = {}  # by the cause of each leak
        self.is_given_up = False
        self.keepers: Keepers = dict
        self.kept: list[tuple[str, NewStorage]] = []

    def young(self) -> list[object]:
        """Return the tensors and nodes that the block made; drop the list soon."""
        return self._ledger.young()

    def start(self) -> None:
        self._ledger.start()
        if self.watch is not None and self.other_threads is not None:
            self.other_threads.start()
            self.watch.start()

    def finish(self, error: BaseException | None) -> list[Leak]:
        """Look at what the block left, and did not put in the place of something else."""
        if self.watch is not None:
            self.watch.stop()
        end_s = time.monotonic()
        self._threads.settle()
        if self.other_threads is not None:
            self.other_threads.stop()
        change = self._ledger.end_run(0, self.made)
        if error is not None:
            self.exempt.objects.add(id(error))
        self._names.exempt(self.exempt)
        # before a collection makes the block's objects old
        hooks = leaks_of_new_hooks(self._first_hook, self.exempt, older_tables)
        graphs = leaks_of_continued_graphs(
            [*self._ledger.older_ends(), *self._ledger.graph_ends()],
            self._ledger.alive(0),
            self._first_node,
            self.exempt,
            end_s,
            in_place=self.made.in_place,
        )
        leaks = self._leaks_of_storages(change, end_s) if change.added() else []
        told = {series_of(edge) for leak in leaks for edge in leak.edges}
        graphs = [leak for leak in graphs if leak.cut is not None and series_of(leak.cut) not in told]
        hooks = [leak for leak in hooks if leak.cut is not None and series_of(leak.cut) not in told]
        return merge_and_sort([*leaks, *graphs]) + hooks

    def _leaks_of_storages(self, change: Change, end_s: float) -> list[Leak]:
        """Return the leaks of tensors."""
        self.may_have_grown = self.watch is None and change.may_hide_growth()
        diagnosis = self._explain(
            [
                made
                for made in self._ledger.alive(0)
                if id(made.ref()) not in self.aside
                and (self.made.is_program_imported or not made.is_constant)
            ]
        )
        # `old = model.head; model.head = new`: the name's end will free what was replaced
        change.died += [made for made in self._ledger.older() if id(made.ref()) in diagnosis.released]
        left = unbalanced(diagnosis.retained, diagnosis.unreachable, change)
        left = self._known.names.note(left)
        return leaks_of(left, [0], per_call=False, end_s=end_s, on_leak=self._note_leak)

    def _note_leak(self, leak: Leak, survivors: Sequence[Survivor]) -> None:
        self.leaked.setdefault(leak.cause, []).extend(each.storage.ref for each in survivors)
        self._known.note_told(leak, survivors)

    def _explain(self, survivors: list[NewStorage]) -> Diagnosis:
        """Search nearby first, and through the whole heap only for the remaining survivors."""
        # an older tensor with a new graph holds nodes of the block, and the young objects do not show it
        keepers = dict if self._ledger.older_ends() else self.keepers
        nearby = NearbySearch(survivors, self.exempt, self._known, keepers)
        diagnosis = nearby.explain()
        self.kept = list(nearby.kept.values())
        by_c_alone = autocast_depth() > self._autocast_depth
        arguments = count_hidden_callbacks_at_exit() > self._callbacks_at_exit
        if not (by_c_alone or arguments) and nearby.rest_is_in_c():
            return diagnosis
        far = diagnose(
            nearby.rest,
            self.exempt,
            per_call=False,
            known=self._known,
            young=nearby.young,
            deep=nearby.deep,
            threads=self._threads.started(),
            keepers=self.keepers,
        )
        unreachable = {id(survivor.storage) for survivor in far.unreachable}
        far.tell_kinds(by_c_alone=by_c_alone, arguments=arguments)
        unreachable -= {id(survivor.storage) for survivor in far.unreachable}
        self._known.learn_held_by_c(made for made in nearby.rest if made.alive and id(made) in unreachable)
        self._known.learn_loops(far.unreachable)
        diagnosis.retained += far.retained
        diagnosis.unreachable += far.unreachable
        diagnosis.released = far.released
        self.kept += far.kept
        return diagnosis

    @property
    def noted_ops(self) -> int | None:
        """Number of ops whose lines were noted; None if lines were not requested."""
        return None if self.watch is None else self.watch.ops

    def stop(self) -> None:
        """Take the mode off and resume garbage collection."""
        if self.watch is not None:
            self.watch.stop()
        if self.other_threads is not None:
            self.other_threads.stop()
        self._ledger.stop()
