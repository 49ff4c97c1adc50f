"""Adapter: an FX graph of ATen ops as a planner graph."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch
from torch import fx

from memwatch.planner import Effect, Graph, OpSpec
from memwatch.replay.cost import price
from memwatch.replay.encode import Value, leaves
from memwatch.replay.errors import UnsupportedOpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.planner.op import Name

_COLLECTIVES: Final = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})


@dataclass
class _Reader:
    """Follows which storage every node lies on; nodes are visited in order."""

    ops: list[OpSpec] = field(default_factory=list)
    buffers: dict[fx.Node, tuple[str, ...]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    inputs: dict[Name, int] = field(default_factory=dict)
    keep: list[str] = field(default_factory=list)

    def read(self, node: fx.Node) -> None:
        if node.op in {"placeholder", "get_attr"}:
            self.buffers[node] = tuple(self._name(node, tensor, self.inputs) for tensor in _tensors(node))
        elif node.op == "output":
            self.keep = [name for used in node.all_input_nodes for name in self.buffers[used]]
        elif node.target is operator.getitem:
            self.buffers[node] = tuple(self._name(node, tensor, self.inputs) for tensor in _tensors(node))
        elif isinstance(node.target, torch._ops.OpOverload):
            self._read_op(node, node.target)
        else:
            raise UnsupportedOpError(
                f"node {node.name!r} calls {node.target!r}, which is no ATen op; trace the model with make_fx, "
                "torch.export or a torch.compile backend on top of AOTAutograd"
            )

    def _read_op(self, node: fx.Node, overload: torch._ops.OpOverload) -> None:
        made: dict[Name, int] = {}
        self.buffers[node] = tuple(self._name(node, tensor, made) for tensor in _tensors(node))
        writes = {name for used in written_nodes(node, overload) for name in self.buffers[used]}
        reads = {name for used in node.all_input_nodes for name in self.buffers[used]} - writes
        effect = _effect(node, overload)
        if made or writes or effect is not Effect.NONE:
            cost = price(overload, node.args, node.kwargs, node.meta.get("val"))
            self.ops.append(
                OpSpec(node.name, sorted(reads), made, cost, sorted(writes), effect=effect)
            )  # RNG ops of an FX graph have no recorded state to restore: never twice

    def _name(self, node: fx.Node, tensor: torch.Tensor, new: dict[Name, int]) -> str:
        storage = tensor.untyped_storage()
        name = self.names.get(storage._cdata)
        if name is None:
            count = len(self.names)
            name = self.names[storage._cdata] = f"{node.name}.{count}"
            new[name] = int(storage.nbytes())
        return name


def graph_from_fx(module: fx.GraphModule) -> Graph:
    """Describe an FX graph of ATen ops to the planner.

    Args:
        module: as `make_fx`, `torch.export` or AOTAutograd trace it: every node holds its (fake) value in
            ``meta["val"]``. Placeholders and attributes are inputs, what the output returns is kept.

    Returns:
        A graph whose ops carry the names of the nodes; views are folded away.

    Raises:
        UnsupportedOpError: a node is no ATen op or holds no value.
    """
    reader = _Reader()
    for node in module.graph.nodes:
        reader.read(node)
    used = {name for op in reader.ops for name in (*op.reads, *op.writes)}
    made = {name for op in reader.ops for name in op.makes}
    keep = [name for name in dict.fromkeys(reader.keep) if name in used | made]
    inputs: dict[Name, int] = {name: nbytes for name, nbytes in reader.inputs.items() if name in used}
    return Graph.build(reader.ops, keep, external_nbytes=inputs)


def written_nodes(node: fx.Node, overload: torch._ops.OpOverload) -> Iterator[fx.Node]:
    """Give the nodes that a call writes in place."""
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            yield from (item for item in leaves(value) if isinstance(item, fx.Node))


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    value: Value = node.meta.get("val", node.meta.get("example_value"))
    if value is None and node.op == "get_attr":
        value = getattr(node.graph.owning_module, str(node.target), None)
    if value is None and node.op != "call_function":
        raise UnsupportedOpError(
            f"node {node.name!r} holds no value; trace with fake tensors, so that sizes are known"
        )
    return (item for item in leaves(value) if isinstance(item, torch.Tensor))


def _effect(node: fx.Node, overload: torch._ops.OpOverload) -> Effect:
    if overload.namespace in _COLLECTIVES:
        return Effect.COLLECTIVE
    if overload.namespace not in {"aten", "prims"}:
        return Effect.UNKNOWN
    values = [item for item in leaves(node.meta.get("val")) if item is not None]
    if any(not isinstance(item, torch.Tensor) for item in values):
        return Effect.ITEM
    return Effect.RNG if torch.Tag.nondeterministic_seeded in overload.tags else Effect.NONE
