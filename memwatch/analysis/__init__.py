"""Pure functions from a capture to tables: what the peak is made of, when and where.

Everything flows one way: `facts` (columns of numbers) to saved tensors and holders, to `tables` and `findings`
(one rule a file), to `DerivedTables`, and these to `ByDevice`, which readers use.
"""

from __future__ import annotations

from memwatch.analysis.derived_tables import ByDevice, UnknownDeviceError

__all__ = ["ByDevice", "UnknownDeviceError"]
