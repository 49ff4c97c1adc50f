"""Read autograd's state of a live tensor without changing it.

Other modules use these functions instead of `tensor.grad_fn`. Two functions call the getter on purpose, where torch
would call it at the same moment: `node_of_result` in `autograd.py` and `inplace_error` in `saved_tensors.py`.

torch's getters `tensor.grad_fn` and `tensor.is_leaf` are not plain reads. After an in-place change of a view's base
they rebuild the history of the view: they run the view's function again. memwatch takes samples in the middle of an
op, where autograd is switched off. There the rebuilt history is empty. torch keeps it as the current history, and the
program gets wrong gradients without an error. Even with autograd on, a getter can raise an error too early, or an
error that the program would never see. Views made by `unbind` are an example.

The compiled recorder reads the fields themselves (`record/native/src/autograd_state.h`); `use_compiled` switches to
it. Without it, memwatch calls the getters if one of these conditions holds, because then they compute nothing:

* the tensor is not a view;
* its version, which it shares with its base, is 0: neither was changed in place;
* its base requires no gradient: then the getter returns the field as it is (`VariableHooks::grad_fn` in torch).

Otherwise memwatch does not know the node. It returns None for `grad_fn` and False for `is_leaf`. The getters
`requires_grad`, `retains_grad`, `_base`, `_is_view` and `_version` only read. `tests/heap/test_heap_peeks.py` measures
all of them.

Even a plain read of the node has a price. torch then keeps a Python object for the node as long as the node lives. It
frees a graph of such nodes by recursion, and a long graph overflows the stack. So memwatch reads the node only for
callers that need it, and samples walk along the graph in C++ (`compiled_walk`).

| torch | here |
| --- | --- |
| torch._C.TensorBase.grad_fn, is_leaf, requires_grad, retains_grad, _base | autograd_state(tensor) |
| torch._C.TensorBase._is_view | _may_be_rebuilt(tensor) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from memwatch._torch.lookup import Part
from memwatch._torch.tensors import BASE, TENSOR_DICT, version_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class AutogradState(NamedTuple):
    """The state that autograd keeps for a tensor.

    Attributes:
        grad_fn: the tensor's node. None if the tensor is a leaf, if `with_node` is False, or if memwatch cannot read
            the node safely. After an in-place change of a view's base it is the node from before the change.
        requires_grad: whether the tensor requires a gradient.
        is_leaf: whether the tensor has no node. False if the node is not known.
        retains_grad: whether the program called `retain_grad()` on it.
    """

    grad_fn: Any
    requires_grad: bool
    is_leaf: bool
    retains_grad: bool


_GRAD_FN: Final[Any] = TENSOR_DICT["grad_fn"].__get__
_IS_LEAF: Final[Any] = TENSOR_DICT["is_leaf"].__get__
_REQUIRES_GRAD: Final[Any] = TENSOR_DICT["requires_grad"].__get__
requires_grad: Final[Callable[[torch.Tensor], bool]] = _REQUIRES_GRAD
"""Return whether a tensor requires a gradient. It is faster than `autograd_state`: use it for many tensors."""
_RETAINS_GRAD: Final[Any] = TENSOR_DICT["retains_grad"].__get__
_BASE: Final[Any] = TENSOR_DICT[BASE].__get__ if BASE in TENSOR_DICT else None
_is_view: Final[Callable[[Any], bool]] = Part("the graph behind a view may not be searched").take(
    "torch._C.TensorBase._is_view", lambda tensor: True
)
_REFUSED: Final = (RuntimeError, AttributeError, NotImplementedError, TypeError)
_compiled: Any = None


class NodesBehind(Protocol):
    """Walks along autograd's graph without making Python objects of its nodes."""

    def __call__(self, tensor: torch.Tensor, root: int, /) -> list[tuple[int, Any]]:
        """Return the sequence number of each node behind a tensor, and its `ctx` if it is a function in Python."""


def use_compiled(library: Any) -> None:
    """Use the compiled recorder's functions for all later reads."""
    global _compiled  # noqa: PLW0603  # the library is loaded once for a process, by whoever needs it first
    _compiled = library


def compiled_walk(max_nodes: int) -> NodesBehind | None:
    """Return a walk along graphs that visits at most `max_nodes` nodes; None if the compiled recorder is missing."""
    walk: NodesBehind | None = None if _compiled is None else _compiled.graph_walk(max_nodes)
    return walk


def autograd_state(tensor: torch.Tensor, *, with_node: bool = False) -> AutogradState:
    """Return the state that autograd keeps for a tensor, and compute nothing.

    Call it under `memwatch.heap.tensors.quiet`. Otherwise the `__torch_function__` of a subclass would run.

    Args:
        tensor: the tensor.
        with_node: whether to read the node; torch then keeps a Python object for it.
    """
    if _compiled is not None:
        return AutogradState(*_compiled.autograd_state(tensor, with_node))
    return _read_in_python(tensor, with_node)


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the base of a view, or None for any other tensor. This getter of torch only reads."""
    try:
        base: torch.Tensor | None = None if _BASE is None else _BASE(tensor)
    except _REFUSED:  # a view in forward-mode AD only
        return None
    return base


def _read_in_python(tensor: torch.Tensor, with_node: bool) -> AutogradState:
    requires_grad: bool = _REQUIRES_GRAD(tensor)
    if requires_grad and _may_be_rebuilt(tensor):
        return AutogradState(None, requires_grad, is_leaf=False, retains_grad=_RETAINS_GRAD(tensor))
    node = _GRAD_FN(tensor) if requires_grad and with_node else None
    return AutogradState(node, requires_grad, _IS_LEAF(tensor), _RETAINS_GRAD(tensor))


def _may_be_rebuilt(tensor: torch.Tensor) -> bool:
    """Return True for a view whose history torch's getter might rebuild."""
    try:
        if not _is_view(tensor) or version_of(tensor) == 0:
            return False
    except RuntimeError:  # an inference tensor has neither a version nor a history
        return False
    base = base_of(tensor)
    return base is None or _REQUIRES_GRAD(base)
