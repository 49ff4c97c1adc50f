"""autograd's engine: call a function when a backward begins or has returned.

| torch | here |
| --- | --- |
| torch.autograd._engine_run_backward | call_after_backwards(call), call_before_next_backward(call) |
| torch._C._autograd._get_current_graph_task_keep_graph | keeps_graph() |
| torch._C._current_graph_task_id | is_in_backward() |
| grad_fn.metadata | metadata_of(grad_fn) |
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.dynamo import disabled
from memwatch._torch.fake import is_fake_mode_on
from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME: Final = "_engine_run_backward"
_engine: Final = Part("the end of a measured step is noticed one step late")
_run_backward: Final[Any] = _engine.take("torch.autograd._engine_run_backward", None)
keeps_graph: Final[Callable[[], bool]] = _engine.take(
    "torch._C._autograd._get_current_graph_task_keep_graph", lambda: False
)
"""Return True inside a backward that keeps its graph for another one."""
_task_id: Final[Callable[[], int]] = _engine.take("torch._C._current_graph_task_id", lambda: -1)


def is_in_backward() -> bool:
    """Return True if autograd's engine runs a backward in this thread."""
    return _task_id() != -1


def call_after_backwards(call: Callable[[], object]) -> Callable[[], None]:
    """Call a function whenever a backward of any thread has returned. Return the function that ends this.

    A torch profiler cannot be stopped inside a backward, because the end of the backward restores the profiler's state.
    So this wraps the whole backward. The wrapper is disabled for dynamo, because a compiled function may call a
    backward.
    """
    if _run_backward is None:
        return lambda: None
    module: Any = torch.autograd
    before = getattr(module, _NAME)

    @disabled
    @functools.wraps(before)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        result = before(*args, **kwargs)
        if not is_fake_mode_on():  # otherwise a compiler is tracing a backward
            call()
        return result

    def end() -> None:
        if getattr(module, _NAME) is run_backward:  # otherwise another function was put around this one
            setattr(module, _NAME, before)

    setattr(module, _NAME, run_backward)
    return end


def call_before_next_backward(call: Callable[[], object]) -> None:
    """Call a function once, before the next backward begins. If it raises, that backward does not run."""
    if _run_backward is None:
        call()
        return
    module: Any = torch.autograd
    before = getattr(module, _NAME)
    is_due = True

    @disabled
    @functools.wraps(before)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_due
        if is_due and not is_fake_mode_on():
            is_due = False
            if getattr(module, _NAME) is run_backward:  # otherwise another function was put around this one
                setattr(module, _NAME, before)
            call()
        return before(*args, **kwargs)

    setattr(module, _NAME, run_backward)


def metadata_of(grad_fn: Any) -> dict[Any, Any]:
    """Return the dictionary that lives as long as a node of autograd's graph."""
    found: dict[Any, Any] = grad_fn.metadata
    return found
