"""What AOTAutograd writes beside the nodes of its graphs; importing this file loads no compiler.

| torch | here |
| --- | --- |
| torch._functorch._aot_autograd.descriptors.InputMutationAOTOutput | InputMutation |
| torch._functorch._aot_autograd.descriptors.PlainAOTOutput | PlainOutput |
| node.meta["partitioner_tag"] = "must_be_in_forward" | keep_in_forward(node) |
| node.meta["partitioner_tag"] == "must_be_in_forward" | is_kept_in_forward(node) |
| node.meta["custom"]["_region_activation_memory_budget"] | has_region_budget(module) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch._torch.lookup import NoSuchClass, Part

if TYPE_CHECKING:
    from torch import fx
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput, PlainAOTOutput

    InputMutation = InputMutationAOTOutput
    PlainOutput = PlainAOTOutput
else:
    InputMutation = Part("a plan of a compiled graph may miss that an input is written").take(
        "torch._functorch._aot_autograd.descriptors.InputMutationAOTOutput", NoSuchClass
    )
    """The class of outputs of a joint graph that AOTAutograd writes back into an input."""
    PlainOutput = Part("a plan of a compiled graph takes it that the program keeps what it is given").take(
        "torch._functorch._aot_autograd.descriptors.PlainAOTOutput", NoSuchClass
    )
    """The class of outputs of a joint graph that the program is given; `idx` is its place among them."""

_PARTITIONER_TAG: Final = "partitioner_tag"
_IN_FORWARD: Final = "must_be_in_forward"
_REGION_BUDGET: Final = "_region_activation_memory_budget"


def has_region_budget(module: fx.GraphModule) -> bool:
    """Return True if the program gave a part of a graph a budget of its own.

    It does so with `torch.autograd.graph.region_activation_memory_budget`, which torch 2.11 and 2.12 may lack.
    """
    return any(_REGION_BUDGET in (node.meta.get("custom") or {}) for node in module.graph.nodes)


def keep_in_forward(node: fx.Node) -> None:
    """Have a cut of a joint graph leave a node to the forward, although its inputs would be there in the backward.

    Else random ops would be drawn in both: a cut drops no random op, used or not.
    """
    node.meta[_PARTITIONER_TAG] = _IN_FORWARD


def is_kept_in_forward(node: fx.Node) -> bool:
    """Return True for a node that is to run in the forward, though it may stand behind the backward.

    What the program writes into its inputs is copied there at the end of a joint graph.
    """
    return node.meta.get(_PARTITIONER_TAG) == _IN_FORWARD
