"""Whose graph keeps a saved tensor: walks from the tensors that variables hold to the nodes behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import is_tensor, mro_of, type_dict

if TYPE_CHECKING:
    from collections.abc import Iterator

_GRAD_FN: Final[Any] = torch._C.TensorBase.__dict__["grad_fn"]
_AccumulateGrad: Final[Any] = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_REFUSED: Final = (RuntimeError, AttributeError, NotImplementedError, TypeError)


class Graphs:
    """One look's walk; meets every node once for each source, and no more nodes than are affordable."""

    def __init__(self, max_nodes: int = 4000) -> None:
        self._left = max_nodes
        self._met: set[tuple[int, int]] = set()
        self._kinds: dict[type, tuple[bool, Any, Any]] = {}
        self._kept: list[Any] = []  # a node's Python object must live while its id stands for it

    def behind(self, tensor: torch.Tensor, source: int) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
        """Give the sequence number of each node behind a tensor, and chains to what a Python node's ctx holds."""
        first = _read(_GRAD_FN, tensor)
        waiting = [] if first is None else [first]
        while waiting and self._left > 0:
            node = waiting.pop()
            if (source, id(node)) in self._met:
                continue
            self._met.add((source, id(node)))
            self._kept.append(node)
            self._left -= 1
            python, number, next_functions = self._kind(type(node))
            held = []
            if python:
                attributes = instance_dict(node) or {}
                held = [(node, attributes, value) for value in list(attributes.values()) if is_tensor(value)]
            yield (number(node) if number is not None else -1), held
            for following, _ in _read(next_functions, node) or ():
                if following is not None and type(following) is not _AccumulateGrad:
                    waiting.append(following)

    def _kind(self, cls: type) -> tuple[bool, Any, Any]:
        """Tell whether nodes of a class are Python's, and give the getters of their number and their edges."""
        if cls not in self._kinds:
            python = torch._C._FunctionBase in mro_of(cls)
            namespace = torch._C._FunctionBase.__dict__ if python else type_dict(cls)
            self._kinds[cls] = python, namespace.get("_sequence_nr"), namespace.get("next_functions")
        return self._kinds[cls]


def _read(descriptor: Any, obj: Any) -> Any:
    try:
        return None if descriptor is None else descriptor.__get__(obj)
    except _REFUSED:
        return None
