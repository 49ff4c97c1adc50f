"""Run a recorded program again: plan it, execute the plan on the real tensors, and check the result.

The package carries the name of its main function, `memwatch.replay`, so calling it calls that function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memwatch.errors import ReplayError, UnsupportedOpError

if TYPE_CHECKING:
    from memwatch.replay.api import RecordedPlan, apply_plan, plan, replay
    from memwatch.replay.checkpoints.apply import AppliedPlan
    from memwatch.replay.fx import graph_from_fx
    from memwatch.replay.run import ReplayResult

__all__ = [
    "AppliedPlan",
    "RecordedPlan",
    "ReplayError",
    "ReplayResult",
    "UnsupportedOpError",
    "apply_plan",
    "graph_from_fx",
    "plan",
    "replay",
]
_HOMES = {
    "AppliedPlan": "checkpoints.apply",
    "RecordedPlan": "api",
    "ReplayResult": "run",
    "apply_plan": "api",
    "graph_from_fx": "fx",
    "plan": "api",
    "replay": "api",
}


def __getattr__(name: str) -> Any:  # any public name; imported when first used
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> ReplayResult:  # replay() checks them
        from memwatch.replay.api import replay

        return replay(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
