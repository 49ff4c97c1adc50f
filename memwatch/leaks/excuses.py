"""The excuses of surviving tensors, in the order in which memwatch considers them.

1. `exempt_edges`: the names that the block itself bound, and the exception in flight. Nothing is searched through them,
   and not through the state of models either (`known_retainers.py`).
2. `EXCUSES`: an object on the path from a root. The first excuse that fits counts. An excuse for a container covers
   the container's content, and not another holder of the same object: an unbounded list is a leak even beside a
   window of the latest items.
3. `latest_references`: a name that has one value at a time, beside a container that has all values. The tensor is not
   excused, but the container is reported.
4. `unbalanced`, for a single pass: a tensor that replaced a dead one.

gc's generations tell old objects from new ones. Dictionaries need care: gc starts to track a dictionary only when it
first holds a container or a tensor, so an old dictionary can look new. A dictionary that an old object holds under an
attribute of its own therefore counts as old. An item of an old list, or a value of an old dictionary, may have been
added during the runs. The same holds for numpy arrays of objects, which gc does not know.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import gc
import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper, partial
from itertools import pairwise
from pathlib import Path
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from memwatch.heap.classes import class_ids, derives, is_a
from memwatch.heap.frames import read_locals
from memwatch.heap.names import type_name
from memwatch.heap.paths import steps_of
from memwatch.heap.roots import Root, RootKind
from memwatch.heap.tensors import is_tensor, mro_of, type_dict
from memwatch.kinds.edges import EdgeKind
from memwatch.leaks.known_retainers import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from memwatch.heap.paths import Step
    from memwatch.heap.snapshot import Snapshot
    from memwatch.leaks.known_retainers import Positions
    from memwatch.leaks.leak import Survivor
    from memwatch.leaks.ledger import Change


class Case(NamedTuple):
    """One path from a root to a surviving storage.

    Attributes:
        objects: the path.
        steps: its references.
        cut: the reference through which an older object holds a new one.
        slots: the known lists with empty places.
        growth_counts: True if a place from before the runs may leak by its new content.
        one_pass: True if there is a single snapshot.
        is_one_more: True if the reference to cut belongs to a container with older entries of the class.
    """

    objects: Sequence[Any]
    steps: Sequence[Step]
    cut: Step | None
    slots: Slots
    growth_counts: bool
    one_pass: bool
    is_one_more: bool


class Excuse(NamedTuple):
    """One reason why a path is no leak. `tests/leaks/test_leaks_excuses.py` has a program that needs each excuse.

    Attributes:
        reason: the reason, in words.
        place: returns the place on the path of the object that excuses the objects behind it, or None.
        is_container: True if that object is a container of the program's. Another holder of the storage still counts.
        has_room: returns whether the container may have more empty places than the program ever fills.
    """

    reason: str
    place: Callable[[Case], int | None]
    is_container: bool = True
    has_room: Callable[[Any], bool] = lambda _: False


def _of_torch(case: Case) -> int | None:
    return 0 if case.one_pass and is_torchs_own(case.objects) else None


def _bounded(case: Case) -> int | None:
    """Return the place of a bounded container.

    Its bound covers the results of a cache. It does not cover an object that is part of the cache's keys, such as the
    `self` of each call of a cached method. Each of many bounded containers is bounded, but their number is not.
    """
    bounded = next((at for at, obj in enumerate(case.objects) if is_bounded(obj)), None)
    if bounded is None or is_argument_object(case.objects, case.cut):
        return None
    is_filled = case.cut is None or bounded == case.cut.start
    is_new = case.one_pass and case.cut is not None and bounded > case.cut.start and not case.is_one_more
    return bounded if is_filled or is_new else None


def _read_by_all(case: Case) -> int | None:
    return was_read_by_all(case.objects)


def _in_slot(case: Case) -> int | None:
    cut = case.cut
    return cut.start if cut is not None and case.slots.is_slot(case.objects[cut.start], cut) else None


def _in_its_place(case: Case) -> int | None:
    cut = case.cut
    if cut is None or case.growth_counts or not fills_its_place(case.objects[cut.start], cut, case.steps):
        return None
    return cut.start


def has_room(obj: Any) -> bool:
    """Return True if a bounded container has fewer entries than its author allowed."""
    if type(obj) is _lru_cache_wrapper:
        most = obj.cache_parameters()["maxsize"]
        return most is not None and obj.cache_info().currsize < most
    most = deque.__dict__["maxlen"].__get__(obj)
    return most is not None and deque.__len__(obj) < most


EXCUSES: Final = (
    Excuse("torch makes its own constants and caches on first use", _of_torch, is_container=False),
    Excuse("a bounded container drops its oldest entry", _bounded, has_room=has_room),
    Excuse("both ends of a tee have read it, and the next blocks free it", _read_by_all),
    Excuse("the list or array had this empty place before", _in_slot, has_room=lambda _: True),
    Excuse("the list was made with all its places, and got no more", _in_its_place),
)
"""The excuses for one path. The first that fits counts."""


def excuse_for(case: Case) -> tuple[Excuse, int] | None:
    """Return the first excuse for a path, and the place of the object that excuses it; None for a leak."""
    for excuse in EXCUSES:
        at = excuse.place(case)
        if at is not None:
            return excuse, at
    return None


def is_argument_object(objects: Sequence[Any], cut: Step | None) -> bool:
    """Return True if a cache keeps an object, with the object's tensors, because it was an argument of a call.

    A tensor that is an argument itself was given to the cache on purpose.

    Args:
        objects: a retention path.
        cut: its reference to cut.
    """
    if cut is None or cut.edge.kind is not EdgeKind.CACHE_ARGUMENT:
        return False
    argument = next((obj for obj in objects[cut.end :] if not (is_a(obj, tuple) or is_a(obj, list))), None)
    return argument is not None and not is_tensor(argument)


_NAMES: Final = (EdgeKind.GLOBAL, EdgeKind.CLASS_ATTRIBUTE)
_OF_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL"})


def registers_itself(obj: Any, way: Sequence[Step]) -> bool:
    """Return True if a method of an object's class uses the variable that holds the container of the object.

    Args:
        obj: what the container got.
        way: the references that lead to the container.
    """
    named = next((step.edge for step in reversed(way) if step.edge.kind in _NAMES), None)
    if named is None or named.name is None or is_tensor(obj):
        return False
    codes = [
        value.__code__
        for base in mro_of(type(obj))
        for value in type_dict(base).values()
        if type(value) is FunctionType and named.name in value.__code__.co_names
    ]
    # `self.root` is no use of the global variable `root`
    return any(named.kind is not EdgeKind.GLOBAL or named.name in _globals_of(code) for code in codes)


@functools.lru_cache(maxsize=128)
def _globals_of(code: CodeType) -> frozenset[str]:
    """Return the global variables that a function uses, without those of functions inside it."""
    return frozenset(each.argval for each in dis.get_instructions(code) if each.opname in _OF_GLOBALS)


_DTYPE: Final = np.ndarray.__dict__["dtype"]


def are_old(snapshot: Snapshot, chain: Sequence[int]) -> list[bool]:
    """Return for each object of a chain from a root whether it existed before the runs."""
    old: list[bool] = []
    for at, place in enumerate(chain):
        is_held_by_old = len(old) < 2 or old[-1]  # by a root, too
        old.append(snapshot.is_old(place) or (is_held_by_old and _is_own_container(snapshot, chain, at)))
    return old


def is_certainly_old(snapshot: Snapshot, place: int) -> bool:
    """Return True if an object existed before the runs, and gc would list it as new if it did not."""
    return snapshot.is_old(place) and not _may_hide_its_age(snapshot.objects[place])


def identity(snapshot: Snapshot, chain: Sequence[int], at: int) -> Hashable:
    """Return what identifies an owner on a chain from a root, or from an owner; those made anew share one."""
    obj = snapshot.objects[chain[at]]
    if type(obj) is Root:
        return obj.kind
    if snapshot.is_old(chain[at]):
        return id(obj)
    if _is_own_container(snapshot, chain, at):
        named = [(step.edge.name, step.edge.position) for step in steps_of(snapshot, chain[at - 1 : at + 1])]
        return identity(snapshot, chain, at - 1), *named
    return type_name(type(obj))


def _is_own_container(snapshot: Snapshot, chain: Sequence[int], at: int) -> bool:
    """Return True for a dictionary, or an array of objects, that is not itself an entry of a container."""
    if at == 0 or not _may_hide_its_age(snapshot.objects[chain[at]]):
        return False
    steps = steps_of(snapshot, chain[: at + 1])
    return not steps or not steps[-1].edge.kind.row.is_entry


def _may_hide_its_age(obj: Any) -> bool:
    cls = type(obj)
    return cls is dict or (cls is np.ndarray and _DTYPE.__get__(obj) == np.object_)


# Decide which of two holders of a tensor is the leak: the holder of the latest value, or the holder of all values.
#
# `self.last = out; self.all.append(out)` holds a tensor twice. The next call replaces the first reference and adds to
# the second. If there is only one pass, a container's entry is therefore reported rather than a variable's value. The
# entry of a dictionary is reported if it has older entries of its sort, as in a table. Without them it may be a slot
# that is filled again, and so may an item of a list with older items behind it.

_ALL: Final = 2
"""The most that `shows_all` returns: its docstring has the meaning of each number."""


def has_latest(survivor: Survivor) -> bool:
    """Return True if what holds a survivor has one value at a time."""
    return survivor.cut is not None and survivor.cut.edge.kind.row.has_one_value


def is_latest(survivor: Survivor) -> bool:
    """Return True for the one value of a name. Tensors in its graph or its entries do not count."""
    return has_latest(survivor) and survivor.steps[-1] is survivor.cut


def shows_all(survivor: Survivor) -> int:
    """Return the evidence that a survivor's holder keeps all values: 0 for a name, which has only the latest one.

    1 for a value of a dictionary, and for an item between older ones, which may be a slot that is filled again. 2 for
    an entry of a table with older entries of its sort, and for a holder that only grows, such as a list.
    """
    if has_latest(survivor):
        return 0
    is_value = survivor.cut is not None and survivor.cut.edge.kind is EdgeKind.VALUE
    return 1 if survivor.older_items_follow or (is_value and not survivor.is_one_more) else _ALL


def older_items_follow(snapshot: Snapshot, owner: object, cut: Step) -> bool:
    """Return True for an item of a list whose last item is from before the runs: the list got no longer by it.

    Unless it was inserted, as into a heap: then no other list has it.
    """
    if cut.edge.kind is not EdgeKind.ITEM or type(owner) is not list or not owner:
        return False
    return any(map(snapshot.is_old, snapshot.positions([id(owner[-1])])))


def may_have_latest(survivor: Survivor, *, per_call: bool) -> bool:
    """Return True if what holds a survivor may have one value at a time.

    Args:
        survivor: the survivor.
        per_call: True if it is one of several calls: then the earlier ones show of a name that it has the latest alone.
    """
    return survivor.older_items_follow if per_call else shows_all(survivor) < _ALL


def latest_references(explained: Iterable[tuple[Survivor, list[int]]], *, per_call: bool) -> Positions:
    """Return the references to latest values.

    Args:
        explained: survivors, each with its path from a root as positions in the snapshot.
        per_call: True if they are of several calls.
    """
    return {
        (chain[survivor.cut.end - 1], chain[survivor.cut.end])
        for survivor, chain in explained
        if survivor.cut is not None and may_have_latest(survivor, per_call=per_call)
    }


# For a single pass: find the survivors that only replaced dead tensors.
#
# A single pass shows the tensors that it made and freed, but not the holders of the freed ones. So each dead tensor
# excuses one new tensor. A tensor of the same size comes first. Among these, a tensor at a holder with one value (a
# variable, an attribute, a key) comes before a tensor at a holder with many. A tensor that was made from a smaller dead
# one, as by `torch.cat`, grows. It is never excused, and the smaller one excuses nothing else.


def unbalanced(
    retained: Sequence[Survivor], unreachable: Sequence[Survivor], change: Change
) -> list[Survivor]:
    """Return the survivors of a pass that did not replace a dead storage.

    A storage that no root reaches replaced nothing. Nor did a replaced parameter, which is older than the pass. Exempt
    storages have their own places, or new ones: a window that fills drops nothing. So values of one name are excused
    before them.
    """
    told = {id(survivor.storage) for survivor in (*retained, *unreachable)}
    dead = Counter(made.size for made in change.died)
    kept = [each for each in retained if each.storage.grew or each.is_replaced]
    dead -= Counter((made.device, made.replaced_bytes) for made in change.born if made.grew)
    left = [each for each in retained if not (each.storage.grew or each.is_replaced)]
    left = [
        survivor for survivor in left if not (is_latest(survivor) and _take(dead, survivor, exactly=True))
    ]
    dead -= Counter(made.size for made in change.born if id(made) not in told)
    left.sort(key=_replaces, reverse=True)
    left = [survivor for survivor in left if not _take(dead, survivor, exactly=True)]
    left = [survivor for survivor in left if not (_has_entries(survivor) and _take(dead, survivor))]
    return [*kept, *left, *unreachable]


def _replaces(survivor: Survivor) -> bool:
    is_slot = survivor.cut is not None and survivor.cut.edge.kind in (EdgeKind.VALUE, EdgeKind.SUBMODULE)
    return is_slot or has_latest(survivor)


def _has_entries(survivor: Survivor) -> bool:
    return _replaces(survivor) or (survivor.cut is not None and survivor.cut.edge.kind is EdgeKind.ITEM)


def _take(dead: Counter[tuple[str, int]], survivor: Survivor, *, exactly: bool = False) -> bool:
    """Use up one of the dead for a survivor on the same device, if there is one."""
    device, nbytes = survivor.storage.size
    fitting = [
        size
        for size, count in dead.items()
        if count > 0 and size[0] == device and (not exactly or size[1] == nbytes)
    ]
    if fitting:
        dead[min(fitting, key=lambda size: abs(size[1] - nbytes))] -= 1
    return bool(fitting)


# References whose number does not grow, whatever a program puts there: slots of a list, what a tee has not let go of.
#
# `slots = [None] * n; slots[step % n] = tensor` fills places that were made before: what has an empty one after it was
# not appended. The last one has none, so how long such a list was is remembered. `itertools.tee` frees what both its
# ends have read in blocks of 57.

_END: Final[type] = type(itertools.tee(())[0])
_BLOCK: Final[type | None] = getattr(itertools, "_tee_dataobject", None)
_MOST_LISTS: Final = 1_000
"""Lists whose lengths are remembered. With more of them, the oldest is forgotten. A guess."""
_ROOM: Final = 4  # CPython gives a list that grows room for a multiple of so many items


class Slots:
    """Lists and arrays with empty places, and how long they were when these were seen; keeps none of them alive."""

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}

    def is_slot(self, owner: Any, step: Step) -> bool:
        """Return True for an item of a list, or of an array, that had its place before something was put there.

        Args:
            owner: what has the item.
            step: the reference to it.
        """
        position = step.edge.position
        if step.edge.kind is not EdgeKind.ITEM or position is None:
            return False
        if type(owner) is list:
            length, beside = len(owner), owner[position + 1 :]
        elif type(owner) is np.ndarray:
            length, beside = owner.size, owner.reshape(-1)[position + 1 :].tolist()
        else:
            return False
        if any(item is None for item in beside):
            self._lengths[id(owner)] = length
            if len(self._lengths) > _MOST_LISTS:
                del self._lengths[next(iter(self._lengths))]
            return True
        return self._lengths.get(id(owner)) == length


def fills_its_place(owner: Any, step: Step, path: Sequence[Step]) -> bool:
    """Return True for an item of a list that was made with all its places, as `[None]`, and did not grow since.

    Python reserves places for appended items four at a time, and more than it needs. The graph of an item does not
    count.

    Args:
        owner: the object with the item.
        step: the reference to it.
        path: all references, including those behind the item.
    """
    if step.edge.kind is not EdgeKind.ITEM or type(owner) is not list:
        return False
    room = (list.__sizeof__(owner) - list.__basicsize__) // ctypes.sizeof(ctypes.c_void_p)
    is_behind_graph = any(each.edge.kind is EdgeKind.GRAD_FN for each in path)
    return room == len(owner) and room % _ROOM != 0 and not is_behind_graph


def was_read_by_all(objects: Sequence[Any]) -> int | None:
    """Return which object of a path is a tee's block, if all ends of the tee have read what it leads to.

    The next blocks will free that.

    Args:
        objects: the path.
    """
    blocks = [at for at, obj in enumerate(objects[:-1]) if type(obj) is _BLOCK]
    if _BLOCK is None or not blocks:
        return None
    block, item = objects[blocks[-1]], objects[blocks[-1] + 1]
    place = next((at for at, obj in enumerate(gc.get_referents(block)[1:]) if obj is item), None)
    referrers = [obj for obj in gc.get_referrers(block) if type(obj) is _END or type(obj) is _BLOCK]
    if place is None or any(type(obj) is _BLOCK for obj in referrers):  # an end is a block behind at least
        return None
    return blocks[-1] if all(place < _next_index(end, block) for end in referrers) else None


def end_that_read(objects: Sequence[Any]) -> int | None:
    """Return which object of a path is an end of a tee that has read what the path leads to.

    Such an end still refers to the block with it, but another end keeps it there.

    Args:
        objects: the path.
    """
    for at, (end, block) in enumerate(pairwise(objects[:-1])):
        if type(end) is _END and type(block) is _BLOCK:
            item = objects[at + 2]
            place = next((n for n, obj in enumerate(gc.get_referents(block)[1:]) if obj is item), None)
            return at if place is not None and place < _next_index(end, block) else None
    return None


def _next_index(end: Any, block: Any) -> int:
    """Return which item of its block an end gives next: the number in memory behind its reference to the block.

    To pickle an end tells it too, but warns, and from Python 3.14 on not at all.
    """
    reference = id(end) + object.__basicsize__
    if ctypes.c_void_p.from_address(reference).value != id(block):
        return 0
    return ctypes.c_int.from_address(reference + ctypes.sizeof(ctypes.c_void_p)).value


# The references that a check does not count: those of its block itself, and holders that never leak.
#
# A block may keep the values of its own names, objects that its caller passed in or receives, and the exception in
# flight. Bounded caches, running imports and torch's own constants never leak.

_TORCH: Final = str(Path(torch.__file__).parent)
_UNASKED_BOUND: Final = 128
"""Entries: the default of `functools.lru_cache`. If nobody chose this size, the cache may fill for long."""
_WRAPPERS: Final = class_ids(CellType, partial, _lru_cache_wrapper)
_FLAGS: Final = type_dict(type)["__flags__"].__get__
_BASIC: Final = frozenset({"builtins", "collections", "weakref", "_weakref", "types", "functools"})


@dataclass(slots=True)
class Exemptions:
    """The references that one check does not count.

    Attributes:
        objects: ``id`` of objects the caller of the block holds: arguments, result, the exception in flight.
        locals: ``(id of a frame, name)`` of the names the block itself bound.
        globals: ``(id of a namespace, name)`` of module-level names the block itself bound.
        state: True to exempt parameters, buffers, gradients and optimizer state too.
        shared_state: True to exempt them also where something else holds them, such as the graph of a loss.
        results: True to exempt what the names lead to also where something else holds it, such as a library in which a
            program has registered an object of its own.
        places: False to return what is put into empty places of a list or array, or into a bounded container that is
            not full, marked as `Survivor.in_place`.
    """

    objects: set[int] = field(default_factory=set)
    locals: set[tuple[int, str]] = field(default_factory=set)
    globals: set[tuple[int, str]] = field(default_factory=set)
    state: bool = True
    shared_state: bool = False
    results: bool = False
    places: bool = True


def exempt_edges(snapshot: Snapshot, exempt: Exemptions) -> Positions:
    """Return the references from names that the block itself bound, and from the exception in flight."""
    return listed(_exempt(snapshot, exempt))


def _exempt(snapshot: Snapshot, exempt: Exemptions) -> Iterable[tuple[int, int]]:
    for place, root in enumerate(snapshot.roots, start=snapshot.first_root):
        if root.kind is RootKind.EXCEPTION:
            handled = (held.value for held in root.entries if id(held.value) in exempt.objects)
            yield from ((place, snapshot.position(error)) for error in handled)
        names = {name for frame, name in exempt.locals if frame == root.frame_id}
        if root.kind is RootKind.FRAME and names:
            for held in root.entries:
                if held.edge.name in names and not _has_other_name(root, held.value, names):
                    yield place, snapshot.position(held.value)
    # up to Python 3.10 a coroutine shows gc its call, and so the names in it, while it runs too
    for frame_id, name in exempt.locals:
        for place in snapshot.positions([frame_id]):
            frame = snapshot.objects[place]
            if type(frame) is FrameType:
                yield place, snapshot.position(read_locals(frame).get(name))
    for namespace, name in exempt.globals:
        for place in snapshot.positions([namespace]):
            yield place, snapshot.position(_value_in(snapshot.objects[place], name))


def _value_in(namespace: Any, name: str) -> Any:
    return dict.get(namespace, name) if is_a(namespace, dict) else None


def _has_other_name(root: Root, value: object, names: set[str]) -> bool:
    return any(held.value is value and held.edge.name not in names for held in root.entries)


def is_bounded(obj: Any) -> bool:
    """Return True if a container drops its oldest entry once it holds as many as its author allowed."""
    cls = type(obj)
    if cls is _lru_cache_wrapper:
        most = obj.cache_parameters()["maxsize"]
        return most is not None and (most != _UNASKED_BOUND or obj.cache_info().currsize >= most)
    return derives(cls, deque) and deque.__dict__["maxlen"].__get__(obj) is not None


def is_torchs_own(objects: Sequence[Any]) -> bool:
    """Return True if a retention path runs from a module of torch through nothing but torch's own objects.

    Such are constants and caches that torch makes on first use. A hook or a closure of the program's on the way
    makes it the program's path.
    """
    if len(objects) < 2 or type(objects[0]) is not Root or objects[0].kind is not RootKind.MODULES:
        return False
    return type(objects[1]) is ModuleType and all(map(_by_torch, objects[1:]))


def _by_torch(obj: Any) -> bool:
    cls = type(obj)
    if cls is FunctionType:
        return bool(obj.__code__.co_filename.startswith(_TORCH))
    if cls is MethodType:
        return _by_torch(obj.__func__)
    if cls is ModuleType:
        return _is_torch(obj.__dict__.get("__name__"))
    if derives(cls, type):
        return _is_torch(type_dict(obj).get("__module__"))
    home = type_dict(cls).get("__module__") if _FLAGS(cls) & _HEAP_TYPE else cls.__module__
    return id(cls) in _WRAPPERS or _is_torch(home) or (type(home) is str and home in _BASIC)


# Py_TPFLAGS_HEAPTYPE: classes written in Python carry their module in their namespace
_HEAP_TYPE: Final = 1 << 9


def _is_torch(module: object) -> bool:
    return type(module) is str and module.partition(".")[0] == "torch"
