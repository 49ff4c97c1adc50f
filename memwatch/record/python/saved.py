"""What autograd keeps for backward, and for which node, through the default saved-tensor hooks.

Hooks are easy to get wrong (TORCH_FACTS 4.2): a pack that keeps a node's own output leaks it, any pack
silences autograd's "modified by an inplace operation" error, only the innermost pair runs, and torch.func
refuses to run under them. So: packs hold what autograd would hold, the tensor itself for an input and a
detached alias for an output, and check the version at unpack, raising autograd's own error; hooks that the
program pushed before are called from ours; torch.func finds them switched off. `saved_seen` hides
them from programs that look.
"""

from __future__ import annotations

import contextlib
import functools
import re
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from memwatch.capture.schema import NONE
from memwatch.record.clock import ticks
from memwatch.record.patches import StandIns
from memwatch.record.saved import disguise
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BASELINE, Storages, known_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from memwatch.record.context import Context

_autograd: Any = torch._C._autograd
_next_sequence = _autograd._get_sequence_nr
_node_kinds: dict[type, tuple[str, bool]] = {}
_MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation: "
_HINT = (
    " Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
    "torch.autograd.set_detect_anomaly(True, check_nan=False)."
)
MODIFYING = (
    "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook cannot be "
    "modified by in-place operations as this can lead to unexpected side-effects. Please open an issue if you "
    "need to perform in-place operations on the input to a pack hook."
)
_ANOMALY_HINT = (
    " Hint: the backtrace further above shows the operation that failed to compute its gradient. The variable "
    "in question was changed in there or anywhere later. Good luck!"
)


class Pack:
    """What autograd holds in place of a saved tensor: it or an alias, and what the check at unpack needs."""

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
    keeper: disguise.Keeper | None
    by_program: Callable[[Any], Tensor] | None  # gives the tensor for what the program's own hook packed
    packed: Any
    version: int
    original: Callable[
        [], Tensor | None
    ]  # gives the saved tensor if it lives; None for an output of its own node
    node_name: str | None
    output_nr: int


class _Release(weakref.ref):  # type: ignore[type-arg]  # as storages.Alive
    __slots__ = ("number", "sequence", "storage")
    number: int
    sequence: int
    storage: int


class SavedTensorRecorder:
    """Append a row of `packs` for every saved tensor, and of `unpacks` for its uses and its release."""

    def __init__(self, storages: Storages, context: Context, ops_started: list[int]) -> None:
        self.packs = Rows()
        self.unpacks = Rows()
        self._storages = storages
        self._context = context
        self._ops_started = ops_started
        self._releases: dict[int, _Release] = {}
        self._count = 0
        self._outer: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._hooks: tuple[Callable[..., Any], Callable[..., Any]] = (self._pack, self._unpack)
        self.callbacks: tuple[Callable[..., Any], ...] = (*self._hooks, *disguise.CALLED_BACK, *_PACKS)
        self._ours = _PACKS
        self._keeper: disguise.Keeper | None = None
        storages.on_release = self._released
        self._stand_ins = StandIns()
        self.closed = False

    def start(self) -> None:
        """Push the hooks, above those that the program pushed before."""
        self.set_outer(_autograd._top_saved_tensors_default_hooks(True))
        _autograd._push_saved_tensors_default_hooks(*self._hooks)
        self._stand_ins.put(torch.autograd.graph, "disable_saved_tensors_hooks", self._stand_aside)
        self._keeper = disguise.put_on(self._ours)

    def set_outer(self, hooks: tuple[Callable[..., Any], Callable[..., Any]] | None) -> None:
        """Have the hooks that the program pushed before do the packing."""
        self._outer = hooks

    def stop(self) -> None:
        """Remove the hooks, leaving those that the program pushed inside the block."""
        self._stand_ins.take_off()
        self._remove()
        self.close()

    def close(self) -> None:
        """Append no more rows."""
        self.closed = True
        self._releases.clear()
        self._keeper = None

    def pause(self) -> None:
        """Take the hooks off until `resume`."""
        self._remove()

    def resume(self) -> None:
        """Push the hooks again."""
        _autograd._push_saved_tensors_default_hooks(*self._hooks)

    def _remove(self) -> None:
        above = []
        while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None:
            _autograd._pop_saved_tensors_default_hooks()
            if top[0] is self._hooks[0]:
                break
            above.append(top)
        else:  # the program left hooks that it had entered before the block, and so popped ours in their place
            above = [hooks for hooks in above if self._outer is None or hooks[0] is not self._outer[0]]
        for hooks in reversed(above):
            _autograd._push_saved_tensors_default_hooks(*hooks)

    @contextlib.contextmanager
    def _stand_aside(self, disable: Callable[..., Any], error_message: str) -> Generator[None, None, None]:
        """Be off where torch switches hooks off: ours, and only ours, are no reason to refuse."""
        top = _autograd._top_saved_tensors_default_hooks(True)
        ours = top is not None and top[0] is self._hooks[0] and self._outer is None
        if ours:
            _autograd._pop_saved_tensors_default_hooks()
        try:
            with disable(error_message):
                yield
        finally:
            if ours:
                _autograd._push_saved_tensors_default_hooks(*self._hooks)

    def _pack(self, tensor: Tensor) -> Any:
        pack = Pack()
        pack.keeper, pack.by_program = self._keeper, None
        if self._outer is None:
            pack.version = tensor._version
            node = tensor.grad_fn
            if node is None:
                pack.packed, pack.original, pack.node_name = tensor, lambda: tensor, None
            else:
                pack.node_name, written = _kind_of(node)
                sequence = node._sequence_nr()
                newest = sequence == _next_sequence() - 1
                if newest or written or forward_ad._current_level >= 0:
                    pack.packed = tensor.detach()
                    pack.original = (
                        _nothing
                        if newest
                        else functools.partial(_of_other, pack.node_name, sequence, weakref.ref(tensor))
                    )
                else:
                    pack.packed, pack.original = tensor, lambda: tensor
            pack.output_nr = tensor.output_nr
        else:
            pack.packed, pack.original = self._outer[0](tensor), _nothing
        self._append(pack, tensor)
        return pack

    def living_by_sequence(self) -> dict[int, list[int]]:
        """Give the numbers of the storages that autograd keeps now, by the sequence number of the node."""
        found: dict[int, list[int]] = {}
        for release in list(self._releases.values()):
            if release.storage != NONE and release() is not None:
                found.setdefault(release.sequence, []).append(release.storage)
        return found

    def _append(self, pack: Pack, tensor: Tensor) -> None:
        storage, shape, nbytes = look(self._storages, tensor)
        sequence, at = _next_sequence() - 1, ticks()
        op, module = self._ops_started[0], self._context.top[0]
        release = _Release(pack, self._storages.dead.append)
        # no call until all is written: a signal's handler may raise at any
        pack.number = release.number = number = self._count
        release.storage, release.sequence = storage, sequence
        self._count = number + 1
        self._releases[number] = release
        self.packs += (number, storage, op, sequence, module, nbytes, shape, at)

    def _unpack(self, pack: Pack) -> Tensor:
        if not self.closed:
            self.unpacks += (pack.number, self._ops_started[0], ticks(), 0)
        if pack.by_program is not None:
            return pack.by_program(pack.packed)
        if self._outer is not None:
            result: Tensor = self._outer[1](pack.packed)
            return result
        packed: Tensor = pack.packed
        if packed._version != pack.version:
            raise RuntimeError(inplace_error(pack))
        return packed

    def _released(self, release: _Release, op: int, at: int) -> None:
        if not self.closed:
            self.unpacks += (release.number, op, at, 1)
            del self._releases[release.number]


def look(storages: Storages, tensor: Tensor) -> tuple[int, int, int]:
    """Give the storage of a saved tensor, the string id of its shape, and its bytes."""
    storage = storages.number_of(tensor, NONE, BASELINE) if tensor.layout is torch.strided else NONE
    try:
        nbytes = known_bytes(tensor.nbytes)
    except (RuntimeError, NotImplementedError):
        nbytes = 0
    return storage, storages.shape_id(tensor), nbytes


def _nothing() -> None:
    return None


def _of_other(node_name: str, sequence: int, reference: Callable[[], Tensor | None]) -> Tensor | None:
    """Give a saved tensor, unless the node that unpacks it now is the one whose output it was."""
    node = torch._C._current_autograd_node()
    own = node is not None and node._sequence_nr() == sequence and node.name() == node_name
    return None if own else reference()


def _original_of(packed: Any) -> Tensor | None:
    return packed.original() if packed.__class__ is Pack else None


def _hook(packed: Any, pack_hook: Any, unpack_hook: Any) -> bool:
    """Have hooks of the program pack what was packed, as `SavedVariable::register_hooks` does."""
    if packed.__class__ is not Pack or packed.by_program is not None or not hasattr(packed, "version"):
        return False  # a pack of hooks of the program has no version
    with torch.no_grad():
        given = packed.packed.detach()
        version = given._version
        packed_by_program = pack_hook(given)
    packed.packed, packed.original, packed.by_program = packed_by_program, _nothing, unpack_hook
    if given._version != version:
        raise RuntimeError(MODIFYING)
    return True


_PACKS = disguise.Packs(_original_of, _hook)


def _kind_of(node: Any) -> tuple[str, bool]:
    """Give the name of a node, and whether its function is one written in Python or C++ by a library.

    A tensor may be kept as it is where it is surely an input of the node that saves it, which lets backward
    find it as autograd would; keeping a node's own output would leak it. An output is saved while its node is
    the newest one, but for functions written in Python or C++, which make other nodes in between, and under
    forward-mode AD.
    """
    cls = type(node)
    known = _node_kinds.get(cls)
    if known is None:
        name = node.name()
        in_python = issubclass(cls, torch.autograd.function.BackwardCFunction)
        known = name, in_python or "::" in name
        if cls.__name__ == name and not in_python:  # torch's own class, one for this function
            _node_kinds[cls] = known
    return known


def inplace_error(pack: Pack) -> str:
    """Word the error exactly as torch/csrc/autograd/saved_variable.cpp does."""
    packed: Tensor = pack.packed
    original = pack.original()
    node, output_nr = pack.node_name, pack.output_nr
    if original is not None and original.grad_fn is not None:
        node = original.grad_fn.name()
    sizes = packed._nested_tensor_size() if packed.is_nested else list(packed.shape)
    of_node = f", which is output {output_nr} of {_op_name(node)}," if node is not None else ""
    hint = _ANOMALY_HINT if torch.is_anomaly_enabled() else _HINT
    return (
        f"{_MODIFIED}[{packed.type()} {sizes}]{of_node} is at version {packed._version}; "
        f"expected version {pack.version} instead.{hint}"
    )


def _op_name(node: str) -> str:
    return re.sub(r"Backward\d*$", "", node)
