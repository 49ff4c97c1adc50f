"""Read autograd's state of a live tensor without changing it: the only place that does.

torch's getters `tensor.grad_fn` and `tensor.is_leaf` are not plain reads. After an in-place change of a view's base
they rebuild the history of the view, by running the view's function again. memwatch takes samples in the middle of an
op, where autograd is switched off. There the rebuilt history is empty, torch takes it for the current one, and the
program gets wrong gradients without an error. Even where autograd is on, the getters can raise an error that the
program would see later or never, as for a view that `unbind` made. So memwatch does not call them on a tensor of the
program: it peeks.

The compiled recorder reads the fields themselves (`record/native/src/autograd_state.h`); `use_compiled` switches to
it. Without it, the getters are called only where they compute nothing:

* the tensor is no view;
* its version is 0, so nothing has been changed in place;
* its base requires no gradient: then the getter returns the field as it is (`VariableHooks::grad_fn` in torch).

The node of any other view is not known. The getters `requires_grad`, `retains_grad`, `_base`, `_is_view` and
`_version` only read. `tests/heap/test_heap_peeks.py` measures all of them.

| torch | here |
| --- | --- |
| torch._C.TensorBase.grad_fn, is_leaf, requires_grad, retains_grad, _base | autograd_state(tensor) |
| torch._C.TensorBase._is_view | views whose node is not known |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch._torch.lookup import Part
from memwatch._torch.tensors import BASE, TENSOR_DICT, version_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class AutogradState(NamedTuple):
    """What autograd has noted of a tensor.

    Attributes:
        grad_fn: the node that the tensor keeps alive; None for a leaf, and where it is not known. After an in-place
            change of a view's base it is still the node from before the change.
        requires_grad: whether autograd records what is done with the tensor.
        is_leaf: whether no node made it.
        retains_grad: whether it keeps a gradient although it is no leaf.
    """

    grad_fn: Any
    requires_grad: bool
    is_leaf: bool
    retains_grad: bool


_GRAD_FN: Final[Any] = TENSOR_DICT["grad_fn"].__get__
_REQUIRES_GRAD: Final[Any] = TENSOR_DICT["requires_grad"].__get__
_RETAINS_GRAD: Final[Any] = TENSOR_DICT["retains_grad"].__get__
_BASE: Final[Any] = TENSOR_DICT[BASE].__get__ if BASE in TENSOR_DICT else None
_is_view: Final[Callable[[Any], bool]] = Part("the graph behind a view may not be searched").take(
    "torch._C.TensorBase._is_view", lambda tensor: True
)
_REFUSED: Final = (RuntimeError, AttributeError, NotImplementedError, TypeError)
_compiled: Callable[[Any], tuple[Any, bool, bool, bool]] | None = None


def use_compiled(reader: Callable[[Any], tuple[Any, bool, bool, bool]]) -> None:
    """Have `autograd_state` call a function of the compiled recorder from now on."""
    global _compiled  # noqa: PLW0603  # the library is loaded once for a process, by whoever needs it first
    _compiled = reader


def autograd_state(tensor: torch.Tensor) -> AutogradState:
    """Return what autograd has noted of a tensor, and compute nothing.

    Call it where no `__torch_function__` runs (`memwatch.heap.tensors.quiet`): a subclass would be asked otherwise.
    """
    if _compiled is not None:
        return AutogradState(*_compiled(tensor))
    return _read_in_python(tensor)


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor of which a tensor is a view, None where it is none; this getter only reads."""
    try:
        base: torch.Tensor | None = None if _BASE is None else _BASE(tensor)
    except _REFUSED:  # a view in forward-mode AD only
        return None
    return base


def _read_in_python(tensor: torch.Tensor) -> AutogradState:
    requires_grad: bool = _REQUIRES_GRAD(tensor)
    if requires_grad and _may_be_rebuilt(tensor):
        return AutogradState(None, requires_grad, is_leaf=False, retains_grad=_RETAINS_GRAD(tensor))
    node = _GRAD_FN(tensor) if requires_grad else None
    return AutogradState(node, requires_grad, node is None, _RETAINS_GRAD(tensor))


def _may_be_rebuilt(tensor: torch.Tensor) -> bool:
    """Return True for a view whose history torch's getter might rebuild."""
    try:
        if not _is_view(tensor) or version_of(tensor) == 0:
            return False
    except RuntimeError:  # a tensor of inference mode has no version, and no history either
        return False
    base = base_of(tensor)
    return base is None or _REQUIRES_GRAD(base)
