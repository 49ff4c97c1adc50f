"""`memwatch.tune`: what torch's CUDA allocator would reserve for a recorded program under other settings.

`api.py` makes a trace of the recorded allocations and runs it, `result.py` and `record.py` show what was found.
"""

from memwatch.tune.api import tune
from memwatch.tune.result import EarlierLine, Tuning

__all__ = ["EarlierLine", "Tuning", "tune"]
