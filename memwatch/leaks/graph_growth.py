"""The value to whose graph each call adds, as in `total = total + loss`.

Backward frees the tensors that a graph saved. The nodes stay as long as a value leads to them, and no tensor's memory
grows. The tensor with the largest graph is that value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.autograd import sequence_nr_of
from memwatch.device_names import CPU
from memwatch.edges import EdgeKind
from memwatch.heap.autograd import autograd_edges
from memwatch.heap.tensors import quiet, storage_of
from memwatch.leaks.diagnose import diagnose
from memwatch.leaks.excuses import Exemptions
from memwatch.leaks.groups import leak_of
from memwatch.leaks.kinds import LeakKind
from memwatch.leaks.new_storages import NODE_BYTES, NewStorages, behind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from memwatch.heap.roots import Held
    from memwatch.leaks.leak import Leak
    from memwatch.leaks.new_storages import NewStorage
    from memwatch.leaks.survivor import Survivor

_MOST_ENDS: Final = 100  # tensors whose graphs are measured, the latest ones


def holder_of_largest_graph(
    ends: Sequence[Any],
    storages: Iterable[NewStorage],
    *,
    held: Sequence[Held] = (),
    least_nodes: int = 0,
    old: NDArray[np.int64] | None = None,
) -> Survivor | None:
    """Return the tensor with the largest graph, with its holder; None if the holder is excused.

    Args:
        ends: tensors with a graph, the latest last.
        storages: the storages that the calls made.
        held: objects that live on after the calls: the function and its arguments.
        least_nodes: the smallest number of nodes of the graph.
        old: identities of the objects from before the calls; by default those out of gc's youngest generation.
    """
    with quiet():
        latest = ends[-_MOST_ENDS:]
        sizes = [behind([tensor])[1] for tensor in latest]
        size, end = max(zip(sizes, range(len(latest)), strict=True), default=(0, 0))
        storage = storage_of(latest[end]) if latest and size >= least_nodes else None
    del latest
    made = [made for made in storages if storage is not None and made.ref() is storage]
    if storage is not None and not made:  # a tensor from before the calls got its graph in place
        older = NewStorages().add(storage, 0, certain=True)
        made += [] if older is None else [older]
    del storage
    found = diagnose(made, Exemptions(state=False), per_call=True, held=held, old=old)
    return next(iter(found.retained), None)


def leaks_of_continued_graphs(
    ends: Iterable[Any], storages: Iterable[NewStorage], first_nr: int, exempt: Exemptions, end_s: float
) -> list[Leak]:
    """Return the values of a block whose graph goes on into older graphs of the same op, as `total = total + loss`.

    One pass shows no growth. But the op that made the value also made an older part of its graph: the value before it.

    Args:
        ends: the living tensors of the block with a graph.
        storages: the storages that the block left.
        first_nr: the number of the block's first autograd node in this thread.
        exempt: references that do not count.
        end_s: clock at the end of the block, in seconds.
    """
    with quiet():
        nodes = {
            id(storage): count
            for end in ends
            if (count := _nodes_before_itself(end, first_nr)) and (storage := storage_of(end)) is not None
        }
    made = [each for each in storages if id(each.ref()) in nodes]
    leaks = []
    for survivor in diagnose(made, exempt, per_call=False).retained:
        count = nodes[id(survivor.storage.ref())]
        leaks.append(leak_of_graph(survivor, count, end_s, per_call=False))
    return leaks


def _nodes_before_itself(end: Any, first_nr: int) -> int:
    """Return how many nodes of a block a tensor's graph has, if older nodes with its own op follow; else 0."""
    todo = [edge.target for edge in autograd_edges(end, hooks=False) if edge.kind is EdgeKind.GRAD_FN]
    if not todo or sequence_nr_of(todo[0]) < first_nr:
        return 0
    op = type(todo[0])
    seen: dict[int, Any] = {id(node): node for node in todo}
    goes_on = False
    while todo:
        for edge in autograd_edges(todo.pop(), hooks=False):
            node = edge.target
            if edge.kind is not EdgeKind.NEXT_FUNCTION or id(node) in seen:
                continue
            if sequence_nr_of(node) < first_nr:
                goes_on = goes_on or type(node) is op
            else:
                seen[id(node)] = node
                todo.append(node)
    return len(seen) if goes_on else 0


def leak_of_graph(
    survivor: Survivor, nodes: int, end_s: float | None = None, *, every: int = 1, per_call: bool = True
) -> Leak:
    """Return the leak of a graph that grows.

    Args:
        survivor: the tensor that leads to it.
        nodes: autograd nodes that each call adds, or one call in so many.
        end_s: clock at the end of the last call, in seconds; by default now.
        every: the number of calls of which one adds the nodes.
        per_call: True if the nodes are of each call; False for those of one pass.
    """
    survivor.kind = LeakKind.GRAPH
    leak = leak_of([survivor], nodes * NODE_BYTES, nodes, per_call=per_call, end_s=end_s)
    return replace(leak, device=CPU, graph_nodes=nodes, every=every)
