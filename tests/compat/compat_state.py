"""Everything process-wide or thread-wide that torch and Python let a profiler change."""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
from typing import Any

import torch
from torch import nn
from torch.autograd import profiler, profiler_legacy
from torch.autograd.function import BackwardCFunction
from torch.optim import optimizer
from torch.utils._python_dispatch import _len_torch_dispatch_stack

_OWNERS = (
    torch.Tensor,
    torch.UntypedStorage,
    torch.nn.Module,
    torch.nn.Parameter,
    torch.autograd.Function,
    torch.optim.Optimizer,
    torch,
    torch.autograd,
    torch.autograd.graph,
    torch.func,
    torch.utils.checkpoint,
    torch.compiler,
    profiler,
    profiler_legacy,
    nn.modules.module,
    optimizer,
    os,
    threading,
)
_ENDING_S = 5
_KEY = torch._C._dispatch_key_parse("Fake")


def torch_state() -> dict[str, Any]:
    """Return the state as a dict whose values compare equal if nothing changed."""
    autograd: Any = torch._C._autograd
    module = nn.modules.module
    return {
        **{f"attributes of {owner.__name__}": _attributes(owner) for owner in _OWNERS},
        "dispatch modes": _len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "saved tensor hooks": autograd._top_saved_tensors_default_hooks(True),
        "ctx.saved_tensors": "saved_tensors" in vars(BackwardCFunction),
        "saved tensor hooks enabled": autograd._saved_tensors_hooks_is_enabled(),
        "module hooks": [
            _ids(getattr(module, name))
            for name in dir(module)
            if name.startswith("_global_") and name.endswith("hooks")
        ],
        "optimizer hooks": [
            _ids(optimizer._global_optimizer_pre_hooks),
            _ids(optimizer._global_optimizer_post_hooks),
        ],
        "key included": torch._C._dispatch_tls_is_dispatch_key_included(_KEY),
        "key excluded": torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY),
        "profiler": autograd._profiler_enabled(),
        "profiler type": str(torch._C._autograd._profiler_type()),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "torch function": torch._C._get_torch_function_state()
        if hasattr(torch._C, "_get_torch_function_state")
        else None,
        "defaults": (torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()),
        "determinism": (torch.are_deterministic_algorithms_enabled(), torch.is_warn_always_enabled()),
        "autocast": (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        "stance": repr(torch._dynamo.eval_frame._stance) if "torch._dynamo" in sys.modules else None,
        "python": (
            gc.isenabled(),
            gc.get_debug(),
            gc.get_threshold(),
            list(gc.callbacks),
            sys.getprofile(),
            sys.gettrace(),
        ),
        "hooks of python": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "warnings": (list(warnings.filters), warnings.showwarning, warnings.formatwarning),
        "threads of memwatch": _threads_of_memwatch(),
        "streams": (sys.stdout, sys.stderr, os.fstat(2).st_ino),
    }


def _ids(hooks: Any) -> list[int]:
    return [id(hook) for hook in hooks.values()]


def _attributes(owner: Any) -> dict[str, int]:
    return {
        name: id(value)
        for name, value in vars(owner).items()
        if callable(value) or isinstance(value, property)
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Name the parts of the state that differ."""
    found = []
    for part, value in before.items():
        other = after[part]
        if value == other:
            continue
        if isinstance(value, dict):
            names = [name for name in {**value, **other} if value.get(name) != other.get(name)]
            names = [name for name in names if name in value]  # a lazily loaded attribute is not a patch
            found += [f"{part}: {name}" for name in names]
        else:
            found.append(f"{part}: {value!r} -> {other!r}")
    return found


def _threads_of_memwatch() -> list[str]:
    """Name the threads of memwatch that do not end. A thread may need a moment to end."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("memwatch")]
    for thread in ours:
        thread.join(_ENDING_S)
    return [thread.name for thread in ours if thread.is_alive()]
