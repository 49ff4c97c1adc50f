"""Pack the tensors that autograd saves for backward, and record the node that saves each.

Hooks on saved tensors have two traps. A pack that keeps a node's own output leaks it. And with any pack, autograd no
longer raises its "modified by an inplace operation" error. So a pack holds the same as autograd would: the tensor
itself for an input of the node, and a detached alias for an output. At unpack it checks the version, and raises the
same error as autograd.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn import Parameter

from memwatch._torch.autograd import (
    FunctionBase,
    current_node,
    in_forward_mode,
    next_sequence_nr,
    sequence_nr_of,
)
from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.modes import current_mode, disable_torch_dispatch, disable_torch_function
from memwatch._torch.tensors import TENSOR_DICT, TensorBase, version_of
from memwatch.capture.schema import NONE
from memwatch.heap.autograd import look_through
from memwatch.record.clock import ticks
from memwatch.record.saved_tensors import DETACHED, MODIFYING, HiddenHooks, inplace_error, saved_storage
from memwatch.record.tables.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.backend import CallContext
    from memwatch.record.python.ledger import PythonLedger
    from memwatch.record.saved_tensors import Hooks
    from memwatch.record.tables.rows import OpCounter
    from memwatch.record.tables.storages import Storages

_OUTPUT_NR: Final = TENSOR_DICT["output_nr"].__get__
_node_kinds: dict[type, tuple[str, bool]] = {}


class Pack:
    """The object that autograd holds in place of a saved tensor.

    Attributes:
        packed: the tensor, an alias of it, or the result of a pack hook of the program.
        original: returns the saved tensor if it lives. None for an output of its own node.
        by_program: the program's unpack hook, if a hook of the program packed the tensor. Otherwise None.
        keeper: keeps the hooks hidden. See `memwatch.record.saved_tensors`.
    """

    __slots__ = (
        "__weakref__",
        "by_program",
        "keeper",
        "node_name",
        "number",
        "original",
        "output_nr",
        "packed",
        "version",
    )
    number: int
    keeper: object
    by_program: Callable[[Any], Tensor] | None
    packed: Any
    version: int
    original: Callable[[], Tensor | None]
    node_name: str | None
    output_nr: int


class _Release(weakref.ref[Any]):
    """A weak reference to a pack. Its callback puts it into the queue of the storages' deaths."""

    __slots__ = ("number", "sequence", "storage")
    number: int
    sequence: int
    storage: int


class PythonPacker:
    """Append a row of `packs` for each saved tensor, and rows of `unpacks` for its uses and its release."""

    def __init__(
        self, storages: Storages, ledger: PythonLedger, context: CallContext, op_counter: OpCounter
    ) -> None:
        self.packs = Rows()
        self.unpacks = Rows()
        self.hooks: Hooks = (self._pack, self._unpack)
        self.hidden_hooks = _HIDDEN_HOOKS
        self.python_functions: tuple[Callable[..., Any], ...] = (*self.hooks, *_HIDDEN_HOOKS)
        self._storages = storages
        self._context = context
        self._op_counter = op_counter
        self._releases: dict[int, _Release] = {}
        self._count = 0
        self._outer: Hooks | None = None
        self._keeper: object = None
        self._closed = False
        ledger.on_release = self._released

    def set_outer(self, hooks: Hooks | None) -> None:
        """Set hooks of the program, pushed before, that do the packing."""
        self._outer = hooks

    def set_keeper(self, keeper: object) -> None:
        """Set the object that every new pack holds."""
        self._keeper = keeper

    def close(self) -> None:
        """Stop appending rows."""
        self._closed = True
        self._releases.clear()
        self._keeper = None

    def living_by_sequence(self) -> dict[int, list[int]]:
        """Return the numbers of the storages that autograd keeps now, by the sequence number of their node."""
        found: dict[int, list[int]] = {}
        for release in list(self._releases.values()):
            if release.storage != NONE and release() is not None:
                found.setdefault(release.sequence, []).append(release.storage)
        return found

    def _pack(self, tensor: Tensor) -> Any:
        try:
            pack = Pack()
            pack.keeper, pack.by_program, pack.number = self._keeper, None, NONE
            if self._outer is None:
                _hold(pack, tensor)
        except MemoryError:  # this tensor gets no row
            self._note_loss()
            return _detached(tensor) if self._outer is None else self._outer[0](tensor)
        if self._outer is not None:
            pack.packed, pack.original = self._outer[0](tensor), _nothing
        try:
            self._append(pack, tensor)
        except MemoryError:
            self._note_loss()
        return pack

    def _note_loss(self) -> None:
        try:
            self._context.could_not_record("a saved tensor", MemoryError())
        except MemoryError:
            return

    def _append(self, pack: Pack, tensor: Tensor) -> None:
        with disable_torch_function():  # no subclass or mode of the program sees these reads
            storage, shape, nbytes = saved_storage(self._storages, tensor)
        sequence, at_ticks = next_sequence_nr() - 1, ticks()
        op, module = self._op_counter[0], self._context.top[0]
        needed_by = NONE if self._context.saves_inputs else sequence
        release = _Release(pack, self._storages.dead.append)
        # no call until everything is written, because a signal handler may raise at any call
        release.number = number = self._count
        release.storage, release.sequence = storage, sequence
        count = number + 1
        self._releases[number] = release
        # memory may run out at this line but not at the next, so every number has a row
        self.packs += (number, storage, op, needed_by, module, nbytes, shape, at_ticks)
        self._count, pack.number = count, number

    def _unpack(self, pack: Any) -> Tensor:
        if pack.__class__ is not Pack:  # memory was too short for a pack
            without: Tensor = pack if self._outer is None else self._outer[1](pack)
            return without
        try:
            if not self._closed and pack.number != NONE:
                self.unpacks += (pack.number, self._op_counter[0], ticks(), 0)
        except MemoryError:
            self._note_loss()
        if pack.by_program is not None:
            unpacked: Tensor = pack.by_program(pack.packed)
            return unpacked
        if self._outer is not None:
            result: Tensor = self._outer[1](pack.packed)
            return result
        packed: Tensor = pack.packed
        try:
            is_detached = _was_detached(pack) and _is_torchs_own(current_node())
            is_written = _version(packed) != pack.version
        except MemoryError:
            is_detached = is_written = False
        if is_detached:
            raise RuntimeError(DETACHED)
        if is_written:
            raise RuntimeError(inplace_error(pack))
        return packed

    def _released(self, release: _Release, op: int, at_ticks: int) -> None:
        if not self._closed and self._releases.get(release.number) is release:
            self.unpacks += (release.number, op, at_ticks, 1)
            del self._releases[release.number]


def _hold(pack: Pack, tensor: Tensor) -> None:
    """Keep the tensor itself if it is certainly an input of the node that saves it, or else an alias.

    With the input itself, backward gets the same object as without memwatch. Keeping a node's own output would leak it.
    An output is saved while its node is the newest node. There are two exceptions: forward-mode AD, and functions of
    Python or a library, which make other nodes in between.
    """
    with disable_torch_function():  # no subclass or mode of the program sees these reads
        pack.version = version_of(tensor)
        pack.output_nr = _OUTPUT_NR(tensor)
        node = autograd_state(tensor, with_node=True).grad_fn
    if node is None:
        pack.packed, pack.original, pack.node_name = tensor, lambda: tensor, None
        return
    pack.node_name, written = _kind_of(node)
    sequence = sequence_nr_of(node)
    newest = sequence == next_sequence_nr() - 1
    if not (newest or written or in_forward_mode()):
        pack.packed, pack.original = tensor, lambda: tensor
        return
    if newest:  # modes of the program may see this: autograd detaches an output too
        pack.packed, pack.original = _detached(tensor), _nothing
    else:
        pack.packed = _detached_unseen(tensor)
        pack.original = functools.partial(_of_other, pack.node_name, sequence, weakref.ref(tensor))


def _was_detached(pack: Pack) -> bool:
    """Return True if the program has since detached a saved input in place. torch then refuses to use it."""
    packed: Tensor = pack.packed
    if pack.node_name is None or pack.original() is not packed:
        return False
    with disable_torch_function():
        return autograd_state(packed).is_leaf


def _is_torchs_own(node: Any) -> bool:
    """Return True for a node of one of torch's own functions. Other functions may use a detached tensor."""
    return node is not None and not isinstance(node, FunctionBase) and "::" not in node.name()


def _version(tensor: Tensor) -> int:
    with disable_torch_function():
        return version_of(tensor)


def _detached(tensor: Tensor) -> Tensor:
    """Return an alias of a tensor, as autograd makes one: only dispatch modes and a `__torch_dispatch__` see it."""
    with disable_torch_function():
        alias: Tensor = TensorBase.detach(tensor)
    return alias


def _detached_unseen(tensor: Tensor) -> Tensor:
    """Return an alias of a tensor, made below the program's dispatch modes if its class is plain."""
    if current_mode() is None or not (type(tensor) is Tensor or type(tensor) is Parameter):
        return _detached(tensor)
    with disable_torch_dispatch():
        return _detached(tensor)


def _nothing() -> None:
    return None


def _of_other(node_name: str, sequence: int, reference: Callable[[], Tensor | None]) -> Tensor | None:
    """Return a saved tensor, unless it is an output of the node that is unpacking it now."""
    node = current_node()
    own = node is not None and sequence_nr_of(node) == sequence and node.name() == node_name
    return None if own else reference()


def _original_of(packed: Any) -> Tensor | None:
    return packed.original() if packed.__class__ is Pack else None


def _hook(packed: Any, pack_hook: Any, unpack_hook: Any) -> bool:
    """Let hooks of the program pack the content of a pack, as `SavedVariable::register_hooks` does."""
    if packed.__class__ is not Pack or packed.by_program is not None or not hasattr(packed, "version"):
        return False  # a pack by hooks of the program has no version
    with torch.no_grad():
        given = packed.packed.detach()
        version = version_of(given)
        packed_by_program = pack_hook(given)
    packed.packed, packed.original, packed.by_program = packed_by_program, _nothing, unpack_hook
    if version_of(given) != version:
        raise RuntimeError(MODIFYING)
    return True


def _content_of(pack: Pack) -> tuple[Any, Any]:
    return pack.packed, pack.by_program


look_through(Pack, _content_of)
_HIDDEN_HOOKS: Final = HiddenHooks(_original_of, _hook)


def _kind_of(node: Any) -> tuple[str, bool]:
    """Return the name of a node, and whether its function is written in Python or by a library in C++."""
    cls = type(node)
    known = _node_kinds.get(cls)
    if known is None:
        name = node.name()
        in_python = issubclass(cls, BackwardCFunction)
        known = name, in_python or "::" in name
        if cls.__name__ == name and not in_python:  # torch has a class of its own for this function
            _node_kinds[cls] = known
    return known
