"""See every op below autograd, through a dispatch key of torch or through a dispatch mode.

`KeyInterceptor` uses the dispatch key `Fake`, which lies below autograd. torch 2.13 does not use it. While a thread
includes the key, torch calls the key's kernel for every op, and the program does not notice the kernel. Ops that
allocate nothing skip the key, except some views that make an autograd node (`VIEWS`).

`ModeInterceptor` works without a free key, but it has side effects. While any mode is on, ATen uses out-of-place
formulas in backward. dynamo runs compiled functions under a mode only if the mode allows it.

Both call a handler for each op. They pass its `OpKind`: facts that a recorder needs about an overload, computed once.
`passes` tests whether the key works in this process.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import torch

from memwatch._torch.dispatch import (
    FREE_KEY,
    FREE_KEY_NAME,
    OPS_MODULE,
    OpOverload,
    base_name_of,
    call_of,
    include_key,
    is_key_included,
    kernel_library,
    op_names,
    overload_name_of,
    schema_of,
    schemas,
    takes_numbers_as_tensors,
)
from memwatch._torch.dynamo import disabled, frame_callback
from memwatch._torch.fake import FakeTensor
from memwatch._torch.modes import (
    UncompiledMode,
    current_mode,
    disable_torch_dispatch,
    disable_torch_function,
    enable_torch_function,
    is_torch_own,
    mode_stack,
    pop_mode,
    push_mode,
)
from memwatch.capture.schema import ACCESSES, NONE, OF_DIMENSION, OF_REDUCTION
from memwatch.heap.classes import ByClass, derives
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.patches import Patches
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

READ, WRITE = (ACCESSES.index(access) for access in ("read", "write"))
UNSEEN: Final = frozenset({"detach", "alias"})
"""Ops that allocate nothing and must skip the recorder. `nn.Parameter` takes the result of `detach` only if it has no
Python object yet, and a kernel in Python would make one."""
LIFT: Final = "lift_fresh"
"""The op through which torch passes tensors that it made from Python's data or around another library's memory.

It allocates nothing and has no row in `ops`. The tensor was allocated without an op, and here memwatch first sees it.
"""
VIEWS: Final = frozenset(
    {
        "_reshape_alias", "as_strided", "diagonal", "expand", "permute", "select.int", "slice.Tensor",
        "split.Tensor", "split_with_sizes", "squeeze", "squeeze.dim", "squeeze.dims", "t", "transpose.int",
        "unbind.int", "unfold", "unsqueeze", "view", "view_as_complex", "view_as_real",
    }
)  # fmt: skip
"""Views whose autograd node is recorded. Memory that the node allocates in backward gets the line of the view. Other
views are rare."""
_BOOKKEEPING: Final = ("profiler", "prim")
"""Namespaces of ops that compute nothing: marks of profilers, and `prim::device` of fake tensors."""
_RESIZING: Final = frozenset({"resize_", "resize_as_", "set_", "_resize_output_"})
"""Ops that may change the size of an argument's storage. So may all ops with `out=`."""
_NUMBERS: Final[dict[type, torch.dtype]] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
"""The dtype of the tensor that torch makes of a Python number."""
_RECORDED_NUMBERS: Final = {"dim": OF_DIMENSION, "dims": OF_DIMENSION, "reduction": OF_REDUCTION}
"""The names of the arguments whose numbers are recorded, each with its index in `NUMBERS` of the schema."""
_CHANGING_SIZES: Final = frozenset({"squeeze_", "unsqueeze_"})
"""In-place ops that change the shape of their tensor. `numbers_in` runs after the op, when `dim` no longer fits it."""
_TYPES_OF_NUMBERS: Final = ("int", "List[int]", "Optional[int]", "Optional[List[int]]")
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_EXPECTED: Final = 6
"""The sum that the ops of `passes` must give."""


class OpKind:
    """The facts that a recorder needs about an overload, computed once.

    Attributes:
        overload: the overload itself.
        name: such as ``aten.add.Tensor``.
        numbers: position and index in `NUMBERS` of each argument whose numbers are recorded.
        call: runs the overload.
        takes_lists: whether an argument is a list, which may hold tensors.
        accesses: read or write, for each argument by position.
        write_names: names of the arguments that are written.
        resizes: whether the op may change the storage size of an argument.
        is_view: whether it is one of `VIEWS`, which allocate nothing.
        is_lift: whether it is `LIFT`.
        has_no_row: whether it has no row in `ops`, because it is one of `VIEWS` or `LIFT`.
    """

    __slots__ = (
        "_kind_with_call",
        "_kind_with_torch_function",
        "accesses",
        "call",
        "has_no_row",
        "is_lift",
        "is_view",
        "name",
        "numbers",
        "overload",
        "resizes",
        "takes_lists",
        "write_names",
    )

    def __init__(self, overload: Any) -> None:
        arguments = schema_of(overload).arguments
        self.overload = overload
        self.is_view: Final = is_noted_view(overload)
        self.is_lift: Final = is_lift(overload)
        self.has_no_row: Final = self.is_view or self.is_lift
        self.name = str(overload)
        self.call: Callable[..., Any] = call_of(overload)
        self.takes_lists = any("[]" in str(argument.type) for argument in arguments)
        written = [
            (position, argument.name)
            for position, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        positions = {position for position, _ in written}
        self.accesses: Final = tuple(
            WRITE if position in positions else READ for position in range(len(arguments))
        )
        self.write_names: Final = frozenset(name for _, name in written)
        self.resizes = bool(written) and (
            "out" in overload_name_of(overload) or base_name_of(overload) in _RESIZING
        )
        has_tensor = bool(arguments) and str(arguments[0].type) == "Tensor"
        has_tensor &= base_name_of(overload) not in _CHANGING_SIZES
        self.numbers: Final = tuple(
            (position, _RECORDED_NUMBERS[argument.name])
            for position, argument in enumerate(arguments)
            if has_tensor and argument.name in _RECORDED_NUMBERS and str(argument.type) in _TYPES_OF_NUMBERS
        )
        self._kind_with_torch_function: OpKind | None = None
        self._kind_with_call: OpKind | None = None

    def numbers_in(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[int, int, int, int, int]]:
        """Return rows of the table `numbers` without their column `op`. The op has run already.

        The native recorder calls this for ops that it gets from Python code.
        """
        found: list[tuple[int, int, int, int, int]] = []
        if not args:
            return found
        for position, argument in self.numbers:
            value = args[position] if position < len(args) else self._by_name(position, kwargs)
            if argument == OF_REDUCTION:
                if type(value) is int:
                    found.append((argument, value, NONE, NONE, NONE))
                continue
            tensor, wanted = args[0], [value] if type(value) is int else value
            if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_nested:
                continue
            count = tensor.dim()
            found += [
                (argument, each % count, count, tensor.size(each), tensor.stride(each))
                for each in wanted or ()
                if type(each) is int and -count <= each < count
            ]
        return found

    def _by_name(self, position: int, kwargs: dict[str, Any]) -> Any:
        """Return the value of an argument given by name, such as `dim` of a stable sort; else its default."""
        argument = schema_of(self.overload).arguments[position]
        default = argument.default_value if argument.has_default_value() else None
        return kwargs.get(argument.name, default)

    def numbers_as_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Replace each number by a tensor where the schema has a tensor. Return None if nothing changes.

        If C++ makes a tensor of a number, torch passes the number to a kernel in Python, but most ops refuse numbers
        there. So traced code such as `x.shape[0] // 2` fails under any dispatch mode.
        """
        if takes_numbers_as_tensors(base_name_of(self.overload)):
            return None
        restored = list(args)
        for position, argument in enumerate(schema_of(self.overload).arguments[: len(args)]):
            dtype = _NUMBERS.get(args[position].__class__)
            if dtype is not None and str(argument.type) == "Tensor":
                restored[position] = torch.scalar_tensor(args[position], dtype=dtype)
        return None if all(new is old for new, old in zip(restored, args, strict=True)) else tuple(restored)

    def with_call(self, call: Callable[..., Any]) -> OpKind:
        """Return a copy of the kind with another call. The next `with_call` changes and returns the same copy."""
        kind = self._kind_with_call
        if kind is None:
            kind = self._kind_with_call = OpKind(self.overload)
        kind.call = call
        kind._kind_with_torch_function = None
        return kind

    def with_torch_function(self) -> OpKind:
        """Return a copy of the kind for a handler that runs with `__torch_function__` off. Its call switches it on."""
        if self._kind_with_torch_function is None:
            self._kind_with_torch_function = OpKind(self.overload)
            self._kind_with_torch_function.call = functools.partial(_with_torch_function, self.call)
        return self._kind_with_torch_function


def _with_torch_function(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with enable_torch_function():
        return call(*args, **kwargs)


def is_noted_view(overload: Any) -> bool:
    """Return whether an overload is one of `VIEWS`."""
    return (
        overload.namespace == "aten" and str(overload).removeprefix("aten.").removesuffix(".default") in VIEWS
    )


def is_lift(overload: Any) -> bool:
    """Return whether an overload is `LIFT`."""
    return overload.namespace == "aten" and base_name_of(overload) == LIFT


def mode_kind(func: Any) -> OpKind | None:
    """Return the kind of an op that a dispatch mode sees; None if the recorder ignores the op."""
    if (
        not isinstance(func, OpOverload)
        or (func.is_view and not (is_noted_view(func) or is_lift(func)))
        or base_name_of(func) in UNSEEN
        or func.namespace in _BOOKKEEPING
    ):
        return None
    return OpKind(func)


Handler: TypeAlias = Callable[[OpKind, tuple[Any, ...], dict[str, Any]], Any]
"""A function that runs an op and returns its result. It gets the op's kind and arguments."""


class Interceptor(Protocol):
    """Calls the handler for every op of this thread between `start` and `stop`."""

    @property
    def name(self) -> str:
        """``key`` or ``mode``."""

    @property
    def python_functions(self) -> tuple[Callable[..., Any], ...]:
        """The Python functions that torch may call while dynamo evaluates frames."""

    def start(self, handler: Handler) -> None:
        """Begin to call `handler` for every op."""

    def stop(self) -> None:
        """Leave torch as it was before `start`."""

    def sees_this_thread(self) -> bool:
        """Return True in the block's thread and in autograd threads that run a backward for it."""

    def pause(self) -> bool:
        """Switch off in this thread until `resume`, for compiled code. Return whether it was on."""

    def resume(self) -> None:
        """Switch on again."""


def passes(start: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Return True if torch has a free key, and ops have the right result while an interceptor is on."""
    if FREE_KEY is None:
        return False
    try:
        with _unseen_by_the_program():
            start()
            try:
                total = (torch.ones(3, requires_grad=True) * 2).sum()
                total.backward()
            finally:
                stop()
            return total.item() == _EXPECTED
    except (RuntimeError, AttributeError, TypeError) as error:
        pass_on(error)
        return False


@contextlib.contextmanager
def _unseen_by_the_program() -> Iterator[None]:
    """Run memwatch's own ops below every mode of the program, with autograd as usual."""
    with disable_torch_function(), disable_torch_dispatch(), torch.inference_mode(False), torch.enable_grad():
        yield


_PROFILER: Final = "profiler"
"""The namespace of the marks of profilers, which skip the key."""
Libraries: TypeAlias = dict[str, Any]
"""Libraries of kernels, by namespace. They stay registered as long as these objects live."""
KernelOf: TypeAlias = Callable[[str, Any], tuple[Any, bool] | None]
"""A function that returns an overload's kernel and whether the kernel takes the keyset; None without a kernel."""


class Kernels(Protocol):
    """A backend's kernels on the free dispatch key."""

    def put(self) -> None:
        """Register the kernels for every op that allocates. Other ops skip the key."""

    def take_off(self) -> None:
        """Remove them."""


class KernelTarget(Protocol):
    """The object that a backend's kernels call."""

    def begin(self, handler: Handler) -> None:
        """Let the kernels record: through the handler, or through the backend's own code."""

    def end(self) -> None:
        """Let the kernels run ops and record nothing."""


class _Registered:
    """The kernels on the key. They stay after a block, until another backend registers its kernels."""

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
    """Register the kernels on the key, and return the libraries that hold them.

    - An overload that allocates, or that is `LIFT` or one of `VIEWS`, gets its kernel from `kernel_of`.
    - Any other overload gets a kernel that skips the key.

    In Python, one fallback kernel for all overloads would fail under FakeTensorMode. This mode switches itself off
    while it runs an op. Then torch looks up a Python kernel by its overload, and ignores fallbacks.

    Args:
        kernel_of: returns the kernel of an overload. None if one C++ kernel serves all of these overloads, as in the
            native recorder.
    """
    libraries: Libraries = {}
    for space, name, overload in _overloads(_names_that_may_skip() if kernel_of is None else op_names()):
        if space not in libraries:
            libraries[space] = kernel_library(space, __file__)
        is_skipping_view = overload.is_view and not (is_noted_view(overload) or is_lift(overload))
        if is_skipping_view or base_name_of(overload) in UNSEEN or space == _PROFILER:
            libraries[space].impl(name, FREE_KEY_NAME, torch.library.fallthrough_kernel, False)
        elif kernel_of is not None and (found := kernel_of(space, overload)) is not None:
            kernel, takes_keyset = found
            libraries[space].impl(name, FREE_KEY_NAME, kernel, takes_keyset)
    return libraries


def _names_that_may_skip() -> list[str]:
    """Return the qualified names of overloads that may skip the key: views, `UNSEEN`, and marks of profilers.

    torch makes an object when an overload is first read from `torch.ops`. Making thousands of them would take longer
    than the first block.
    """
    makes_bytes = {
        f"{schema.name}.{schema.overload_name}".removesuffix(".")
        for schema in schemas()
        if not _is_view(schema) and schema.name.rpartition("::")[2] not in UNSEEN
    }
    return [name for name in op_names() if name not in makes_bytes or name.startswith(f"{_PROFILER}::")]


def _is_view(schema: Any) -> bool:
    """Return `is_view` of an overload, from its schema alone."""
    written = [each.alias_info.is_write for each in schema.arguments if each.alias_info is not None]
    return bool(written) and not any(written)


def _overloads(names: Iterable[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield the namespace, the name in it, and the overload of each qualified name that is defined."""
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


_PATIENCE_EVENTS: Final = 10_000_000
"""Events of `sys.setprofile`, calls and returns. If a block ends inside an op, its mode waits for the return of the op,
but no longer than these events. A guess."""


class ModeInterceptor(UncompiledMode):
    """Intercept with a TorchDispatchMode that dynamo ignores.

    Args:
        dispatch: a C function that torch calls instead of `__torch_dispatch__` below, with the same arguments. It has
            no frame, so dynamo cannot compile it.
    """

    name: Final = "mode"
    supports_higher_order_operators = True
    """Ops inside such operators are not seen, because torch removes the mode meanwhile."""

    def __init__(self, dispatch: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self._dispatch = dispatch
        self._handler: Handler | None = None
        self._kinds: dict[int, OpKind | None] = {}
        self._overloads: list[Any] = []
        self._thread = threading.get_ident()
        self._at_entry: list[Any] = []
        self.python_functions: tuple[Callable[..., Any], ...] = (ModeInterceptor.__torch_dispatch__,)

    def start(self, handler: Handler) -> None:
        """Push the mode."""
        self._handler = handler
        if self._dispatch is not None:  # torch accepts only a bound method here
            self.__dict__["__torch_dispatch__"] = MethodType(self._dispatch, self)
        self._at_entry = [mode for mode in mode_stack() if is_torch_own(mode)]
        self.__enter__()

    def stop(self) -> None:
        """Remove the mode from the stack. Modes that the program pushed later stay."""
        if self._is_pushed():
            self._take_off()
        elif self._handler is not None and sys.getprofile() is None and threading.get_ident() == self._thread:
            # The block ends inside an op. torch took the mode off for the op, and puts it back when the op returns
            sys.setprofile(functools.partial(self._take_off_later, iter(range(_PATIENCE_EVENTS))))
        self._handler = None
        self.__dict__.pop("__torch_dispatch__", None)

    def _is_pushed(self) -> bool:
        return any(mode is self for mode in mode_stack())

    def _take_off(self) -> None:
        above = []
        while current_mode() is not self:
            above.append(pop_mode())
        self.__exit__(None, None, None)
        for mode in reversed(above):
            push_mode(mode)

    def _take_off_later(self, tries: Iterator[int], *call: Any) -> None:
        """Remove the mode as soon as torch has put it back. `sys.setprofile` calls this before the next op begins."""
        started_again = self._handler is not None
        back = self._is_pushed()
        if started_again or back or next(tries, None) is None:
            sys.setprofile(None)
        if back and not started_again:
            self._take_off()

    def sees_this_thread(self) -> bool:
        """Return whether the mode is on in this thread. autograd passes it on to the threads of other devices."""
        return self._is_pushed()

    def pause(self) -> bool:
        """Stay on, because dynamo ignores this mode; return True."""
        return True

    def resume(self) -> None:
        """Do nothing, because `pause` left the mode on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass an op to `_hand_on`. While dynamo evaluates frames, hide that code from it."""
        if frame_callback() is not None:
            return _unseen_by_dynamo(self._hand_on, func, types, args, kwargs or {})
        return self._hand_on(func, types, args, kwargs or {})

    def _hand_on(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pass an op to the recorder, except ignored ops and ops that a tensor subclass dispatches itself."""
        handler = self._handler
        if handler is None:
            return func(*args, **kwargs)
        try:
            beneath = mode_stack() if types and any(_dispatches_itself(kind) for kind in types) else None
            kind = None if beneath is not None else self._kind_of(func)
        except MemoryError:  # the op is not recorded
            return func(*args, **kwargs)
        if beneath is not None:
            return self._leave_to(beneath, func, args, kwargs)
        if kind is None:
            return func(*args, **kwargs)
        return handler(kind, args, kwargs)

    def _kind_of(self, func: Any) -> OpKind | None:
        try:
            return self._kinds[id(func)]
        except KeyError as error:
            pass_on(error)
            self._overloads.append(func)  # keeps it alive, so that its id stays unique
            kind = self._kinds[id(func)] = mode_kind(func)
            return kind

    def _leave_to(self, beneath: list[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let the tensor subclass among the arguments run the op, after the modes beneath this one.

        If a mode returns `NotImplemented`, torch calls the subclass at once and leaves out the modes beneath. So move
        this mode below them and start the op again. Then they see the op, and this mode sees the ops that the subclass
        runs. torch's own modes need no such move, because torch calls a subclass before them.
        """
        # only modes of torch from before the block, such as the FakeTensorMode of the program's tensors, or no mode
        if all(any(mode is known for known in self._at_entry) for mode in beneath):
            return NotImplemented
        # a mode of torch that was pushed inside the block traces the program, so the op belongs to it
        if any(is_torch_own(mode) for mode in beneath):
            return func(*args, **kwargs)
        for _ in beneath:
            pop_mode()
        try:
            for mode in (self, *beneath):
                push_mode(mode)
            return func(*args, **kwargs)
        finally:
            while current_mode() is not None:
                pop_mode()
            for mode in beneath:
                push_mode(mode)


_disabled: Callable[..., Any] | None = None


def _unseen_by_dynamo(function: Callable[..., Any], *args: Any) -> Any:
    global _disabled  # noqa: PLW0603  # not functools.cache: dynamo warns about it
    if _disabled is None:
        _disabled = disabled(lambda function, *args: function(*args))
    return _disabled(function, *args)


def _has_own_dispatch(kind: type) -> bool:
    if kind is torch.Tensor or kind is torch.nn.Parameter or derives(kind, FakeTensor):
        return False
    name = "__torch_dispatch__"
    own = next(names[name] for names in map(type_dict, mro_of(kind)) if name in names)
    return own is not type_dict(torch.Tensor)[name]


_dispatches_itself: Final = ByClass(_has_own_dispatch)
