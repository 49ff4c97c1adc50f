"""Estimate the tensors of a program: its beginning runs on fake tensors, as one rank of a simulated job.

The package carries the name of its main function, `memwatch.estimate`, so calling it calls that function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memwatch.estimate.result import Estimate


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Estimate:  # estimate() checks them
        from memwatch.estimate.api import estimate

        return estimate(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
