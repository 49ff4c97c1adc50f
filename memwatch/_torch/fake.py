"""Names of torch for fake tensors, which have sizes and no memory.

| torch | here |
| --- | --- |
| torch._subclasses.fake_tensor.FakeTensor | FakeTensor |
| torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) | fake_mode() |
| torch._subclasses.fake_tensor.DataDependentOutputException, DynamicOutputShapeException | reads_values() |
| torch._subclasses.fake_tensor.UnsupportedFakeTensorException, UnsupportedOperatorException | reads_values() |
| torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode | reads_values() |
| torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None | is_fake_mode_on() |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.lookup import NoSuchClass, Part

__all__ = ["FakeTensor", "fake_mode", "is_fake_mode_on", "reads_values"]

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


_fake: Final = Part(
    "memwatch does not recognize fake tensors, so a block under FakeTensorMode gives no estimate"
)
if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor
else:
    FakeTensor = _fake.take("torch._subclasses.fake_tensor.FakeTensor", NoSuchClass)
    """The class of fake tensors."""
_mode_of_key: Final[Callable[[Any], Any]] = _fake.take("torch._C._get_dispatch_mode", lambda key: None)
_FAKE_KEY: Final[Any] = _fake.take("torch._C._TorchDispatchModeKey.FAKE", None)


def is_fake_mode_on() -> bool:
    """Return True inside a FakeTensorMode."""
    return _fake.complete and _mode_of_key(_FAKE_KEY) is not None


_estimate: Final = Part("a step that runs out of memory cannot be estimated")
_FakeTensorMode: Final[Any] = _estimate.required("torch._subclasses.fake_tensor.FakeTensorMode")


_NAMES: Final = (
    "torch._subclasses.fake_tensor.DataDependentOutputException",
    "torch._subclasses.fake_tensor.DynamicOutputShapeException",
    "torch._subclasses.fake_tensor.UnsupportedFakeTensorException",
    "torch._subclasses.fake_tensor.UnsupportedOperatorException",
    "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
)
_reading: Final = Part("a step that reads values of tensors ends an estimate with an error of torch's")


def reads_values() -> tuple[type[Exception], ...]:
    """Return the exceptions that torch raises when a program reads values of fake tensors, as `.item()` does.

    The classes are not looked up at import, because some of their modules import sympy.
    """
    found: list[type[Exception] | None] = [_reading.take(name, None) for name in _NAMES]
    return tuple(each for each in found if each is not None)


def fake_mode() -> AbstractContextManager[object]:
    """Return a mode that makes ops return fake tensors, even if their arguments are real tensors.

    Raises:
        MemwatchError: this torch has no FakeTensorMode.
    """
    mode: AbstractContextManager[object] = _FakeTensorMode(allow_non_fake_inputs=True)
    return mode
