"""Distributed training: the memory of DDP's reducer, of FSDP2's parameter groups and of FSDP1's flat parameters.

FSDP is read only if the program has imported it.

| torch | here |
| --- | --- |
| torch.nn.parallel.DistributedDataParallel._ddp_init_helper | MAKE_REDUCER, None if unknown |
| torch._C._distributed_c10d.Reducer._rebuild_buckets | Reducer, REBUILD; None if unknown |
| torch._C._distributed_c10d.GradBucket.buffer | GradBucket, HAND_OUT; None if unknown |
| torch.distributed._broadcast_coalesced | BROADCAST, None if unknown |
| ddp._get_ddp_logging_data() | bucket_sizes(ddp) |
| group._device_types, group._get_backend(device) | backends_of(ddp) |
| FSDPParamGroup in sys.modules["torch.distributed.fsdp._fully_shard._fsdp_param_group"] | loaded_parameter_group() |
| group._all_gather_result | all_gather_output(group) |
| param.all_gather_outputs, _unsharded_inner_tensors | unsharded(group) |
| param._unsharded_param.grad, unsharded_accumulated_grad | unsharded_gradients(group) |
| comm_ctx.reduce_scatter_states, group._all_reduce_state, _partial_reduce_output | reduction_buffers(group) |
| FlatParamHandle in sys.modules["torch.distributed.fsdp._flat_param"] | loaded_flat_handle() |
| handle.flat_param, flat_param._fqns | flat_parameter(handle) |
| flat_param._full_param_padded, _full_prec_full_param_padded | gathered(flat_param) |
| group._module_fqn | group_name(group) |
| param._param_fqn, param._module_info, param.sharded_param | sharded(group) |
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from memwatch._torch.lookup import Part
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Iterator

_ddp: Final = Part("the buckets of DistributedDataParallel look like other memory")


def _if_there(path: str) -> Any:
    """Return the object at a path, or None if unknown. A torch without distributed training lacks nothing here."""
    return _ddp.take(path, None) if torch.distributed.is_available() else None


def _name_if_there(path: str) -> str | None:
    return None if _if_there(path) is None else path.rpartition(".")[2]


MAKE_REDUCER: Final = _name_if_there("torch.nn.parallel.DistributedDataParallel._ddp_init_helper")
"""The method of DistributedDataParallel that makes the reducer and the first buckets."""
REBUILD: Final = _name_if_there("torch._C._distributed_c10d.Reducer._rebuild_buckets")
"""The method of `Reducer` that rebuilds the buckets in the order in which backward made the gradients."""
Reducer: Final[Any] = getattr(sys.modules.get("torch._C._distributed_c10d"), "Reducer", None)
HAND_OUT: Final = _name_if_there("torch._C._distributed_c10d.GradBucket.buffer")
"""The method of `GradBucket` that gives a communication hook the tensor of a bucket."""
GradBucket: Final[Any] = getattr(sys.modules.get("torch._C._distributed_c10d"), "GradBucket", None)
BROADCAST: Final = _name_if_there("torch.distributed._broadcast_coalesced")
"""The function of torch.distributed that broadcasts many tensors in flat copies."""


def bucket_sizes(ddp: Any) -> list[int]:
    """Return the bytes of each bucket of a DistributedDataParallel, from its logger. Empty if it has none."""
    try:
        logged = str(ddp._get_ddp_logging_data().get("bucket_sizes", ""))
        return [int(size) for size in logged.split(",") if size.strip()]
    except (AttributeError, RuntimeError, ValueError) as error:
        pass_on(error)
        return []


def backends_of(ddp: Any) -> list[Any]:
    """Return the backends that run the collectives of a DistributedDataParallel, one for each kind of device."""
    group: Any = getattr(ddp, "process_group", None)
    found = []
    for device in getattr(group, "_device_types", ()):
        with suppress(AttributeError, RuntimeError):
            found.append(group._get_backend(device))
    return found


_fsdp: Final = Part("the unsharded parameters and buffers of FSDP2 look like other memory")
_GROUPS: Final = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
UNSHARD, WAIT, REDUCE = "unshard", "wait_for_unshard", "post_backward"
"""Methods of a parameter group: gather the shards, copy them out, and reduce the gradients. The handle of a flat
parameter has the first one too."""


def loaded_parameter_group() -> Any:
    """Return FSDP2's class of parameter groups, or None if it is not imported or lacks an expected method."""
    if _GROUPS not in sys.modules:
        return None
    if not _fsdp.asked:
        group: Any = _fsdp.take("torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup", None)
        _fsdp.lacking += [
            name for name in (UNSHARD, WAIT, REDUCE) if group is not None and not hasattr(group, name)
        ]
    return sys.modules[_GROUPS].FSDPParamGroup if _fsdp.complete else None


def group_name(group: Any) -> str:
    """Return the qualified name of a parameter group's module. Empty for the root."""
    return getattr(group, "_module_fqn", None) or ""


def _each(group: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a group, each with its qualified name."""
    for parameter in getattr(group, "fsdp_params", ()):
        info = getattr(parameter, "_module_info", None)
        yield str(getattr(parameter, "_param_fqn", None) or getattr(info, "param_name", "?")), parameter


def sharded(group: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the sharded parameters, as optimizers see them, with their names."""
    for name, parameter in _each(group):
        if isinstance(tensor := getattr(parameter, "sharded_param", None), Tensor):
            yield name, tensor


def unsharded(group: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors with the bytes of the whole parameters, and their names. Resharding frees these bytes."""
    for name, parameter in _each(group):
        for key in ("all_gather_outputs", "_unsharded_inner_tensors"):
            for tensor in getattr(parameter, key, ()):
                yield name, tensor


def unsharded_gradients(group: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the gradients of whole parameters that are not reduced yet, with the names of the parameters."""
    for name, parameter in _each(group):
        whole = getattr(parameter, "_unsharded_param", None)
        for tensor in (getattr(whole, "grad", None), getattr(parameter, "unsharded_accumulated_grad", None)):
            if isinstance(tensor, Tensor):
                yield name, tensor


def all_gather_output(group: Any) -> Tensor | None:
    """Return the all-gather buffer of a group until the group has copied the parameters out of it, else None."""
    output = getattr(getattr(group, "_all_gather_result", None), "all_gather_output", None)
    return output if isinstance(output, Tensor) and output.numel() else None


def reduction_buffers(group: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of the last gradient reduction, each with its name.

    All groups share the list of reduce-scatter inputs, so call this right after the group has reduced its gradients.
    """
    states = getattr(getattr(group, "comm_ctx", None), "reduce_scatter_states", ())
    if states and isinstance(tensor := getattr(states[-1], "reduce_scatter_input", None), Tensor):
        yield "reduce-scatter input", tensor
    state = getattr(group, "_all_reduce_state", None)
    if isinstance(tensor := getattr(state, "all_reduce_input", None), Tensor):
        yield "all-reduce buffer", tensor
    if isinstance(tensor := getattr(group, "_partial_reduce_output", None), Tensor):
        yield "partly reduced gradients", tensor


_flat: Final = Part("the unsharded parameters of FullyShardedDataParallel look like other memory")
_HANDLES: Final = "torch.distributed.fsdp._flat_param"


def loaded_flat_handle() -> Any:
    """Return the class of the handles that gather FullyShardedDataParallel's flat parameters.

    Return None if the class is not imported or lacks the expected method.
    """
    if _HANDLES not in sys.modules:
        return None
    if not _flat.asked:
        handle: Any = _flat.take("torch.distributed.fsdp._flat_param.FlatParamHandle", None)
        if handle is not None and not hasattr(handle, UNSHARD):
            _flat.lacking.append(UNSHARD)
    return sys.modules[_HANDLES].FlatParamHandle if _flat.complete else None


def flat_parameter(handle: Any) -> tuple[Any, str]:
    """Return the flat parameter of a handle, and the names of the parameters in it."""
    flat = getattr(handle, "flat_param", None)
    return flat, ", ".join(getattr(flat, "_fqns", ()))


def gathered(flat: Any) -> Iterator[Tensor]:
    """Yield the tensors with the bytes of a gathered flat parameter."""
    for key in ("_full_param_padded", "_full_prec_full_param_padded"):
        if isinstance(tensor := getattr(flat, key, None), Tensor):
            yield tensor
