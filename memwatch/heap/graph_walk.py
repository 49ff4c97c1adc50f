"""The bounded walk along autograd graphs: from a tensor's node to those behind it, whose saved tensors it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch._torch.autograd import SEQUENCE_NR, AccumulateGrad, FunctionBase
from memwatch._torch.autograd_state import autograd_state, compiled_walk
from memwatch.heap.class_checks import ByClass, derives
from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import is_tensor, type_dict
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from memwatch.heap.references import Chain

_MAX_NODES: Final = 4000
"""Nodes of autograd that one walk visits at most. A guess."""
_NO_NUMBER: Final = -1
"""The sequence number of a node that has none."""
_REFUSED: Final = (RuntimeError, AttributeError, NotImplementedError, TypeError)


class _NodeType(NamedTuple):
    """How nodes of one class are read.

    Attributes:
        is_python: whether they are contexts of a custom `autograd.Function`.
        sequence: the method that returns a node's sequence number, if it has one.
        next_functions: the descriptor of the nodes behind it.
    """

    is_python: bool
    sequence: Any
    next_functions: Any


class GraphWalk:
    """The walks of one sample; meets every node once for each root, and no more nodes than are affordable."""

    def __init__(self, max_nodes: int = _MAX_NODES) -> None:
        self._compiled = compiled_walk(max_nodes)
        self._left = max_nodes
        self._met: set[tuple[int, int]] = set()
        self._type: Final = ByClass(_node_type)
        self._kept: list[Any] = []  # a node's Python object must live as long as its id is used

    def behind(self, tensor: torch.Tensor, root: int) -> Iterator[tuple[int, list[Chain]]]:
        """Yield the sequence number of each node behind a tensor, and chains to the tensors on a custom ctx.

        Args:
            tensor: where the graph ends.
            root: number of the root whose variable holds the tensor.
        """
        nodes = self._nodes(tensor, root) if self._compiled is None else self._compiled(tensor, root)
        for sequence, ctx in nodes:
            attributes = None if ctx is None else instance_dict(ctx)
            values = [] if attributes is None else list(attributes.values())
            yield sequence, [(ctx, attributes, value) for value in values if is_tensor(value)]

    def _nodes(self, tensor: torch.Tensor, root: int) -> Iterator[tuple[int, Any]]:
        """Yield the same as `NodesBehind`; torch keeps the Python objects that this makes of nodes."""
        waiting = [autograd_state(tensor, with_node=True).grad_fn]
        while waiting and self._left > 0:
            node = waiting.pop()
            if node is None or (root, id(node)) in self._met:
                continue
            self._met.add((root, id(node)))
            self._kept.append(node)
            self._left -= 1
            node_type = self._type(type(node))
            sequence = _NO_NUMBER if node_type.sequence is None else node_type.sequence(node)
            yield sequence, node if node_type.is_python else None
            for following, _ in _read(node_type.next_functions, node) or ():
                if following is not None and type(following) is not AccumulateGrad:
                    waiting.append(following)


def _node_type(cls: type) -> _NodeType:
    is_python = derives(cls, FunctionBase)
    namespace = FunctionBase.__dict__ if is_python else type_dict(cls)
    return _NodeType(is_python, namespace.get(SEQUENCE_NR), namespace.get("next_functions"))


def _read(descriptor: Any, obj: Any) -> Any:
    try:
        return None if descriptor is None else descriptor.__get__(obj)
    except _REFUSED as error:
        pass_on(error)
        return None
