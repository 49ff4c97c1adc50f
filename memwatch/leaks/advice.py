"""Choose what to change from how the references of a leak work."""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from memwatch._torch.modules import HOOK_TABLES
from memwatch.heap.names import in_ipython
from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.kinds.leaks import Remedy
from memwatch.leaks.cause import (
    held_by_hook,
    hook_entry,
    is_registration,
    is_saved_by_ctx,
    is_torchs_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memwatch.kinds.edges import Edge, Vertex
    from memwatch.kinds.leaks import LeakKind

_STATE: Final = "state"  # of an optimizer
_GROUPS: Final = "param_groups"
_LINKS: Final = (EdgeKind.ATTRIBUTE, EdgeKind.CLOSURE_CELL)
_CYCLE: Final = "cycle"
"""A class of itertools. Python shows no reference to the list of its objects."""
_BY_OWNER: Final[Mapping[str, Remedy]] = {
    "_WorkItem": Remedy.EXECUTOR,  # an executor of `concurrent.futures` keeps this for a call that has not begun
    "LogRecord": Remedy.LOG_RECORD,
}
"""How a reference works, by the name of the class that has it."""


_BY_C_TYPE: Final[Mapping[str, Remedy]] = {
    "Pickler": Remedy.PICKLER,
    "_tee": Remedy.TEE,
    "_tee_dataobject": Remedy.TEE,
}
_OF_EXIT_STACK: Final = "_exit_callbacks"
_WRAPPED: Final = "__wrapped__"
_MOST_IN_STRETCH: Final = 4
"""References of a stretch that repeats on a path. An `itertools.chain` around another one has three."""
_FINALIZER_RECORD: Final = "finalize._Info"
"""The class of the objects in which `weakref.finalize` keeps a function and its arguments."""
_MOCKS: Final = frozenset({"Mock", "MagicMock", "AsyncMock", "MagicProxy"})
"""Classes of `unittest.mock`, whose objects refer to themselves."""


def remedy_for(
    kind: LeakKind, cut: Edge | None, holder: Sequence[Edge], path: Sequence[Edge], *, cycle_length: int = 0
) -> Remedy:
    """Choose the change that ends a leak.

    Args:
        kind: the leak's kind.
        cut: the reference to cut, if one was chosen.
        holder: the references that name the holder.
        path: the whole path, for cases that `holder` does not decide.
        cycle_length: number of references of the path that form its cycle.
    """
    remedy = _remedy_for(kind, cut, holder, path, cycle_length)
    if remedy is Remedy.VALUE:
        return _of_key(cut, path)
    if remedy is not Remedy.GENERATOR:
        return remedy
    is_reached = kind.is_reached and cut is not None
    # a task that is older than the calls may have a generator of each call
    new = itertools.dropwhile(lambda edge: edge is not cut, path) if is_reached else path
    return Remedy.TASK if any(edge.kind is EdgeKind.COROUTINE for edge in new) else remedy


def _remedy_for(
    kind: LeakKind, cut: Edge | None, holder: Sequence[Edge], path: Sequence[Edge], cycle_length: int
) -> Remedy:
    if kind.is_reached:
        return _for_retained(cut, holder, path) or Remedy.ANY
    cycle = path[:cycle_length] if cut is not None else path
    if cut is not None and cut.kind is EdgeKind.BOUND_SELF and _keeps_hooks(cycle):
        return Remedy.HOOK_OF_SELF
    reference = holder if cut is None else [cut]
    told = [edge for edge in holder if any(edge is each for each in cycle)]
    along_cycle = [[edge] for edge in cycle]
    found = _of_mock(cycle) or _first(_mechanism, [cycle]) or _of_class(cycle)
    found = found or _first(_in_cycle, [reference, told, *along_cycle]) or Remedy.ANY
    return _of_target(found, cut, cycle)


def _of_target(remedy: Remedy, cut: Edge | None, cycle: Sequence[Edge]) -> Remedy:
    """Return a remedy that fits the target of the reference to cut. Few objects can be referred to weakly."""
    if remedy is Remedy.CTX_ATTRIBUTE:
        of_ctx = next(at for at, edge in enumerate(cycle) if _mechanism(edge) is remedy)
        targets = _targets([*cycle[of_ctx:], *cycle[:of_ctx]])
        if VertexKind.METHOD in targets:
            return Remedy.BOUND_METHOD
        return remedy if VertexKind.TENSOR in targets else Remedy.CTX_OBJECT
    if remedy is Remedy.CLOSURE_CELL_IN_CYCLE and cut is not None and _is_cell_of_object(cut):
        return Remedy.CLOSURE_OF_OBJECT
    if cut is None or not remedy.row.is_of_reference_in_cycle:
        return remedy
    at = next((at for at, edge in enumerate(cycle) if edge is cut), 0)
    after = [*cycle[at:], *cycle[:at]]
    targets = _targets(after)
    if VertexKind.METHOD in targets:
        return Remedy.BOUND_METHOD
    if VertexKind.FRAME in targets:
        return Remedy.FRAME
    is_container = remedy is Remedy.ATTRIBUTE_IN_CYCLE and targets[0] is VertexKind.CONTAINER
    entry = next((edge for edge in after[1:] if edge.kind.row.is_entry), None) if is_container else None
    return remedy if entry is None or entry.kind.row.in_cycle is None else entry.kind.row.in_cycle


def _of_key(cut: Edge | None, path: Sequence[Edge]) -> Remedy:
    """Return the remedy for a dictionary that grows, by the kind of its keys."""
    behind = path if cut is None else [*itertools.dropwhile(lambda edge: edge is not cut, path)]
    entry = next((edge for edge in behind if edge.kind in (EdgeKind.VALUE, EdgeKind.KEY)), None)
    key = None if entry is None else entry.target if entry.kind is EdgeKind.KEY else entry.key
    if key is None:
        return Remedy.VALUE
    if key.kind is VertexKind.TENSOR:
        return Remedy.VALUE_OF_TENSORS
    return Remedy.VALUE_OF_OBJECTS if key.is_weak_key else Remedy.VALUE


def _targets(edges: Iterable[Edge]) -> list[VertexKind]:
    """Return the kinds of a reference's target: the object, and the next one if the object only wraps another."""
    kinds = []
    for edge in edges:
        kinds.append(VertexKind.OBJECT if edge.target is None else edge.target.kind)
        if not kinds[-1].row.is_around:
            break
    return kinds


def _is_cell_of_object(edge: Edge) -> bool:
    """Return True if a function of the program closes over an object that can be referred to weakly.

    The function needs its variable, and the signature of a hook is fixed. So it cannot be deleted, or be an argument.
    """
    is_object = edge.target is not None and edge.target.kind is VertexKind.OBJECT
    return edge.kind is EdgeKind.CLOSURE_CELL and is_object and not is_torchs_file(edge)


def name_of_object(cut: Edge | None, holder: Iterable[Edge]) -> str | None:
    """Return the variable by which a function closes over the object that it keeps."""
    edges = [*([] if cut is None else [cut]), *holder]
    return next((edge.name for edge in edges if _is_cell_of_object(edge)), None)


def _of_finalizer(path: Sequence[Edge]) -> Remedy:
    """Return the remedy for a finalizer: was it given the tensor, or an object that leads to it?"""
    of_record = (edge.owner is not None and edge.owner.name == _FINALIZER_RECORD for edge in path)
    at = next((at for at, found in enumerate(of_record) if found), len(path))
    kinds = [VertexKind.OBJECT if edge.target is None else edge.target.kind for edge in path[at:]]
    given = next((kind for kind in kinds if not kind.row.is_handle), None)
    return Remedy.FINALIZER_OF_OBJECT if given is VertexKind.OBJECT else Remedy.FINALIZER


def _for_retained(cut: Edge | None, holder: Sequence[Edge], path: Sequence[Edge]) -> Remedy | None:
    if path and path[0].kind is EdgeKind.EVALUATION_STACK:
        return Remedy.UNFINISHED_RESULT
    if cut is None and path and (in_c := _in_c(path[0])) is not None:
        return in_c
    if cut is not None and (added := _added(cut, path)) is not None:
        return added
    if cut is not None and (of_c_type := _of_c_type(cut)) is not None:
        return of_c_type
    if cut is not None and _is_of_mock(cut, path):
        return Remedy.MOCK
    if cut is not None and is_of_weak_keys(cut, path):
        return Remedy.WEAK_KEYS
    if cut is not None and (_is_parameter_group(cut, path) or _is_of_optimizer_state(cut, path)):
        return Remedy.OPTIMIZER_STATE
    remedy = _by_references(holder, path)
    # of a thread that runs on, and of a cache whose result is old, what they keep may be what grows
    if remedy is not None and (remedy.row.is_of_entry or remedy in (Remedy.THREAD, Remedy.CACHE)):
        if any(edge.owner is not None and edge.owner.kind is VertexKind.FRAME for edge in path[1:]):
            return Remedy.FRAME  # of a running call the first reference is
        if cut is not None and _is_entry(cut) and not _is_of_cache(cut, path):
            return _of_most(cut, path).kind.row.retained
    # A closure, a partial, a bound method or a coroutine that got a container before the calls is only the way to it:
    # the container grows.
    if (
        remedy in (Remedy.CLOSURE_CELL, Remedy.PARTIAL, Remedy.GENERATOR, Remedy.BOUND_METHOD)
        and cut is not None
        and _is_entry(cut)
        and not _is_captured_after(cut, path)
    ):
        return _of_most(cut, path).kind.row.retained
    if cut is not None and remedy is not None and remedy.row.is_of_attribute:
        return _behind_attribute(cut, path) or remedy
    if remedy is not None and remedy.row.is_of_function and held_by_hook(cut, path):
        return Remedy.MODULE_HOOK
    if remedy is Remedy.FINALIZER:
        return _of_finalizer(path)
    if remedy is Remedy.CLOSURE_CELL and _closes_over_new_object(cut, holder, path):
        return Remedy.CLOSURE_OF_OBJECT
    if remedy is not None and remedy.row.for_each_call and cut is not None and _is_entry(cut):
        return Remedy[remedy.row.for_each_call]
    return remedy


def stores_tensor(cut: Edge | None, path: Sequence[Edge]) -> bool:
    """Return True if the program stored a tensor at the reference to cut, alone or in containers.

    Then it can store a detached tensor instead. An exception, a generator or an object that has the tensor came there
    whole, and the line that made its tensor may need the graph.
    """
    at = next((at for at, edge in enumerate(path) if edge is cut), None)
    if at is None:
        return True
    for edge in path[at:]:
        kind = VertexKind.TENSOR if edge.target is None else edge.target.kind
        if kind is VertexKind.TENSOR:
            return edge is cut or edge.owner is None or edge.owner.kind.row.is_store
        if kind.row.comes_with_tensors:
            return False
    return False


def keeps_values(cut: Edge | None, path: Sequence[Edge]) -> bool:
    """Return True if the reference to cut, or the container behind it that grows, leads to tensors by containers alone.

    Then the program can keep numbers in place of them. A module, a future or a node of autograd has no number. If the
    reference to cut is one of several entries and is an object, the containers inside the object are not the ones that
    grow.
    """
    at = next((at for at, edge in enumerate(path) if edge is cut), None)
    if at is None:
        return True
    end = len(path)
    if path[at].kind.row.is_entry and _count_of(path[at]) > 1:
        end = next((number + 1 for number in range(at, end) if not _is_store(path[number].target)), end)
    entries = [number for number in range(at, end) if path[number].kind.row.is_entry]
    start = max(entries, key=lambda number: _count_of(path[number]), default=at)
    kinds = (VertexKind.TENSOR if edge.target is None else edge.target.kind for edge in path[start:])
    return next((kind for kind in kinds if not kind.row.is_store), None) is VertexKind.TENSOR


def _is_store(target: Vertex | None) -> bool:
    return target is not None and target.kind.row.is_store


def _count_of(edge: Edge) -> int:
    return (edge.owner.count if edge.owner is not None else None) or 0


def strong_object(cut: Edge | None, path: Sequence[Edge]) -> str:
    """Return the class of the object that the reference to cut keeps, if no weak reference can refer to it."""
    after = itertools.dropwhile(lambda edge: edge is not cut, [*path, *path])
    kept = (edge.target for edge in after if edge.target is not None and not edge.target.kind.row.is_handle)
    target = next(kept, None)
    return target.name if target is not None and target.is_strong else ""


def repeated_reference(path: Sequence[Edge], *, is_deeper: bool) -> Edge | None:
    """Return a reference by which objects of one kind follow each other on a path.

    It is an attribute, as the `.prev` of states, or a variable that a function captures, as of a wrapper's function.

    Args:
        path: the path.
        is_deeper: True if each call put the tensors of the calls before farther from the root. Then one reference
            from an object to another one of its kind is enough, as two calls leave it.
    """
    for edge, following in pairwise(path):
        if edge.kind in _LINKS and _alike(edge) == _alike(following):
            return edge
    links = (edge for edge in path if edge.kind in _LINKS)
    return next((edge for edge in links if _leads_to_alike(edge)), None) if is_deeper else None


def _leads_to_alike(edge: Edge) -> bool:
    """Return True for a reference to an object of the class, or to a function of the definition, of its owner."""
    owner, target = edge.owner, edge.target
    if owner is None or target is None:
        return False
    place = owner.kind, owner.name, owner.file, owner.line
    return place == (target.kind, target.name, target.file, target.line)


def is_wrapping(repeated: Edge) -> bool:
    """Return True if functions follow each other by a reference: each wraps the one before."""
    return repeated.kind is EdgeKind.CLOSURE_CELL or (
        repeated.name == _WRAPPED
        and repeated.owner is not None
        and repeated.owner.kind is VertexKind.FUNCTION
    )


def repeated_stretch(path: Sequence[Edge]) -> Sequence[Edge]:
    """Return a few references that Python shows and that follow each other twice on a path, as of nested objects."""
    keys = [_alike(edge) for edge in path]
    stretches = (
        path[at : at + length]
        for length in range(1, _MOST_IN_STRETCH + 1)
        for at in range(len(path) - 2 * length + 1)
        if keys[at : at + length] == keys[at + length : at + 2 * length]
    )
    return next((stretch for stretch in stretches if not any(edge.hidden for edge in stretch)), ())


def _alike(edge: Edge) -> object:
    """Return what is equal for two references if they are the same reference of two objects of one kind."""
    owner = edge.owner
    place = None if owner is None else (owner.kind, owner.name, owner.file, owner.line)
    return edge.kind, None if edge.kind.row.is_nameless else edge.name, edge.position, place


def _is_entry(cut: Edge) -> bool:
    retained = cut.kind.row.retained
    return retained is not None and retained.row.is_of_entry


def _is_captured_after(cut: Edge, path: Sequence[Edge]) -> bool:
    """Return True if a function, a method or a suspended call behind the reference to cut keeps what it leads to."""
    captures = (EdgeKind.CLOSURE_CELL, EdgeKind.PARTIAL_ARGUMENT, EdgeKind.BOUND_SELF)
    at = next((at for at, edge in enumerate(path) if edge is cut), len(path))
    return any(edge.kind in captures or _mechanism(edge) is Remedy.GENERATOR for edge in path[at:])


def _closes_over_new_object(cut: Edge | None, holder: Sequence[Edge], path: Sequence[Edge]) -> bool:
    """Return True if the function that keeps the tensor, made by the calls, closes over an object that has it."""
    cell = next((edge for edge in holder if edge.kind is EdgeKind.CLOSURE_CELL), None)
    if cut is None or cell is None or not _is_cell_of_object(cell):
        return False
    return any(edge is cell for edge in itertools.dropwhile(lambda edge: edge is not cut, path))


def _of_most(cut: Edge, path: Sequence[Edge]) -> Edge:
    """Return the entry, of those from the reference to cut on, whose container has most: keys may be a record's.

    A new part of a module counts for itself, because the number of parts is not known.
    """
    if cut.kind is EdgeKind.SUBMODULE:
        return cut
    at = next((at for at, edge in enumerate(path) if edge is cut), len(path))
    entries = [cut, *(edge for edge in path[at + 1 :] if edge.kind in (EdgeKind.ITEM, EdgeKind.MEMBER))]
    return max(entries, key=lambda edge: (edge.owner and edge.owner.count) or 0)


def is_of_weak_keys(cut: Edge, path: Sequence[Edge]) -> bool:
    """Return True for an entry of the dictionary that a `WeakKeyDictionary` itself consists of."""
    is_of_dictionary = any(
        below is cut and above.owner is not None and above.owner.name == WeakKeyDictionary.__name__
        for above, below in pairwise(path)
    )
    # a dictionary with one entry does not grow: what grows is behind it
    return is_of_dictionary and (_count_of(cut) != 1 or _of_most(cut, path) is cut)


def _is_parameter_group(cut: Edge, path: Sequence[Edge]) -> bool:
    """Return True for an entry of the list of an optimizer's parameter groups, or of a group's list of parameters."""
    above = list(itertools.takewhile(lambda edge: edge is not cut, path))
    last = next((edge for edge in reversed(above) if edge.kind is EdgeKind.ATTRIBUTE), None)
    return _is_entry(cut) and last is not None and last.name == _GROUPS and is_torchs_file(last)


def _is_of_optimizer_state(cut: Edge, path: Sequence[Edge]) -> bool:
    """Return True if the dictionary `optimizer.state` itself grows: calls added parameters to it.

    The calls may have made the optimizer too. Then the reference to cut leads to it.
    """
    behind = itertools.dropwhile(lambda edge: edge is not cut, path)
    entry = next((edge for edge in behind if edge.kind.row.is_entry), None)
    above = next((above for above, below in pairwise(path) if below is entry), None)
    if entry is None or above is None or (above.kind, above.name) != (EdgeKind.ATTRIBUTE, _STATE):
        return False
    # the program's own state of a parameter may have a list that grows
    return is_torchs_file(above) and _of_most(entry, path) is entry


def _of_c_type(cut: Edge) -> Remedy | None:
    """Return the remedy for an object of a type in C that collects, and of which no attribute shows its parts."""
    is_plain = cut.kind is EdgeKind.REFERENCE and cut.owner is not None
    return _BY_C_TYPE.get(cut.owner.name) if is_plain and cut.owner is not None else None


def _is_of_cache(cut: Edge, path: Sequence[Edge]) -> bool:
    """Return True for an entry of the dictionary that an unbounded cache itself consists of."""
    is_dictionary = cut.owner is not None and cut.owner.name == "dict"
    return is_dictionary and any(
        above.kind is EdgeKind.CACHE_RESULT and below is cut for above, below in pairwise(path)
    )


def _in_c(first: Edge) -> Remedy | None:
    """Return what to change of an object that C code alone keeps, where what it is tells more than its parts."""
    if first.owner is not None and first.owner.kind is VertexKind.FUNCTION:
        return Remedy.FUNCTION_IN_C
    if first.owner is None or not first.kind.row.is_entry:
        return None
    return Remedy.ARGUMENTS_IN_C if first.owner.name == "tuple" else Remedy.C_CODE


def are_arguments_in_c(path: Sequence[Edge]) -> bool:
    """Return True if C code alone keeps the tuple at the start of a path, as `atexit` keeps arguments."""
    return bool(path) and _in_c(path[0]) is Remedy.ARGUMENTS_IN_C


def _added(cut: Edge, path: Sequence[Edge]) -> Remedy | None:
    """Return what to change if each call registers a hook, opens a mode, or puts a class that it makes somewhere."""
    if cut.kind.row.is_of_open_context:
        return Remedy.OPEN_CONTEXT
    if is_registration(cut, path):
        return _behind_only_hook(cut, path) or Remedy.HOOK_PER_CALL
    is_class = cut.target is not None and cut.target.kind is VertexKind.CLASS
    return Remedy.CLASS_PER_CALL if is_class and cut.kind.row.is_entry else None


def _behind_only_hook(cut: Edge, path: Sequence[Edge]) -> Remedy | None:
    """Return the change for a container behind the only hook of a table: calls add to it, and not to the table."""
    if cut.owner is None or cut.owner.count != 1:
        return None
    at = next((at for at, edge in enumerate(path) if edge is cut), len(path))
    entries = [edge for edge in path[at + 1 :] if edge.kind.row.is_entry]
    most = max(entries, key=lambda edge: (edge.owner and edge.owner.count) or 0, default=None)
    is_filled = most is not None and most.owner is not None and (most.owner.count or 0) > 1
    return most.kind.row.retained if most is not None and is_filled else None


def _behind_attribute(cut: Edge, path: Sequence[Edge]) -> Remedy | None:
    """Return the change for an object behind an attribute. The object may be a container, which grows."""
    remedy = _retained(cut)
    # an object of a C type, such as a pickler, that was there before
    if remedy is None or remedy.row.is_of_entry or cut.kind is EdgeKind.REFERENCE:
        return remedy
    at = next((number for number, edge in enumerate(path) if edge is cut), None)
    below = () if at is None else path[at:]
    return _first(_retained, [below]) if remedy.row.is_of_attribute else None


def _by_references(holder: Sequence[Edge], path: Sequence[Edge]) -> Remedy | None:
    if any(edge.kind is EdgeKind.CLASS_ATTRIBUTE and _is_cache(edge.target) for edge in path):
        return Remedy.CACHED_METHOD
    along_path = [[edge] for edge in path]
    if _first(_mechanism, [holder]) is Remedy.TRACEBACK:  # a long path leaves out the exception that has it
        return _first(_mechanism, [path])
    return _first(_mechanism, [holder]) or _first(_retained, [holder]) or _first(_mechanism, along_path)


def _of_mock(cycle: Iterable[Edge]) -> Remedy | None:
    return (
        Remedy.MOCK if any(edge.owner is not None and edge.owner.name in _MOCKS for edge in cycle) else None
    )


def _of_class(cycle: Iterable[Edge]) -> Remedy | None:
    """Return what to change if a class is in the cycle: to cut the reference from its method leaves its others."""
    for edge in cycle:
        if edge.owner is not None and edge.owner.kind is VertexKind.CLASS and not is_torchs_file(edge):
            return Remedy.CLASS_IN_CYCLE
    return None


def _is_of_mock(cut: Edge, path: Sequence[Edge]) -> bool:
    """Return True for an entry of a list of calls that a mock keeps. Each call is in several lists of several mocks."""
    return any(
        below is cut and _is_entry(below) and above.owner is not None and above.owner.name in _MOCKS
        for above, below in pairwise(path)
    )


def _is_cache(vertex: Vertex | None) -> bool:
    return vertex is not None and vertex.kind is VertexKind.CACHE


def _keeps_hooks(cycle: Sequence[Edge]) -> bool:
    """Return True if a cycle leads through one of torch's tables of hooks."""
    if any(edge.kind.row.is_hook_table or _hook_table(edge) is not None for edge in cycle):
        return True
    return hook_entry([*cycle, *cycle]) is not None


def _first(choose: Callable[[Edge], Remedy | None], groups: Iterable[Sequence[Edge]]) -> Remedy | None:
    """Return the most telling remedy of the first group of edges that has one: `Remedy` lists the best first."""
    for edges in groups:
        remedies = [remedy for edge in edges if (remedy := choose(edge)) is not None]
        if remedies:
            return min(remedies, key=lambda remedy: remedy.value)
    return None


def _mechanism(edge: Edge) -> Remedy | None:
    if edge.kind is EdgeKind.SAVED and is_saved_by_ctx(edge):
        return Remedy.SAVED_VIEW
    if edge.kind is EdgeKind.SHELL_RESULT and in_ipython():
        return Remedy.IPYTHON_RESULT
    if edge.kind is EdgeKind.ATTRIBUTE and edge.name == _OF_EXIT_STACK:
        return Remedy.EXIT_STACK
    by_owner = None if edge.owner is None else _mechanism_of(edge.kind, edge.owner)
    return by_owner or edge.kind.row.mechanism


def _mechanism_of(kind: EdgeKind, owner: Vertex) -> Remedy | None:
    if kind is EdgeKind.ATTRIBUTE and owner.kind is VertexKind.CTX:
        return Remedy.CTX_ATTRIBUTE
    # the running context is a root, and no object of the path: a reset changes it, and no copy of it
    if kind is EdgeKind.CONTEXT_VARIABLE and owner.kind is VertexKind.CONTEXT:
        return Remedy.KEPT_CONTEXT
    if kind is EdgeKind.REFERENCE and owner.name == _CYCLE:
        return Remedy.ENDLESS_LOOP
    if owner.thread:
        return Remedy.THREAD
    is_in_call = kind.row.is_call_variable or kind is EdgeKind.TEMPORARY
    if is_in_call and owner.kind.is_suspended_call:
        return Remedy.GENERATOR
    if owner.kind is VertexKind.PARTIAL:
        return Remedy.PARTIAL
    return _BY_OWNER.get(owner.name)


def _retained(edge: Edge) -> Remedy | None:
    if edge.kind is EdgeKind.ARGUMENT and edge.name is None:
        return None  # the caller of a check passed this object in; the reference inside it says more
    if edge.kind is EdgeKind.CLOSURE_CELL and is_torchs_file(edge):
        return None  # a function that torch made: who keeps it can be changed
    if edge.kind is EdgeKind.BOUND_SELF and edge.owner is not None and edge.owner.kind is VertexKind.BUILTIN:
        return None  # a method in C, such as `tensor.zero_`: a `weakref.WeakMethod` of it raises TypeError
    return _hook_table(edge) or edge.kind.row.retained


def _in_cycle(edge: Edge) -> Remedy | None:
    return _hook_table(edge) or edge.kind.row.in_cycle


def _hook_table(edge: Edge) -> Remedy | None:
    is_table = edge.kind is EdgeKind.ATTRIBUTE and edge.name is not None and edge.name in HOOK_TABLES
    return Remedy.MODULE_HOOK if is_table else None
