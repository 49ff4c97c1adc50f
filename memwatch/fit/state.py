"""Copy the state that a training step can change, and put it back.

The state is in the objects that the step's function refers to, in its model and in its optimizers. The bytes of tensors
are copied to host memory that torch does not count. The tensors themselves may be freed meanwhile.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import random
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.modes import disable_torch_dispatch
from memwatch._torch.tensors import address_of
from memwatch.containers import LISTS
from memwatch.devices import devices_in_use
from memwatch.encoding import HostBytes, copy_in, copy_out, new_storage, read_states, restore_states
from memwatch.heap.c_held import memory_of
from memwatch.heap.classes import class_ids, derives, is_a, of_classes
from memwatch.heap.names import class_name, instance_dict
from memwatch.heap.shapes import is_program_class
from memwatch.heap.tensors import is_simulated, mro_of, quiet, storage_bytes, storage_of, type_dict
from memwatch.own_code import is_program_code
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence

_MOST_ITEMS: Final = 10_000
"""Items. A longer list or dictionary is data. Its items are put back in order, but their own state is not. A guess."""
_MOST_DATA_BYTES: Final = 256 * 2**20
"""The most bytes of tensors and arrays outside of model and optimizers that are copied. A guess: steps seldom write
data."""
_OF_TORCH: Final = (nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler)
"""Objects of torch whose attributes are their state."""
_LISTS: Final = class_ids(*LISTS)
_DICTS: Final = class_ids(dict, OrderedDict, defaultdict, Counter)
_FIXED: Final = class_ids(tuple, frozenset, functools.partial, MethodType)
_ITERATORS: Final = class_ids(type(iter([])), type(iter(())))
"""Iterators whose position can be set."""


class State:
    """A copy of the state that a step can change. `restore` puts it back in place.

    The bytes of tensors are kept in host memory, with weak references to the tensors, so that the copy changes no peak.

    Attributes:
        moving: type names of iterators whose position cannot be set back.
    """

    def __init__(self, step: Callable[[], Any], model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._random_states = random_states()
        self.moving: list[str] = []
        self._tensors = KeptTensors()
        self._undo: list[Callable[[], object]] = []
        self._data_bytes: int | None = None  # bytes of data copied so far; None while there is no limit
        self._seen: dict[int, Any] = {}
        schedulers = [each for each in living(LRScheduler) if any(each.optimizer is o for o in optimizers)]
        with disable_torch_dispatch():
            self._walk([model, *optimizers, *schedulers])
            self._data_bytes = 0
            self._walk([step])
        self._seen.clear()
        self._undo.append(self.restore_random_states)

    def restore(self) -> None:
        """Put everything back, bit for bit. Tensors, lists and dictionaries stay the same objects."""
        self._tensors.begin_restoring()
        with (
            torch.no_grad(),
            disable_torch_dispatch(),
        ):  # under a FakeTensorMode of the program, torch would make fake tensors
            for undo in self._undo:
                undo()

    def _walk(self, roots: Iterable[Any]) -> None:
        waiting = deque(roots)
        while waiting:
            value = waiting.popleft()
            if id(value) not in self._seen and value is not self:
                self._seen[id(value)] = value
                waiting.extend(self._keep(value))

    def _keep(self, value: Any) -> Iterable[Any]:
        """Copy the state of one object; return the objects that it refers to."""
        cls = type(value)
        if derives(cls, torch.Tensor):
            kept = self._frozen(value)
            if isinstance(kept, KeptTensor):
                self._undo.append(kept.restored)
            elif autograd_state(value).is_leaf:  # its bytes are not copied, only its gradient is put back
                self._undo.append(functools.partial(setattr, value, "grad", value.grad))
            return ()
        if id(cls) in _LISTS:
            return self._keep_list(value)
        if id(cls) in _DICTS:
            return self._keep_dict(value)
        if id(cls) in _FIXED:
            return _parts(value)
        if cls is FunctionType:
            return self._keep_function(value)
        if cls is CellType:
            return self._keep_cell(value)
        return self._keep_special(value) or self._keep_object(value)

    def _keep_list(self, items: Any) -> Iterable[Any]:
        if len(items) > _MOST_ITEMS:
            whole = list(items)
            self._undo.append(lambda: _refill(items, whole))
            return ()
        frozen = [self._frozen(item) for item in items]
        self._undo.append(lambda: _refill(items, [_thawed(item) for item in frozen]))
        return list(items)

    def _keep_dict(self, entries: MutableMapping[Any, Any]) -> Iterable[Any]:
        is_small = len(entries) <= _MOST_ITEMS
        frozen = [(key, self._frozen(value) if is_small else value) for key, value in entries.items()]
        self._undo.append(lambda: _reset(entries, [(key, _thawed(value)) for key, value in frozen]))
        return list(entries.values()) if is_small else ()

    def _keep_cell(self, cell: CellType) -> Iterable[Any]:
        try:
            value = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            return ()
        frozen = self._frozen(value)

        def undo() -> None:
            cell.cell_contents = _thawed(frozen)

        self._undo.append(undo)
        return (value,)

    def _keep_function(self, function: FunctionType) -> Iterable[Any]:
        if not is_program_code(function.__code__.co_filename):
            return ()
        names, space = sorted(_names_in(function.__code__)), function.__globals__
        values = {name: dict.__getitem__(space, name) for name in names if dict.__contains__(space, name)}
        frozen = {name: self._frozen(value) for name, value in values.items()}

        def undo() -> None:
            for name in names:
                if name in frozen:
                    space[name] = _thawed(frozen[name])
                else:
                    space.pop(name, None)

        self._undo.append(undo)
        return [*(function.__closure__ or ()), *values.values()]

    def _keep_special(self, value: Any) -> tuple[Any, ...]:
        """Copy the state of a random generator, an array or an iterator; return the objects that it refers to."""
        cls = type(value)
        if is_a(value, torch.Generator):
            state = value.get_state().numpy().copy()
            self._undo.append(lambda: value.set_state(torch.from_numpy(state)))
        elif is_a(value, random.Random):
            self._undo.append(functools.partial(value.setstate, value.getstate()))
        elif is_a(value, np.random.Generator):
            self._undo.append(functools.partial(_set_bits, value.bit_generator, value.bit_generator.state))
        elif is_a(value, np.random.RandomState):
            self._undo.append(functools.partial(value.set_state, value.get_state()))
        elif is_a(value, np.ndarray):
            array = np.ndarray.view(value, np.ndarray)  # no code of a subclass runs
            if array.flags.writeable and self._may_copy(array.nbytes):
                self._undo.append(functools.partial(np.copyto, array, array.copy()))
        elif id(cls) in _ITERATORS:
            made = value.__reduce__()
            if len(made) > 2:  # an iterator that has ended has no position any more
                self._undo.append(functools.partial(value.__setstate__, made[2]))
            return tuple(made[1])
        elif any("__next__" in type_dict(base) for base in mro_of(cls)) and not is_program_class(cls):
            self.moving.append(class_name(cls))
        return ()

    def _keep_object(self, value: Any) -> Iterable[Any]:
        cls = type(value)
        attributes = instance_dict(value)
        is_of_torch = any(derives(cls, base) for base in _OF_TORCH)
        if attributes is None or not (is_of_torch or is_program_class(cls)):
            return ()
        methods = [
            each for base in mro_of(cls) if is_program_class(base) for each in type_dict(base).values()
        ]
        return [attributes, *(each for each in methods if type(each) is FunctionType)]

    def _frozen(self, value: Any) -> Any:
        """Return a tensor as bytes, and other values as they are."""
        if not is_a(value, torch.Tensor):
            return value
        if self._data_bytes is not None and not self._may_copy(value.nbytes):
            return value
        return self._tensors.keep(value) or value

    def _may_copy(self, nbytes: int) -> bool:
        if self._data_bytes is None:
            return True
        self._data_bytes += nbytes
        return self._data_bytes <= _MOST_DATA_BYTES

    def restore_random_states(self) -> None:
        """Put back only the global sources of random numbers."""
        for undo in self._random_states:
            undo()


def random_states() -> list[Callable[[], object]]:
    """Return functions that put the global sources of random numbers back into their current state."""
    with disable_torch_dispatch():
        states = read_states(devices_in_use(), ())

    def restore_torch() -> None:
        with disable_torch_dispatch():
            restore_states(states, ())

    return [
        functools.partial(random.setstate, random.getstate()),
        functools.partial(np.random.set_state, np.random.get_state()),
        restore_torch,
    ]


def living(*classes: type) -> list[Any]:
    """Return every object of some classes that gc lists. The caller must drop the list soon."""
    return of_classes(gc.get_objects(), lambda cls: any(derives(cls, base) for base in classes))


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    """Return the optimizers of a model's parameters, in the order of the first parameter of each.

    gc would list them in an order that differs from run to run.
    """
    place = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    first: list[tuple[int, Optimizer]] = []
    for optimizer in living(Optimizer):
        groups = optimizer.__dict__.get("param_groups", ())
        own = [place[id(each)] for group in groups for each in group["params"] if id(each) in place]
        first += [(min(own), optimizer)] if own else []
    return [optimizer for _, optimizer in sorted(first, key=lambda pair: pair[0])]


def _thawed(value: Any) -> Any:
    return value.restored() if isinstance(value, KeptTensor) else value


def _parts(value: Any) -> Iterator[Any]:
    if type(value) is functools.partial:
        yield from (value.func, *value.args, *value.keywords.values())
    elif type(value) is MethodType:
        yield from (value.__func__, value.__self__)
    else:
        yield from value


def _refill(items: Any, whole: list[Any]) -> None:
    items.clear()
    items.extend(whole)


def _reset(entries: MutableMapping[Any, Any], whole: list[tuple[Any, Any]]) -> None:
    """Put the entries of a dictionary back, in their order. Keys are compared by id, because they may be tensors."""
    if [id(key) for key in entries] != [id(key) for key, _ in whole]:
        entries.clear()
    for key, value in whole:
        if key not in entries or entries[key] is not value:
            entries[key] = value


def _set_bits(generator: Any, state: Any) -> None:
    generator.state = state


def _names_in(code: CodeType) -> set[str]:
    """Return the global names that a function, and those defined in it, may read or write."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


_WHOLE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Number of bytes -> integer type of this size."""


class KeptStorage:
    """The bytes of a storage at one moment."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = weakref.ref(storage)
        self._device = storage.device
        self._bytes: HostBytes = copy_out(storage)
        self.is_restored = False  # in this round of restoring

    @property
    def nbytes(self) -> int:
        """The size of the storage."""
        return len(self._bytes)

    def is_of(self, storage: torch.UntypedStorage) -> bool:
        """Return True if the bytes were copied from this storage object."""
        return self._storage() is storage

    def differs(self) -> bool:
        """Return True if the storage has other bytes now, or is gone."""
        storage = self._storage()
        return storage is None or storage.nbytes() != self.nbytes or (copy_out(storage) != self._bytes).any()

    def restored(self) -> torch.UntypedStorage:
        """Return the storage with these bytes; a new one if it is gone or has another size."""
        storage = self._storage()
        if storage is None or storage.nbytes() != self.nbytes:
            storage = new_storage(self.nbytes, self._device)
            self._storage = weakref.ref(storage)
            self.is_restored = False
        if not self.is_restored:
            copy_in(self._bytes, storage)
            self.is_restored = True
        return storage


@dataclass
class KeptTensor:
    """A tensor at one moment: its window on a storage, its gradient, and a weak reference to the tensor itself."""

    tensor: weakref.ref[torch.Tensor]
    storage: KeptStorage
    window: tuple[torch.dtype, torch.Size, tuple[int, ...], int]
    requires_grad: bool
    is_leaf: bool
    grad: KeptTensor | None

    def restored(self) -> torch.Tensor:
        """Return the tensor with its bytes and its gradient; a new one, without a graph, if it is gone."""
        storage, found = self.storage.restored(), self.tensor()
        if found is None:
            found = self._view_of(storage).requires_grad_(self.requires_grad)
            self.tensor = weakref.ref(found)
        elif storage_of(found) is not storage:
            found.data = self._view_of(storage)
        if self.is_leaf and autograd_state(found).is_leaf:
            if found.requires_grad != self.requires_grad:
                found.requires_grad_(self.requires_grad)
            gradient = None if self.grad is None else self.grad.restored()
            if found.grad is not gradient:
                found.grad = gradient
        return found

    def _view_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        dtype, size, stride, offset = self.window
        empty: Any = torch.empty(0, dtype=dtype, device=storage.device)
        view: torch.Tensor = empty.set_(storage, offset, size, stride)
        return view


class KeptTensors:
    """The copies of tensors. Tensors of one storage share one copy of its bytes."""

    def __init__(self) -> None:
        self._storages: dict[int, KeptStorage] = {}
        self._tensors: dict[int, KeptTensor] = {}

    def begin_restoring(self) -> None:
        """Begin a round of restoring: each storage is written once, when it is first requested."""
        for kept in self._storages.values():
            kept.is_restored = False

    def keep(self, tensor: torch.Tensor) -> KeptTensor | None:
        """Return a copy of the tensor; None for fake, sparse and composed tensors and wrappers, which own no bytes."""
        known = self._tensors.get(id(tensor))
        if known is not None and known.tensor() is tensor:
            return known
        with quiet(), torch.no_grad():
            storage = None if is_simulated(tensor) else storage_of(tensor)
            if storage is None or not _has_memory(tensor, storage):
                return None
            kept = self._storages.get(address_of(storage))
            if kept is None or not kept.is_of(storage):
                kept = self._storages[address_of(storage)] = KeptStorage(storage)
            window = (tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))
            state = autograd_state(tensor)
            gradient = tensor.grad if state.is_leaf else None
            found = KeptTensor(
                weakref.ref(tensor), kept, window, state.requires_grad, state.is_leaf,
                None if gradient is None else self.keep(gradient),
            )  # fmt: skip
            self._tensors[id(tensor)] = found
            return found


def _has_memory(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Return False for a storage with a size but no memory, as of a wrapper. Reading it would crash the process."""
    if not storage_bytes(storage) or memory_of(tensor):
        return True
    try:
        return bool(torch.UntypedStorage.data_ptr(storage))  # last, because it copies a lazy clone
    except RuntimeError as error:  # it never had memory
        pass_on(error)
        return False


def fingerprint(tensors: Iterable[torch.Tensor]) -> bytes:
    """Return a digest of the values of tensors, bit for bit; fake and sparse tensors are left out."""
    digest = hashlib.blake2b()
    with quiet(), torch.no_grad(), disable_torch_dispatch():
        for tensor in tensors:
            if is_simulated(tensor) or storage_of(tensor) is None:
                continue
            digest.update(f"{tensor.dtype} {tuple(tensor.size())}".encode())
            numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            # numpy does not know all types, so it gets a view of whole numbers. torch does not count numpy's copy.
            digest.update(numbers.detach().view(_WHOLE[numbers.element_size()]).cpu().numpy().tobytes())
    return digest.digest()
