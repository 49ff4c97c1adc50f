"""Autograd: the node and the graph task that run, what nodes keep, and the hooks on saved tensors.

| torch | here |
| --- | --- |
| torch._C._current_graph_task_id | current_graph_task_id |
| torch._C._current_autograd_node | current_node |
| torch._C._autograd._get_sequence_nr | next_sequence_nr |
| torch._C._autograd._get_current_graph_task_keep_graph | keeps_graph |
| node._sequence_nr() | sequence_nr_of(node); SEQUENCE_NR is the attribute's name |
| torch._C._FunctionBase | FunctionBase |
| torch._C._functions.AccumulateGrad | AccumulateGrad |
| torch._C._autograd._top_saved_tensors_default_hooks(True) | top_saved_hooks() |
| torch._C._autograd._push_saved_tensors_default_hooks | push_saved_hooks |
| torch._C._autograd._pop_saved_tensors_default_hooks | pop_saved_hooks |
| torch._C._autograd._saved_tensors_hooks_disable, _enable | SAVED_HOOKS_SWITCH, None if unknown |
| torch._C._autograd.SavedTensor | SavedTensor |
| torch._C._FunctionBase.saved_tensors | saved_tensors_of (the descriptor: call `.__get__(ctx)`) |
| ctx._raw_saved_tensors | raw_saved_tensors_of(ctx); RAW_SAVED_TENSORS, RAW_SAVED_PREFIX are names |
| torch.autograd.forward_ad._current_level >= 0 | in_forward_mode() |
| torch.autograd.variable.Variable._execution_engine.queue_callback | call_at_end_of_backward |
| torch.autograd.graph._engine_run_backward.__code__ | ENGINE_CODE, None if unknown |
| torch.autograd.function._HookMixin, "_register_hook" | registering_hooks_by(replacement) |
| the name of a node in the error about a saved tensor that was written | node_name_in_errors(name) |
"""

from __future__ import annotations

import contextlib
import operator
import re
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd import forward_ad

from memwatch._torch.lookup import NoSuchClass, Part, is_older_than

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    Hooks = tuple[Callable[..., Any], Callable[..., Any]]


class _NoSavedTensor:
    """Replaces torch's class. Nothing is an instance of it."""

    register_hooks: Any = None


NO_TASK: Final = -1
"""The id of the running backward, if no backward is running."""

current_graph_task_id: Final[Callable[[], int]] = Part("ops of a backward look like other ops").take(
    "torch._C._current_graph_task_id", lambda: NO_TASK
)
"""Return the number of the backward that runs in this thread, -1 outside any."""

keeps_graph: Final[Callable[[], bool]] = Part(
    "ops that a function's own backward computes again count as ops of the backward"
).take("torch._C._autograd._get_current_graph_task_keep_graph", lambda: True)
"""Return True if the backward that runs in this thread leaves its graph for another; outside any it means nothing."""

FunctionBase: Final[Any] = Part("nodes of torch.autograd.Function are not looked into").take(
    "torch._C._FunctionBase", NoSuchClass
)
"""The base class of the nodes (`ctx`) of every `torch.autograd.Function`."""

_nodes: Final = Part(
    "ops and saved tensors have no autograd node, and saved tensors are kept as detached aliases"
)
current_node: Final[Callable[[], Any]] = _nodes.take("torch._C._current_autograd_node", lambda: None)
"""Return the autograd node that runs in this thread, or None."""
_next_nr: Final[Callable[[], int]] = _nodes.take("torch._C._autograd._get_sequence_nr", lambda: 0)
SEQUENCE_NR: Final = "_sequence_nr"
"""The method of a node that returns its number."""
_of_node: Final[Any] = _nodes.take("torch._C._FunctionBase._sequence_nr", None)

# Both fall back together, so that every node counts as the newest one. Then a saved output is never mistaken for an
# input.
_numbered: Final = _of_node is not None and "torch._C._autograd._get_sequence_nr" not in _nodes.lacking
next_sequence_nr: Final[Callable[[], int]] = _next_nr if _numbered else lambda: 0
"""Return the number that the next autograd node of this thread gets, 0 if unknown."""
sequence_nr_of: Final[Callable[[Any], int]] = (
    operator.methodcaller(SEQUENCE_NR) if _numbered else lambda node: -1
)
"""Return the number of a node, -1 if unknown; a forward op and its node share it."""

AccumulateGrad: Final[Any] = Part("the walk along a graph visits the nodes of its leaves too").take(
    "torch._C._functions.AccumulateGrad", NoSuchClass
)
"""The class of the nodes that add up the gradients of leaves."""

_saved: Final = Part("saved tensors are not recorded individually")
_top: Final[Callable[[bool], Hooks | None]] = _saved.take(
    "torch._C._autograd._top_saved_tensors_default_hooks", lambda ignore_tracing: None
)
push_saved_hooks: Final[Callable[[Callable[..., Any], Callable[..., Any]], None]] = _saved.take(
    "torch._C._autograd._push_saved_tensors_default_hooks", lambda pack, unpack: None
)
"""Push a pair of hooks that pack and unpack the tensors that autograd saves in this thread."""
pop_saved_hooks: Final[Callable[[], None]] = _saved.take(
    "torch._C._autograd._pop_saved_tensors_default_hooks", lambda: None
)
"""Pop the pair of hooks that was pushed last."""
SavedTensor: Final[Any] = _saved.take("torch._C._autograd.SavedTensor", _NoSavedTensor)
"""The class of a node's saved tensors."""
RAW_SAVED_PREFIX: Final = "_raw_saved_"
"""The prefix of a C++ node's attributes for its saved tensors."""
RAW_SAVED_TENSORS: Final = "_raw_saved_tensors"
"""The attribute of a Python node for its saved tensors."""
_saved.take("torch._C._FunctionBase._raw_saved_tensors", None)
saved_tensors_of: Final[Any] = _saved.take("torch._C._FunctionBase.saved_tensors", property(lambda ctx: ()))
"""The descriptor of `ctx.saved_tensors`: torch's own way to read them. A property of a subclass may hide it."""
SAVED_HOOKS_WORK: Final = _saved.complete
"""Whether hooks can see every tensor that autograd saves."""


_SWITCH: Final = ("_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable")
SAVED_HOOKS_SWITCH: Final[tuple[Any, str, str] | None] = (
    (torch._C._autograd, *_SWITCH) if all(hasattr(torch._C._autograd, name) for name in _SWITCH) else None
)
"""The module and the names of the functions with which torch disables and enables hooks on saved tensors.

Both `torch.autograd.graph.disable_saved_tensors_hooks` and dynamo's compiled form of it look them up at each call.
"""


def top_saved_hooks() -> Hooks | None:
    """Return the pair of hooks on saved tensors that was pushed last in this thread, or None."""
    return _top(True)


def node_of_result(tensor: Any) -> Any:
    """Return the node behind a tensor that a compiled graph has just returned. None for a leaf.

    This calls torch's getter, as the program is about to do with the same tensor. Autograd is on here, so that torch
    can rebuild the history of a view. If torch raises, the program gets the same error when it uses the tensor.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def raw_saved_tensors_of(ctx: Any) -> Any:
    """Return a Python node's saved tensors without running their hooks."""
    return getattr(ctx, RAW_SAVED_TENSORS, ())


_level: Final = Part("forward-mode AD is not noticed, so a saved output may be kept with its node")
_level.take("torch.autograd.forward_ad._current_level", None)


def in_forward_mode() -> bool:
    """Return True inside `torch.autograd.forward_ad.dual_level()`."""
    return getattr(forward_ad, "_current_level", -1) >= 0


call_at_end_of_backward: Final[Callable[[Callable[[], None]], None]] = Part(
    "a gradient that is dropped right after its backward counts as a temporary"
).take("torch.autograd.variable.Variable._execution_engine.queue_callback", lambda callback: None)
"""Call a function when the backward in this thread has run all its nodes. It is not called if the backward raises."""

_engine: Final = Part("the line that called backward is searched anew for every op of it")
_run_backward: Final[Any] = _engine.take("torch.autograd.graph._engine_run_backward", None)
ENGINE_CODE: Final[CodeType | None] = getattr(_run_backward, "__code__", None)
"""The code of torch's Python frame around a whole backward."""

_hooks: Final = Part("hooks of autograd nodes are not searched for leaks")
_HookMixin: Final[Any] = _hooks.take("torch.autograd.function._HookMixin", None)
_REGISTER: Final = "_register_hook"
_hooks.take("torch.autograd.function._HookMixin._register_hook", None)
NODE_HOOKS_WORK: Final = _hooks.complete
"""Whether `registering_hooks_by` changes anything."""


@contextlib.contextmanager
def registering_hooks_by(replacement: Callable[[Callable[..., Any], Any, Any], Any]) -> Iterator[None]:
    """Have `node.register_hook(hook)` call `replacement(original, hooks, hook)` inside the block.

    `hooks` is the dictionary of the node's hooks. torch keeps it in C++ and provides it only here.
    """
    if not NODE_HOOKS_WORK:
        yield
        return
    original = vars(_HookMixin)[_REGISTER]

    def register(hooks: Any, hook: Any) -> Any:
        return replacement(original.__func__, hooks, hook)

    setattr(_HookMixin, _REGISTER, staticmethod(register))
    try:
        yield
    finally:
        setattr(_HookMixin, _REGISTER, original)


def node_name_in_errors(name: str) -> str:
    """Return the name of a node as in torch's error about a saved tensor. Before torch 2.13 it was the whole name."""
    return name if is_older_than(2, 13) else re.sub(r"Backward[0-9]*$", "", name)


CANNOT: Final = "can not" if is_older_than(2, 13) else "cannot"
"""How torch's error about a pack hook spells it."""
