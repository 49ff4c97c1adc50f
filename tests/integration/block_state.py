"""Everything of torch and Python that a block could leave changed, as values that can be compared."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as torch_optimizer

_CLASSES = (
    torch.Tensor,
    torch.nn.Module,
    torch.nn.Parameter,
    torch.optim.Optimizer,
    torch.UntypedStorage,
    torch.autograd.Function,
    torch.autograd.graph.saved_tensors_hooks,
)
FROZEN = "frozen objects"
_HOOKS = [
    (nn_module, name) for name in dir(nn_module) if name.startswith("_global_") and name.endswith("hooks")
]
_HOOKS += [(torch_optimizer, name) for name in dir(torch_optimizer) if name.startswith("_global_")]


def block_state() -> dict[str, object]:
    """Take the state; equal before and after a block that left nothing behind."""
    state: dict[str, object] = {
        "modes": [id(mode) for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack()],
        "function modes": [id(mode) for mode in torch.overrides._get_current_function_mode_stack()],
        "included keys": str(torch._C._dispatch_tls_local_include_set()),
        "excluded keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "saved tensor hooks": str(torch._C._autograd._top_saved_tensors_default_hooks(True)),
        "saved tensor hooks enabled": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "profiler": torch.autograd._profiler_enabled(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)),
        FROZEN: gc.get_freeze_count(),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
        "hooks of sys": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook),
        "streams": (sys.stdout, sys.stderr),
        "signals": [
            signal.getsignal(number) for number in signal.valid_signals() if number != signal.SIGALRM
        ],
        "warnings": (list(warnings.filters), warnings.showwarning),
        "environment": {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "path": list(sys.path),
        "open files": sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else [],
    }
    for owner, name in _HOOKS:
        hooks = getattr(owner, name)
        state[name] = list(hooks) if hasattr(hooks, "__iter__") else hooks
    for each in _CLASSES:
        state[each.__qualname__] = {name: id(value) for name, value in vars(each).items()}
    return state


def module_names() -> dict[str, dict[str, object]]:
    """Return the objects behind the names of each of torch's modules."""
    return {
        name: dict(vars(module))
        for name, module in list(sys.modules.items())
        if module is not None and (name == "torch" or name.startswith("torch."))
    }


def replaced_functions(before: dict[str, dict[str, object]]) -> list[tuple[str, str]]:
    """Return the functions and classes of torch's modules that are others than before: none may be replaced."""
    after = module_names()
    return [
        (module, name)
        for module, names in before.items()
        for name, value in names.items()
        if after.get(module, {}).get(name) is not value and callable(value)
    ]


def changes(before: dict, after: dict) -> dict:
    """Return the differences of two states, as a failed test shows them."""
    keys = [key for key in before if key != FROZEN and before[key] != after.get(key)]
    if FROZEN in before:
        count, later = before[FROZEN], after[FROZEN]
        keys += [FROZEN] if later > count or bool(later) != bool(count) else []  # frozen objects may die
    return {key: (before[key], after.get(key)) for key in keys}
