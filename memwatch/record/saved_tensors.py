"""Hooks on saved tensors: memwatch gives autograd a pack in place of each tensor that autograd saves.

A pack is an object that keeps the tensor. It notices when autograd reads the tensor and when autograd frees it. The
program must not notice the pack. So `ctx.saved_tensors` gives the program's own tensors (`hide_hooks`), and the errors
have the words of torch's errors.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction

from memwatch._torch.autograd import (
    CANNOT,
    SAVED_HOOKS_SWITCH,
    SAVED_HOOKS_WORK,
    SavedTensor,
    in_forward_mode,
    node_name_in_errors,
    pop_saved_hooks,
    push_saved_hooks,
    raw_saved_tensors_of,
    saved_tensors_of,
    top_saved_hooks,
)
from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.checkpoint import PROGRAM_HOOKS, program_hooks_of
from memwatch._torch.modes import disable_torch_function, is_wrapper_subclass
from memwatch._torch.tensors import nested_sizes_of, version_of
from memwatch.capture.schema import NONE
from memwatch.heap.tensors import layout_of
from memwatch.patches import Patches
from memwatch.record.harmless import call_when_freed
from memwatch.record.tables.parts import plain_parts, tensor_bytes
from memwatch.record.tables.storages import BASELINE
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from torch import Tensor

    from memwatch.record.tables.rows import Table
    from memwatch.record.tables.storages import Storages


def saved_storage(storages: Storages, tensor: Tensor) -> tuple[int, int, int]:
    """Return the number of a saved tensor's storage (or -1), the string id of its shape, and its bytes.

    A wrapper, such as a DTensor or a jagged tensor, has no bytes of its own. Its first part represents it.
    """
    has_parts = layout_of(tensor) is torch.strided or is_wrapper_subclass(tensor)
    part = next(plain_parts(tensor), tensor) if has_parts else tensor
    storage = storages.number_of(part, NONE, BASELINE) if layout_of(part) is torch.strided else NONE
    return storage, storages.shape_id(part), tensor_bytes(part)


MODIFYING: Final = (
    f"A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook {CANNOT} be "
    "modified by in-place operations as this can lead to unexpected side-effects. Please open an issue if you "
    "need to perform in-place operations on the input to a pack hook."
)
DETACHED: Final = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
_MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation: "
_HINT = (
    " Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
    "torch.autograd.set_detect_anomaly(True, check_nan=False)."
)
_ANOMALY_HINT = (
    " Hint: the backtrace further above shows the operation that failed to compute its gradient. The variable "
    "in question was changed in there or anywhere later. Good luck!"
)


class PackedTensor(Protocol):
    """A pack that keeps a saved tensor. The native recorder and the Python recorder each have a class of packs."""

    @property
    def packed(self) -> Tensor:
        """The tensor, or an alias of it."""

    @property
    def version(self) -> int:
        """Its version when it was packed."""

    @property
    def output_nr(self) -> int:
        """The index of the output of its node."""

    @property
    def node_name(self) -> str | None:
        """The name of the node that made it; None for a leaf."""

    def original(self) -> Tensor | None:
        """Return the saved tensor itself, if it lives."""


def inplace_error(pack: PackedTensor) -> str:
    """Return torch's error text for a tensor that was written after it was saved (from torch's saved_variable.cpp)."""
    packed = pack.packed
    original = pack.original()
    node, output_nr = pack.node_name, pack.output_nr
    # This calls the getter `grad_fn` on purpose, because torch calls it here too. If the base of a view was changed,
    # the getter rebuilds the history of the view. The error then names the new node.
    if original is not None and original.grad_fn is not None:
        node = original.grad_fn.name()
    sizes = nested_sizes_of(packed) if packed.is_nested else list(packed.shape)
    of_node = ""
    if node is not None:
        of_node = f", which is output {output_nr} of {node_name_in_errors(node)},"
    hint = _ANOMALY_HINT if torch.is_anomaly_enabled() else _HINT
    return (
        f"{_MODIFIED}[{packed.type()} {sizes}]{of_node} is at version {version_of(packed)}; "
        f"expected version {pack.version} instead.{hint}"
    )


Hooks: TypeAlias = tuple[Callable[..., Any], Callable[..., Any]]
"""The pair (pack, unpack) of hooks on saved tensors."""

_register: Final[Any] = getattr(SavedTensor, "register_hooks", None)
_data: Final = operator.attrgetter("data")
_Function: Final[Any] = BackwardCFunction  # the stub has no attribute that can be replaced


class HiddenHooks(NamedTuple):
    """Functions of one packer that let memwatch hide its hooks from the program.

    Attributes:
        original_of: return the saved tensor of a pack. Return None if it is gone, and for any object that another
            packer or the program made.
        hook: let the program's pair (pack, unpack) handle the tensor of a pack. Return False if this is not possible.
    """

    original_of: Callable[[Any], Any]
    hook: Callable[[Any, Any, Any], bool]


class Keeper:
    """An object that every pack of a packer holds. When it is freed, the packer's hooks need no hiding any more."""

    __slots__ = ("__weakref__", "_attributes")

    def __init__(self, attributes: _ReplacedAttributes) -> None:
        self._attributes = attributes


class _ReplacedAttributes:
    """An object that every keeper holds. When it is freed, the attributes of torch are restored."""

    __slots__ = ("__weakref__",)


_hidden: list[HiddenHooks] = []
_replacements: list[weakref.ref[_ReplacedAttributes]] = []


def hide_hooks(hidden_hooks: HiddenHooks) -> Keeper:
    """Hide the hooks of a packer until the returned object is freed."""
    # the first keeper replaces torch's attributes; later ones share the replacement
    keeper = Keeper((_replacements and _replacements[0]()) or _replace_attributes())
    _hidden.append(hidden_hooks)
    call_when_freed(keeper, partial(_hidden.remove, hidden_hooks))
    return keeper


def _replace_attributes() -> _ReplacedAttributes:
    attributes = _ReplacedAttributes()
    _replacements[:] = [weakref.ref(attributes)]
    if SAVED_HOOKS_WORK:
        _Function.saved_tensors = property(saved_tensors)
        SavedTensor.register_hooks = register_hooks
        own = partial(setattr, SavedTensor, "register_hooks", _register)
        call_when_freed(attributes, partial(delattr, _Function, "saved_tensors"), own)
    return attributes


def saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """Return the tensors that a function saved. Also read autograd's own attribute, so that autograd checks them."""
    try:
        raw = raw_saved_tensors_of(ctx)
        packed = list(map(_data, raw))  # before `saved_tensors_of`, because torch may drop the packs there
    except (MemoryError, RuntimeError) as error:
        # RuntimeError: they are freed, and autograd raises its own error below
        pass_on(error)
        packed = []
    values = list(saved_tensors_of.__get__(ctx))
    try:
        with disable_torch_function():
            for at, pack in enumerate(packed):
                for hidden_hooks in _hidden:
                    original = hidden_hooks.original_of(pack)
                    # For the function's own output, autograd gives a new tensor, also without memwatch.
                    if original is not None and autograd_state(original, with_node=True).grad_fn is not ctx:
                        values[at] = original
    except (MemoryError, RuntimeError) as error:
        # torch raises a RuntimeError if it has no memory for the Python object of a tensor. The values from autograd
        # are right, but they are other objects than the saved ones.
        pass_on(error)
    return tuple(values)


def register_hooks(saved: Any, *hooks: Any, **named: Any) -> None:
    """Register hooks of the program on one saved tensor.

    If memwatch packed the tensor, its pack calls the hooks. torch's own function handles all other tensors, and raises
    the errors for wrong arguments.
    """
    pair = (*hooks, *(named[name] for name in ("pack_hook", "unpack_hook") if name in named))
    if len(pair) == 2 and all(map(callable, pair)):
        packed = saved.data
        for hidden_hooks in _hidden:
            if hidden_hooks.hook(packed, *pair):
                return
    _register(saved, *hooks, **named)


CALLED_BACK: Final = saved_tensors, register_hooks
"""Functions of ours that torch or the program calls while dynamo may be evaluating frames."""


class Packer(Protocol):
    """Packs the tensors that autograd saves, and appends rows of `packs` and `unpacks`."""

    @property
    def packs(self) -> Table:
        """Rows of the tensors that were saved."""

    @property
    def unpacks(self) -> Table:
        """Rows of the times at which autograd reads and frees them."""

    @property
    def hooks(self) -> Hooks:
        """The pair (pack, unpack) that torch calls."""

    @property
    def python_functions(self) -> tuple[Callable[..., Any], ...]:
        """The Python functions that torch calls through `hooks`. dynamo must not compile them."""

    @property
    def hidden_hooks(self) -> HiddenHooks:
        """The functions that hide the hooks from the program."""

    def set_outer(self, hooks: Hooks | None) -> None:
        """Set the program's hooks that were pushed before the block. They pack the tensors, inside memwatch's packs."""

    def set_keeper(self, keeper: object) -> None:
        """Set the object that every new pack holds, so that the hooks stay hidden while any pack lives."""

    def living_by_sequence(self) -> dict[int, list[int]]:
        """Return the numbers of the storages that autograd keeps now, by the sequence number of the node."""

    def close(self) -> None:
        """Append no more rows, and refer to the block no more. Packs in the program's graphs still work."""


_FORWARD_MODE: Final = (
    "forward-mode AD ran: autograd keeps an alias in place of each saved tensor. Other data of the tensor, such as its "
    "tangent, may be freed earlier, so the peak may be lower than without memwatch"
)


class SavedTensorHooks:
    """Let a packer pack the tensors that autograd saves in this thread between `start` and `stop`.

    Args:
        packer: packs and unpacks.
        note: called with the kind and the text of a sentence for the report.
    """

    def __init__(self, packer: Packer, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._forward_mode_is_noted = False
        self._packer = packer
        self._hooks = packer.hooks
        self._outer: Hooks | None = None
        self._disabled_threads: set[int] = set()  # threads in which torch has disabled hooks
        self._patches = Patches()
        self.python_functions: tuple[Callable[..., Any], ...] = (
            *packer.python_functions,
            *CALLED_BACK,
            SavedTensorHooks._disabling,
            SavedTensorHooks._enabling,
        )

    def start(self) -> None:
        """Push the hooks. If the program has pushed hooks before, memwatch's packs call them."""
        self._outer = top_saved_hooks()
        self._packer.set_outer(self._outer)
        push_saved_hooks(*self._hooks)
        if SAVED_HOOKS_SWITCH is not None:
            place, disable, enable = SAVED_HOOKS_SWITCH
            self._patches.put(place, disable, self._disabling)
            self._patches.put(place, enable, self._enabling)
        self._patches.put(forward_ad, "enter_dual_level", self._entering_forward_mode)
        if PROGRAM_HOOKS is not None:
            self._patches.put(*PROGRAM_HOOKS, self._program_hooks)
        if in_forward_mode():
            self._note_forward_mode()
        self._packer.set_keeper(hide_hooks(self._packer.hidden_hooks))

    def stop(self) -> None:
        """Remove the hooks. Hooks that the program pushed inside the block stay."""
        self._patches.take_off()
        self.pause()
        self._packer.close()

    def pause(self) -> None:
        """Remove the hooks until `resume`. Hooks that the program pushed inside the block stay."""
        above = []  # the program's hooks above memwatch's: take them off, and push them again below
        while (top := top_saved_hooks()) is not None:
            pop_saved_hooks()
            if top[0] is self._hooks[0]:
                break
            above.append(top)
        else:
            # memwatch's hooks are gone. The program has left a context of hooks that it entered before the block, and
            # torch popped memwatch's hooks instead of the program's. So pop the program's hooks for it.
            above = [hooks for hooks in above if self._outer is None or hooks[0] is not self._outer[0]]
        for hooks in reversed(above):
            push_saved_hooks(*hooks)

    def resume(self) -> None:
        """Push the hooks again. If torch has disabled hooks, they come back when torch enables them."""
        if get_ident() not in self._disabled_threads:
            push_saved_hooks(*self._hooks)

    def _program_hooks(self, current: Callable[[], Hooks | None]) -> Hooks | None:
        """Return the hooks that torch would find without memwatch."""
        found = current()
        return program_hooks_of(self._outer) if found is not None and found[0] is self._hooks[0] else found

    def _entering_forward_mode(self, enter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._note_forward_mode()
        return enter(*args, **kwargs)

    def _note_forward_mode(self) -> None:
        if not self._forward_mode_is_noted:
            self._forward_mode_is_noted = True
            self._note("observer", _FORWARD_MODE)

    def _disabling(self, disable: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Remove memwatch's hooks when torch disables hooks, because torch cannot disable hooks that are active.

        `torch.autograd.graph.disable_saved_tensors_hooks` calls this, and so does dynamo's compiled form of it. That
        function itself is not replaced, because dynamo recognizes it by its identity.
        """
        top = top_saved_hooks()
        # If the program has active hooks too, leave all of them, so that torch raises its error.
        if top is not None and top[0] is self._hooks[0] and self._outer is None:
            pop_saved_hooks()
            self._disabled_threads.add(get_ident())
        disable(*args, **kwargs)

    def _enabling(self, enable: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        enable(*args, **kwargs)
        if get_ident() in self._disabled_threads:
            self._disabled_threads.discard(get_ident())
            push_saved_hooks(*self._hooks)
