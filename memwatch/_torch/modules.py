"""Modules and optimizers: the function behind every module call, the tables of a module, and the batch norm ops.

| torch | here |
| --- | --- |
| nn.Module._call_impl | module_call(), set_module_call(function) |
| nn.Module._call_impl.__code__ | MODULE_CALL_CODE, None if unknown |
| a code object in torch.optim.Optimizer.profile_hook_step | OPTIMIZER_STEP_CODE, None if unknown |
| torch.nn.utils.stateless._functional_call.__code__ | FUNCTIONAL_CALL_CODE, None if unknown |
| module.__dict__["_parameters"], "_buffers", "_modules" | PARAMETERS, BUFFERS, MODULES |
| module._forward_hooks, optimizer._optimizer_step_pre_hooks, ... | HOOK_TABLES |
"""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.nn.modules import module as all_modules

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable

PARAMETERS, BUFFERS, MODULES = "_parameters", "_buffers", "_modules"
"""Keys in a module's `__dict__` of the dictionaries that hold its parameters, buffers and children."""

HOOK_TABLES: Final = frozenset(
    {
        *(name for name in vars(nn.Module()) if name.endswith("_hooks")),
        *(name for name in vars(all_modules) if name.endswith("_hooks")),  # hooks hooks for all modules
        "_global_optimizer_pre_hooks",
        "_global_optimizer_post_hooks",
        "_optimizer_step_pre_hooks",
        "_optimizer_step_post_hooks",
        "_optimizer_state_dict_pre_hooks",
        "_optimizer_state_dict_post_hooks",
        "_optimizer_load_state_dict_pre_hooks",
        "_optimizer_load_state_dict_post_hooks",
        "_post_accumulate_grad_hooks",  # tables of a tensor; a module has `_backward_hooks` too
        "user_hooks",  # of torch.utils.hooks.BackwardHook, which a module makes for its own hooks
        "user_pre_hooks",
    }
)
"""The names of the tables to which `register_..._hook` adds a hook, and from which `handle.remove()` takes it.

A program's own containers may have similar names: `layer_hooks` may hold recorded values, or handles of hooks."""

_call: Final = Part("memwatch does not see module calls, so memory has no module")
_original: Final[Any] = _call.take("torch.nn.Module._call_impl", None)
MODULE_CALLS_WORK: Final = _call.complete
"""Whether calls of modules can be seen."""
MODULE_CALL_CODE: Final[CodeType | None] = getattr(_original, "__code__", None)
"""The code of torch's own frame around every `forward`."""


def module_call() -> Callable[..., Any]:
    """Return the function that every module call runs through now: torch's own, or another tool's."""
    current: Callable[..., Any] = nn.Module._call_impl if MODULE_CALLS_WORK else nn.Module.__call__
    return current


def set_module_call(function: Callable[..., Any]) -> None:
    """Make every module call run through a function."""
    if MODULE_CALLS_WORK:
        nn.Module._call_impl = function  # type: ignore[method-assign]


_step: Final = Part("the line that called an optimizer's step is searched anew for every op of it")


def _wrapper_in(function: Any) -> CodeType | None:
    constants = getattr(getattr(function, "__code__", None), "co_consts", ())
    return next((constant for constant in constants if isinstance(constant, CodeType)), None)


OPTIMIZER_STEP_CODE: Final[CodeType | None] = _wrapper_in(
    _step.take("torch.optim.Optimizer.profile_hook_step", None)
)
"""The code of torch's own frame around every optimizer's `step`."""

_stateless: Final = Part(
    "parameters that torch.func.functional_call replaces for one call look permanently replaced"
)
FUNCTIONAL_CALL_CODE: Final[CodeType | None] = getattr(
    _stateless.take("torch.nn.utils.stateless._functional_call", None), "__code__", None
)
"""The code of torch's own frame around a call with replaced parameters (`functional_call`)."""


_norms: Final = Part("the backward never recomputes batch norms, so a plan may miss its budget")
RETURNS_STATISTICS: Final[Any] = _norms.take(
    "torch.ops.aten._native_batch_norm_legit_functional.default", None
)
"""The batch norm that returns new running statistics. None if unknown."""
WRITES_STATISTICS: Final[Any] = _norms.take("torch.ops.aten._native_batch_norm_legit.default", None)
"""The batch norm that writes its running statistics. None if unknown."""
WITHOUT_STATISTICS: Final[Any] = _norms.take("torch.ops.aten._native_batch_norm_legit.no_stats", None)
"""The batch norm without running statistics. None if unknown."""


def can_compute_batch_norms_again() -> bool:
    """Return True if this torch has all three."""
    return _norms.complete
