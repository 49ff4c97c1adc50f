"""Define the torch.compile backend "memwatch", which plans forward and backward as one program within a budget.

AOTAutograd traces forward and backward as one joint graph. memwatch plans the joint graph like a recorded program. In
this program, the code that runs between forward and backward, such as the loss, is one op. There the planned graph is
cut in two. Autograd saves the tensors that the plan keeps across the cut. Recomputed ops belong to the backward. Both
parts run op by op with the kernels of eager PyTorch, so their results equal the model's results bit for bit. All
graphs of a compiled callable share one budget, which `budget_keeper.py` keeps.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize, ref

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
from memwatch._torch.autograd import node_of_result
from memwatch._torch.dynamo import (
    call_on_uncompiled_frame,
    compiling_wrapper,
    computes_as_numpy,
    forget_code,
    function_that_enables,
    skip_frame_exception,
)
from memwatch._torch.engine import call_before_next_backward
from memwatch._torch.traced_graphs import has_region_budget
from memwatch.errors import OptionError, UnsupportedOpError
from memwatch.planner import BudgetError
from memwatch.replay.budget_keeper import BudgetKeeper
from memwatch.replay.options import BackendOptions
from memwatch.replay.traced_graph import TracedGraph, boxed, with_inductor, with_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import CodeType

    from torch import fx

__all__ = ["BackendOptions", "memwatch_backend"]

# `_undo_disable` removes dynamo's wrapper that disables compilation, and `_LeaveFrame` makes dynamo skip a frame
_undo_disable, _LeaveFrame = function_that_enables(), skip_frame_exception()


@dataclass(eq=False)
class CompiledCallable:
    """The record of one compiled callable in the backend.

    Attributes:
        keeper: keeps the budget, and holds the states of the steps and plans; None before the first graph is compiled.
        uncovered: a function that runs uncompiled; None once its effect on the budget is known.
        is_warned: whether the user was warned that such a function is not covered.
    """

    keeper: BudgetKeeper | None = None
    uncovered: Uncovered | None = None
    is_warned: bool = False

    @classmethod
    def of(cls, owner: Any) -> CompiledCallable:
        """Return the record of the callable that torch represents by `owner`; a new record if that is None."""
        if owner is None:
            return cls()
        found = _callables.get(id(owner))
        if found is None:
            found = _callables[id(owner)] = cls()
            finalize(owner, _callables.pop, id(owner), None)
        return found


class Uncovered(NamedTuple):
    """A function that torch.compile does not compile."""

    options: BackendOptions
    what: str
    code: CodeType | None


_callables: dict[
    int, CompiledCallable
] = {}  # by the id of torch's object, because torch's object has no hash


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
        mode: None or "default". Other modes are presets of inductor.

    Raises:
        OptionError: an option or a mode that does not exist.
        BudgetError: with the option `strict`, a graph cannot be run within the budget.
    """
    if mode not in (None, "default"):
        raise OptionError(f"the backend memwatch has no mode {mode!r}; give options={{'budget': ...}}")
    read = BackendOptions.read(options)
    if read.inner == "eager" and computes_as_numpy(_nodes_of(module)):
        # dynamo replaces NumPy's functions by ops of torch, whose results differ in the last bits
        reason = "torch.compile leaves a function that calls NumPy as it is, or the results would differ"
        _leave_uncompiled(read, reason)
    known = CompiledCallable.of(compiling_wrapper())
    keeper = known.keeper = known.keeper or BudgetKeeper(read, _device_of(inputs))
    is_inductor = read.inner == "inductor"
    graph = TracedGraph(module, inputs, with_inductor if is_inductor else with_kernels)
    compiler = _Compiler(graph, keeper)
    with nullcontext() if is_inductor else eager_interpolation():
        graph.run = aot_autograd(
            fw_compiler=compiler.forward,
            bw_compiler=compiler.backward,
            inference_compiler=compiler.inference,
            partition_fn=compiler.partition,
            decompositions=decompositions() if is_inductor else None,
            keep_inference_input_mutations=True,
        )(module, inputs)
    if graph.joint is None or not keeper.has_budget:
        return graph.run
    # dynamo skips `run`, which calls it, so the wrapper would only cost time
    graph.run = _undo_disable(graph.run)

    def run(*args: Any) -> Any:
        if known.uncovered is not None:
            _settle_uncovered(known, args)
        settled = keeper.follow(graph, args)
        if settled is not None:
            try:
                result = graph.run(*args)
            except BaseException:
                settled.reset()
                raise
            settled.end_forward(args, result)
            return result
        turn = keeper.begin_run(graph, args)
        try:
            result = graph.eager(*args) if keeper.runs_eagerly(turn) else graph.run(*args)
        except BaseException:
            keeper.abandon_episode()
            raise
        keeper.end_run(turn, args, result)
        return result

    return run


def _nodes_of(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the nodes of a graph and of the graphs inside it, such as the graph of an `autograd.Function`."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def _device_of(inputs: list[Any]) -> str:
    """Return the device whose bytes count: the first accelerator among the inputs, or the CPU."""
    devices = [item.device for item in inputs if isinstance(item, torch.Tensor)]
    return str(next((each for each in devices if each.type != "cpu"), torch.device("cpu")))


class _Compiler:
    """The callbacks with which AOTAutograd compiles one graph: partition, forward, backward, inference."""

    def __init__(self, graph: TracedGraph, keeper: BudgetKeeper) -> None:
        self._graph = graph
        self._keeper = keeper

    def partition(
        self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **others: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the planned forward and backward of a joint graph.

        A program can set a memory budget for a region itself. torch's own partition then obeys it, and memwatch plans
        nothing.
        """
        if has_region_budget(joint) or not inputs:  # without inputs it is a graph inside the graph
            parts: tuple[fx.GraphModule, fx.GraphModule] = min_cut_partition(
                joint, inputs, num_fwd_outputs=num_fwd_outputs, **others
            )
            return parts
        graph = self._graph
        try:
            if graph.trace(joint, inputs, num_fwd_outputs):
                variant, modules = graph.add_variant(self._keeper.add_graph(graph))
                graph.chosen = [variant]
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
            graph.chosen = [graph.add_variant(self._keeper.add_graph(graph))[0]]
        except UnsupportedOpError as error:
            graph.joint = None
            _warn_unplanned(str(error))
            return boxed_nop(module, inputs)
        return boxed(graph.forward)


def _on_not_compiled(owner: Any, code: CodeType, reason: str) -> None:
    """Note that torch.compile does not compile a function that the budget should cover.

    The measurement of a step includes the memory of such code. But it begins with the first graph, so code that runs
    before the first graph is not covered. The backend does not see this code, because torch.compile calls the backend
    only for functions that it compiles.
    """
    if getattr(owner, "compiler_fn", None) is not memwatch_backend or not torch.is_grad_enabled():
        return
    options = BackendOptions.read(owner.kwargs.get("options"))
    known = CompiledCallable.of(owner)
    if (
        options.budget is None
        or known.is_warned
        or known.uncovered is not None
        or (known.keeper is not None and known.keeper.is_step_running)
    ):
        return
    place = f"`{code.co_name}` ({code.co_filename}:{code.co_firstlineno})"
    what = f"torch.compile leaves {place} as it is: {reason.rstrip('. ')}"
    _note_uncovered(owner, Uncovered(options, what, code))


def _leave_uncompiled(options: BackendOptions, what: str) -> None:
    """Make dynamo run the current function uncompiled. With a budget, this may lead to an error or a warning later."""
    owner = compiling_wrapper()
    if options.budget is not None and torch.is_grad_enabled() and not CompiledCallable.of(owner).is_warned:
        _note_uncovered(owner, Uncovered(options, what, None))
    if _LeaveFrame is not None:
        raise _LeaveFrame(what)


def _note_uncovered(owner: Any, uncovered: Uncovered) -> None:
    """Remember that a function runs uncompiled, until its effect on the budget is known.

    torch.compile may still compile functions that this function calls, such as the layers of a loop with a graph break.
    If the first of their graphs reads only inputs of the model, then everything that the model saves for the backward
    is made later, and is measured. If no graph has run when the first backward begins, the budget covers nothing.
    """
    known = CompiledCallable.of(owner)
    known.uncovered = uncovered
    if owner is None:  # there is no call of a compiled callable to wait for
        _refuse_or_warn_uncovered(known)
        return
    weak = ref(owner)
    call_before_next_backward(lambda: _refuse_or_warn_uncovered(CompiledCallable.of(weak())))


def _settle_uncovered(known: CompiledCallable, args: Sequence[Any]) -> None:
    """Raise an error or warn if code before the first graph saved tensors for the backward."""
    if any(isinstance(item, torch.Tensor) and node_of_result(item) is not None for item in args):
        _refuse_or_warn_uncovered(known)
    else:
        known.uncovered = None


def _refuse_or_warn_uncovered(known: CompiledCallable) -> None:
    """If a function runs uncompiled, raise an error with the option `strict`, or else warn once."""
    found, known.uncovered = known.uncovered, None
    if found is None:
        return
    message = f"{found.what}; the budget covers no memory that it keeps"
    if found.options.strict:
        if found.code is not None:
            forget_code(found.code)  # otherwise the next attempt would run without an error
        raise BudgetError(message, None, 0, advice=_UNCOMPILED)
    known.is_warned = True
    warnings.warn(f"torch.compile, backend memwatch: {message}; {_UNCOMPILED}", stacklevel=2)


_UNCOMPILED = (
    "compile the parts around it, or use memwatch.apply_plan or memwatch.fit, which need no compiler"
)
call_on_uncompiled_frame(_on_not_compiled)


def _warn_unplanned(reason: str) -> None:
    warnings.warn(f"torch.compile, backend memwatch: {reason}; the graph runs in its own order", stacklevel=2)
