"""torch.func: the tensors inside its wrappers.

| torch | here |
| --- | --- |
| torch._C._functorch.is_functorch_wrapped_tensor | is_wrapped |
| torch._C._functorch.get_unwrapped | unwrapped |
| torch._C._functorch.peek_interpreter_stack() is not None | is_transforming() |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable

_wrappers: Final = Part("searches for leaks and holders skip tensors that torch.func wraps")
unwrapped: Final[Callable[[Any], Any]] = _wrappers.take(
    "torch._C._functorch.get_unwrapped", lambda tensor: None
)
"""Return the tensor inside a wrapper of torch.func."""
is_wrapped: Final[Callable[[Any], bool]] = _wrappers.take(
    "torch._C._functorch.is_functorch_wrapped_tensor", lambda tensor: False
)
"""Return True for a wrapper that torch.func makes."""

_peek: Final[Callable[[], Any]] = Part("`memwatch attach` may begin amid a transform of torch.func").take(
    "torch._C._functorch.peek_interpreter_stack", lambda: None
)


def is_transforming() -> bool:
    """Return True while this thread is inside a transform of torch.func, such as `vmap` or `grad`."""
    return _peek() is not None
