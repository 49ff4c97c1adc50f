"""See every op below autograd through a dispatch key, which nobody notices.

torch 2.13 has a functionality key below autograd that nothing uses (`Fake`); a kernel on it is called for every
op while the thread includes it.
One kernel per overload, not one fallback for all: torch looks a Python kernel up by overload while a mode
is on but switched off (as FakeTensorMode does within), and a fallback is not found there.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.record.interception.kinds import UNSEEN, OpKind
from memwatch.record.interception.probe import PROBED, probe
from memwatch.record.patches import StandIns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.record.interception.interceptor import Handler


class KeyInterceptor:
    """Intercept with kernels on the unused dispatch key `Fake`."""

    name = "key"
    callbacks: tuple[Callable[..., Any], ...] = ()
    _handler: Handler | None = None
    _kernels: tuple[Any, dict[str, Any]] | None = None
    _on = False
    _stand_ins: StandIns | None = None

    def start(self, handler: Handler) -> None:
        """Include the key in this thread."""
        self.put_kernels(None)
        KeyInterceptor._handler = handler
        self.include(on=True)

    def stop(self) -> None:
        """Exclude the key again."""
        self.include(on=False)
        KeyInterceptor._handler = None

    def include(self, *, on: bool) -> None:
        """Have the key in this thread or not."""
        self._on = on
        if self._stand_ins is None:
            self._stand_ins = StandIns()
        if on:
            self._stand_ins.put(torch._ops, "key_extractor", self._keys_of)
        else:
            self._stand_ins.take_off()
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, on)

    def _keys_of(self, key_extractor: Callable[..., Any], tensors: Any, mask: Any) -> Any:
        """Hide the key from operators that torch dispatches in Python, which find no kernel of theirs on it."""
        return key_extractor(tensors, mask.remove(KEY))

    def pause(self) -> bool:
        """Exclude the key in this thread, if it was included."""
        included: bool = torch._C._dispatch_tls_is_dispatch_key_included(KEY)
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)
        return included

    def resume(self) -> None:
        """Include the key in this thread again."""
        if self._on:
            torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)

    @staticmethod
    @functools.cache
    def works() -> bool:
        """Probe once per process: register the kernels, run an op, see it, and compare its result."""
        if KEY is None:
            return False
        seen: set[str] = set()

        def see(kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            seen.add(kind.name)
            return kind.call(*args, **kwargs)

        interceptor = KeyInterceptor()
        try:
            total = probe(functools.partial(interceptor.start, see), interceptor.stop)
        except (RuntimeError, AttributeError, TypeError):
            return False
        return total == PROBED and {"aten.mul.Tensor", "aten.sum.default"} <= seen

    @staticmethod
    def put_kernels(native: Any) -> None:
        """Have the kernels of Python on the key, or the one of the native library; views pass both by."""
        known = KeyInterceptor._kernels
        if known is not None and known[0] is native:
            return
        if known is not None:
            _take_off(*known)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells of every kernel that takes another's place
            libraries = _libraries(python=native is None)
            if native is not None:
                native.put_kernel()
            else:
                later = torch.library.Library("_", "IMPL")  # for the ops that are defined later
                later.fallback(_later_kernel, "Fake", with_keyset=True)
                libraries["_"] = later
        KeyInterceptor._kernels = native, libraries


def _libraries(*, python: bool) -> dict[str, Any]:
    """Let views pass the key by, and put Python kernels there for all other ops if asked."""
    libraries: dict[str, Any] = {}
    for space, name, overload in _overloads():
        if space not in libraries:
            libraries[space] = torch._C._dispatch_library("IMPL", space, "", __file__, 0)
        if overload.is_view or overload._opname in UNSEEN or space == "profiler":
            libraries[space].impl(name, "Fake", torch.library.fallthrough_kernel, False)
        elif python and space == "aten":
            libraries[space].impl(name, "Fake", functools.partial(_kernel, OpKind(overload)), False)
        elif python:
            libraries[space].impl(name, "Fake", functools.partial(_careful_kernel, OpKind(overload)), True)
    return libraries


def _take_off(native: Any, libraries: dict[str, Any]) -> None:
    if native is not None:
        native.take_kernel()
    elif "_" in libraries:
        libraries["_"]._destroy()
    libraries.clear()


def _kernel(kind: OpKind, *args: Any, **kwargs: Any) -> Any:
    try:
        _set_excluded(KEY, True)  # within: a signal's handler may raise as it returns
        handler = KeyInterceptor._handler
        return kind.call(*args, **kwargs) if handler is None else handler(kind, args, kwargs)
    finally:
        _set_excluded(KEY, False)


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


KEY: Final = _free_key()
_BELOW: Final[Any] = None if KEY is None else torch._C._dispatch_keyset_full_after(KEY)
_set_excluded: Final[Any] = torch._C._dispatch_tls_set_dispatch_key_excluded
