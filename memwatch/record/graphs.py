"""Whose graph keeps a saved tensor: walks from the tensors that variables hold to the nodes behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import is_python_node, is_tensor, type_dict

if TYPE_CHECKING:
    from collections.abc import Iterator

_GRAD_FN: Final[Any] = torch._C.TensorBase.__dict__["grad_fn"]
_REFUSED: Final = (RuntimeError, AttributeError, NotImplementedError, TypeError)


class Graphs:
    """One look's walk; meets every node once for each source, and no more nodes than are affordable."""

    def __init__(self, max_nodes: int = 4000) -> None:
        self._left = max_nodes
        self._met: set[tuple[int, int]] = set()
        self._kept: list[Any] = []  # a node's Python object must live while its id stands for it

    def behind(self, tensor: torch.Tensor, source: int) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
        """Give the sequence number of each node behind a tensor, and chains to what a Python node's ctx holds."""
        waiting = [_read(_GRAD_FN, tensor)]
        while waiting and self._left > 0:
            node = waiting.pop()
            if node is None or (source, id(node)) in self._met:
                continue
            self._met.add((source, id(node)))
            self._kept.append(node)
            self._left -= 1
            python = is_python_node(node)
            namespace = torch._C._FunctionBase.__dict__ if python else type_dict(type(node))
            held = []
            if python:
                attributes = instance_dict(node) or {}
                held = [(node, attributes, value) for value in list(attributes.values()) if is_tensor(value)]
            number = namespace.get("_sequence_nr")
            yield (number(node) if number is not None else -1), held
            waiting += [entry[0] for entry in _read(namespace.get("next_functions"), node) or ()]


def _read(descriptor: Any, obj: Any) -> Any:
    try:
        return None if descriptor is None else descriptor.__get__(obj)
    except _REFUSED:
        return None
