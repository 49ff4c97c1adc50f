"""Dispatch modes and `__torch_function__`: the modes that are active in this thread, and guards that switch them off.

| torch | here |
| --- | --- |
| torch.utils._python_dispatch.TorchDispatchMode (with `_should_skip_dynamo`) | UncompiledMode |
| torch.utils._python_dispatch._get_current_dispatch_mode | current_mode |
| torch.utils._python_dispatch._get_current_dispatch_mode_stack | mode_stack |
| torch.utils._python_dispatch._push_mode, _pop_mode | push_mode, pop_mode |
| torch.utils._python_dispatch._disable_current_modes | without_modes |
| torch.utils._python_dispatch.is_traceable_wrapper_subclass | is_wrapper_subclass |
| torch._C._DisableTorchDispatch | disable_torch_dispatch |
| mode._mode_key | is_torch_own(mode) |
| torch._C.DisableTorchFunction | disable_torch_function |
| torch._C.DisableTorchFunctionSubclass | disable_subclass_function |
| torch._C._EnableTorchFunction | enable_torch_function |
| torch._C._has_torch_function | has_torch_function |
| torch._C._len_torch_function_stack, torch._C._get_function_stack_at | active_function_modes() |
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import overrides

from memwatch._torch.lookup import NoSuchClass, Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Guard = Callable[[], AbstractContextManager[Any]]


_modes: Final = Part(
    "ops cannot be seen by a dispatch mode, so profile(intercept='mode') and the search for leaks are off"
)
_Base: Final[Any] = _modes.take("torch.utils._python_dispatch.TorchDispatchMode", NoSuchClass)
current_mode: Final[Callable[[], Any]] = _modes.take(
    "torch.utils._python_dispatch._get_current_dispatch_mode", lambda: None
)
"""Return the innermost dispatch mode of this thread, or None."""
mode_stack: Final[Callable[[], list[Any]]] = _modes.take(
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack", list
)
"""Return the dispatch modes of this thread, outermost first."""
push_mode: Final[Callable[[Any], None]] = _modes.take(
    "torch.utils._python_dispatch._push_mode", lambda mode: None
)
"""Make a mode the innermost one of this thread."""
pop_mode: Final[Callable[[], Any]] = _modes.take("torch.utils._python_dispatch._pop_mode", lambda: None)
"""Remove the innermost mode of this thread, and return it."""
require_modes: Final = _modes.require
"""Raise MemwatchError if this torch lacks a name that dispatch modes need."""


class UncompiledMode(_Base):  # type: ignore[misc]  # the base is looked up
    """A dispatch mode that dynamo ignores, and under which compiled code stays compiled.

    Under any other mode, dynamo skips the frame of a compiled function and remembers this. One call would disable its
    compilation for good.

    Raises:
        MemwatchError: this torch lacks a name that using a mode needs.
    """

    def __init__(self) -> None:
        _modes.require()
        super().__init__()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run compiled."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # With True, torch would wrap `__torch_dispatch__` in code that takes as long as recording. Its first call also
        # imports torch._dynamo, which takes seconds and changes the process. `dynamo.skip_frames_of` keeps dynamo out
        # instead.
        return False


without_modes: Final[Guard] = Part("the program's dispatch modes see what a replay runs").take(
    "torch.utils._python_dispatch._disable_current_modes", contextlib.nullcontext
)
"""A guard: no dispatch mode sees ops inside."""
disable_torch_dispatch: Final[Guard] = Part(
    "the program's dispatch modes and subclasses see what memwatch reads of a tensor"
).take("torch._C._DisableTorchDispatch", contextlib.nullcontext)
"""A guard: neither a dispatch mode nor a subclass's `__torch_dispatch__` sees ops inside."""


def _flattens(tensor: Any) -> bool:
    return hasattr(tensor, "__tensor_flatten__")


is_wrapper_subclass: Final[Callable[[Any], bool]] = Part(
    "wrapper subclasses are recognized by their method `__tensor_flatten__` alone"
).take("torch.utils._python_dispatch.is_traceable_wrapper_subclass", _flattens)
"""Return True for a tensor that consists of inner tensors, which `__tensor_flatten__` names."""


_own: Final = Part("torch's own modes, such as FakeTensorMode, are taken for modes of the program")
_own.take("torch._subclasses.fake_tensor.FakeTensor._mode_key", None)


def is_torch_own(mode: Any) -> bool:
    """Return True for torch's own modes, such as FakeTensorMode. They always lie beneath the program's modes."""
    return getattr(mode, "_mode_key", None) is not None


_switch: Final = Part("`__torch_function__` of the program runs while memwatch reads a tensor")
disable_subclass_function: Final[Guard] = _switch.take(
    "torch._C.DisableTorchFunctionSubclass", contextlib.nullcontext
)
"""A guard: no `__torch_function__` of a tensor subclass runs inside."""
disable_torch_function: Final[Guard] = _switch.take(
    "torch._C.DisableTorchFunction", disable_subclass_function
)
"""A guard: no `__torch_function__` runs inside, neither of a subclass nor of a mode."""
enable_torch_function: Final[Guard] = _switch.take("torch._C._EnableTorchFunction", contextlib.nullcontext)
"""A guard: `__torch_function__` runs again inside one of the guards above."""

has_torch_function: Final[Callable[[Any], bool]] = Part(
    "tensor subclasses are found by the public function, which is slower"
).take("torch._C._has_torch_function", overrides.has_torch_function)
"""Return True if one of the objects in a tuple defines `__torch_function__`."""

_stack: Final = Part("searches for leaks skip tensors that an active torch function mode holds")
_depth: Final[Callable[[], int]] = _stack.take("torch._C._len_torch_function_stack", lambda: 0)
_mode_at: Final[Callable[[int], object]] = _stack.take(
    "torch._C._get_function_stack_at", lambda position: None
)


def active_function_modes() -> list[object]:
    """Return the torch function modes of this thread, outermost first."""
    return [_mode_at(position) for position in range(_depth())] if _stack.complete else []


_TORCH: Final = os.path.dirname(torch.__file__)
PLACES_THAT_CHANGE_HOOKS: Final = tuple(
    os.path.join(_TORCH, *place)
    for place in (
        ("_dynamo", ""), ("_inductor", ""), ("_functorch", ""), ("fx", ""), ("jit", ""),
        ("utils", "checkpoint.py"), ("optim", "optimizer.py"),
    )
)  # fmt: skip
"""Beginnings of the paths of torch's files that trace or compile a program, or that push or call hooks such as those
that a recording adds. While code of such a file runs, a recording must neither begin nor end."""
