"""Checkpointed regions in the graphs of dynamo.

| torch | here |
| --- | --- |
| torch._higher_order_ops.wrap.tag_activation_checkpoint | checkpointed_region |
| tag_activation_checkpoint.divide_kwargs | split_arguments(kwargs) |
| gmod.meta["_checkpoint_context_fn"] | context_of(region) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.lookup import Part

__all__ = ["checkpointed_region", "context_of", "split_arguments"]

if TYPE_CHECKING:
    from torch import fx

_part: Final = Part(
    "the first step under the backend memwatch draws other random numbers in a checkpointed region's backward"
)
checkpointed_region: Final[Any] = _part.take("torch._higher_order_ops.wrap.tag_activation_checkpoint", None)
"""The op that stands for a checkpointed region; None if unknown."""


def split_arguments(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that are those of `checkpoint`, and those of the region."""
    options, own = checkpointed_region.divide_kwargs(kwargs)
    return dict(options), dict(own)


def context_of(region: fx.GraphModule) -> Any:
    """Return the `context_fn` of a region, None if it has none."""
    return region.meta.get("_checkpoint_context_fn")
