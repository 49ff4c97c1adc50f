"""Activation checkpointing: the functions of torch that save the inputs of a region and run the region again.

A place is an object and the name of one of its attributes, which a patch replaces.

| torch | here |
| --- | --- |
| torch.utils.checkpoint._run_fn_with_dynamo_disabled | RUN_AGAIN (a place) |
| torch.utils.checkpoint._CheckpointFrame.__init__ | NEW_FRAME (a place) |
| torch.utils.checkpoint._CheckpointFrame.save_inputs, or _NoopSaveInputs.apply | SAVE_INPUTS (a place) |
| frame.recompute_fn, frame.recomputed | recompute_function(frame), recomputed_tensors(frame) |
| torch.utils.checkpoint._VersionWrapper.__init__ | SAVE_RESULT (a place, or None) |
| torch.utils.checkpoint.CheckpointFunction.forward, .backward | REENTRANT_FORWARD, REENTRANT_BACKWARD |
| torch.utils.checkpoint._current_user_saved_tensors_hooks | PROGRAM_HOOKS (a place, or None) |
| pack_hook._checkpoint_internal, pack_hook._user_hooks | program_hooks_of(hooks) |
| torch._higher_order_ops.wrap.tag_activation_checkpoint | checkpointed_region (in the graphs of dynamo) |
| tag_activation_checkpoint.divide_kwargs | split_arguments(kwargs) |
| gmod.meta["_checkpoint_context_fn"] | context_of(region) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch.utils import checkpoint

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    Place = tuple[Any, str]
    Hooks = tuple[Callable[..., Any], Callable[..., Any]]


_again: Final = Part("ops that a checkpoint computes again count as ops of the backward")
_again.take("torch.utils.checkpoint._run_fn_with_dynamo_disabled", None)
_Frame: Final[Any] = _again.take("torch.utils.checkpoint._CheckpointFrame", None)
_InputSaver: Final[Any] = getattr(
    checkpoint, "_NoopSaveInputs", None
)  # torch 2.11 has this Function of autograd
if _InputSaver is None:
    _again.take("torch.utils.checkpoint._CheckpointFrame.save_inputs", None)
RECOMPUTES_WORK: Final = _again.complete
"""Whether memwatch can see when a region without reentrance runs again. If not, ignore the next three places."""

RUN_AGAIN: Final[Place] = (checkpoint, "_run_fn_with_dynamo_disabled")
"""Runs a region again. Its argument is `recompute_function` of the region's frame."""
NEW_FRAME: Final[Place] = (_Frame, "__init__")
"""Makes the frame of a region, before the region's forward."""
SAVE_INPUTS: Final[Place] = (_Frame, "save_inputs") if _InputSaver is None else (_InputSaver, "apply")
"""Saves a region's inputs. torch calls it once for a region, before the region's forward."""


def recompute_function(frame: Any) -> Any:
    """Return the function that runs a frame's region again, or None."""
    return getattr(frame, "recompute_fn", None)


def recomputed_tensors(frame: Any) -> list[Any]:
    """Return the recomputed tensors that a region's frame keeps until the backward reads them."""
    kept_by_task = getattr(frame, "recomputed", None) or {}
    return [tensor for kept in list(kept_by_task.values()) for tensor in list(kept.values())]


_Saved: Final[Any] = Part("tensors that a selective checkpoint saves get another holder").take(
    "torch.utils.checkpoint._VersionWrapper", None
)
SAVE_RESULT: Final[Place | None] = None if _Saved is None else (_Saved, "__init__")
"""Wraps a result that a selective checkpoint saves. Its first argument is the wrapper, which dies when the region runs
again."""

REENTRANT_FORWARD: Final[Place] = (checkpoint.CheckpointFunction, "forward")
REENTRANT_BACKWARD: Final[Place] = (checkpoint.CheckpointFunction, "backward")
"""The forward and the backward of a reentrant checkpointed region. Their first argument is its node."""

_PROGRAM_HOOKS: Final = "_current_user_saved_tensors_hooks"
PROGRAM_HOOKS: Final[Place | None] = (
    (checkpoint, _PROGRAM_HOOKS) if hasattr(checkpoint, _PROGRAM_HOOKS) else None
)
"""Returns the program's hooks on saved tensors to torch, which warns about some of them since 2.15. None before."""


def program_hooks_of(hooks: Hooks | None) -> Hooks | None:
    """Return the program's pair of hooks on saved tensors. If a checkpoint's own pair is given, it refers to them."""
    while hooks is not None and getattr(hooks[0], "_checkpoint_internal", False):
        hooks = getattr(hooks[0], "_user_hooks", None)
    return hooks


_part: Final = Part(
    "the first step under the backend memwatch draws other random numbers in a checkpointed region's backward"
)
checkpointed_region: Final[Any] = _part.take("torch._higher_order_ops.wrap.tag_activation_checkpoint", None)
"""The op that calls a checkpointed region in dynamo's graphs. None if unknown."""


def split_arguments(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keyword arguments into the options of `checkpoint` and the arguments of the region."""
    options, own = checkpointed_region.divide_kwargs(kwargs)
    return dict(options), dict(own)


def context_of(region: fx.GraphModule) -> Any:
    """Return the `context_fn` of a region, or None."""
    return region.meta.get("_checkpoint_context_fn")
