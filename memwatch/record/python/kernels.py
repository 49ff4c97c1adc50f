"""The kernels of Python on the free dispatch key: each hands its op to the recorder of the open block."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.dispatch import BELOW_FREE_KEY, FREE_KEY, FREE_KEY_NAME, destroy_library, exclude_key
from memwatch.record.interception.interceptor import passes
from memwatch.record.interception.key import KeyInterceptor, put_kernels
from memwatch.record.interception.kinds import OpKind

if TYPE_CHECKING:
    from memwatch.record.interception.interceptor import Handler
    from memwatch.record.interception.key import Libraries


class PythonKernels:
    """One kernel for each overload, and a fallback for those that are defined later; see `interception.key`."""

    def __init__(self) -> None:
        self._libraries: Libraries = {}
        self._handler: Handler | None = None
        self._kinds: dict[Any, OpKind] = {}

    def put(self) -> None:
        """Register the kernels."""
        self._libraries = put_kernels(self._kernel_of)
        later = torch.library.Library("_", "IMPL")
        later.fallback(functools.partial(_run_later, self), FREE_KEY_NAME, with_keyset=True)
        self._libraries["_"] = later

    def take_off(self) -> None:
        """Take the kernels off."""
        destroy_library(self._libraries["_"])
        self._libraries.clear()

    def begin(self, handler: Handler) -> None:
        """Have the kernels call a handler."""
        self._handler = handler

    def end(self) -> None:
        """Have the kernels call nobody."""
        self._handler = None

    def _kernel_of(self, space: str, overload: Any) -> tuple[Any, bool]:
        kind = self._kinds.get(overload)
        if kind is None:
            kind = self._kinds[overload] = OpKind(
                overload
            )  # kept: putting all kernels again takes half the time
        if kind.is_view:
            return functools.partial(_run_view, self, kind), True
        if kind.is_lift:
            return functools.partial(_run_lift, self, kind), True
        if space == "aten":
            return functools.partial(_run, self, kind), False
        return functools.partial(_run_below, self, kind), True


def _run(kernels: PythonKernels, kind: OpKind, *args: Any, **kwargs: Any) -> Any:
    try:
        exclude_key(FREE_KEY, True)  # within: a signal's handler may raise as it returns
        handler = kernels._handler
        return kind.call(*args, **kwargs) if handler is None else handler(kind, args, kwargs)
    finally:
        exclude_key(FREE_KEY, False)


def _run_view(kernels: PythonKernels, kind: OpKind, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """Have the node of a view noted. What the view runs within is seen: the key stays included."""
    handler = kernels._handler
    calling = None if handler is None or not torch.is_grad_enabled() else _below(kind, keyset)
    if handler is None or calling is None:
        return kind.overload.redispatch(keyset & BELOW_FREE_KEY, *args, **kwargs)
    return handler(calling, args, kwargs)


def _run_lift(kernels: PythonKernels, kind: OpKind, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """Have what torch made of Python's data noted."""
    handler = kernels._handler
    calling = None if handler is None else _below(kind, keyset)
    if handler is None or calling is None:
        return kind.overload.redispatch(keyset & BELOW_FREE_KEY, *args, **kwargs)
    return handler(calling, args, kwargs)


def _run_below(kernels: PythonKernels, kind: OpKind, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """Go on below our key: kernels above it that Python wrote would run again, and count versions twice."""
    calling = _below(kind, keyset)
    if calling is None:
        return kind.overload.redispatch(keyset & BELOW_FREE_KEY, *args, **kwargs)
    return _run(kernels, calling, *args, **kwargs)


def _below(kind: OpKind, keyset: Any) -> OpKind | None:
    """Return the kind that goes on below our key; None if there is no memory for it."""
    try:
        return kind.calling(functools.partial(kind.overload.redispatch, keyset & BELOW_FREE_KEY))
    except MemoryError:
        return None


_later_kinds: Final[dict[Any, OpKind]] = {}


def _run_later(kernels: PythonKernels, keyset: Any, overload: Any, *args: Any, **kwargs: Any) -> Any:
    kind = _later_kinds.get(overload)
    if kind is None:
        kind = _later_kinds[overload] = OpKind(overload)
    return _run_below(kernels, kind, keyset, *args, **kwargs)


PYTHON_KERNELS: Final = PythonKernels()


@functools.cache
def key_works() -> bool:
    """Return True if the kernels on the key see ops and change nothing; probe once per process."""
    seen: set[str] = set()

    def see(kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.add(kind.name)
        return kind.call(*args, **kwargs)

    interceptor = KeyInterceptor(PYTHON_KERNELS, PYTHON_KERNELS)
    works = passes(functools.partial(interceptor.start, see), interceptor.stop)
    return works and {"aten.mul.Tensor", "aten.sum.default"} <= seen
