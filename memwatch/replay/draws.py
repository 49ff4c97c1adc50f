"""Random numbers that are drawn again: the state from which an op draws is kept, and gives the same numbers later.

As `torch.utils.checkpoint` does, the second draw puts the generator back to the state before the first, and then to
where the program had come. The state is a tensor among those that a graph makes. This is done for ops of the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.overloads import OpOverload, schema_of
from memwatch.encoding.values import leaves
from memwatch.replay.dropouts import on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

STATE_BYTES: Final = torch.default_generator.get_state().numel()
"""Bytes of a state; a second draw needs as many while it runs."""
_STATE: Final = "memwatch_state"
"""Key of a node's `meta` under which stands the node that reads the state before it draws."""
_DRAWN: Final = "memwatch_drawn"
"""Key of that node's `meta`: the node that draws."""


def read_state() -> torch.Tensor:
    """Return the state of the generator of the CPU."""
    return torch.default_generator.get_state()


def draw_again(state: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what an op drew when the generator had this state."""
    before = read_state()
    torch.default_generator.set_state(state)
    try:
        return on_cpu(op)(*args, **kwargs)
    finally:
        torch.default_generator.set_state(before)


def reads_state(node: fx.Node) -> bool:
    """Return True for a node that reads the state before another one draws."""
    return node.target is read_state


def state_before(node: fx.Node) -> fx.Node | None:
    """Return the node that reads the state before a node draws; None if it cannot be drawn again."""
    found: fx.Node | None = node.meta.get(_STATE)
    return found


def drawn_from(state: fx.Node) -> fx.Node:
    """Return the node that draws from a state that was read."""
    found: fx.Node = state.meta[_DRAWN]
    return found


def keep_states(graph: fx.Graph) -> dict[str, str]:
    """Have the state read before each op that can be drawn again; return the names of the ops -> those of the reads."""
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
