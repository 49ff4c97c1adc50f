"""See every op below autograd through a dispatch key. The program does not notice it.

torch 2.13 has an unused functionality key below autograd (`Fake`). A kernel on it is called for every op while the
thread includes the key. Ops that make no bytes skip the key, except views that make an autograd node.
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
from memwatch.patches import Patches
from memwatch.record.interception.kinds import UNSEEN, is_lift, is_noted_view
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memwatch.record.interception.kinds import Handler

_PROFILER: Final = "profiler"
Libraries: TypeAlias = dict[str, Any]
"""Libraries of kernels, by namespace. They stay registered as long as these objects live."""
KernelOf: TypeAlias = Callable[[str, Any], tuple[Any, bool] | None]
"""A function that returns an overload's kernel and whether it takes the keyset, or None for no kernel."""


class Kernels(Protocol):
    """A backend's kernels on the free dispatch key."""

    def put(self) -> None:
        """Register them for every op that makes bytes. Other ops skip the key."""

    def take_off(self) -> None:
        """Remove them."""


class KernelTarget(Protocol):
    """The object that a backend's kernels call."""

    def begin(self, handler: Handler) -> None:
        """Let the kernels call the handler, or this backend's own code."""

    def end(self) -> None:
        """Let the kernels only run the op."""


class _Registered:
    """The kernels that are registered on the key: one backend's at a time, from its first block on."""

    kernels: Kernels | None = None


def register(kernels: Kernels) -> None:
    """Register a backend's kernels on the key, in place of another backend's."""
    known = _Registered.kernels
    if known is kernels:
        return
    if known is not None:
        known.take_off()
        _Registered.kernels = None  # no kernels are registered if the next call fails
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about every kernel that replaces another
        kernels.put()
    _Registered.kernels = kernels


class KeyInterceptor:
    """Intercept by including the free dispatch key in this thread.

    Args:
        kernels: the kernels on the key.
        target: the object that the kernels call while a block is open.
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
        """Include the key in this thread, or exclude it."""
        self._on = on
        if on:
            self._patches.put(OPS_MODULE, "key_extractor", self._keys_of)
        else:
            self._patches.take_off()
        include_key(FREE_KEY, on)

    def _keys_of(self, key_extractor: Callable[..., Any], tensors: Any, mask: Any) -> Any:
        """Hide the key from operators that torch dispatches in Python, because they have no kernel on it."""
        return key_extractor(tensors, mask.remove(FREE_KEY))

    def sees_this_thread(self) -> bool:
        """Return whether this thread includes the key. autograd passes it on to the threads of other devices."""
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
    """Register a kernel for every overload that makes bytes, and for some views. Other overloads skip the key.

    Each overload has a kernel of its own. One fallback for all would not do: FakeTensorMode switches itself off while
    it runs an op. In this state torch looks a Python kernel up by overload, and does not find a fallback.

    Args:
        kernel_of: None if a kernel outside these libraries serves every overload that makes bytes.
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
    """Return the qualified names of overloads that may skip the key: views, and overloads of a few names.

    torch makes an object of `torch.ops` for each overload that is read. Making thousands of them would take longer than
    the first block.
    """
    makes_bytes = {
        f"{schema.name}.{schema.overload_name}".removesuffix(".")
        for schema in schemas()
        if not _is_view(schema) and schema.name.rpartition("::")[2] not in UNSEEN
    }
    return [name for name in op_names() if name not in makes_bytes or name.startswith(f"{_PROFILER}::")]


def _is_view(schema: Any) -> bool:
    """Return True for the schema of a view, as `is_view` of its overload would be."""
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
            continue  # some ops lack a Python binding, so Python code cannot call them
