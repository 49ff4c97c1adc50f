"""Write the plan of an FX graph as a new FX graph: ops in the planned order, and a node for each recompute and move.

A plan does not contain views. Each view is made again from its base, next to the ops that use it. Otherwise a view
could keep an old copy of a recomputed buffer alive.

Moves of buffers are ops of torch: `move_out` copies a tensor into host memory, and `move_back` copies it back. So a
graph can call them, autograd saves their results, and inductor leaves them as they are. The bytes of an accelerator are
moved to pinned host memory, and the bytes of the CPU to a temporary file.
"""

from __future__ import annotations

import operator
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import fx

from memwatch._torch.traced_graphs import keep_in_forward
from memwatch.devices import adapter_of
from memwatch.encoding import Value, as_bytes, leaves, new_storage
from memwatch.planner.peak import StepKind
from memwatch.replay.fx import BOUNDARY, is_tangent
from memwatch.replay.traced_ops import (
    draw_again,
    random_node_of,
    remove_statistics,
    saves_state,
    state_before,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


@dataclass(frozen=True)
class RewrittenGraph:
    """A planned graph.

    Attributes:
        module: the graph with its ops in the planned order.
        saved: nodes that run in the forward and are used in the backward, in order.
    """

    module: fx.GraphModule
    saved: list[fx.Node]


def rewrite_graph(
    module: fx.GraphModule, order: Iterable[object], num_fwd_outputs: int | None = None
) -> RewrittenGraph:
    """Return a graph that runs in an order.

    Args:
        module: the graph that was planned.
        order: names of its nodes in order, with `BOUNDARY` where the backward begins. A repeated name is computed
            again. A `Move` moves the value of a node.
        num_fwd_outputs: for a joint graph, how many of the outputs belong to the forward.
    """
    steps = list(order)
    writer = _Writer(
        module.graph, num_fwd_outputs, {name for name, count in Counter(steps).items() if count > 1}
    )
    for name in steps:
        writer.step(name)
    writer.finish()
    new = fx.GraphModule(module, writer.graph)
    new.meta.update(module.meta)
    new.graph.lint()
    return RewrittenGraph(new, list(writer.saved))


@dataclass
class _Writer:
    """Copies nodes to a new graph.

    Attributes:
        old: the graph that was planned.
        num_fwd_outputs: how many of its outputs belong to the forward; None without a backward.
        repeated: names of the nodes that run more than once.
        graph: the new graph.
        now: old node -> its latest copy. It has ops, inputs, and items of tuples, but no views.
        saved: copies that run in the forward and are used in the backward.
        _views: old node of a view and the copies that it is made from -> copy of the view.
        _held: old node -> the node that moved its value out.
        _early: the new nodes up to the boundary, without the tangents.
        _given: outputs of the forward, as nodes of the new graph.
        _crossed: whether the boundary was written.
    """

    old: fx.Graph
    num_fwd_outputs: int | None
    repeated: set[object]
    graph: fx.Graph = field(default_factory=fx.Graph)
    now: dict[fx.Node, fx.Node] = field(default_factory=dict)
    saved: dict[fx.Node, None] = field(default_factory=dict)
    _views: dict[tuple[fx.Node, tuple[fx.Node, ...]], fx.Node] = field(default_factory=dict)
    _held: dict[fx.Node, fx.Node] = field(default_factory=dict)
    _early: set[fx.Node] = field(default_factory=set)
    _given: list[Value] = field(default_factory=list)
    _crossed: bool = False

    def __post_init__(self) -> None:
        self._nodes = {node.name: node for node in self.old.nodes}
        for node in self.old.nodes:
            if node.op in {"placeholder", "get_attr"}:
                self.now[node] = self.graph.node_copy(node)

    def step(self, name: object) -> None:
        """Write one step of the plan."""
        if name == BOUNDARY:
            self._given = [self._value(item) for item in self._outputs()[: self.num_fwd_outputs]]
            self._early.update(node for node in self.graph.nodes if not is_tangent(node))
            for node in self._early:
                if node.op == "call_function":
                    keep_in_forward(node)
            self._crossed = True
            return
        if isinstance(name, Move):
            self._move(name)
            return
        node = self._nodes[str(name)]
        if saves_state(node) and random_node_of(node).name not in self.repeated:
            return  # the random op runs only once, so the state is not needed
        is_again = node in self.now
        state = state_before(node) if is_again else None
        self.now[node] = self._copy(node) if state is None else self._drawn_again(node, state)
        if is_again:
            remove_statistics(self.now[node])
        for user in node.users:
            # unpack now, because the tuple would keep all its items alive
            if user.target is operator.getitem:
                self.now[user] = self._copy(user)

    def _drawn_again(self, node: fx.Node, state: fx.Node) -> fx.Node:
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._current)
        given: tuple[Any, ...] = (self._current(state), node.target, *args)
        new = self.graph.call_function(draw_again, given, kwargs)
        new.meta = dict(node.meta)
        return new

    def _move(self, move: Move) -> None:
        node = self._nodes[str(move.what)]
        if move.kind == StepKind.RELOAD:
            held = self._held[node]
            if self._crossed and held in self._early:
                self.saved[held] = None
            self.now[node] = self._call(MOVE_BACK, held, node.meta["val"].device)
        elif node not in self._held:  # a second move finds the copy of the first one in host memory
            self._held[node] = self._call(MOVE_OUT, self._current(node))

    def _call(self, op: Any, *args: Any) -> fx.Node:
        values = [item.meta["val"] if isinstance(item, fx.Node) else item for item in args]
        new = self.graph.call_function(op, args)
        new.meta["val"] = op(*values)
        return new

    def finish(self) -> None:
        """Write the output node."""
        rest = [self._value(item) for item in self._outputs()[len(self._given) :]]
        end = self.old.output_node()
        result = self._fill(end.args[0], iter([*self._given, *rest]))
        self.graph.output(result).meta.update(end.meta)

    def _outputs(self) -> list[Value]:
        return list(leaves(self.old.output_node().args[0]))

    def _fill(self, shape: Value, values: Value) -> Value:
        if isinstance(shape, (list, tuple)):
            return type(shape)(self._fill(item, values) for item in shape)
        return next(values)

    def _value(self, item: Value) -> Value:
        return self._current(item) if isinstance(item, fx.Node) else item

    def _copy(self, node: fx.Node) -> fx.Node:
        return self.graph.node_copy(node, self._current)

    def _current(self, node: fx.Node) -> fx.Node:
        """Return the current copy of a node; copy a view now if it does not exist yet."""
        found = self.now.get(node)
        if found is None:
            sources = tuple(self._current(used) for used in node.all_input_nodes)
            found = self._views.get((node, sources))
            if found is None or (self._crossed and found in self._early):
                found = self.graph.node_copy(
                    node, dict(zip(node.all_input_nodes, sources, strict=True)).__getitem__
                )
                self._views[node, sources] = found
        elif self._crossed and found in self._early and found.op != "get_attr":
            self.saved[found] = None
        return found


@dataclass(frozen=True)
class Move:
    """A step of a plan that moves a buffer.

    Attributes:
        kind: `OFFLOAD` or `RELOAD`.
        what: name of the buffer; in the order of one graph, the name of the node whose value it is.
    """

    kind: StepKind
    what: Hashable


def _move_out(tensor: torch.Tensor) -> torch.Tensor:
    """Copy the storage of a tensor into host memory; return a tensor of the same shape on this copy."""
    storage = tensor.untyped_storage()
    held = _host_bytes(storage.nbytes(), tensor.device.type)
    held.copy_(as_bytes(storage))
    return _on_storage(tensor, held.untyped_storage())


def _move_back(held: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor that was moved out back into a new storage on its device."""
    storage = new_storage(held.untyped_storage().nbytes(), device)
    as_bytes(storage).copy_(as_bytes(held.untyped_storage()))
    return _on_storage(held, storage)


def _on_storage(like: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.no_grad():
        empty: Any = torch.empty(0, dtype=like.dtype, device=storage.device)
        found: torch.Tensor = empty.set_(storage, like.storage_offset(), like.size(), like.stride())
        return found


def _host_bytes(nbytes: int, device_type: str) -> torch.Tensor:
    if device_type != "cpu" or not nbytes:
        return adapter_of(device_type).host_copy(nbytes)
    # the file is deleted now, but its bytes exist as long as the array maps them
    with tempfile.TemporaryFile(prefix="memwatch-moved-") as file:
        return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="w+", shape=(nbytes,)))


def _fake_out(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")


def _fake_back(held: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device=device)


_library: Final = torch.library.Library("memwatch", "FRAGMENT")
_library.define("move_out(Tensor tensor) -> Tensor")
_library.define("move_back(Tensor held, Device device) -> Tensor")
_library.impl("move_out", _move_out, "CompositeExplicitAutograd")
_library.impl("move_back", _move_back, "CompositeExplicitAutograd")
torch.library.register_fake("memwatch::move_out", _fake_out, lib=_library)
torch.library.register_fake("memwatch::move_back", _fake_back, lib=_library)

MOVE_OUT: Final = torch.ops.memwatch.move_out.default
MOVE_BACK: Final = torch.ops.memwatch.move_back.default
