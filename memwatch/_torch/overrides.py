"""`__torch_function__`: switching it off and on, and the modes of it that are active.

| torch | here |
| --- | --- |
| torch._C.DisableTorchFunction | disable_torch_function |
| torch._C.DisableTorchFunctionSubclass | disable_subclass_function |
| torch._C._EnableTorchFunction | enable_torch_function |
| torch._C._has_torch_function | has_torch_function |
| torch._C._len_torch_function_stack, torch._C._get_function_stack_at | active_function_modes() |
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from torch import overrides

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Guard = Callable[[], AbstractContextManager[Any]]

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
