"""The value to whose graph each call adds, as in `total = total + loss`.

Backward frees the tensors that a graph saved. The nodes stay as long as a value leads to them, and no tensor's memory
grows. The tensor with the largest graph is that value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from memwatch.device_names import CPU
from memwatch.heap.tensors import quiet, storage_of
from memwatch.kinds.leaks import LeakKind
from memwatch.leaks.diagnose import diagnose
from memwatch.leaks.exemptions import Exemptions
from memwatch.leaks.groups import leak_of
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


def leak_of_graph(survivor: Survivor, nodes: int, end_s: float | None = None, *, every: int = 1) -> Leak:
    """Return the leak of a graph that grows.

    Args:
        survivor: the tensor that leads to it.
        nodes: autograd nodes that each call adds, or one call in so many.
        end_s: clock at the end of the last call, in seconds; by default now.
        every: the number of calls of which one adds the nodes.
    """
    survivor.kind = LeakKind.GRAPH
    leak = leak_of([survivor], nodes * NODE_BYTES, nodes, per_call=True, end_s=end_s)
    return replace(leak, device=CPU, graph_nodes=nodes, every=every)
