"""Handle the ops of a traced graph that do not run as in eager PyTorch, or cannot simply run again.

- **Random ops.** Before the first run of a random op, the graph saves the state of the generator as a tensor. The
  second run sets the generator to this state, draws, and then restores the state that the generator had before.
  `torch.utils.checkpoint` does the same. This works for ops on the CPU.
- **Dropout.** torch.compile traces dropout as one fused op, which eager PyTorch runs on accelerators only. On the CPU,
  eager PyTorch divides the kept numbers. The fused op multiplies them by the inverse, which rounds differently. The
  functions here draw the same numbers, use the same mask, and round as eager PyTorch does.
- **Batch norms.** In a traced graph, a batch norm returns new statistics, and a later op copies them into the old ones.
  Here the batch norm writes the statistics in place, as in eager PyTorch, so that no memory waits for the copy. This
  also allows it to run again: the second run gets no statistics, and its other results are the same.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from memwatch._torch.dispatch import OpOverload, schema_of
from memwatch._torch.modules import (
    RETURNS_STATISTICS,
    WITHOUT_STATISTICS,
    WRITES_STATISTICS,
    can_compute_batch_norms_again,
)
from memwatch.encoding import leaves

if TYPE_CHECKING:
    from collections.abc import Callable


_DROPOUT: Final = torch.ops.aten.native_dropout.default
_DROPOUT_BACKWARD: Final = torch.ops.aten.native_dropout_backward.default


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    if train is False or not 0 < p < 1 or x.dtype is torch.float64:
        both: tuple[torch.Tensor, torch.Tensor] = _DROPOUT(x, p, train)
        return both
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return mask.to(x.dtype).div_(1 - p).mul_(x), mask


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    if not scale or gradient.dtype is torch.float64:
        found: torch.Tensor = _DROPOUT_BACKWARD(gradient, mask, scale)
        return found
    return mask.to(gradient.dtype).div_(1 / scale).mul_(gradient)


_ON_CPU: Final[dict[Any, Callable[..., Any]]] = {_DROPOUT: _dropout, _DROPOUT_BACKWARD: _dropout_backward}


def cpu_kernel_of(op: Any) -> Any:
    """Return the function that runs an op on the CPU as eager PyTorch does. For most ops it is the op itself."""
    return _ON_CPU.get(op, op)


def kernel_of(node: fx.Node) -> Any:
    """Return the function that runs a node as eager PyTorch does."""
    values = [item for item in leaves(node.meta.get("val")) if isinstance(item, torch.Tensor)]
    return cpu_kernel_of(node.target) if _is_dropout(node) and values[0].device.type == "cpu" else node.target


def with_dropouts_of_eager(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph that computes dropout as eager PyTorch does; the given graph if it has no dropout."""
    if not any(map(_is_dropout, module.graph.nodes)):
        return module
    copy = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        new = nodes[node] = copy.node_copy(node, nodes.__getitem__)
        new.target = kernel_of(node)
    return fx.GraphModule(module, copy)


def _is_dropout(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in _ON_CPU


STATE_BYTES: Final = torch.default_generator.get_state().numel()
"""Bytes of a generator's state. A second run needs as many bytes, to save the generator's state before it."""
_STATE: Final = "memwatch_state"
"""Key in `meta` of a random node: the node that saves the state before it."""
_DRAWN: Final = "memwatch_drawn"
"""Key in `meta` of a node that saves a state: the random node after it."""


def read_state() -> torch.Tensor:
    """Return the state of the generator of the CPU."""
    return torch.default_generator.get_state()


def draw_again(state: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a random op with the generator in a saved state, and restore the state that it had before."""
    before = read_state()
    torch.default_generator.set_state(state)
    try:
        return cpu_kernel_of(op)(*args, **kwargs)
    finally:
        torch.default_generator.set_state(before)


def saves_state(node: fx.Node) -> bool:
    """Return True for a node that saves the state of the generator."""
    return node.target is read_state


def state_before(node: fx.Node) -> fx.Node | None:
    """Return the node that saves the state before a random node; None if the random node cannot run again."""
    found: fx.Node | None = node.meta.get(_STATE)
    return found


def random_node_of(state: fx.Node) -> fx.Node:
    """Return the random node that belongs to a saved state."""
    found: fx.Node = state.meta[_DRAWN]
    return found


def keep_states(graph: fx.Graph) -> dict[str, str]:
    """Save the state before each random op that can run again; return the name of the op -> the new node's name."""
    found = {}
    for node in list(graph.nodes):
        if state_before(node) is not None or not _can_be_drawn_again(node):
            continue
        with graph.inserting_before(node):
            state = graph.call_function(read_state)
        like = next(item for item in leaves(node.meta["val"]) if isinstance(item, torch.Tensor))
        state.meta["val"] = like.new_empty([STATE_BYTES], dtype=torch.uint8)
        node.meta[_STATE], state.meta[_DRAWN] = state, node
        found[node.name] = state.name
    return found


def _can_be_drawn_again(node: fx.Node) -> bool:
    overload = node.target
    if not isinstance(overload, OpOverload) or torch.Tag.nondeterministic_seeded not in overload.tags:
        return False
    tensors = [item for item in leaves(node.meta.get("val")) if isinstance(item, torch.Tensor)]
    if not tensors or any(item.device.type != "cpu" for item in tensors):
        return False
    values = (*node.args, *node.kwargs.values())
    has_own = any(isinstance(item, torch.Generator) for item in values)
    arguments = schema_of(overload).arguments
    return not has_own and all(each.alias_info is None for each in arguments)


_COPY: Final = torch.ops.aten.copy_.default
_NORM_BACKWARD: Final = torch.ops.aten.native_batch_norm_backward.default
_STATISTICS: Final = (3, 4)
"""Indices of the running statistics among the arguments, and of the new statistics among the results."""
_TRAINING: Final = 5  # position of the argument `training` of a batch norm
_TRAINING_OF_BACKWARD: Final = 7  # the same for its backward


def write_statistics(graph: fx.Graph) -> None:
    """Make the batch norms of a graph write their running statistics, unless another op uses the new statistics."""
    if not can_compute_batch_norms_again():
        return
    for node in graph.find_nodes(op="call_function", target=_NORM_BACKWARD):
        # in training, the backward takes the statistics as arguments but does not read them
        if node.args[_TRAINING_OF_BACKWARD] is True:
            for place in _STATISTICS:
                node.update_arg(place, None)
    chains = _chains_of_whole_norms(graph)
    norms: set[Any] = {item.args[0] for chain in chains.values() for item in chain}
    for copy, chain in chains.items():
        written: Any = copy.args[0]
        graph.erase_node(copy)
        for item in chain:
            item.replace_all_uses_with(written)
            graph.erase_node(item)
    for norm in norms:
        norm.target = WRITES_STATISTICS
        norm.meta["val"] = tuple(norm.meta["val"][: min(_STATISTICS)])


def _chains_of_whole_norms(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Return the chain of each copy; see `_chain`.

    A batch norm has two statistics. If only one of them is in a chain, that chain is left out.
    """
    chains: dict[fx.Node, list[fx.Node]] = {}
    for copy in graph.find_nodes(op="call_function", target=_COPY):
        found = _chain(copy)
        if found:
            chains[copy] = found
    while True:
        known = {item for chain in chains.values() for item in chain}
        halves = [copy for copy, chain in chains.items() if not all(_other(item) in known for item in chain)]
        if not halves:
            return chains
        for copy in halves:
            del chains[copy]


def _chain(copy: fx.Node) -> list[fx.Node]:
    """Return the new statistics that a copy writes into an input, the latest first; empty if another op uses them.

    There are several if the program calls the batch norm several times. Each call then updates the statistics of the
    call before it.
    """
    values: tuple[Any, ...] = copy.args
    written, item = values[:2]
    found: list[Any] = []
    users = {copy}
    while written.op == "placeholder" and item is not written:
        norm, place = _made_by(item)
        if norm is None or not users.issuperset(item.users):
            return []
        found.append(item)
        users.add(norm)
        item = norm.args[place]
    return found if users.issuperset(written.users) else []


def _made_by(item: Any) -> tuple[Any, int]:
    """Return the batch norm whose new statistic a value is, and its index; None for other values."""
    if getattr(item, "target", None) is not operator.getitem:
        return None, 0
    norm, place = item.args
    is_training = norm.target is RETURNS_STATISTICS and norm.args[_TRAINING] is True
    return (norm, place) if is_training and place in _STATISTICS else (None, 0)


def _other(item: fx.Node) -> fx.Node | None:
    """Return the second new statistic of the same batch norm: the variance for a mean, the mean for a variance."""
    values: tuple[Any, ...] = item.args
    norm, place = values
    users: dict[Any, fx.Node] = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
    return users.get(sum(_STATISTICS) - place)


def written_once(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the nodes that only the first run of a node writes."""
    if node.target is not WRITES_STATISTICS or node.args[_TRAINING] is not True:
        return ()
    values: tuple[Any, ...] = node.args
    return tuple(values[place] for place in _STATISTICS)


def remove_statistics(node: fx.Node) -> None:
    """If a node that runs again is a batch norm, replace it by a batch norm that writes no statistics."""
    if written_once(node):
        x, weight, bias, _, _, *rest = node.args
        node.target = WITHOUT_STATISTICS
        node.args = (x, weight, bias, *rest)
