"""Two ways to see every op below autograd, behind one interface: a dispatch mode and a dispatch key.

The mode works everywhere but is seen: ATen takes out-of-place backward formulas while any mode is on, and
dynamo gives up on compiled functions. The key is seen by nobody. torch 2.13 has a functionality key below
autograd that nothing uses (`Fake`); a kernel on it is called for every op while the thread includes it.
One kernel per overload, not one fallback for all: torch looks a Python kernel up by overload while a mode
is on but switched off (as FakeTensorMode does within), and a fallback is not found there.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from memwatch.errors import MemwatchError
from memwatch.record.ops import OpKind

Handler = Callable[[OpKind, tuple[Any, ...], dict[str, Any]], Any]

_UNSEEN: Final = frozenset({"detach", "lift_fresh", "alias"})
"""Ops that make no bytes; `detach` must stay unseen below autograd: `nn.Parameter` needs its output unwrapped."""


class Interceptor(Protocol):
    """Calls the handler for every op of this thread between `start` and `stop`."""

    name: str

    def start(self, handler: Handler) -> None:
        """Begin to call `handler` for every op."""

    def stop(self) -> None:
        """Leave torch as it was before `start`."""

    def pause(self) -> bool:
        """Be out of the way of compiled code in this thread until `resume`; tell whether it was on."""

    def resume(self) -> None:
        """Be on again."""


class ModeInterceptor(TorchDispatchMode):
    """Intercept with a TorchDispatchMode that dynamo ignores."""

    name = "mode"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler: Handler | None = None
        self._kinds: dict[Any, OpKind | None] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep dynamo from giving up on compiled functions for the rest of the process (TORCH_FACTS 4.4)."""
        return True

    def start(self, handler: Handler) -> None:
        """Push the mode."""
        self._handler = handler
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Take the mode off the stack, leaving those that the program pushed later."""
        above = []
        if any(mode is self for mode in _get_current_dispatch_mode_stack()):
            while _get_current_dispatch_mode() is not self:
                above.append(_pop_mode())
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _push_mode(mode)
        self._handler = None

    def pause(self) -> bool:
        """Stay on: dynamo ignores this mode."""
        return True

    def resume(self) -> None:
        """Stay on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Hand the op to the recorder; leave tensor subclasses that dispatch on their own to themselves."""
        if self._handler is None or any(_dispatches_itself(kind) for kind in types):
            return NotImplemented if self._handler is not None else func(*args, **(kwargs or {}))
        kind = self._kinds.get(func, self)
        if kind is self:
            kind = self._kinds[func] = _mode_kind(func)
        if kind is None:
            return func(*args, **(kwargs or {}))
        return self._handler(kind, args, kwargs or {})  # type: ignore[arg-type]


@functools.cache
def _dispatches_itself(kind: type) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    if kind is torch.Tensor or kind is torch.nn.Parameter or issubclass(kind, FakeTensor):
        return False
    return getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


def _mode_kind(func: Any) -> OpKind | None:
    if (
        not isinstance(func, torch._ops.OpOverload)
        or func.is_view
        or func._opname in _UNSEEN
        or func.namespace == "profiler"
    ):
        return None
    return OpKind(func)


class KeyInterceptor:
    """Intercept with kernels on the unused dispatch key `Fake`."""

    name = "key"
    _handler: Handler | None = None
    _registered: list[Any] | None = None

    def start(self, handler: Handler) -> None:
        """Include the key in this thread."""
        if not self.works():
            raise MemwatchError("this torch has no free dispatch key; use profile(intercept='mode')")
        KeyInterceptor._handler = handler
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)

    def stop(self) -> None:
        """Exclude the key again."""
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)
        KeyInterceptor._handler = None

    def pause(self) -> bool:
        """Exclude the key in this thread, if it was included."""
        included: bool = torch._C._dispatch_tls_is_dispatch_key_included(_KEY)
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)
        return included

    def resume(self) -> None:
        """Include the key in this thread again."""
        if KeyInterceptor._handler is not None:
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)

    @staticmethod
    @functools.cache
    def works() -> bool:
        """Probe once per process: register the kernels, run an op, see it, and compare its result."""
        if _KEY is None:
            return False
        seen: list[str] = []

        def probe(kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            seen.append(kind.name)
            return kind.call(*args, **kwargs)

        try:
            with _unseen_by_the_program():
                KeyInterceptor._register()
                KeyInterceptor._handler = probe
                torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
                try:
                    sums = (torch.ones(3, requires_grad=True) * 2).sum()
                    sums.backward()
                finally:
                    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)
                    KeyInterceptor._handler = None
                return sums.item() == 6 and {"aten.mul.Tensor", "aten.sum.default"} <= set(seen)
        except (RuntimeError, AttributeError, TypeError):
            return False

    @classmethod
    def _register(cls) -> None:
        libraries: dict[str, Any] = {}
        for space, name, overload in _overloads():
            if space not in libraries:
                libraries[space] = torch._C._dispatch_library("IMPL", space, "", __file__, 0)
            if overload.is_view or overload._opname in _UNSEEN or space == "profiler":
                libraries[space].impl(name, "Fake", torch.library.fallthrough_kernel, False)
            elif space == "aten":
                libraries[space].impl(name, "Fake", functools.partial(_kernel, OpKind(overload)), False)
            else:
                libraries[space].impl(
                    name, "Fake", functools.partial(_careful_kernel, OpKind(overload)), True
                )
        fallback = torch.library.Library("_", "IMPL")  # for the ops that are defined later
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fallback.fallback(_later_kernel, "Fake", with_keyset=True)
        cls._registered = [libraries, fallback]


@contextlib.contextmanager
def _unseen_by_the_program() -> Iterator[None]:
    """Run ops of memwatch's own below every mode that the program has on, with autograd as usual."""
    below = (torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch())
    with below[0], below[1], torch.inference_mode(False), torch.enable_grad():
        yield


def _kernel(kind: OpKind, *args: Any, **kwargs: Any) -> Any:
    try:
        _set_excluded(_KEY, True)  # within: a signal's handler may raise as it returns
        handler = KeyInterceptor._handler
        return kind.call(*args, **kwargs) if handler is None else handler(kind, args, kwargs)
    finally:
        _set_excluded(_KEY, False)


def _careful_kernel(kind: OpKind, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """Go on below our key: kernels above it that Python wrote would run again, and count versions twice."""
    return _kernel(
        kind.calling(functools.partial(kind.overload.redispatch, keyset & _BELOW)), *args, **kwargs
    )


_later_kinds: Final[dict[Any, OpKind]] = {}


def _later_kernel(keyset: Any, overload: Any, *args: Any, **kwargs: Any) -> Any:
    kind = _later_kinds.get(overload)
    if kind is None:
        kind = _later_kinds[overload] = OpKind(overload)
    return _careful_kernel(kind, keyset, *args, **kwargs)


def _overloads() -> Iterator[tuple[str, str, Any]]:
    """Give every defined overload: its namespace, its name within, itself."""
    for qualified in torch._C._dispatch_get_all_op_names():
        space, name = qualified.split("::")
        if space in {"prim", "_"}:
            continue
        base, _, overload = name.partition(".")
        try:
            yield space, name, getattr(getattr(getattr(torch.ops, space), base), overload or "default")
        except (
            AttributeError,
            RuntimeError,
        ):  # some ops have no Python binding; nobody can call them from here
            continue


def _free_key() -> Any:
    try:
        return torch._C._dispatch_key_parse("Fake")
    except (RuntimeError, AttributeError):
        return None


_KEY: Final = _free_key()
_BELOW: Final[Any] = None if _KEY is None else torch._C._dispatch_keyset_full_after(_KEY)
_set_excluded: Final[Any] = torch._C._dispatch_tls_set_dispatch_key_excluded
