"""Find tensors that outlive the code that made them, and name the one reference to cut."""

from __future__ import annotations

from memwatch.errors import DrawError
from memwatch.leaks.check import check_leaks
from memwatch.leaks.find import RunsError, find_leaks
from memwatch.leaks.leak import Leak, TensorLeakError
from memwatch.leaks.watch import EveryError, LeakWatch
from memwatch.leaks.why import NotATensorError, WhyAlive, why_alive

__all__ = [
    "DrawError",
    "EveryError",
    "Leak",
    "LeakWatch",
    "NotATensorError",
    "RunsError",
    "TensorLeakError",
    "WhyAlive",
    "check_leaks",
    "find_leaks",
    "why_alive",
]
