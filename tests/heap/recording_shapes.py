"""Objects of many kinds. Each holds a tensor, and its class records the methods that memwatch calls."""

from __future__ import annotations

import enum
import functools
import sys
import threading
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from dataclasses import make_dataclass
from queue import Queue
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from recording_classes import metaclass, methods, note, reading
from torch import nn

SHAPES: dict[str, Callable[[torch.Tensor], Any]] = {}
"""The makers of objects that hold a tensor, by name."""
Maker = Callable[[torch.Tensor], Any]


def shape(make: Maker) -> Maker:
    SHAPES[make.__name__] = make
    return make


def _class(label: str, base: type = object, meta: type | None = None, **more: Any) -> Any:
    """Make a class with all special methods, and with a metaclass that has them."""
    names = methods(label, base, honest=base is not object)
    names["__class__"] = reading(f"{label}.__class__", lambda self: int if base is object else type(self))
    for name in more:
        names.pop(name, None)
    return (meta or type(base))(label, (base,), {**names, **more})


_Meta = metaclass("Meta")


@shape
def plain(tensor: torch.Tensor) -> Any:
    obj = _class("Plain", meta=_Meta)()
    object.__setattr__(obj, "held", tensor)
    return obj


@shape
def without_dictionary(tensor: torch.Tensor) -> Any:
    """Its `__dict__` is a property."""
    return [_class("NoDict", __dict__=reading("NoDict.__dict__", lambda self: {}))(), tensor]


@shape
def slotted(tensor: torch.Tensor) -> Any:
    obj = _class("Slotted", meta=_Meta, __slots__=("held",))()
    object.__setattr__(obj, "held", tensor)
    return obj


@shape
def equal_to_all(tensor: torch.Tensor) -> Any:
    """Hold a tensor in an object that is equal to every class, inside it and beside it in containers."""
    cls = _class("EqualToAll", meta=metaclass("EqualMeta"))
    obj = cls()
    object.__setattr__(obj, "held", [cls(), (tensor,), {"k": cls()}])
    return obj


@shape
def raising_hash(tensor: torch.Tensor) -> Any:
    obj = _class("RaisingHash", meta=metaclass("RaisingMeta", raises=("__hash__", "__eq__")))()
    object.__setattr__(obj, "held", tensor)
    return obj


@shape
def raising_getattribute(tensor: torch.Tensor) -> Any:
    cls = _class("RaisingRead", meta=metaclass("RaisingReads", raises=("__getattribute__",)))
    obj = cls()
    object.__setattr__(obj, "held", tensor)
    return obj


@shape
def class_attribute(tensor: torch.Tensor) -> Any:
    cls = _class("OfClass", meta=metaclass("MetaOfClass"))
    type.__setattr__(cls, "held", tensor)
    type.__setattr__(cls, "descriptor", _class("Descriptor")())
    return cls


def _container(base: type, fill: Callable[[Any, torch.Tensor], Any]) -> None:
    def make(tensor: torch.Tensor) -> Any:
        obj = base.__new__(_class(f"Of_{base.__name__}", base, meta=_Meta if type(base) is type else None))
        fill(obj, tensor)
        return obj

    make.__name__ = f"{base.__name__}_subclass"
    shape(make)


_container(list, list.append)
_container(deque, deque.append)
_container(dict, lambda obj, tensor: dict.__setitem__(obj, "k", tensor))
_container(OrderedDict, lambda obj, tensor: OrderedDict.__setitem__(obj, "k", tensor))
_container(defaultdict, lambda obj, tensor: dict.__setitem__(obj, "k", tensor))
_container(Counter, lambda obj, tensor: dict.__setitem__(obj, "k", tensor))


@shape
def tuple_subclass(tensor: torch.Tensor) -> Any:
    return tuple.__new__(_class("OfTuple", tuple, meta=_Meta), (tensor, 1))


@shape
def named_tuple(tensor: torch.Tensor) -> Any:
    cls = _class("Fields", tuple, meta=_Meta, _fields=(_class("FieldName", str)("held"), "other"))
    return tuple.__new__(cls, (tensor, 1))


@shape
def dictionary_with_keys_of_the_program(tensor: torch.Tensor) -> Any:
    key = _class("Key", meta=_Meta, __hash__=lambda self: hash("k"), __eq__=_noted_equal("Key.__eq__"))()
    return {key: 1, 1: {_class("Key2")(): [tensor]}}


def _noted_equal(label: str) -> Any:
    def equal(self: Any, other: Any) -> bool:
        note(label)
        return False

    return equal


@shape
def text_keys(tensor: torch.Tensor) -> Any:
    return {_class("Text", str)("k"): tensor}


@shape
def user_containers(tensor: torch.Tensor) -> Any:
    return _class("OfUserDict", UserDict)({"k": _class("OfUserList", UserList)([tensor])})


@shape
def queue(tensor: torch.Tensor) -> Any:
    obj = _class("OfQueue", Queue)()
    Queue.put(obj, tensor)
    return obj


@shape
def namespace(tensor: torch.Tensor) -> Any:
    return _class("OfNamespace", SimpleNamespace, meta=_Meta)(held=tensor)


@shape
def dataclass_with_slots(tensor: torch.Tensor) -> Any:
    cls = make_dataclass("Data", ["held"], bases=(_class("Base", __slots__=()),), slots=True, eq=False)
    obj = object.__new__(cls)
    object.__setattr__(obj, "held", tensor)
    return obj


@shape
def enumeration(tensor: torch.Tensor) -> Any:
    class Choice(enum.Enum):
        FIRST = "first"

        def __getattribute__(self, name: str) -> Any:
            note("Choice.__getattribute__")
            return enum.Enum.__getattribute__(self, name)

    object.__setattr__(Choice.FIRST, "held", tensor)
    return Choice.FIRST


@shape
def partial(tensor: torch.Tensor) -> Any:
    cls = _class(
        "OfPartial", functools.partial, meta=_Meta,
        func=reading("OfPartial.func", lambda self: None), args=reading("OfPartial.args", lambda self: ()),
    )  # fmt: skip
    return functools.partial.__new__(cls, print, tensor)


@shape
def thread_local(tensor: torch.Tensor) -> Any:
    base = _class("BaseLocal", threading.local, __init__=lambda self: note("BaseLocal.__init__"))
    obj = _class("OfLocal", base)()
    obj.held = tensor
    return obj


@shape
def error(tensor: torch.Tensor) -> Any:
    obj = _class("OfError", ValueError, meta=_Meta)(tensor)
    ValueError.__setattr__(obj, "held", tensor)
    return obj


@shape
def module(tensor: torch.Tensor) -> Any:
    """A lazy module of Python."""
    obj = _class("OfModule", ModuleType, meta=_Meta)("recorded_module")
    ModuleType.__setattr__(obj, "held", tensor)
    sys.modules["recorded_module"] = obj
    return [obj, tensor]


@shape
def proxy(tensor: torch.Tensor) -> Any:
    """It says that it is a tensor, as the proxies of wrapt do."""

    class Proxy:
        __slots__ = ("_inside",)

        def __getattr__(self, name: str) -> Any:
            note("Proxy.__getattr__")
            return getattr(object.__getattribute__(self, "_inside"), name)

        __class__ = reading("Proxy.__class__", lambda self: torch.Tensor)  # type: ignore[assignment]

    obj = Proxy()
    obj._inside = tensor
    return obj


@shape
def mock(tensor: torch.Tensor) -> Any:
    class Recording(MagicMock):
        def __getattribute__(self, name: str) -> Any:
            note("Mock.__getattribute__")
            return super().__getattribute__(name)

    obj = Recording()
    obj.held = tensor
    return obj


@shape
def closure(tensor: torch.Tensor) -> Any:
    obj = _class("InCell", meta=_Meta)()

    def inner(a: Any = obj, *, b: Any = obj) -> Any:
        return tensor, obj

    inner.__dict__["attribute"] = obj
    inner.__module__ = obj  # a program may set it to anything
    return inner


@shape
def defaults(tensor: torch.Tensor) -> Any:
    """A function whose tables are of the program's classes."""

    def inner(a: Any = 1, *, b: Any = 2) -> Any:
        return a, b

    function = FunctionType(inner.__code__, globals(), "function")
    function.__defaults__ = tuple.__new__(_class("Defaults", tuple), (tensor,))
    function.__kwdefaults__ = _dictionary("Keywords", b=2)
    function.__dict__ = _dictionary("Attributes", c=3)
    return function


def _dictionary(label: str, **items: Any) -> Any:
    made = dict.__new__(_class(label, dict))
    dict.update(made, items)
    return made


@shape
def attributes_of_a_subclass(tensor: torch.Tensor) -> Any:
    """Its attribute dictionary is of the program's class."""
    obj = type("WithOwnDict", (), {})()
    obj.__dict__ = _dictionary("OwnDict", held=tensor)
    return obj


@shape
def generator(tensor: torch.Tensor) -> Any:
    def make() -> Any:
        held, obj = tensor, _class("InGenerator", meta=_Meta)()
        yield held
        yield obj

    made = make()
    next(made)
    return made


@shape
def function_with_globals_of_a_subclass(tensor: torch.Tensor) -> Any:
    space = _dictionary("Globals", held=tensor)
    exec("def inner():\n    return held", space)
    return dict.__getitem__(space, "inner")


@shape
def array_of_objects(tensor: torch.Tensor) -> Any:
    def finalize(self: Any, obj: Any) -> None:
        note("OfArray.__array_finalize__")

    cls = type("OfArray", (np.ndarray,), {"__array_finalize__": finalize})
    array = np.ndarray.__new__(cls, (2, 2), dtype=object)
    array[0, 0] = tensor
    return array


@shape
def callback(tensor: torch.Tensor) -> Any:
    """A bound method of an object that says it is equal to all."""
    obj = _class("Bound", method=lambda self: None)()
    object.__setattr__(obj, "held", tensor)
    return object.__getattribute__(obj, "method")


def _field(label: str, name: str) -> property:
    """Return a property that covers a field of a tensor."""
    field = getattr(torch._C.TensorBase, name)
    return reading(f"{label}.{name}", field.__get__).setter(lambda self, value: field.__set__(self, value))


_FIELDS = (
    "shape", "dtype", "layout", "device", "grad", "data", "requires_grad", "is_leaf", "grad_fn", "nbytes",
    "is_cpu", "is_sparse", "is_meta", "_base", "_backward_hooks", "_version",
)  # fmt: skip


@functools.cache
def tensor_class(base: type, label: str) -> Any:
    """Return a subclass of tensors or parameters that covers fields and methods, with a metaclass of its own."""
    meta = metaclass(f"MetaOf{label}", type(base), honest=True)
    own: dict[str, Any] = {name: _field(label, name) for name in _FIELDS}
    names = (
        "untyped_storage",
        "storage_offset",
        "element_size",
        "data_ptr",
        "numel",
        "size",
        "stride",
        "dim",
    )
    own |= methods(label, torch.Tensor, names, honest=True)
    return _class(label, base, meta, **own)


@shape
def tensor_subclass(tensor: torch.Tensor) -> Any:
    made = torch.Tensor._make_subclass(tensor_class(torch.Tensor, "OfTensor"), tensor)
    torch._C.TensorBase.__setattr__(made, "beside", tensor)
    return made


@shape
def parameter_subclass(tensor: torch.Tensor) -> Any:
    return [torch.Tensor._make_subclass(tensor_class(nn.Parameter, "OfParameter"), tensor, True), tensor]


class Wrapper(torch.Tensor):
    """A wrapper of an inner tensor."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __getattribute__(self, name: str) -> Any:
        note("Wrapper.__getattribute__")
        return super().__getattribute__(name)

    def __tensor_flatten__(self) -> Any:
        note("Wrapper.__tensor_flatten__")
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        note("Wrapper.__tensor_unflatten__")
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note("Wrapper.__torch_function__")
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note("Wrapper.__torch_dispatch__")
        insides = [torch.Tensor.__getattribute__(a, "inner") if type(a) is cls else a for a in args]
        return func(*insides, **(kwargs or {}))


@shape
def wrapper(tensor: torch.Tensor) -> Any:
    return Wrapper(tensor)


@functools.cache
def module_class(base: type) -> Any:
    """Return a subclass of modules that records all."""
    label = f"Of{base.__name__}"
    own: dict[str, Any] = {
        "__dict__": reading(f"{label}.__dict__", nn.Module.__dict__["__dict__"].__get__),
        "__getattr__": methods(label, nn.Module, ("__getattr__",))["__getattr__"],
    }
    return _class(label, base, metaclass(f"MetaOf{label}", honest=True), **own)


@shape
def torch_module(tensor: torch.Tensor) -> Any:
    made = module_class(nn.Linear)(4, 4)
    nn.Module.register_buffer(made, "held", tensor)
    attributes = nn.Module.__dict__["__dict__"].__get__(made)
    attributes["_modules"] = _dictionary("Modules", inner=module_class(nn.Linear)(2, 2))
    return made


@shape
def module_list(tensor: torch.Tensor) -> Any:
    made = module_class(nn.ModuleList)([nn.Linear(2, 2)])
    nn.Module.register_buffer(made, "held", tensor)
    return made


class SizesByCode(torch.Tensor):
    """A tensor whose class computes sizes, layout and device with its own code."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), dtype=inner.dtype, dispatch_sizes_strides_policy="sizes", dispatch_layout=True,
            dispatch_device=True,
        )  # fmt: skip

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note("SizesByCode.__torch_dispatch__")
        insides = [torch.Tensor.__getattribute__(a, "inner") if type(a) is cls else a for a in args]
        return func(*insides, **(kwargs or {}))


@shape
def tensor_with_sizes_by_code(tensor: torch.Tensor) -> Any:
    return SizesByCode(tensor)


class ComposedWithSizes(SizesByCode):
    def __tensor_flatten__(self) -> Any:
        note("ComposedWithSizes.__tensor_flatten__")
        return ["inner"], None


@shape
def wrapper_with_sizes_by_code(tensor: torch.Tensor) -> Any:
    return ComposedWithSizes(tensor)


@functools.cache
def optimizer_class(base: type, *, wraps: bool) -> Any:
    """Return a subclass of an optimizer. If `wraps`, its groups and its state are properties."""
    label = f"Of{base.__name__}"
    own = {name: _kept_elsewhere(label, name) for name in ("param_groups", "state")} if wraps else {}
    return _class(label, base, metaclass(f"MetaOf{label}", honest=True), **own)


def _kept_elsewhere(label: str, name: str) -> property:
    inside = f"_inner_{name}"

    def write(self: Any, value: Any) -> None:
        object.__setattr__(self, inside, value)

    return reading(f"{label}.{name}", lambda self: object.__getattribute__(self, inside)).setter(write)
