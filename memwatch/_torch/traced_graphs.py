"""Private marks in graphs that torch's compiler traced, and sizes that such a graph knows only as symbols.

Importing this file imports sympy, but no compiler. Only `memwatch.replay` needs it.

| torch | here |
| --- | --- |
| torch._functorch._aot_autograd.descriptors.InputMutationAOTOutput | InputMutation |
| torch._functorch._aot_autograd.descriptors.PlainAOTOutput | PlainOutput |
| node.meta["partitioner_tag"] = "must_be_in_forward" | keep_in_forward(node) |
| node.meta["partitioner_tag"] == "must_be_in_forward" | is_kept_in_forward(node) |
| node.meta["custom"]["_region_activation_memory_budget"] | has_region_budget(module) |
| torch.fx.experimental.symbolic_shapes.optimization_hint, in torch 2.11 hint_int | size_hint |
| size.node.expr | symbol_of(size), size_at(size, values) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch.fx.experimental import symbolic_shapes

from memwatch._torch.lookup import NoSuchClass, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput, PlainAOTOutput

    InputMutation = InputMutationAOTOutput
    PlainOutput = PlainAOTOutput
else:
    InputMutation = Part("a plan of a compiled graph may miss that an input is written").take(
        "torch._functorch._aot_autograd.descriptors.InputMutationAOTOutput", NoSuchClass
    )
    """The class of outputs of a joint graph that AOTAutograd writes back into an input."""
    PlainOutput = Part("a plan of a compiled graph assumes that the program keeps every output").take(
        "torch._functorch._aot_autograd.descriptors.PlainAOTOutput", NoSuchClass
    )
    """The class of outputs of a joint graph that the program gets. `idx` is the output's index."""

_PARTITIONER_TAG: Final = "partitioner_tag"
_IN_FORWARD: Final = "must_be_in_forward"
_REGION_BUDGET: Final = "_region_activation_memory_budget"


def has_region_budget(module: fx.GraphModule) -> bool:
    """Return True if the program gave a part of a graph its own memory budget.

    It does so with `torch.autograd.graph.region_activation_memory_budget`, which torch 2.11 and 2.12 may lack.
    """
    return any(_REGION_BUDGET in (node.meta.get("custom") or {}) for node in module.graph.nodes)


def keep_in_forward(node: fx.Node) -> None:
    """Keep a node in the forward when a joint graph is cut, although its inputs are available in the backward.

    torch copies a random op without this mark into both parts, and then it would run twice.
    """
    node.meta[_PARTITIONER_TAG] = _IN_FORWARD


def is_kept_in_forward(node: fx.Node) -> bool:
    """Return True for a node that must run in the forward.

    Such a node may come after the backward's nodes, because a joint graph writes into its inputs last.
    """
    return node.meta.get(_PARTITIONER_TAG) == _IN_FORWARD


_module: Any = symbolic_shapes
size_hint: Final[Callable[..., int]] = (
    _module.optimization_hint if hasattr(_module, "optimization_hint") else _module.hint_int
)
"""Return the value that a symbol had when it was traced, without a guard: `size_hint(size, fallback=n)`.

`n` is the result for a symbol that had no value.
"""


def symbol_of(size: Any) -> Any:
    """Return the symbol of a symbolic number. None if it is a formula."""
    formula = size.node.expr
    return formula if getattr(formula, "is_symbol", False) else None


def size_at(size: Any, values: Mapping[Any, int]) -> int | None:
    """Return the value of a symbolic number for values of its symbols. None if a value is missing."""
    found = size.node.expr.xreplace(values)
    return int(found) if isinstance(found, int) or found.is_number else None
