"""memwatch: what the peak of a PyTorch program is made of, who holds it, and how low it could be."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memwatch._version import __version__ as __version__
from memwatch.at_import import read_when_torch_is_imported
from memwatch.errors import MemoryLimitError, MemwatchError
from memwatch.plan_training import train_by

if TYPE_CHECKING:
    from memwatch import estimate, planner, replay
    from memwatch.analysis import UnknownDeviceError
    from memwatch.analysis.findings.finding import Finding
    from memwatch.errors import CaptureError, UnsupportedOpError
    from memwatch.estimate.api import LargestBatch, largest_batch_size
    from memwatch.estimate.result import Estimate
    from memwatch.fit import Fit, fit
    from memwatch.leaks import Leak, LeakWatch, TensorLeakError, check_leaks, find_leaks, why_alive
    from memwatch.monitor.process import process_memory
    from memwatch.monitor.watch import Monitor, monitor
    from memwatch.plan_training import Turns
    from memwatch.planner.plan import BudgetError, Plan
    from memwatch.profile import Profile, profile, schedule, verify
    from memwatch.ranks import Ranks, merge
    from memwatch.reading import Reading, load
    from memwatch.replay.api import apply_plan, plan
    from memwatch.replay.run import ReplayResult
    from memwatch.tune import tune

_HOMES = {
    "BudgetError": "memwatch.planner.plan",
    "CaptureError": "memwatch.errors",
    "Estimate": "memwatch.estimate.result",
    "Finding": "memwatch.analysis.findings.finding",
    "LargestBatch": "memwatch.estimate.api",
    "Leak": "memwatch.leaks",
    "LeakWatch": "memwatch.leaks",
    "Plan": "memwatch.planner.plan",
    "Profile": "memwatch.profile",
    "Ranks": "memwatch.ranks.ranks",
    "Reading": "memwatch.reading",
    "Fit": "memwatch.fit.result",
    "ReplayResult": "memwatch.replay.run",
    "TensorLeakError": "memwatch.leaks",
    "UnknownDeviceError": "memwatch.analysis",
    "UnsupportedOpError": "memwatch.errors",
    "apply_plan": "memwatch.replay.api",
    "check_leaks": "memwatch.leaks",
    "find_leaks": "memwatch.leaks",
    "fit": "memwatch.fit.api",
    "largest_batch_size": "memwatch.estimate.api",
    "load": "memwatch.reading",
    "merge": "memwatch.ranks.ranks",
    "Monitor": "memwatch.monitor.watch",
    "monitor": "memwatch.monitor.watch",
    "plan": "memwatch.replay.api",
    "process_memory": "memwatch.monitor.process",
    "profile": "memwatch.profile",
    "schedule": "memwatch.profile",
    "tune": "memwatch.tune",
    "verify": "memwatch.profile",
    "why_alive": "memwatch.leaks",
}
"""Where each public name lives; it is imported when it is first used, so that `import memwatch` stays cheap."""

_PACKAGES = ("estimate", "planner", "replay")
"""Public packages; `memwatch.estimate` and `memwatch.replay` can be called."""

__all__ = [
    "BudgetError",
    "CaptureError",
    "Estimate",
    "Finding",
    "Fit",
    "LargestBatch",
    "Leak",
    "LeakWatch",
    "MemoryLimitError",
    "MemwatchError",
    "Monitor",
    "Plan",
    "Profile",
    "Ranks",
    "Reading",
    "ReplayResult",
    "TensorLeakError",
    "UnknownDeviceError",
    "UnsupportedOpError",
    "apply_plan",
    "check_leaks",
    "estimate",
    "find_leaks",
    "fit",
    "largest_batch_size",
    "load",
    "merge",
    "monitor",
    "plan",
    "planner",
    "process_memory",
    "profile",
    "replay",
    "schedule",
    "tune",
    "verify",
    "why_alive",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"memwatch.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'memwatch' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Add `%%memwatch`, which profiles a cell, to a notebook: `%load_ext memwatch` calls this."""
    importlib.import_module("memwatch.magic").register(shell)


def _turns_of(plan: Plan) -> Turns:
    """Import the functions that train with a plan, which need torch, when a plan is first used so."""
    from memwatch.replay.checkpoints.contexts import turns_of

    return turns_of(plan)


train_by(_turns_of)
read_when_torch_is_imported()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keep the public function `memwatch.profile` when Python binds the module of the same name to the package."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
