"""A graph of a compiled callable, and the ways to run it: each way is a forward and a backward in a planned order.

AOTAutograd asks for one forward and one backward when it compiles. It gets functions that run the way that is chosen at
that moment, so a graph can be planned again without another trace. AOTAutograd accepts as many saved tensors as a
forward returns. The last of them tells the backward which way the forward took.

The graph of dynamo leaves it to the compiler to draw the random numbers of a checkpointed region again. Eager PyTorch
compiles nothing: there the region is checkpointed as the program says.

The backward of a convolution is split into two ops, one for the gradients of the weights and one for that of the input.
Both run the kernels that the one op runs. Each frees its workspace before the other begins, which allows a lower peak.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import py_sym_types
from torch.utils.checkpoint import checkpoint

from memwatch._torch.aot import extract_forward_and_backward, min_cut_partition, without_common_subexpressions
from memwatch._torch.checkpoint import checkpointed_region, context_of, split_arguments
from memwatch._torch.modes import without_modes
from memwatch._torch.traced_graphs import symbol_of
from memwatch.encoding.values import leaves
from memwatch.replay.draws import keep_states
from memwatch.replay.fx import hinted, is_tangent, plain_outputs
from memwatch.replay.inner import with_kernels
from memwatch.replay.input_writes import place_writes
from memwatch.replay.rewrite import rewritten
from memwatch.replay.step_parts import GraphRun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.replay.inner import Boxed, Compiler
    from memwatch.replay.moves import Move

    Listener = Callable[["TracedGraph"], object]


def as_in_eager(module: fx.GraphModule) -> fx.GraphModule:
    """Return the graph with its checkpointed regions as eager PyTorch runs them; the same one where it has none."""
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
"""Where the arguments say which gradients are wanted: of the input, the weights, the bias."""


def split_backward(graph: fx.Graph) -> dict[str, str]:
    """Split what can be split; return the name that an op keeps -> that of its other part."""
    found: dict[str, str] = {}
    both = [node for node in graph.find_nodes(op="call_function", target=_BACKWARD) if _makes_both(node)]
    for node in both:
        mask, value = list(node.args[_MASK]), node.meta["val"]
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
class Way:
    """One way to run a graph.

    Attributes:
        number: place among the ways of the graph.
        order: names of nodes that it runs, and moves.
        forward, backward: take a list of arguments, which they empty; no backward in inference.
        num_saved: how many tensors the forward hands to the backward.
        numbers: the kinds of the numbers that it hands over after them.
        tag: tensor that says `number` where there are no such numbers.
        tail: what the forward returns besides, where there are no such numbers; nothing in the first way.
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
        module: dynamo's graph; called, it runs as eager PyTorch does.
        inputs: its fake inputs.
        compiler: makes what runs a planned graph.

    Attributes:
        eager: that graph.
        joint: AOTAutograd's graph of it; None until it is traced, and where it cannot be planned.
        num_fwd_outputs: how many outputs of `joint` belong to the forward; None without backward.
        saved: names of the nodes that torch's own partition would keep.
        hints: symbol -> the value it was traced with.
        largest: symbol -> the largest value that was planned for.
        ways: every way that was made.
        chosen: which of them the first, second, ... run takes of those whose backward is to come.
        run: the compiled graph.
        number: place among the graphs of its callable.
        on_begin, on_end: called when a backward begins, and when it has run.
    """

    def __init__(self, module: fx.GraphModule, inputs: list[Any], compiler: Compiler = with_kernels) -> None:
        self.eager = as_in_eager(module)
        self.joint: fx.GraphModule | None = None
        self.num_fwd_outputs: int | None = None
        self.saved: frozenset[str] = frozenset()
        self.ways: list[Way] = []
        self.chosen: list[Way] = []
        self.run: Callable[..., Any] = module
        self.on_begin: Listener | None = None
        self.on_end: Listener | None = None
        self.turn = 0
        self.number = 0
        self._compiler = compiler
        self._has_trained_inputs = any(
            isinstance(item, torch.Tensor) and item.requires_grad for item in inputs
        )
        self._gives_nothing = not module.graph.output_node().all_input_nodes
        self._symbols = [
            (place, symbol_of(item)) for place, item in enumerate(inputs) if isinstance(item, torch.SymInt)
        ]
        self.hints = {symbol: hinted(inputs[place]) for place, symbol in self._symbols if symbol is not None}
        self.largest = dict(self.hints)
        self._torchs_backward: tuple[str, ...] = ()
        self._num_tangents = 0
        self._of_tag: dict[int, Way] = {}  # by the id of the tag: reading the tag costs more

    @property
    def most_saved(self) -> int:
        """As many tensors as a forward may save, or more: any way could save every node, and has its number."""
        assert self.joint is not None
        return len(self.joint.graph.nodes) + 1

    @property
    def outputs(self) -> frozenset[int]:
        """The places of its outputs in what the program is given, if a backward comes after it."""
        if self.joint is None or self.num_fwd_outputs is None:
            return frozenset()
        return frozenset(plain_outputs(self.joint.graph))

    @property
    def is_evaluation(self) -> bool:
        """Whether it has no backward, though it is given what is trained, or updates that."""
        return self.is_update or (self.num_fwd_outputs is None and self._has_trained_inputs)

    @property
    def is_update(self) -> bool:
        """Whether it has no backward and gives nothing, as the step of an optimizer."""
        return self.num_fwd_outputs is None and self._gives_nothing

    def values(self, args: Sequence[Any]) -> dict[Any, int]:
        """Return the values of the symbolic sizes in a call."""
        return {symbol: int(args[place]) for place, symbol in self._symbols if symbol is not None}

    def is_larger(self, args: Sequence[Any]) -> bool:
        """Return True for a call with a size that is larger than what was planned for."""
        if not self.hints:
            return False
        largest = self.largest
        return any(value > largest.get(symbol, value) for symbol, value in self.values(args).items())

    def grow(self, args: Sequence[Any]) -> float:
        """Note the sizes of a call; return by which factor they are larger than all before."""
        factor = 1.0
        for symbol, value in self.values(args).items():
            known = self.largest.get(symbol, value)
            factor *= max(value / known, 1.0) if known else 1.0
            self.largest[symbol] = max(value, known)
        return factor

    def trace(self, joint: fx.GraphModule, inputs: Any, num_fwd_outputs: int | None) -> bool:
        """Take the graph that AOTAutograd traced; return whether it can be planned."""
        placeholders = joint.graph.find_nodes(op="placeholder")
        known = all(is_tangent(node) or "primals" in str(node.target) for node in placeholders)
        if num_fwd_outputs is not None and (not known or any(map(_is_unchecked, joint.graph.nodes))):
            return False
        if num_fwd_outputs is not None:
            whole = fx.GraphModule(joint, without_common_subexpressions(joint.graph))
            whole.meta.update(joint.meta)
            joint = whole
            self.saved, self._torchs_backward = _torchs_own(joint, inputs, num_fwd_outputs)
        place_writes(joint.graph, has_backward=num_fwd_outputs is not None)
        self.joint, self.num_fwd_outputs = joint, num_fwd_outputs
        self._num_tangents = sum(map(is_tangent, placeholders))
        return True

    def split(self) -> dict[str, str]:
        """Take ops apart whose parts need less memory, one by one; return their names -> those of their other parts."""
        return {} if self.joint is None else split_backward(self.joint.graph)

    def keep_random_states(self) -> dict[str, str]:
        """Let random numbers be drawn again; return the names of ops that draw -> those of the ops before them."""
        if self.joint is None or self.num_fwd_outputs is None or self._compiler is not with_kernels:
            return {}
        return keep_states(self.joint.graph)

    def as_run(self) -> GraphRun:
        """Return the graph as part of a step, at the largest sizes that are planned for."""
        assert self.joint is not None, "only a traced graph is planned"
        return GraphRun(self.joint, self.num_fwd_outputs, self.saved, self._torchs_backward, self.largest)

    def add_way(
        self, order: Sequence[str | Move]
    ) -> tuple[Way, tuple[fx.GraphModule, fx.GraphModule | None]]:
        """Return the way that runs the graph in an order, and its modules."""
        assert self.joint is not None
        written = rewritten(self.joint, order, self.num_fwd_outputs)
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
        number, tag = len(self.ways), _tag(len(self.ways))
        # AOTAutograd marks the sizes of some of the tensors that the first way saved: as many are there always
        tail = (tag,) * (max(self.ways[0].num_saved - len(tensors), 0) + 1) if self.ways else ()
        kinds = tuple(map(_kind_of, symbols))
        way = Way(number, tuple(order), forward, backward, len(tensors), kinds, tag, tail)
        self._of_tag[id(tag)] = way
        self.ways.append(way)
        return way, modules

    def choose(self, turn: int, order: Sequence[str | Move]) -> None:
        """Run in an order from now on, in the run of that number."""
        way = next((each for each in self.ways if each.order == tuple(order)), None)
        while len(self.chosen) <= turn:
            self.chosen.append(self.chosen[-1])
        self.chosen[turn] = self.add_way(order)[0] if way is None else way

    def forward(self, args: list[Any]) -> Sequence[Any]:
        """Run the forward as chosen. What AOTAutograd saves ends with the way's tag, but for the first way."""
        way = self.chosen[self.turn if self.turn < len(self.chosen) else -1]
        found = way.forward(args)
        if way.number == 0 or way.backward is None:
            return found
        first = self.ways[0]
        if not way.numbers and not first.numbers:
            return [*found, *way.tail]
        end = len(found) - len(way.numbers)
        tag = torch.tensor([way.number, *map(_as_int, way.numbers, found[end:])]) if way.numbers else way.tag
        return [*found[:end], *way.tail[1:], tag, *[0] * len(first.numbers)]

    def backward(self, args: list[Any]) -> Sequence[Any]:
        """Run the backward of the way that the forward took."""
        first = self.ways[0]
        if len(args) == len(first.numbers) + first.num_saved + self._num_tangents:
            way, mine = first, args
        else:
            way, mine = self._taken(args)
        assert way.backward is not None, "only a graph with a backward is cut in two"
        if self.on_begin is not None:
            self.on_begin(self)
        found = way.backward(mine)
        if self.on_end is not None:
            self.on_end(self)
        return found

    def _taken(self, args: list[Any]) -> tuple[Way, list[Any]]:
        """Return another than the first way, and what its backward takes; empty what AOTAutograd gave."""
        first_tangent = len(args) - self._num_tangents
        tag = args[first_tangent - 1]
        way, numbers = self._of_tag.get(id(tag)), []
        if way is None:  # it has numbers, or hooks of the program have packed what was saved
            number, *ints = tag.tolist()
            way = self.ways[number]
            numbers = list(map(_of_int, way.numbers, ints))
        start = len(self.ways[0].numbers)
        mine = [*numbers, *args[start : start + way.num_saved], *args[first_tangent:]]
        args.clear()
        return way, mine


def boxed(function: Boxed) -> Boxed:
    """Return a function that AOTAutograd calls with a list it may empty."""
    run = partial(function)  # a method takes no attribute
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _torchs_own(
    joint: fx.GraphModule, inputs: Any, num_fwd_outputs: int
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return what torch's own partition keeps for the backward, and what its backward runs: names of nodes."""
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
    """Return a real tensor that holds a number. While AOTAutograd traces, a fake one is made, which is slow to read.

    torch did not allocate its memory: a later graph is compiled while a step is measured, and would be counted.
    """
    with without_modes():
        return torch.from_numpy(np.array([number]))


def _is_symbol(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (*py_sym_types, int, float, bool))


def _kind_of(node: fx.Node) -> type:
    """Return of which kind a number is; few are sizes: attention divides by the root of one."""
    value = node.meta["val"]
    if isinstance(value, (bool, torch.SymBool)):
        return bool
    return float if isinstance(value, (float, torch.SymFloat)) else int


def _as_int(kind: type, value: Any) -> int:
    """Return a number as an integer of 64 bits, from which `_of_int` has it again to the last bit."""
    return int(np.float64(value).view(np.int64)) if kind is float else int(value)


def _of_int(kind: type, bits: int) -> float:
    return float(np.int64(bits).view(np.float64)) if kind is float else kind(bits)


def _is_unchecked(node: fx.Node) -> bool:
    """Return True for a tensor whose in-place changes autograd would not notice: how many there are must not vary."""
    return bool(node.meta.get("saved_tensor_with_no_vc_check"))
