"""One rank of a simulated job: fake tensors that answer reads, and fake process groups without other processes.

| torch | here |
| --- | --- |
| torch._subclasses.fake_tensor.FakeTensorMode, DataDependentOutputException | fake_mode_with_zero_reads(on_read, ...) |
| torch._subclasses.fake_tensor.DynamicOutputShapeException and others | UNANSWERABLE |
| torch._subclasses.fake_tensor.unset_fake_temporarily | real_tensors() |
| torch.testing._internal.distributed.fake_pg.FakeStore | FakeStore |
| torch.distributed.distributed_c10d._new_process_group_helper | MAKE_GROUP |
| torch.nn.parallel.distributed._verify_param_shape_across_processes | VERIFY |
| torch.distributed.Logger.set_runtime_stats_and_log | Logger, LOG |
| torch.distributed._register_comm_hook | register_hook |
| torch.distributed.device_mesh.DeviceMesh._create_sub_mesh | SUB_MESH |
| torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty | SHARDING, CHUNK |
| torch.distributed.tensor._sharding_prop.ShardingPropagator._propagate_tensor_meta_non_cached | PROPAGATOR, PROPAGATE |
| torch.optim.optimizer._foreach_supported_types | FOREACH_TYPES |

Only an estimate imports this file, because its parts of torch.distributed take a second to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.jit import tracing_state
from memwatch._torch.lookup import NoSuchClass, Part

if TYPE_CHECKING:
    from collections.abc import Callable
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
require_jobs: Final = _job.require
"""Raise MemwatchError if this torch lacks a name that an estimate needs."""

_READS_NUMBER: Final = "aten::_local_scalar_dense"
_ORDER: Final = "aten::randperm"


def fake_mode_with_zero_reads(
    on_read: Callable[[Any], None],
    on_op: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    complete: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Any],
    answer: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> AbstractContextManager[object]:
    """Return a FakeTensorMode in which a read of an unknown value returns zero.

    With zeros, training goes on: `GradScaler` finds no infinity, and assertions of a finite loss pass. An order of
    indices (`randperm`) is real, because samplers of a DataLoader read all of it.

    Args:
        on_read: called with the op of each read of an unknown value.
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
                on_read(func)
                return _zero(args[0].dtype) if func.name() == _READS_NUMBER else False
            finally:
                self.depth -= 1

    mode: AbstractContextManager[object] = Answering(allow_non_fake_inputs=True)
    return mode


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
