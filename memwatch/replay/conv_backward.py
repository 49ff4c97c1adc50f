"""The backward of a convolution in two: one op for the gradients of the weights, one for that of the input.

Both need the gradient of the output and run the kernels that the one op runs, one after the other. Each frees its
workspace before the other begins, so a lower peak is within reach.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from torch import fx

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
