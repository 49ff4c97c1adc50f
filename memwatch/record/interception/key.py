"""See every op below autograd through a dispatch key, which nobody notices.

torch 2.13 has a functionality key below autograd that nothing uses (`Fake`): a kernel on it is called for every
op while the thread includes the key. Ops that make no bytes pass it by, but for views that make a node of autograd's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import torch

from memwatch._torch.dispatch import (
    FREE_KEY,
    FREE_KEY_NAME,
    OPS_MODULE,
    base_name_of,
    include_key,
    is_key_included,
    kernel_library,
    op_names,
    schemas,
)
from memwatch.record.interception.kinds import UNSEEN, is_lift, is_noted_view
from memwatch.record.patches import Patches
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memwatch.record.interception.interceptor import Handler

_PROFILER: Final = "profiler"
Libraries: TypeAlias = dict[str, Any]
"""Libraries of kernels, by namespace: they stay registered for as long as these objects live."""
KernelOf: TypeAlias = Callable[[str, Any], tuple[Any, bool] | None]
"""Returns the kernel of an overload, given its namespace, and whether it takes the keyset; None for no kernel."""


class Kernels(Protocol):
    """A backend's kernels on the free dispatch key."""

    def put(self) -> None:
        """Register them for every op that makes bytes, and let the other ops pass."""

    def take_off(self) -> None:
        """Take them off."""


class KernelTarget(Protocol):
    """Whom a backend's kernels call, if anyone."""

    def begin(self, handler: Handler) -> None:
        """Have the kernels call the handler, or what this backend has in its place."""

    def end(self) -> None:
        """Have the kernels call nobody."""


class _Registered:
    """Which kernels lie on the key: those of one backend at a time, from its first block on."""

    kernels: Kernels | None = None


def register(kernels: Kernels) -> None:
    """Have a backend's kernels on the key, in place of another's."""
    known = _Registered.kernels
    if known is kernels:
        return
    if known is not None:
        known.take_off()
        _Registered.kernels = None  # none lie on the key if what follows fails
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells of every kernel that takes another's place
        kernels.put()
    _Registered.kernels = kernels


class KeyInterceptor:
    """Intercept by including the free dispatch key in this thread.

    Args:
        kernels: what lies on the key.
        target: whom the kernels call while a block is open.
    """

    name: Final = "key"
    python_functions: Final[tuple[Callable[..., Any], ...]] = ()

    def __init__(self, kernels: Kernels, target: KernelTarget) -> None:
        self._kernels = kernels
        self._target = target
        self._on = False
        self._patches = Patches()

    def start(self, handler: Handler) -> None:
        """Include the key in this thread."""
        register(self._kernels)
        self._target.begin(handler)
        self.include(on=True)

    def stop(self) -> None:
        """Exclude the key again."""
        self.include(on=False)
        self._target.end()

    def include(self, *, on: bool) -> None:
        """Include the key in this thread, or no longer."""
        self._on = on
        if on:
            self._patches.put(OPS_MODULE, "key_extractor", self._keys_of)
        else:
            self._patches.take_off()
        include_key(FREE_KEY, on)

    def _keys_of(self, key_extractor: Callable[..., Any], tensors: Any, mask: Any) -> Any:
        """Hide the key from operators that torch dispatches in Python, which find no kernel of theirs on it."""
        return key_extractor(tensors, mask.remove(FREE_KEY))

    def sees_this_thread(self) -> bool:
        """Return whether this thread includes the key; autograd hands it on to the threads of other devices."""
        return bool(is_key_included(FREE_KEY))

    def pause(self) -> bool:
        """Exclude the key in this thread; return whether it was included."""
        included = is_key_included(FREE_KEY)
        include_key(FREE_KEY, False)
        return included

    def resume(self) -> None:
        """Include the key in this thread again."""
        if self._on:
            include_key(FREE_KEY, True)


def put_kernels(kernel_of: KernelOf | None) -> Libraries:
    """Register a kernel for every overload that makes bytes, and for some views; the others fall through the key.

    There is one kernel for each overload, and not one fallback for all: while a mode is on but switched off, as
    FakeTensorMode does within, torch looks a Python kernel up by overload, and does not find a fallback.

    Args:
        kernel_of: None where one kernel outside these libraries serves every overload that makes bytes.
    """
    libraries: Libraries = {}
    for space, name, overload in _overloads(_names_that_may_pass() if kernel_of is None else op_names()):
        if space not in libraries:
            libraries[space] = kernel_library(space, __file__)
        is_passing_view = overload.is_view and not (is_noted_view(overload) or is_lift(overload))
        if is_passing_view or base_name_of(overload) in UNSEEN or space == _PROFILER:
            libraries[space].impl(name, FREE_KEY_NAME, torch.library.fallthrough_kernel, False)
        elif kernel_of is not None and (found := kernel_of(space, overload)) is not None:
            kernel, takes_keyset = found
            libraries[space].impl(name, FREE_KEY_NAME, kernel, takes_keyset)
    return libraries


def _names_that_may_pass() -> list[str]:
    """Return the qualified names of the overloads that may fall through the key: views, and those of a few names.

    torch makes an object of `torch.ops` for each overload that is asked for. To have it make thousands would take
    longer than the first block.
    """
    makes_bytes = {
        f"{schema.name}.{schema.overload_name}".removesuffix(".")
        for schema in schemas()
        if not _is_view(schema) and schema.name.rpartition("::")[2] not in UNSEEN
    }
    return [name for name in op_names() if name not in makes_bytes or name.startswith(f"{_PROFILER}::")]


def _is_view(schema: Any) -> bool:
    """Return True for the schema of an overload whose `is_view` torch sets."""
    written = [each.alias_info.is_write for each in schema.arguments if each.alias_info is not None]
    return bool(written) and not any(written)


def _overloads(names: Iterable[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield the defined overloads of some qualified names: the namespace, the name within, and the overload."""
    for qualified in names:
        space, name = qualified.split("::")
        if space in {"prim", "_"}:
            continue
        base, _, overload = name.partition(".")
        try:
            yield space, name, getattr(getattr(getattr(torch.ops, space), base), overload or "default")
        except (AttributeError, RuntimeError) as error:
            pass_on(error)
            continue  # some ops have no Python binding; nobody can call them from here
