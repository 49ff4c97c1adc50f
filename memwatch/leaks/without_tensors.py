"""Growth that holds no tensor's memory: hooks that each call registers, and nodes of graphs to which each call adds."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import Counter, OrderedDict
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from memwatch._torch.autograd import AccumulateGrad, sequence_nr_of
from memwatch.added_at import lines_that_register, words_of
from memwatch.device_names import CPU
from memwatch.heap.autograd import autograd_edges
from memwatch.heap.names import type_name
from memwatch.heap.paths import steps_of
from memwatch.heap.search import search
from memwatch.heap.snapshot import Snapshot
from memwatch.heap.tensors import mro_of, quiet, storage_of, type_dict
from memwatch.kinds.edges import EdgeKind, Vertex, VertexKind
from memwatch.kinds.known_leaks import known_leak
from memwatch.kinds.leaks import LeakKind, Remedy
from memwatch.leaks.cause import cause_of, entry_step, series_of
from memwatch.leaks.diagnose import diagnose, nodes_of_graphs
from memwatch.leaks.excuses import Case, Exemptions, are_old, excuse_for, exempt_edges
from memwatch.leaks.groups import leak_of
from memwatch.leaks.known_causes import KnownCauses
from memwatch.leaks.leak import Leak, Survivor
from memwatch.leaks.new_storages import NODE_BYTES, NewStorages, behind, empty_storage, with_line_of_change
from memwatch.own_code import CodeOwner, code_owner
from memwatch.words.edges import edge_phrase
from memwatch.words.leaks import advice, hook_holder_phrase, hook_phrase, path_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from types import CodeType

    import numpy as np
    from numpy.typing import NDArray

    from memwatch.heap.roots import Held
    from memwatch.kinds.edges import Edge
    from memwatch.leaks.new_storages import InPlaceChange, NewStorage

# Hooks that each call registers and nobody removes: each further call runs all of them.
#
# torch numbers the handles of hooks one after the other, whatever they hang on: modules, tensors, optimizers. So the
# number before and after a call tells, at no cost, whether it registered any. Only if each measured call did are the
# tables listed that still have them. One pass shows one more hook of a function that the table had a hook of.

_ONE_GROWTH: Final = 2  # counts of hooks or nodes: one growth may have been a set-up


def next_hook_number() -> int:
    """Return the number that the next registered hook will have."""
    return int(getattr(RemovableHandle, "next_id", 0))


def are_registered(numbers: range) -> bool:
    """Return True if a table still has a hook with one of these numbers."""
    return any(each in numbers for table in _tables() for each in _numbers(table))


def leaks_of_hooks(
    numbers: Sequence[int], held: Iterable[Held], beside: Iterable[Leak], *, period: int = 1
) -> list[Leak]:
    """Return the tables of hooks that have hooks of every call.

    Args:
        numbers: the next hook's number before the measured calls and after each.
        held: objects that live on after the calls: the function and its arguments.
        beside: leaks of tensors; a table on their paths is not reported again, nor another one that the same call
            gives the same hooks.
        period: the number of calls in a row of which one at least must have left a hook.
    """
    numbers = numbers[::-period][::-1]
    calls = (len(numbers) - 1) * period
    if len(numbers) <= _ONE_GROWTH or any(before == after for before, after in pairwise(numbers)):
        return []
    tables = [table for table in _tables() if _has_all(table, numbers)]
    if not tables:
        return []
    told = {series_of(edge) for leak in beside for edge in leak.edges}
    told_functions: set[object] = set()
    # the tables of one function come as one leak: a loop over the parameters registers it on each of them
    found: dict[object, list[tuple[tuple[Edge, ...], int]]] = {}
    functions: dict[object, CodeType | None] = {}
    with Snapshot(tables, list(held)) as snapshot:
        closed = snapshot.barriers()
        tree = search(snapshot, snapshot.root_groups(), closed=closed)
        # the way through a module names a parameter better than the ways through its optimizer and a graph
        optimizers = snapshot.positions(map(id, snapshot.instances(Optimizer)))
        passed_by = closed.union(optimizers, nodes_of_graphs(snapshot))
        by_modules = search(snapshot, snapshot.root_groups(), closed=passed_by)
        for table in tables:
            position = snapshot.position(table)
            way = by_modules if by_modules.reaches(position) else tree
            steps = steps_of(snapshot, way.path(position)) if way.reaches(position) else []
            edges = tuple(step.edge for step in steps)
            if edges:
                count = sum(number >= numbers[0] for number in _numbers(table))
                code = _function_of_hooks(table, numbers[0])
                place = id(table) if code is None else (code.co_filename, code.co_firstlineno)
                key = edges[-1].kind, place, count
                found.setdefault(key, []).append((edges, count))
                functions[key] = code
                if series_of(edges[-1]) in told:
                    told_functions.add(key)
    leaks = [
        _leak_of_tables([edges for edges, _ in each], each[0][1], calls=calls, function=functions[key])
        for key, each in found.items()
        if key not in told_functions
    ]
    return sorted(leaks, key=lambda leak: -leak.count)


def _function_of_hooks(table: Any, first: int) -> CodeType | None:
    """Return the code of the one function whose hooks a table has from a number on; None if there are several."""
    hooks = [
        hook for number, hook in list(OrderedDict.items(table)) if type(number) is int and number >= first
    ]
    codes = [_code_of(hook) for hook in hooks]
    places = {None if code is None else (code.co_filename, code.co_firstlineno) for code in codes}
    return codes[0] if len(places) == 1 else None


def leaks_of_new_hooks(
    first: int, exempt: Exemptions, older: Callable[[], list[OrderedDict[Any, Any]]]
) -> list[Leak]:
    """Return the tables from before a block that got one more hook of a function in it, and still have it.

    A hook may be set up once, and so may several at once. Beside an older hook of the same function it is one more.

    Args:
        first: the number of the block's first hook.
        exempt: references that do not count, such as those of the names that the block bound.
        older: returns the ordered dictionaries from before the block. Every new module may register hooks in itself,
            as those of gpytorch do, so this is called often, and must not list the heap.
    """
    if next_hook_number() == first:
        return []
    found = [(table, count) for table in older() if (count := _one_more(table, first))]
    if not found:
        return []
    leaks = []
    with Snapshot([table for table, _ in found]) as snapshot:
        own = exempt_edges(snapshot, exempt)
        tree = search(snapshot, snapshot.root_groups(), closed=snapshot.barriers(), cut=own)
        for table, count in found:
            position = snapshot.position(table)
            if snapshot.is_old(position) and tree.reaches(position):
                edges = tuple(step.edge for step in steps_of(snapshot, tree.path(position)))
                function = _function_of_hooks(table, first)
                leaks.append(_leak_of_tables([edges], count, per_call=False, function=function))
    return sorted(leaks, key=lambda leak: -leak.count)


def _tables() -> list[Any]:
    return [table for table in gc.get_objects() if type(table) is OrderedDict]


def _one_more(table: Any, first: int) -> int:
    """Return how many hooks with this number or a later one have an older hook of their function beside them."""
    if not table or max(_numbers(table), default=-1) < first:  # nearly all tables, and most of them are empty
        return 0
    older: Counter[int] = Counter()
    fresh: Counter[int] = Counter()
    for number, hook in list(OrderedDict.items(table)):
        code = _code_of(hook) if type(number) is int else None
        if code is not None and code_owner(code.co_filename) not in (CodeOwner.TORCH, CodeOwner.MEMWATCH):
            (fresh if number >= first else older)[id(code)] += 1
    return sum(count for code, count in fresh.items() if older[code])


def _code_of(hook: Any) -> CodeType | None:
    """Return the code of a hook that is a function, a method, a part of one, or an object with `__call__`.

    Some functions of torch register a hook of their own around the program's, which is the one to name.
    """
    # classes are compared by identity, because `in` would ask the `__eq__` of a metaclass
    while type(hook) is MethodType or type(hook) is partial:
        hook = hook.__func__ if type(hook) is MethodType else hook.func
    if type(hook) is not FunctionType:
        hook = next((found for cls in mro_of(type(hook)) if (found := type_dict(cls).get("__call__"))), None)
    if type(hook) is not FunctionType or code_owner(hook.__code__.co_filename) is not CodeOwner.TORCH:
        return hook.__code__ if type(hook) is FunctionType else None
    within = (_function_in(cell) for cell in hook.__closure__ or ())
    return next((code for code in within if code is not None), hook.__code__)


def _function_in(cell: CellType) -> CodeType | None:
    """Return the code of the function or method in a cell of a function of torch, unless it is torch's too."""
    try:
        found = cell.cell_contents
    except ValueError:  # an empty cell
        return None
    found = found.__func__ if type(found) is MethodType else found
    is_function = type(found) is FunctionType
    return found.__code__ if is_function and code_owner(found.__code__.co_filename).calls_torch else None


def _leak_of_tables(
    ways: Sequence[tuple[Edge, ...]],
    count: int,
    *,
    calls: int = 1,
    per_call: bool = True,
    function: CodeType | None = None,
) -> Leak:
    """Return the leak of some tables that got the same hooks.

    Args:
        ways: the path to each table.
        count: the new hooks of each table.
        calls: the number of calls that registered them.
        per_call: True if the figures are per call.
        function: the code of the hooks; None if they are of several functions.
    """
    edges, tables = ways[0], len(ways)
    cut = edges[-1]
    cuts = {series_of(way[-1]): way[-1] for way in reversed(ways)}  # of each series the first
    every = max(1, round(calls / count))
    hook = None if function is None else Vertex(VertexKind.FUNCTION, *_place_of(function))
    known = known_leak(LeakKind.HOOKS, edges, hook=hook)
    return Leak(
        kind=LeakKind.HOOKS,
        nbytes=0,
        count=tables * (count * every // calls),
        every=every,
        holder=hook_holder_phrase(edges, tables),
        path=path_lines(edges, branch_at=None),
        site=None,
        known=known,
        advice=(known.remedy if known is not None else "") or advice(Remedy.HOOK_PER_CALL, with_graph=False),
        per_call=per_call,
        reference=edge_phrase(cut),
        edges=edges,
        cut=cut,
        cuts=(cut, *(each for each in cuts.values() if each is not cut)),
        cause=cause_of(LeakKind.HOOKS, cut, edges, 0),
        hook="" if function is None else hook_phrase(*_place_of(function), edges),
        added_at="" if hook is None else words_of(lines_that_register(hook, edges)),
    )


def _place_of(function: CodeType) -> tuple[str, str, int]:
    name = function.co_name
    if name == "__call__":  # the hook is an object: name its class
        name = getattr(function, "co_qualname", name)  # Python 3.11
    return name, function.co_filename, function.co_firstlineno


def _has_all(table: Any, numbers: Sequence[int]) -> bool:
    """Return True if a table has a hook of every call. A table that a call makes has only that call's hooks."""
    found = {bisect_right(numbers, number) for number in _numbers(table)}
    return found.issuperset(range(1, len(numbers)))


def _numbers(table: Any) -> list[int]:
    return [key for key in list(OrderedDict.keys(table)) if type(key) is int]


# The value to whose graph each call adds, as in `total = total + loss`.
#
# Backward frees the tensors that a graph saved. The nodes stay as long as a value leads to them, and no tensor's memory
# grows. The tensor with the largest graph is that value.

_MOST_ENDS: Final = (
    100  # tensors whose graphs are measured, the latest ones; of each line, for graphs that go back
)


def holder_of_largest_graph(
    ends: Sequence[Any],
    storages: Iterable[NewStorage],
    *,
    held: Sequence[Held] = (),
    in_place: Mapping[int, InPlaceChange],
) -> Survivor | None:
    """Return a tensor of the largest graph, with its holder; None if the holder is excused.

    The tensors that one line made count together: a list of averages may have one for each parameter.

    Args:
        ends: tensors with a graph, the latest last.
        storages: the storages that the calls made.
        held: objects that live on after the calls: the function and its arguments.
        in_place: the last recorded change in place of each storage.
    """
    made = list(storages)
    with quiet():
        storage = _storage_of_largest_graph(ends[-_MOST_ENDS:], made)
        found = [] if storage is None else [storage]
    del storage
    return next(iter(_held_ends(found, made, held=held, in_place=in_place, old=None)), None)


def _held_ends(
    ends: list[torch.UntypedStorage],
    made: Sequence[NewStorage],
    *,
    held: Sequence[Held],
    in_place: Mapping[int, InPlaceChange],
    old: NDArray[np.int64] | None,
) -> list[Survivor]:
    """Return some storages with their holders, without those that are excused; empties the list."""
    wanted = set(map(id, ends))
    chosen = [each for each in made if id(each.ref()) in wanted]
    known = {id(each.ref()) for each in chosen}
    # a tensor from before the calls got its graph in place
    chosen += _noted(storage for storage in ends if id(storage) not in known)
    ends.clear()  # or it would look like a holder
    chosen = [with_line_of_change(each, in_place) for each in chosen]
    return diagnose(chosen, Exemptions(state=False), per_call=True, held=held, old=old).retained


def holders_of_growing_graphs(
    ends: list[Any],
    storages: Iterable[NewStorage],
    numbers: Sequence[int],
    *,
    held: Sequence[Held] = (),
    in_place: Mapping[int, InPlaceChange],
    old: NDArray[np.int64] | None = None,
) -> list[tuple[Survivor, int]]:
    """Return the tensors whose graphs go back through all rounds, one for each holder, with the nodes of its own.

    Several sums may grow at once, and each has a part of the new nodes. So their number does not show a graph that
    grows, but the rounds of its nodes do.

    Args:
        ends: tensors with a graph; this empties the list, or it would look like a holder.
        storages: the storages that the rounds made.
        numbers: the number of the next autograd node at the end of each counted round.
        held: objects that live on after the rounds: the function and its arguments.
        in_place: the last recorded change in place of each storage.
        old: identities of the objects from before the rounds; by default those out of gc's youngest generation.
    """
    made = list(storages)
    with quiet():
        graph = NewNodes(ends, numbers[0])
        ends.clear()
        nodes, latest = _latest_of_lines(graph.through(numbers), made, in_place)
    by_holder: dict[tuple[Hashable, ...], list[Survivor]] = {}
    for survivor in _held_ends(latest, made, held=held, in_place=in_place, old=old):
        key = tuple(series_of(step.edge) for step in survivor.steps)
        by_holder.setdefault(key, []).append(survivor)
    # `mean = total / n` leads to the graph of the total too, so the smaller graph comes first
    counted: set[int] = set()
    growing = []
    starts = {key: [nodes[id(each.storage.ref())] for each in group] for key, group in by_holder.items()}
    for key, group in sorted(by_holder.items(), key=lambda item: graph.count(starts[item[0]])):
        own = graph.reached(starts[key]) - counted
        counted |= own
        if graph.go_back(own, numbers):
            growing.append((min(group, key=lambda each: len(each.steps)), len(own)))
    return growing


def _latest_of_lines(
    ends: Iterable[tuple[Any, int]], made: Iterable[NewStorage], in_place: Mapping[int, InPlaceChange]
) -> tuple[dict[int, int], list[torch.UntypedStorage]]:
    """Return the nodes of some tensors by the id of their storages, and the latest storages that each line made."""
    sites = {id(each.ref()): with_line_of_change(each, in_place).site for each in made}
    nodes: dict[int, int] = {}
    by_line: dict[object, list[torch.UntypedStorage]] = {}
    for end, node in ends:
        storage = storage_of(end)
        if storage is not None:
            nodes[id(storage)] = node
            by_line.setdefault(sites.get(id(storage)) or id(storage), []).append(storage)
    return nodes, [storage for line in by_line.values() for storage in line[-_MOST_ENDS:]]


def _storage_of_largest_graph(ends: Sequence[Any], made: Sequence[NewStorage]) -> torch.UntypedStorage | None:
    lines = {id(each.ref()): each.site for each in made}
    by_line: dict[object, list[Any]] = {}
    for end in ends:
        storage = storage_of(end)
        if storage is not None:
            by_line.setdefault(lines.get(id(storage)) or id(storage), []).append(end)
    largest = max(by_line.values(), key=_nodes_behind, default=[])
    if not largest:
        return None
    return storage_of(max(largest, key=lambda end: _nodes_behind([end])))


def _nodes_behind(ends: Iterable[Any]) -> int:
    return behind(ends)[1]


def _noted(storages: Iterable[torch.UntypedStorage]) -> list[NewStorage]:
    """Return storages from before some calls as if these had made them."""
    book = NewStorages()
    for storage in storages:
        book.add(storage, 0, certain=True)
    return book.alive()


def leaks_of_continued_graphs(
    ends: Iterable[Any],
    storages: Iterable[NewStorage],
    first_nr: int,
    exempt: Exemptions,
    end_s: float,
    *,
    in_place: Mapping[int, InPlaceChange],
) -> list[Leak]:
    """Return the values of a block whose graph goes on into older graphs of the same op, as `total = total + loss`.

    One pass shows no growth. But the op that made the value also made an older part of its graph: the value before it.

    Args:
        ends: the living tensors with a graph of the block; those that the block changed in place may be older.
        storages: the storages that the block left.
        first_nr: the number of the block's first autograd node in this thread.
        exempt: references that do not count.
        end_s: clock at the end of the block, in seconds.
        in_place: the last recorded change in place of each storage.
    """
    with quiet():
        graph = NewNodes(ends, first_nr)
        found = [
            (storage, node) for end, node in graph.continued() if (storage := storage_of(end)) is not None
        ]
    nodes = {id(storage): node for storage, node in found}
    made = [each for each in storages if id(each.ref()) in nodes]
    new = {id(each.ref()) for each in made}
    older = _noted(storage for storage, _ in found if id(storage) not in new)
    found.clear()
    leaks = []
    # a name that had its tensor before the block was not bound by it, though `total += loss` assigns it again
    without_names = Exemptions(objects=exempt.objects)
    for survivor in [
        *diagnose(made, exempt, per_call=False).retained,
        *diagnose(older, without_names, per_call=False).retained,
    ]:
        count = graph.number_behind(nodes[id(survivor.storage.ref())])
        named = replace(survivor, storage=with_line_of_change(survivor.storage, in_place))
        leaks.append(leak_of_graph(named, count, end_s, per_call=False))
    return leaks


class NewNodes:
    """The autograd nodes of a block, and which of them lead to an older node.

    Each node is read once for all tensors, because many tensors may end one graph: an optimizer whose running average
    has a graph left 8,000 of them.

    Args:
        ends: tensors with a graph.
        first_nr: the number of the block's first autograd node in this thread.
    """

    def __init__(self, ends: Iterable[Any], first_nr: int) -> None:
        self._ends: list[tuple[Any, int]] = []
        self._ops: dict[int, int] = {}  # the `id` of the class of each node
        self._behind: dict[int, list[int]] = {}
        self._before_older: dict[int, set[int]] = {}  # by the class of the older node
        self._numbers: dict[int, int] = {}
        alive: dict[int, Any] = {}  # torch would make another Python object for a node: ids must stay valid
        todo = []
        for end in ends:
            for edge in autograd_edges(end, hooks=False):
                node = edge.target
                if edge.kind is EdgeKind.GRAD_FN and sequence_nr_of(node) >= first_nr:
                    self._ends.append((end, id(node)))
                    todo.append(node)
        while todo:
            node = todo.pop()
            if id(node) in alive:
                continue
            alive[id(node)] = node
            self._ops[id(node)] = id(type(node))
            self._numbers[id(node)] = sequence_nr_of(node)
            next_nodes = self._behind[id(node)] = []
            for edge in autograd_edges(node, hooks=False):
                following = edge.target
                # torch makes one node for the gradient of a parameter, and the older graph has it already
                if edge.kind is not EdgeKind.NEXT_FUNCTION or type(following) is AccumulateGrad:
                    continue
                if sequence_nr_of(following) < first_nr:
                    self._before_older.setdefault(id(type(following)), set()).add(id(node))
                else:
                    next_nodes.append(id(following))
                    todo.append(following)

    def continued(self) -> list[tuple[Any, int]]:
        """Return the tensors behind whose node an older one of the same op follows, each with its node.

        Afterwards this object holds no tensor, so a search does not find it as a holder.
        """
        before = self._before()
        leading = {
            op: _reached(self._before_older[op], before)
            for op in {self._ops[node] for _, node in self._ends} & self._before_older.keys()
        }
        ends, self._ends = self._ends, []
        return [(end, node) for end, node in ends if node in leading.get(self._ops[node], ())]

    def through(self, numbers: Sequence[int]) -> list[tuple[Any, int]]:
        """Return the tensors whose graphs go back through some rounds, each with its node.

        Afterwards this object holds no tensor, so a search does not find it as a holder.

        Args:
            numbers: the number of the next autograd node at the end of each round.
        """
        rounds: dict[int, int] = {}  # a bit for each round of which a node leads to nodes, its own included
        for node in self._inputs_first():
            rounds[node] = 1 << bisect_right(numbers, self._numbers[node])
            for each in self._behind[node]:
                rounds[node] |= rounds.get(each, 0)
        ends, self._ends = self._ends, []
        return [(end, node) for end, node in ends if _are_all(rounds[node], len(numbers))]

    def go_back(self, nodes: Iterable[int], numbers: Sequence[int]) -> bool:
        """Return True if some nodes are of all rounds but the first."""
        rounds = 0
        for node in nodes:
            rounds |= 1 << bisect_right(numbers, self._numbers[node])
        return _are_all(rounds, len(numbers))

    def reached(self, nodes: Iterable[int]) -> set[int]:
        """Return the nodes to which some nodes lead, themselves included."""
        return _reached(nodes, self._behind)

    def count(self, nodes: Iterable[int]) -> int:
        """Return the number of nodes to which some nodes lead, themselves included."""
        return len(self.reached(nodes))

    def _inputs_first(self) -> Iterator[int]:
        """Yield each node after the nodes that follow it in backward."""
        seen: set[int] = set()
        for _, start in self._ends:
            todo = [(start, iter(self._behind[start]))] if start not in seen else []
            seen.add(start)
            while todo:
                node, rest = todo[-1]
                following = next((each for each in rest if each not in seen), None)
                if following is None:
                    todo.pop()
                    yield node
                else:
                    seen.add(following)
                    todo.append((following, iter(self._behind[following])))

    def _before(self) -> dict[int, list[int]]:
        """Return for each node the nodes of the block that lead to it."""
        before: dict[int, list[int]] = {}
        for node, next_nodes in self._behind.items():
            for each in next_nodes:
                before.setdefault(each, []).append(node)
        return before

    def number_behind(self, node: int) -> int:
        """Return the number of the block's nodes in the graph of a node, itself included."""
        return len(_reached([node], self._behind))


# The containers that keep autograd nodes themselves, as `kept.append(ctx)` in the forward of a custom function.
#
# Backward frees what the nodes saved, and no tensor leads to them. gc lists a node that has a Python object, and shows
# the references of a container to it. So a search that passes no tensor and no other node finds the container.


def holders_of_kept_nodes(
    nodes: list[Any],
    numbers: Sequence[int],
    *,
    held: Sequence[Held] = (),
    old: NDArray[np.int64] | None = None,
) -> list[tuple[Survivor, int]]:
    """Return the holders of autograd nodes of all rounds, each with the number of nodes that it keeps.

    Args:
        nodes: the living nodes that have a Python object; this empties the list, or it would look like a holder.
        numbers: the number of the next autograd node at the end of each counted round.
        held: objects that live on after the rounds: the function and its arguments.
        old: identities of the objects from before the rounds; by default those out of gc's youngest generation.
    """
    made = [each for each in nodes if type(each) is not AccumulateGrad and sequence_nr_of(each) >= numbers[0]]
    nodes.clear()
    if not made:
        return []
    by_holder: dict[Hashable, list[tuple[Survivor, int]]] = {}
    with Snapshot(made, list(held), old=old) as snapshot:
        tensors = snapshot.positions(map(id, snapshot.instances(torch.Tensor)))
        closed = snapshot.barriers().union(tensors)
        tree = search(snapshot, snapshot.root_groups(), closed=closed)
        inner = set(nodes_of_graphs(snapshot))
        for at, node in enumerate(made):
            way = tree.path(snapshot.position(node))
            if not way or not inner.isdisjoint(way[:-1]):
                continue
            number = bisect_right(numbers, sequence_nr_of(node))
            survivor = _survivor_of_node(snapshot, way, number)
            if survivor is not None:
                by_holder.setdefault(survivor.key, []).append((survivor, at))
    found = []
    for group in by_holder.values():
        rounds = 0
        for survivor, _ in group:
            rounds |= 1 << survivor.storage.run
        if _are_all(rounds, len(numbers)):
            count = behind(made[at] for _, at in group)[1]
            found.append((max((each for each, _ in group), key=lambda each: each.storage.run), count))
    return found


def _survivor_of_node(snapshot: Snapshot, way: list[int], run: int) -> Survivor | None:
    """Return the explanation of a node by the path from a root, or None if that is excused."""
    objects = [snapshot.objects[place] for place in way]
    steps = steps_of(snapshot, way)
    cut = entry_step(steps, [not is_old for is_old in are_old(snapshot, way)])
    case = Case(
        objects, steps, cut, KnownCauses().slots, growth_counts=True, one_pass=False, is_one_more=False
    )
    if cut is None or excuse_for(case) is not None:
        return None
    # a node has no storage: this one is empty, and is there for the round and the device
    storage = empty_storage(torch.UntypedStorage(0))
    key = tuple(series_of(step.edge) for step in steps)
    return Survivor(replace(storage, run=run), key, steps, cut, type_name(type(objects[-1])))


def _are_all(rounds: int, count: int) -> bool:
    """Return True if the bits of all so many rounds are set but for the first round; two of them are too few."""
    wanted = (1 << count) - 2
    return count > _ONE_GROWTH and rounds & wanted == wanted


def _reached(starts: Iterable[int], following: Mapping[int, Iterable[int]]) -> set[int]:
    """Return everything that some places lead to, themselves included."""
    found = set(starts)
    todo = list(found)
    while todo:
        new = [each for each in following.get(todo.pop(), ()) if each not in found]
        found.update(new)
        todo += new
    return found


def leak_of_graph(
    survivor: Survivor, nodes: int, end_s: float | None = None, *, every: int = 1, per_call: bool = True
) -> Leak:
    """Return the leak of a graph that grows.

    Args:
        survivor: the tensor that leads to it.
        nodes: autograd nodes that a call adds.
        end_s: clock at the end of the last call, in seconds; by default now.
        every: 1 if each call adds them, and n if only every n-th call does.
        per_call: True if a call adds the nodes; False if there was one pass, which added them.
    """
    leak = leak_of(
        [replace(survivor, kind=LeakKind.GRAPH)], nodes * NODE_BYTES, nodes, per_call=per_call, end_s=end_s
    )
    return replace(leak, device=CPU, graph_nodes=nodes, every=every)


def leak_of_kept_nodes(survivor: Survivor, nodes: int, end_s: float | None = None, *, every: int = 1) -> Leak:
    """Return the leak of a container that keeps autograd nodes themselves.

    Args:
        survivor: one of the nodes.
        nodes: autograd nodes that a call adds.
        end_s: clock at the end of the last call, in seconds; by default now.
        every: 1 if each call adds them, and n if only every n-th call does.
    """
    leak = leak_of([survivor], nodes * NODE_BYTES, nodes, per_call=True, end_s=end_s)
    return replace(leak, kind=LeakKind.GRAPH, device=CPU, graph_nodes=nodes, every=every)
