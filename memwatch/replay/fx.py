"""Turn an FX graph of ATen ops into a graph for the planner. Nodes that only return views are left out."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import fx

from memwatch._torch.dispatch import (
    COLLECTIVE_NAMESPACES,
    HigherOrderOperator,
    OpOverload,
    base_name_of,
    schema_of,
)
from memwatch._torch.tensors import address_of
from memwatch._torch.traced_graphs import InputMutation, PlainOutput, size_hint
from memwatch.encoding import Value, leaves
from memwatch.errors import UnsupportedOpError
from memwatch.planner import Effect, Graph, OpSpec, cuda_block_sizes
from memwatch.replay.cost import price
from memwatch.replay.traced_ops import STATE_BYTES, saves_state, state_before, written_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.planner.graph import Name

BOUNDARY: Final = "the code between forward and backward"
"""Name of the op that represents this code. It reads the forward's outputs and makes the tangents: the gradients that
the backward takes as arguments."""

_SYMBOLS: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)
_UNKNOWN_SIZE: Final = 4096
"""Size of a symbolic dimension that had no value during tracing. A guess."""


@dataclass
class GraphReader:
    """Reads nodes in order and finds the storages of their values.

    Attributes:
        prefix: the prefix of the names of ops and buffers, if several graphs form one program.
        given: placeholder -> name of its storage, if another graph uses the same storage.
        size_of: returns a size, perhaps symbolic, as a number.
        workspace_of: returns the workspace of a node (bytes).
        ops: the ops so far.
        buffers: node -> names of the storages of its tensors.
        names: address of a (fake) storage -> its name.
        inputs: names of the storages of inputs, with their sizes (bytes).
        tangents: names of the storages of tangents, with their sizes (bytes).
        keep: storages that the graph returns.
    """

    prefix: str = ""
    given: dict[fx.Node, str] = field(default_factory=dict)
    size_of: Callable[[Value], int] = field(default_factory=lambda: traced_size)
    workspace_of: Callable[[fx.Node], int] = lambda node: 0
    ops: list[OpSpec] = field(default_factory=list)
    buffers: dict[fx.Node, tuple[str, ...]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    inputs: dict[Name, int] = field(default_factory=dict)
    tangents: dict[Name, int] = field(default_factory=dict)
    keep: list[str] = field(default_factory=list)

    def read(self, node: fx.Node) -> None:
        """Read the next node.

        Raises:
            UnsupportedOpError: the node calls something else than an ATen op, or lacks a value.
        """
        if node.op in {"placeholder", "get_attr"}:
            new = self.tangents if is_tangent(node) else self.inputs
            self.buffers[node] = tuple(self._name(node, tensor, new) for tensor in _tensors(node))
        elif node.op == "output":
            self.keep = [name for used in node.all_input_nodes for name in self.buffers[used]]
        elif node.target is operator.getitem:
            self.buffers[node] = self._item(node)
        elif is_op(node):
            self._read_op(node)
        else:
            raise UnsupportedOpError(
                f"node {node.name!r} calls {node.target!r}, which is no ATen op; trace the model with make_fx, "
                "torch.export or a torch.compile backend on top of AOTAutograd"
            )

    def _item(self, node: fx.Node) -> tuple[str, ...]:
        found = tuple(self.names[address_of(tensor.untyped_storage())] for tensor in _tensors(node))
        # a number has no storage, so it shares the buffer of its op
        return found or self.buffers[node.all_input_nodes[0]]

    def _read_op(self, node: fx.Node) -> None:
        made: dict[Name, int] = {}
        mine = [self._name(node, tensor, made) for tensor in _tensors(node)]
        if not mine:  # the op returns a number: a buffer of 0 bytes makes its users run after it
            mine = [f"{self.prefix}{node.name}.value"]
            made = {mine[0]: 0}
        self.buffers[node] = tuple(mine)
        writes = {name for used in written_nodes(node) for name in self.buffers[used]}
        state = state_before(node)
        given = [*node.all_input_nodes, *([] if state is None else [state])]
        reads = {name for used in given for name in self.buffers[used]} - writes - made.keys()
        once = {name for used in written_once(node) for name in self.buffers[used]}
        effect = _effect(node)
        if made or writes or effect is not Effect.NONE:
            # An op with a saved random state may run again. An op that returns no tensor may not, because its number
            # may have decided what the program does next. The effect decides about all other ops.
            spec = OpSpec(
                f"{self.prefix}{node.name}",
                sorted(reads),
                made,
                _price(node),
                sorted(writes),
                effect=effect,
                recomputable=state is not None or (None if list(_tensors(node)) else False),
                workspace_bytes=self.workspace_of(node) + (STATE_BYTES if state else 0),
                writes_once=sorted(once),
            )
            self.ops.append(spec)

    def _name(self, node: fx.Node, tensor: torch.Tensor, new: dict[Name, int]) -> str:
        storage = tensor.untyped_storage()
        name = self.names.get(address_of(storage))
        if name is None:
            name = self.given.get(node) or f"{self.prefix}{node.name}.{len(self.names)}"
            self.names[address_of(storage)] = name
            nbytes = self.size_of(storage.nbytes())
            new[name] = nbytes if tensor.device.type != "cuda" else int(cuda_block_sizes(np.int64(nbytes)))
        return name


def graph_from_fx(module: fx.GraphModule) -> Graph:
    """Return an FX graph of ATen ops as a graph for the planner.

    Args:
        module: the graph as `make_fx`, `torch.export` or AOTAutograd trace it: every node holds its (fake)
            value in ``meta["val"]``. Placeholders and attributes are inputs. Returned tensors are kept.

    Returns:
        A graph whose ops carry the names of the nodes.

    Raises:
        UnsupportedOpError: a node calls something else than an ATen op, or lacks a value.
    """
    reader = GraphReader()
    for node in module.graph.nodes:
        reader.read(node)
    used = {name for op in reader.ops for name in (*op.reads, *op.writes)}
    made = {name for op in reader.ops for name in op.makes}
    keep = [name for name in dict.fromkeys(reader.keep) if name in used | made]
    inputs: dict[Name, int] = {name: nbytes for name, nbytes in reader.inputs.items() if name in used}
    return Graph.build(reader.ops, keep, external_nbytes=inputs)


def first_backward_node(graph: fx.Graph) -> fx.Node:
    """Return the first node of a joint graph that uses a tangent. All outputs of the forward are computed before it."""
    node: fx.Node
    for node in graph.nodes:
        if node.op != "placeholder" and any(is_tangent(used) for used in node.all_input_nodes):
            return node
    node = graph.output_node()
    return node


def mutated_inputs(graph: fx.Graph) -> list[fx.Node]:
    """Return the inputs that the program mutates. AOTAutograd writes them between forward and backward."""
    outputs = graph.output_node().meta.get("desc", ())
    written = {item.mutated_input for item in leaves(outputs) if isinstance(item, InputMutation)}
    return [node for node in graph.find_nodes(op="placeholder") if node.meta.get("desc") in written]


def plain_outputs(graph: fx.Graph) -> dict[int, int]:
    """Return the index of each output of the program -> its index among the outputs of the joint graph."""
    outputs = leaves(graph.output_node().meta.get("desc", ()))
    return {item.idx: place for place, item in enumerate(outputs) if isinstance(item, PlainOutput)}


def is_tangent(node: fx.Node) -> bool:
    """Return True for a tangent: a gradient that is an input of a joint graph."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_op(node: fx.Node) -> bool:
    """Return True for a node that computes: an ATen op, an op with subgraphs, or arithmetic on symbolic sizes."""
    if isinstance(node.target, (OpOverload, HigherOrderOperator)) or saves_state(node):
        return True
    return node.op == "call_function" and isinstance(node.meta.get("val"), (*_SYMBOLS, int, float, bool))


def written_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes whose values a call writes in place."""
    if not isinstance(node.target, OpOverload):
        return
    for position, argument in enumerate(schema_of(node.target).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            yield from (item for item in leaves(value) if isinstance(item, fx.Node))


def traced_size(size: Value) -> int:
    """Return a size as a number; a symbolic size is replaced by the value that it was traced with."""
    return int(size_hint(size, fallback=_UNKNOWN_SIZE)) if isinstance(size, torch.SymInt) else int(size)


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    """Return the (fake) tensors of a node's value."""
    value: Value = node.meta.get("val", node.meta.get("example_value"))
    if value is None and node.op == "get_attr":
        value = getattr(node.graph.owning_module, str(node.target), None)
        if isinstance(value, torch.nn.Module):  # a subgraph that is the argument of a higher-order op
            value = ()
    if value is None and node.op != "call_function":
        raise UnsupportedOpError(
            f"node {node.name!r} holds no value; trace with fake tensors, so that sizes are known"
        )
    return (item for item in leaves(value) if isinstance(item, torch.Tensor))


def _effect(node: fx.Node) -> Effect:
    overload = node.target
    if isinstance(overload, HigherOrderOperator):
        return Effect.UNKNOWN
    if not isinstance(overload, OpOverload):
        return Effect.RNG if saves_state(node) else Effect.NONE
    if overload.namespace in COLLECTIVE_NAMESPACES:
        return Effect.COLLECTIVE
    only_acts = not schema_of(overload).returns and not list(written_nodes(node))
    if overload.namespace not in {"aten", "prims"} or only_acts:
        return Effect.UNKNOWN
    values = [item for item in leaves(node.meta.get("val")) if item is not None]
    if any(not isinstance(item, torch.Tensor) for item in values):
        return Effect.NONE if base_name_of(overload).startswith("sym_") else Effect.ITEM
    return Effect.RNG if torch.Tag.nondeterministic_seeded in overload.tags else Effect.NONE


def _price(node: fx.Node) -> float:
    if not isinstance(node.target, OpOverload):
        return 0.0
    return price(node.target, _sized(node.args), _sized(node.kwargs), _sized(node.meta.get("val")))


def _sized(value: Value) -> Value:
    """Return a value with nodes and tensors replaced by meta tensors, whose sizes are plain numbers."""
    if isinstance(value, fx.Node):
        return _sized(value.meta.get("val"))
    if isinstance(value, dict):
        return {name: _sized(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sized(item) for item in value]
    if isinstance(value, torch.SymInt):
        return traced_size(value)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        size, stride = (tuple(traced_size(item) for item in items) for items in (value.shape, value.stride()))
        return torch.empty_strided(size, stride, dtype=value.dtype, device="meta")
    return value
