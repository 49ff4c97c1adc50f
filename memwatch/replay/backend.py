"""The torch.compile backend "memwatch": forward and backward planned as one program within a budget.

AOTAutograd traces forward and backward as one joint graph. The joint graph is planned like a recorded program;
the code that runs between forward and backward (the loss, for instance) is one op of it. There the planned graph
is cut in two. Tensors that the plan keeps across the cut are what autograd saves, and recomputed ops belong to
the backward. Both graphs run op by op with the kernels of eager PyTorch, so results are bitwise those of the
model itself. The budget is one for all graphs of a compiled callable; `account` keeps it.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import finalize

import torch

from memwatch._torch.aot import (
    aot_autograd,
    boxed_nop,
    decompositions,
    default_partition,
    eager_interpolation,
    let_saved_tensors_vary,
    min_cut_partition,
)
from memwatch._torch.dynamo import (
    call_on_uncompiled_frame,
    compiling_wrapper,
    computes_as_numpy,
    function_that_enables,
    skip_frame_exception,
)
from memwatch._torch.traced_graphs import has_region_budget
from memwatch.errors import OptionError
from memwatch.planner import BudgetError
from memwatch.replay.account import Account
from memwatch.replay.errors import UnsupportedOpError
from memwatch.replay.inner import with_inductor, with_kernels
from memwatch.replay.options import BackendOptions
from memwatch.replay.traced_graph import TracedGraph, boxed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType

    from torch import fx

__all__ = ["BackendOptions", "memwatch_backend"]

_undisabled, _LeaveFrame = function_that_enables(), skip_frame_exception()
_accounts: dict[int, Account] = {}  # by the id of an object of torch's, which cannot be hashed


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
    read = BackendOptions.read(options)
    if read.inner == "eager" and computes_as_numpy(_nodes_of(module)):
        # dynamo calls ops of torch in place of NumPy's, and their last bits differ
        _leave(read, "torch.compile leaves a function that calls NumPy as it is, or the results would differ")
    account = _account(read, inputs)
    is_inductor = read.inner == "inductor"
    graph = TracedGraph(module, inputs, with_inductor if is_inductor else with_kernels)
    compiler = _Compiler(graph, account)
    with nullcontext() if is_inductor else eager_interpolation():
        graph.run = aot_autograd(
            fw_compiler=compiler.forward,
            bw_compiler=compiler.backward,
            inference_compiler=compiler.inference,
            partition_fn=compiler.partition,
            decompositions=decompositions() if is_inductor else None,
            keep_inference_input_mutations=True,
        )(module, inputs)
    if graph.joint is None or not account.is_kept:
        return graph.run
    graph.run = _undisabled(graph.run)  # what is returned is itself nothing that dynamo looks into

    def run(*args: Any) -> Any:
        routine = account.routine(graph, args)
        if routine is not None:
            try:
                result = graph.run(*args)
            except BaseException:
                routine.forget()
                raise
            routine.left(args, result)
            return result
        turn = account.enter(graph, args)
        try:
            result = graph.eager(*args) if account.runs_eagerly(turn) else graph.run(*args)
        except BaseException:
            account.failed()
            raise
        account.leave(turn, args, result)
        return result

    return run


def _nodes_of(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the nodes of a graph and of the graphs inside it, as those of an `autograd.Function`."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def _account(options: BackendOptions, inputs: list[Any]) -> Account:
    """Return the account of the callable that is being compiled."""
    owner = compiling_wrapper()
    found = None if owner is None else _accounts.get(id(owner))
    if found is None:
        devices = [item.device for item in inputs if isinstance(item, torch.Tensor)]
        device = next((each for each in devices if each.type != "cpu"), torch.device("cpu"))
        found = Account(options, str(device))
        if owner is not None:
            _accounts[id(owner)] = found
            finalize(owner, _accounts.pop, id(owner), None)
    return found


class _Compiler:
    """What AOTAutograd asks for the parts of one graph."""

    def __init__(self, graph: TracedGraph, account: Account) -> None:
        self._graph = graph
        self._account = account

    def partition(
        self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **others: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the planned forward and backward of a joint graph.

        Where the program itself says how much a region may keep, torch decides what is kept, as the program asks.
        """
        if has_region_budget(joint) or not inputs:  # without inputs it is a graph inside the graph
            parts: tuple[fx.GraphModule, fx.GraphModule] = min_cut_partition(
                joint, inputs, num_fwd_outputs=num_fwd_outputs, **others
            )
            return parts
        graph = self._graph
        try:
            if graph.trace(joint, inputs, num_fwd_outputs):
                way, modules = graph.add_way(self._account.add(graph))
                graph.chosen = [way]
                assert modules[1] is not None
                return modules[0], modules[1]
        except UnsupportedOpError as error:
            graph.joint = None
            _warn_unplanned(str(error))
        else:
            _warn_unplanned("a graph has inputs of a kind that cannot be planned")
        return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **others)

    def forward(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Return the forward, ready to run."""
        if self._graph.joint is None:
            return boxed_nop(module, inputs)
        let_saved_tensors_vary(self._graph.most_saved)
        return boxed(self._graph.forward)

    def backward(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Return the backward, ready to run."""
        return boxed_nop(module, inputs) if self._graph.joint is None else boxed(self._graph.backward)

    def inference(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Return a planned graph that has no backward, ready to run."""
        graph = self._graph
        try:
            graph.trace(module, inputs, None)
            graph.chosen = [graph.add_way(self._account.add(graph))[0]]
        except UnsupportedOpError as error:
            graph.joint = None
            _warn_unplanned(str(error))
            return boxed_nop(module, inputs)
        return boxed(graph.forward)


def _given_up(owner: Any, code: CodeType, reason: str) -> None:
    """Refuse or warn: the budget is to cover a function that torch.compile leaves as it is.

    While a step is measured, what such code takes is measured with it. Before the first graph it is in no figure, and
    where nothing is compiled at all nobody calls the backend.
    """
    if getattr(owner, "compiler_fn", None) is not memwatch_backend or not torch.is_grad_enabled():
        return
    options = BackendOptions.read(owner.kwargs.get("options"))
    account = _accounts.get(id(owner))
    if options.budget is None or id(owner) in _told or (account is not None and account.is_under_way):
        return
    place = f"`{code.co_name}` ({code.co_filename}:{code.co_firstlineno})"
    _tell_uncovered(owner, options, f"torch.compile leaves {place} as it is: {reason.rstrip('. ')}")


def _leave(options: BackendOptions, what: str) -> None:
    """Have dynamo leave what it compiles as it is, and refuse or warn where a budget was to cover it."""
    owner = compiling_wrapper()
    if options.budget is not None and torch.is_grad_enabled() and id(owner) not in _told:
        _tell_uncovered(owner, options, what)
    if _LeaveFrame is not None:
        raise _LeaveFrame(what)


def _tell_uncovered(owner: Any, options: BackendOptions, what: str) -> None:
    message = f"{what}; the budget covers no memory that it keeps"
    if options.strict:
        raise BudgetError(message, None, 0, advice=_UNCOMPILED)
    if owner is not None:
        _told.add(id(owner))
        finalize(owner, _told.discard, id(owner))
    warnings.warn(f"torch.compile, backend memwatch: {message}; {_UNCOMPILED}", stacklevel=2)


_told: set[int] = set()
_UNCOMPILED = (
    "compile the parts around it, or use memwatch.apply_plan or memwatch.fit, which need no compiler"
)
call_on_uncompiled_frame(_given_up)


def _warn_unplanned(reason: str) -> None:
    warnings.warn(f"torch.compile, backend memwatch: {reason}; the graph runs in its own order", stacklevel=2)
