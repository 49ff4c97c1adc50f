"""The fake tensors of an estimate: one rank of a simulated job, for a program that should not notice them.

The fake tensors answer reads, and the fake process groups need no other processes.

| torch | here |
| --- | --- |
| torch._subclasses.fake_tensor.FakeTensorMode, DataDependentOutputException | fake_mode_with_zero_reads(on_read, ...) |
| torch._subclasses.fake_tensor.DynamicOutputShapeException and others | UNANSWERABLE |
| torch._subclasses.fake_tensor.unset_fake_temporarily | real_tensors() |
| torch._subclasses.fake_tensor.init_gpu_context | touched_by_no_fake() |
| torch.testing._internal.distributed.fake_pg.FakeStore | FakeStore |
| torch.distributed.distributed_c10d._new_process_group_helper | MAKE_GROUP |
| torch.nn.parallel.distributed._verify_param_shape_across_processes | VERIFY |
| torch.distributed.Logger.set_runtime_stats_and_log | Logger, LOG |
| torch.distributed._register_comm_hook | register_hook |
| torch.distributed.device_mesh.DeviceMesh._create_sub_mesh | SUB_MESH |
| torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty | SHARDING, CHUNK |
| torch.distributed.tensor._sharding_prop.ShardingPropagator._propagate_tensor_meta_non_cached | PROPAGATOR, PROPAGATE |
| torch.optim.optimizer._foreach_supported_types | FOREACH_TYPES |

`plain_to_programs` answers the program's questions whether a tensor is fake:

| torch | here |
| --- | --- |
| torch._subclasses.FakeTensor, torch._subclasses.fake_tensor.FakeTensor | answered: no tensor of the estimate is one |
| torch._subclasses.fake_tensor.is_fake | answered: False |
| torch._guards.detect_fake_mode, torch._guards.active_fake_mode | answered: None |
| torch.utils._python_dispatch._get_current_dispatch_mode | noted: it shows the mode |
| torch.utils._python_dispatch._get_current_dispatch_mode_stack | noted |
| torch.utils._python_dispatch.is_in_torch_dispatch_mode | noted |

Only an estimate imports this file, because its parts of torch.distributed take a second to import.
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import torch

from memwatch._torch.fake import FakeTensor
from memwatch._torch.jit import tracing_state
from memwatch._torch.lookup import ABSENT, NoSuchClass, Part, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

_job: Final = Part("a program cannot be estimated")
_Mode: Final[Any] = _job.take("torch._subclasses.fake_tensor.FakeTensorMode", NoSuchClass)
_ReadsValue: Final[Any] = _job.take("torch._subclasses.fake_tensor.DataDependentOutputException", NoSuchClass)
_ShapeOfValues: Final[Any] = _job.take(
    "torch._subclasses.fake_tensor.DynamicOutputShapeException", NoSuchClass
)
real_tensors: Final[Callable[[], AbstractContextManager[Any]]] = _job.required(
    "torch._subclasses.fake_tensor.unset_fake_temporarily"
)
"""A guard: ops inside make real tensors."""
UNANSWERABLE: Final = (_ShapeOfValues, _ReadsValue)
"""The exceptions of ops whose result depends on values. `func` is the op."""

_HAS_GROUPS: Final = torch.distributed.is_available()


def _if_there(path: str) -> Any:
    return _job.take(path, None) if _HAS_GROUPS else None


def _name_if_there(path: str) -> str:
    _if_there(path)
    return path.rpartition(".")[2]


FakeStore: Final[Any] = _if_there("torch.testing._internal.distributed.fake_pg.FakeStore")
"""A store that keeps nothing. Importing it registers the backend named fake."""
MAKE_GROUP: Final = _name_if_there("torch.distributed.distributed_c10d._new_process_group_helper")
"""The function of distributed_c10d that makes every process group."""
VERIFY: Final = _name_if_there("torch.nn.parallel.distributed._verify_param_shape_across_processes")
"""The function with which DistributedDataParallel compares the shapes of all ranks, by their values."""
SUB_MESH: Final = _name_if_there("torch.distributed.device_mesh.DeviceMesh._create_sub_mesh")
"""The method of DeviceMesh that reads a table of ranks."""
Logger: Final[Any] = _if_there("torch.distributed.Logger")
LOG: Final = _name_if_there("torch.distributed.Logger.set_runtime_stats_and_log")
"""The method with which DistributedDataParallel logs how long its last steps took."""
register_hook: Final[Any] = _if_there("torch.distributed._register_comm_hook")
"""Register the hook that a Reducer calls with a full bucket."""
PROPAGATOR: Final[Any] = _if_there("torch.distributed.tensor._sharding_prop.ShardingPropagator")
PROPAGATE: Final = _name_if_there(
    "torch.distributed.tensor._sharding_prop.ShardingPropagator._propagate_tensor_meta_non_cached"
)
"""The method of ShardingPropagator that runs an op on whole fake tensors to learn the shapes of its results."""
SHARDING: Final[Any] = _if_there("torch.distributed.fsdp._fully_shard._fsdp_param")
CHUNK: Final = _name_if_there("torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty")
"""The function in the module SHARDING that cuts a parameter into the shards of all ranks."""
FOREACH_TYPES: Final[list[type]] = Part("optimizers of an estimate take no lists of tensors at once").take(
    "torch.optim.optimizer._foreach_supported_types", []
)
"""The classes of parameters that an optimizer on a GPU processes all at once by default."""
_TOUCH: Final = "torch._subclasses.fake_tensor.init_gpu_context"
Part("").take(_TOUCH, None)
require_jobs: Final = _job.require
"""Raise MemwatchError if this torch lacks a name that an estimate needs."""

_READS_NUMBER: Final = "aten::_local_scalar_dense"
_ORDER: Final = "aten::randperm"


def fake_mode_with_zero_reads(
    on_read: Callable[[bool], None],
    on_op: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    complete: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Any],
    answer: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> AbstractContextManager[object]:
    """Return a FakeTensorMode in which a read of an unknown value returns zero.

    With zeros, training goes on: `GradScaler` finds no infinity, and assertions of a finite loss pass. An order of
    indices (`randperm`) is real, because samplers of a DataLoader read all of it.

    Args:
        on_read: called at each read of an unknown value, with True if the program asks for yes or no, not for a number.
        on_op: called with each op that the program calls and its arguments, but not with the inner ops of an op.
        complete: called with such an op, its arguments and its fake results; returns the results.
        answer: called with an op that needs values, and its arguments; returns its results, or None if the values are
            not known.
    """
    has_gpu = torch.accelerator.is_available()  # read before the program gets a simulated GPU

    class Answering(_Mode):  # type: ignore[misc]  # the base is looked up
        avoid_device_init = not has_gpu
        depth = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.name().partition(".")[0] == _ORDER and not _is_elsewhere(kwargs):
                with real_tensors():
                    return func(*args, **(kwargs or {}))
            # while torch.jit traces, a read of a shape becomes part of the trace
            is_noted = not self.depth and tracing_state() is None
            if is_noted:
                on_op(func, args, kwargs or {})
            self.depth += 1
            try:
                found = super().__torch_dispatch__(func, types, args, kwargs)
                return complete(func, args, kwargs or {}, found) if is_noted else found
            except UNANSWERABLE as error:
                known = answer(func, args, kwargs or {})
                if known is not None:
                    return known
                if not isinstance(error, _ReadsValue):
                    raise
                value = _zero(args[0].dtype) if func.name() == _READS_NUMBER else False
                on_read(type(value) is bool)
                return value
            finally:
                self.depth -= 1

    mode: AbstractContextManager[object] = Answering(allow_non_fake_inputs=True)
    return mode


def touched_by_no_fake() -> AbstractContextManager[object]:
    """Keep torch from making a real tensor on the GPU before the first fake one, on a machine without a GPU.

    torch 2.11 asks torch only whether a GPU is available, and a simulated one says yes. Enter this before the program
    gets one.
    """
    if torch.accelerator.is_available() or find(_TOUCH) is ABSENT:
        return contextlib.nullcontext()
    return patch(_TOUCH, lambda device: None)


def copy_fake(tensor: Any, memo: dict[int, Any]) -> Any:
    """Return the deep copy of a fake tensor, as `FakeTensor.__deepcopy__`.

    torch's own copies the attributes of the tensor too. The copy would belong to a copy of the mode, and an op refuses
    tensors of two modes. The real tensor in which a fake one keeps a known value cannot be copied under the mode.
    """
    for kept in (tensor.fake_mode, tensor.constant):
        memo[id(kept)] = kept
    return torch.Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-untyped-call]


def is_raised_by_fakes(error: BaseException) -> bool:
    """Return True for an error that only fake tensors raise."""
    return type(error).__module__.startswith("torch._subclasses.")


def _is_elsewhere(kwargs: dict[str, Any] | None) -> bool:
    return (kwargs or {}).get("device") not in (None, torch.device("cpu"))


def _zero(dtype: torch.dtype) -> bool | int | float | complex:
    if dtype is torch.bool:
        return False
    return 0j if dtype.is_complex else 0.0 if dtype.is_floating_point else 0


_TORCHS: Final = ("torch", "memwatch", "functorch")
"""Packages whose code works with fake tensors and gets torch's own answers."""
_checks: Final = Part("an estimate runs the code that a program has for fake tensors")
_ANSWERED: Final = (
    "torch._subclasses.FakeTensor",
    "torch._subclasses.fake_tensor.FakeTensor",
    "torch._subclasses.fake_tensor.is_fake",
    "torch._guards.detect_fake_mode",
    "torch._guards.active_fake_mode",
)
_NOTED: Final = (
    "torch.utils._python_dispatch._get_current_dispatch_mode",
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
    "torch.utils._python_dispatch.is_in_torch_dispatch_mode",
)
for _path in (*_ANSWERED, *_NOTED):
    _checks.take(_path, None)


class _NotFakeMeta(type):
    """Makes `isinstance(tensor, FakeTensor)` False for tensors that are fake only because of the estimate."""

    mode: Any = None

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, FakeTensor) and value.fake_mode is not cls.mode

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, FakeTensor) and other is not FakeTensor


@contextlib.contextmanager
def plain_to_programs(mode: Any, on_check: Callable[[str], None]) -> Iterator[None]:
    """Let code outside torch see the tensors of a fake mode as plain tensors.

    Code of torch still gets the truth, because fake tensors need it. Modules that imported one of the names before get
    the answers too. Their own names are restored afterwards.

    Args:
        mode: the mode whose tensors look plain. Tensors of other fake modes are the program's own, and look fake.
        on_check: called with the name of a function that shows the mode, when the program takes it.
    """

    class FakeTensorOfOthers(metaclass=_NotFakeMeta):
        """The stand-in for the class FakeTensor that code outside torch gets."""

    FakeTensorOfOthers.mode = mode
    FakeTensorOfOthers.__name__ = FakeTensorOfOthers.__qualname__ = "FakeTensor"

    def is_fake(value: object) -> bool:
        return isinstance(value, FakeTensorOfOthers)

    def mode_of_others(truth: Callable[..., Any]) -> Callable[..., Any]:
        def find_mode(*args: Any, **kwargs: Any) -> Any:
            found = truth(*args, **kwargs)
            return None if found is mode else found

        return find_mode

    answers: dict[str, tuple[Any, Any]] = {}
    for path in _ANSWERED:
        truth, name = find(path), path.rpartition(".")[2]
        if truth is not ABSENT:
            stand_in = {"FakeTensor": FakeTensorOfOthers, "is_fake": is_fake}.get(name) or mode_of_others(
                truth
            )
            answers[path] = truth, stand_in
    for path in _NOTED:
        if find(path) is not ABSENT:
            answers[path] = find(path), find(path)
    with contextlib.ExitStack() as stack:
        for home in {path.rpartition(".")[0] for path in answers}:
            module = find(home)
            own = {
                path.rpartition(".")[2]: pair
                for path, pair in answers.items()
                if path.rpartition(".")[0] == home
            }
            stack.callback(setattr, module, "__class__", module.__class__)
            module.__class__ = _answering(module.__class__, own, on_check)
        pairs = [answers[path] for path in _ANSWERED if path in answers]
        _exchange({id(truth): stand_in for truth, stand_in in pairs})
        # also in modules that the program imports inside
        stack.callback(_exchange, {id(stand_in): truth for truth, stand_in in pairs})
        yield


def _answering(
    kind: type[ModuleType], answers: dict[str, tuple[Any, Any]], on_check: Callable[[str], None]
) -> type[ModuleType]:
    """Return a class of modules whose attributes depend on the module that reads them."""

    def answer(name: str) -> property:
        truth, stand_in = answers[name]

        def read(module: ModuleType) -> Any:
            if _is_torchs(sys._getframe(1).f_globals.get("__name__")):
                return truth
            if truth is stand_in:
                on_check(name)
            return stand_in

        return property(read)

    return type("module", (kind,), {name: answer(name) for name in answers})


def _is_torchs(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _TORCHS


def _exchange(replacements: dict[int, Any]) -> None:
    """Replace global variables of all modules outside torch, by the identity of their values."""
    for name, module in list(sys.modules.items()):
        if type(module) is ModuleType and not _is_torchs(name):
            names = vars(module)
            for key, value in list(names.items()):
                if id(value) in replacements:
                    names[key] = replacements[id(value)]
