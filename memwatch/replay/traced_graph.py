"""Hold one graph of a compiled callable, and its variants. A variant is a forward and a backward in a planned order.

AOTAutograd compiles one forward and one backward. memwatch gives it two functions that run the current variant. So
memwatch can plan a graph again without another trace. The backward has to run the same variant as the forward. So each
forward returns one more tensor after its saved tensors, the *tag*, which holds the number of the variant. The first
variant has no tag, and is known by the number of its saved tensors.

In a graph of dynamo, the compiler must repeat the random numbers of a checkpointed region. When memwatch runs a graph
as eager PyTorch does, no compiler takes part. So memwatch calls torch's own `checkpoint` for the region.

The backward of a convolution can be split into two ops. The first computes the gradient of the input, the second the
gradients of the weights and the bias. Together they run the same kernels as the single op. Each frees its workspace
before the other begins, which allows a lower peak.

AOTAutograd traces a program without its in-place ops. If the program writes an input, the graph copies the new value
into the input at its very end. This is after the backward, even if the forward writes the input. The new value would
take memory until then. So `place_writes` moves each copy forward: behind the op that makes the new value, and behind
the last op that reads the old value.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import py_sym_types
from torch.utils.checkpoint import checkpoint

from memwatch._torch.aot import (
    boxed_forward,
    compiled_by_inductor,
    extract_forward_and_backward,
    min_cut_partition,
    without_common_subexpressions,
)
from memwatch._torch.checkpoint import checkpointed_region, context_of, split_arguments
from memwatch._torch.modes import without_modes
from memwatch._torch.tensors import address_of
from memwatch._torch.traced_graphs import is_kept_in_forward, symbol_of
from memwatch.encoding import leaves
from memwatch.replay.fx import first_backward_node, is_tangent, plain_outputs, traced_size
from memwatch.replay.rewrite import rewrite_graph
from memwatch.replay.step_model import GraphRun
from memwatch.replay.traced_ops import keep_states, with_dropouts_of_eager, write_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memwatch.replay.rewrite import Move

    Boxed = Callable[[list[Any]], Sequence[Any]]

    Listener = Callable[["TracedGraph"], object]


class Compiler(Protocol):
    """Makes a function of a planned graph, which takes a list of arguments and empties it."""

    def __call__(self, module: fx.GraphModule, *, is_backward: bool) -> Boxed:
        """Return the function."""


def with_kernels(module: fx.GraphModule, *, is_backward: bool) -> Boxed:
    """Return a graph that calls the kernels of eager PyTorch in the planned order."""
    return boxed_forward(with_dropouts_of_eager(module))


def with_inductor(module: fx.GraphModule, *, is_backward: bool) -> Boxed:
    """Return the graph compiled by inductor, which fuses ops. It saves and recomputes the planned tensors.

    Inductor writes code for fixed sizes. A graph with symbolic sizes calls the kernels of eager PyTorch.
    """
    values = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    if any(map(_is_symbolic, values)):
        return with_kernels(module, is_backward=is_backward)
    found: Boxed = compiled_by_inductor(module, is_backward=is_backward)
    return found


def _is_symbolic(value: Any) -> bool:
    sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) for size in sizes)


def as_in_eager(module: fx.GraphModule) -> fx.GraphModule:
    """Return the graph with its checkpointed regions as eager PyTorch runs them; unchanged if it has none."""
    if checkpointed_region is None or not _has_regions(module):
        return module
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        new = nodes[node] = graph.node_copy(node, nodes.__getitem__)
        if node.target is checkpointed_region:
            new.target = _checkpointed
    found = fx.GraphModule(module, graph)
    found.meta.update(module.meta)
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            setattr(found, name, as_in_eager(child))
    return found


def _has_regions(module: fx.GraphModule) -> bool:
    graphs = (child.graph for child in module.modules() if isinstance(child, fx.GraphModule))
    return any(node.target is checkpointed_region for graph in graphs for node in graph.nodes)


def _checkpointed(region: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    options, own = split_arguments(kwargs)
    context: Callable[[], Any] | None = context_of(region)
    if context is not None:
        options["context_fn"] = context
    return checkpoint(region, *args, **{**options, "use_reentrant": False}, **own)


_BACKWARD: Final = torch.ops.aten.convolution_backward.default
_MASK: Final = 10
"""Index of the argument with three flags: compute the gradient of the input, of the weights, of the bias."""


def split_backward(graph: fx.Graph) -> dict[str, str]:
    """Split each backward of a convolution in two; return the name of the old op -> the name of the new one."""
    found: dict[str, str] = {}
    both = [node for node in graph.find_nodes(op="call_function", target=_BACKWARD) if _makes_both(node)]
    for node in both:
        mask = list(node.args[_MASK])
        value = node.meta["val"]
        with graph.inserting_after(node):
            other = graph.node_copy(node)
        node.update_arg(_MASK, [False, *mask[1:]])
        node.meta["val"] = (None, *value[1:])
        other.update_arg(_MASK, [True, False, False])
        other.meta["val"] = (value[0], None, None)
        for user in list(node.users):
            if user.target is operator.getitem and user.args[1] == 0:
                user.replace_input_with(node, other)
                other.append(user)
        found[node.name] = other.name
    return found


def _makes_both(node: fx.Node) -> bool:
    values: tuple[Any, ...] = node.args
    mask = values[_MASK]
    return bool(mask[0] and (mask[1] or mask[2]))


@dataclass(frozen=True, eq=False)
class Variant:
    """A forward and a backward that run a graph in one planned order.

    Attributes:
        number: index among the variants of the graph.
        order: names of the nodes in the order they run, and moves.
        forward: a function that takes a list of arguments and empties it.
        backward: the same for the backward; None in inference.
        num_saved: how many tensors the forward saves for the backward.
        numbers: types of the numbers that it saves after the tensors.
        tag: a tensor that holds `number`.
        tail: the tag once, and once more for each tensor that the first variant saves in addition. The forward returns
            it after the saved tensors. It is empty in the first variant.
    """

    number: int
    order: tuple[str | Move, ...]
    forward: Boxed
    backward: Boxed | None
    num_saved: int
    numbers: tuple[type, ...]
    tag: torch.Tensor
    tail: tuple[torch.Tensor, ...]


class TracedGraph:
    """One graph that dynamo made.

    Args:
        module: dynamo's graph.
        inputs: its fake inputs.
        compiler: makes a function of a planned graph.

    Attributes:
        eager: dynamo's graph. When it is called, it runs as eager PyTorch does.
        joint: AOTAutograd's joint graph; None until it is traced, and for a graph that cannot be planned.
        num_fwd_outputs: how many outputs of `joint` belong to the forward; None without backward.
        saved: names of the nodes that torch's own partition saves.
        hints: symbol -> the value it was traced with.
        largest: symbol -> the largest value that was planned for.
        variants: all variants that were made.
        chosen: the variants of the first, second, ... run of the graph in an episode.
        run: the compiled graph.
        turn: number of the current run in its episode.
        number: index among the graphs of its callable.
        on_begin: called when a backward begins.
        on_end: called when a backward has run.
    """

    def __init__(self, module: fx.GraphModule, inputs: list[Any], compiler: Compiler = with_kernels) -> None:
        self.eager = as_in_eager(module)
        self.joint: fx.GraphModule | None = None
        self.num_fwd_outputs: int | None = None
        self.saved: frozenset[str] = frozenset()
        self.variants: list[Variant] = []
        self.chosen: list[Variant] = []
        self.run: Callable[..., Any] = module
        self.on_begin: Listener | None = None
        self.on_end: Listener | None = None
        self.turn = 0
        self.number = 0
        self._compiler = compiler
        self._has_trained_inputs = any(
            isinstance(item, torch.Tensor) and item.requires_grad for item in inputs
        )
        self._has_no_outputs = not module.graph.output_node().all_input_nodes
        self._symbols = [
            (place, symbol_of(item)) for place, item in enumerate(inputs) if isinstance(item, torch.SymInt)
        ]
        self.hints = {
            symbol: traced_size(inputs[place]) for place, symbol in self._symbols if symbol is not None
        }
        self.largest = dict(self.hints)
        self._torch_backward_nodes: tuple[str, ...] = ()
        self._num_tangents = 0
        self._of_tag: dict[int, Variant] = {}  # by the id of the tag: reading the tag costs more

    @property
    def most_saved(self) -> int:
        """An upper bound on the tensors that a forward saves: all nodes, and the tag."""
        assert self.joint is not None
        return len(self.joint.graph.nodes) + 1

    @property
    def outputs(self) -> frozenset[int]:
        """Indices of the outputs that the program gets; empty without a backward."""
        if self.joint is None or self.num_fwd_outputs is None:
            return frozenset()
        return frozenset(plain_outputs(self.joint.graph))

    @property
    def is_evaluation(self) -> bool:
        """Whether it has no backward, and its inputs need gradients or it is an update."""
        return self.is_update or (self.num_fwd_outputs is None and self._has_trained_inputs)

    @property
    def is_update(self) -> bool:
        """Whether it lacks both a backward and outputs, like the step of an optimizer."""
        return self.num_fwd_outputs is None and self._has_no_outputs

    def values(self, args: Sequence[Any]) -> dict[Any, int]:
        """Return the values of the symbolic sizes in a call."""
        return {symbol: int(args[place]) for place, symbol in self._symbols if symbol is not None}

    def is_larger(self, args: Sequence[Any]) -> bool:
        """Return True if a symbolic size of a call is larger than in all plans."""
        if not self.hints:
            return False
        largest = self.largest
        return any(value > largest.get(symbol, value) for symbol, value in self.values(args).items())

    def record_sizes(self, args: Sequence[Any]) -> float:
        """Record the symbolic sizes of a call; return the product of the factors by which they exceed the largest."""
        factor = 1.0
        for symbol, value in self.values(args).items():
            known = self.largest.get(symbol, value)
            factor *= max(value / known, 1.0) if known else 1.0
            self.largest[symbol] = max(value, known)
        return factor

    def trace(self, joint: fx.GraphModule, inputs: Any, num_fwd_outputs: int | None) -> bool:
        """Set the graph that AOTAutograd traced; return True if it can be planned."""
        placeholders = joint.graph.find_nodes(op="placeholder")
        # AOTAutograd may add inputs that are neither arguments nor gradients. memwatch does not plan such graphs.
        known = all(is_tangent(node) or "primals" in str(node.target) for node in placeholders)
        if num_fwd_outputs is not None and (not known or any(map(_is_unchecked, joint.graph.nodes))):
            return False
        if num_fwd_outputs is not None:
            whole = fx.GraphModule(joint, without_common_subexpressions(joint.graph))
            whole.meta.update(joint.meta)
            joint = whole
            self.saved, self._torch_backward_nodes = _torch_partition(joint, inputs, num_fwd_outputs)
        place_writes(joint.graph, has_backward=num_fwd_outputs is not None)
        self.joint = joint
        self.num_fwd_outputs = num_fwd_outputs
        self._num_tangents = sum(map(is_tangent, placeholders))
        return True

    def split(self) -> dict[str, str]:
        """Split the ops whose parts need less memory; see `split_backward`."""
        return {} if self.joint is None else split_backward(self.joint.graph)

    def keep_random_states(self) -> dict[str, str]:
        """Save the generator's state before each random op, so that it may run again; see `keep_states`."""
        if self.joint is None or self.num_fwd_outputs is None or self._compiler is not with_kernels:
            return {}
        return keep_states(self.joint.graph)

    def as_run(self) -> GraphRun:
        """Return the graph as part of a step, with the largest sizes so far."""
        assert self.joint is not None, "only a traced graph is planned"
        return GraphRun(
            self.joint, self.num_fwd_outputs, self.saved, self._torch_backward_nodes, self.largest
        )

    def add_variant(
        self, order: Sequence[str | Move]
    ) -> tuple[Variant, tuple[fx.GraphModule, fx.GraphModule | None]]:
        """Make a variant that runs the graph in an order; return it and its two modules."""
        assert self.joint is not None
        written = rewrite_graph(self.joint, order, self.num_fwd_outputs)
        if self.num_fwd_outputs is None:
            modules: tuple[fx.GraphModule, fx.GraphModule | None] = written.module, None
            tensors, symbols = [], []
        else:
            symbols = [node for node in written.saved if _is_symbol(node)]
            tensors = [node for node in written.saved if not _is_symbol(node)]
            modules = extract_forward_and_backward(
                written.module, tensors, symbols, num_fwd_outputs=self.num_fwd_outputs
            )
        forward = self._compiler(modules[0], is_backward=False)
        backward = None if modules[1] is None else self._compiler(modules[1], is_backward=True)
        number, tag = len(self.variants), _tag(len(self.variants))
        # AOTAutograd marks the dynamic sizes of saved tensors, as many as the first variant saved. So every variant
        # returns at least as many tensors.
        tail = (tag,) * (max(self.variants[0].num_saved - len(tensors), 0) + 1) if self.variants else ()
        kinds = tuple(map(_kind_of, symbols))
        variant = Variant(number, tuple(order), forward, backward, len(tensors), kinds, tag, tail)
        self._of_tag[id(tag)] = variant
        self.variants.append(variant)
        return variant, modules

    def use_order(self, turn: int, order: Sequence[str | Move]) -> None:
        """Run the graph in this order from now on, in the run with the number `turn`."""
        variant = next((each for each in self.variants if each.order == tuple(order)), None)
        while len(self.chosen) <= turn:
            self.chosen.append(self.chosen[-1])
        self.chosen[turn] = self.add_variant(order)[0] if variant is None else variant

    def forward(self, args: list[Any]) -> Sequence[Any]:
        """Run the forward of the current variant. Its saved tensors end with the tag, except in the first variant."""
        variant = self.chosen[self.turn if self.turn < len(self.chosen) else -1]
        found = variant.forward(args)
        if variant.number == 0 or variant.backward is None:
            return found
        first = self.variants[0]
        if not variant.numbers and not first.numbers:
            return [*found, *variant.tail]
        end = len(found) - len(variant.numbers)
        tag = (
            torch.tensor([variant.number, *map(_as_int, variant.numbers, found[end:])])
            if variant.numbers
            else variant.tag
        )
        return [*found[:end], *variant.tail[1:], tag, *[0] * len(first.numbers)]

    def backward(self, args: list[Any]) -> Sequence[Any]:
        """Run the backward of the variant that ran the forward."""
        first = self.variants[0]
        if len(args) == len(first.numbers) + first.num_saved + self._num_tangents:
            variant, own_args = first, args
        else:
            variant, own_args = self._variant_of(args)
        assert variant.backward is not None, "only a graph with a backward is cut in two"
        if self.on_begin is not None:
            self.on_begin(self)
        found = variant.backward(own_args)
        if self.on_end is not None:
            self.on_end(self)
        return found

    def _variant_of(self, args: list[Any]) -> tuple[Variant, list[Any]]:
        """Return the variant of the tag in the arguments, and the arguments of its own backward. Empty the list."""
        first_tangent = len(args) - self._num_tangents
        tag = args[first_tangent - 1]
        variant, numbers = self._of_tag.get(id(tag)), []
        if variant is None:  # the tag was made in `forward`, or the program's saved-tensor hooks replaced it
            number, *ints = tag.tolist()
            variant = self.variants[number]
            numbers = list(map(_of_int, variant.numbers, ints))
        start = len(self.variants[0].numbers)
        own_args = [*numbers, *args[start : start + variant.num_saved], *args[first_tangent:]]
        args.clear()
        return variant, own_args


def boxed(function: Boxed) -> Boxed:
    """Return a function that AOTAutograd calls with one list of arguments, which the function empties."""
    run = partial(function)  # a bound method cannot have attributes
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _torch_partition(
    joint: fx.GraphModule, inputs: Any, num_fwd_outputs: int
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of the nodes that torch's own partition saves, and the names of the nodes of its backward."""
    copy = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        nodes[node] = copy.node_copy(node, nodes.__getitem__)
    module = fx.GraphModule(joint, copy)
    module.meta.update(joint.meta)
    forward, backward = min_cut_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)
    outputs = list(leaves(forward.graph.output_node().args))[num_fwd_outputs:]
    kept = frozenset(node.name for node in outputs if isinstance(node, fx.Node))
    return kept, tuple(node.name for node in backward.graph.nodes if node.op == "call_function")


def _tag(number: int) -> torch.Tensor:
    """Return a tensor that holds a number.

    The tensor is real. A fake one, which torch makes while AOTAutograd traces, is slow to read. The memory comes from
    numpy. Memory of torch would count if a graph is compiled while a step is measured.
    """
    with without_modes():
        return torch.from_numpy(np.array([number]))


def _is_symbol(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (*py_sym_types, int, float, bool))


def _kind_of(node: fx.Node) -> type:
    """Return the type of a number. Not all are sizes: attention divides by the square root of a size, a float."""
    value = node.meta["val"]
    if isinstance(value, (bool, torch.SymBool)):
        return bool
    return float if isinstance(value, (float, torch.SymFloat)) else int


def _as_int(kind: type, value: Any) -> int:
    """Return a number as an integer of 64 bits. `_of_int` restores it exactly."""
    return int(np.float64(value).view(np.int64)) if kind is float else int(value)


def _of_int(kind: type, bits: int) -> float:
    return float(np.int64(bits).view(np.float64)) if kind is float else kind(bits)


def _is_unchecked(node: fx.Node) -> bool:
    """Return True for a saved tensor that autograd does not check for in-place changes.

    AOTAutograd expects the same number of such tensors from each call, so variants could not save different ones.
    """
    return bool(node.meta.get("saved_tensor_with_no_vc_check"))


_COPY: Final = torch.ops.aten.copy_.default


def place_writes(graph: fx.Graph, *, has_backward: bool) -> None:
    """Move the copies into inputs to where the program writes the inputs; see the module's docstring."""
    write_statistics(graph)
    end = first_backward_node(graph) if has_backward else graph.output_node()
    nodes = list(graph.nodes)
    first = next(node for node in nodes if node.op != "placeholder")
    place = {node: number for number, node in enumerate(nodes)}
    copies = [node for node in nodes if node.target is _COPY and node.args[0].op == "placeholder"]
    for copy in copies:
        if has_backward and not is_kept_in_forward(copy):
            continue
        written, source = copy.args[:2]
        before = [place[user] for user in _readers_of(nodes[: place[end]], written)]
        last = nodes[max([place[source], *before])]
        if place[last] >= place[end]:
            end.prepend(copy)
        elif last.op == "placeholder":
            first.prepend(copy)
        else:
            _last_item(last).append(copy)


def _last_item(node: fx.Node) -> fx.Node:
    """Return the last of the `getitem` nodes right behind a node, or the node itself."""
    while node.next.target is operator.getitem:
        node = node.next
    return node


def _readers_of(nodes: list[fx.Node], written: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes that use the memory of a node, directly or through views."""
    storages = set(_storages_of(written))
    for node in nodes:
        if any(storages & set(_storages_of(used)) for used in node.all_input_nodes):
            yield node


def _storages_of(node: fx.Node) -> Iterator[int]:
    for item in leaves(node.meta.get("val")):
        if isinstance(item, torch.Tensor) and item.layout is torch.strided:
            yield address_of(item.untyped_storage())
