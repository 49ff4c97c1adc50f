"""The torch.compile backend "memwatch": forward and backward planned as one program within a budget.

AOTAutograd traces forward and backward as one joint graph. The joint graph is planned like a recorded program;
the code that runs between forward and backward (the loss, for instance) is one op of it. There the planned graph
is cut in two. Tensors that the plan keeps across the cut are what autograd saves, and recomputed ops belong to
the backward. Both graphs run op by op with the kernels of eager PyTorch, so results are bitwise those of the
model itself.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch.fx.experimental.proxy_tensor import py_sym_types

from memwatch._torch.aot import (
    aot_autograd,
    boxed_nop,
    default_partition,
    extract_forward_and_backward,
    min_cut_partition,
)
from memwatch._torch.aot_graphs import has_region_budget
from memwatch.planner import BudgetError, OptionError, Plan, plan_graph
from memwatch.planner.budget import parse_budget
from memwatch.planner.request import PlanRequest, check_switch
from memwatch.replay.errors import UnsupportedOpError
from memwatch.replay.fx import graph_from_fx
from memwatch.replay.rewrite import rewritten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackendOptions:
    """What ``torch.compile(..., backend="memwatch", options={...})`` understands.

    Attributes:
        budget: peak increase allowed to each compiled graph, forward and backward together: bytes,
            ``"512 MiB"``, or ``"60%"`` of what the graph takes in its own order. None: the lowest peak that
            a new order alone can reach.
        order: ``"auto"`` or ``"program"``.
        recompute: whether ops may be computed again.
        time_limit_s: when to stop searching (seconds).
        seed: seed of the search.
        strict: whether a budget that cannot be reached is an error. If not, the lowest plan is used, with a
            warning.
    """

    budget: int | float | str | None = None
    order: str = "auto"
    recompute: bool = True
    time_limit_s: float = 10.0
    seed: int = 0
    strict: bool = False

    @classmethod
    def read(cls, options: Mapping[str, Any] | None) -> BackendOptions:
        """Return the options that a user gave, checked.

        Raises:
            OptionError: an option does not exist, or its value means nothing.
            OrderError: the order is unknown.
            SizeError: the budget cannot be read.
        """
        known = [entry.name for entry in fields(cls)]
        for name in options or {}:
            if name not in known:
                raise OptionError(f"the backend memwatch has no option {name!r}; it has {', '.join(known)}")
        found = cls(**(options or {}))
        PlanRequest(
            found.order, found.recompute, time_limit_s=found.time_limit_s, seed=found.seed
        ).check()  # what is wrong is said now rather than in the middle of a compilation
        check_switch("strict", found.strict)
        if found.budget is not None:
            parse_budget(found.budget, 0)
        return found


def memwatch_backend(
    module: fx.GraphModule,
    inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Return a compiled graph; `torch.compile(model, backend="memwatch")` calls this with graphs of dynamo.

    Args:
        module: the graph.
        inputs: its fake inputs.
        options: see `BackendOptions`.
        mode: modes are presets of inductor; only "default" and None mean something here.

    Raises:
        OptionError: an option or a mode that does not exist.
        BudgetError: with the option `strict`, a graph cannot be run within the budget.
    """
    if mode not in (None, "default"):
        raise OptionError(f"the backend memwatch has no mode {mode!r}; give options={{'budget': ...}}")
    planner = _Planner(BackendOptions.read(options))
    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=boxed_nop,
        bw_compiler=boxed_nop,
        inference_compiler=planner.inference,
        partition_fn=planner.partition,
    )(module, inputs)
    return compiled


class _Planner:
    """Plans the graphs of one compilation."""

    def __init__(self, options: BackendOptions) -> None:
        self._options = options

    def partition(
        self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **others: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the planned forward and backward of a joint graph.

        Where the program itself says how much a region may keep, torch decides what is kept, as the program asks.
        """
        if has_region_budget(joint):
            _log.info("the program gives regions of this graph a budget, so it is not planned")
            parts: tuple[fx.GraphModule, fx.GraphModule] = min_cut_partition(
                joint, inputs, num_fwd_outputs=num_fwd_outputs, **others
            )
            return parts
        try:
            plan = self._plan(joint, num_fwd_outputs)
        except UnsupportedOpError as error:
            _warn_unplanned(error)
            return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **others)
        written = rewritten(joint, plan, num_fwd_outputs)
        symbols = [node for node in written.saved if _is_symbol(node)]
        tensors = [node for node in written.saved if not _is_symbol(node)]
        return extract_forward_and_backward(
            written.module, tensors, symbols, num_fwd_outputs=num_fwd_outputs
        )  # fmt: skip

    def inference(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Return a planned graph that has no backward, ready to run."""
        try:
            module = rewritten(module, self._plan(module, None)).module
        except UnsupportedOpError as error:
            _warn_unplanned(error)
        return boxed_nop(module, inputs)

    def _plan(self, module: fx.GraphModule, num_fwd_outputs: int | None) -> Plan:
        graph = graph_from_fx(module, num_fwd_outputs)
        options = self._options
        try:
            plan = plan_graph(
                graph, budget=options.budget, order=options.order, recompute=options.recompute,
                time_limit_s=options.time_limit_s, seed=options.seed,
            )  # fmt: skip
        except BudgetError as error:
            error = error.for_options([entry.name for entry in fields(BackendOptions)])
            if options.strict or not isinstance(error.best, Plan):
                raise error from None
            warnings.warn(f"torch.compile, backend memwatch: {error}; the lowest plan is used", stacklevel=2)
            plan = error.best
        _log.info("%s ops planned: %s", graph.num_ops, plan)
        return plan


def _is_symbol(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (*py_sym_types, int, float, bool))


def _warn_unplanned(error: UnsupportedOpError) -> None:
    warnings.warn(f"torch.compile, backend memwatch: {error}; the graph runs in its own order", stacklevel=2)
