"""The three overloads of a batch norm in training, as a traced graph has them.

| torch | here |
| --- | --- |
| torch.ops.aten._native_batch_norm_legit_functional.default | RETURNS_STATISTICS |
| torch.ops.aten._native_batch_norm_legit.default | WRITES_STATISTICS |
| torch.ops.aten._native_batch_norm_legit.no_stats | WITHOUT_STATISTICS |
"""

from __future__ import annotations

from typing import Any, Final

from memwatch._torch.lookup import Part

_norms: Final = Part("the backward never recomputes batch norms, so a plan may miss its budget")
RETURNS_STATISTICS: Final[Any] = _norms.take(
    "torch.ops.aten._native_batch_norm_legit_functional.default", None
)
"""The batch norm that returns new running statistics; None if unknown, which no node's target is."""
WRITES_STATISTICS: Final[Any] = _norms.take("torch.ops.aten._native_batch_norm_legit.default", None)
"""The batch norm that writes its running statistics; None if unknown."""
WITHOUT_STATISTICS: Final[Any] = _norms.take("torch.ops.aten._native_batch_norm_legit.no_stats", None)
"""The batch norm that has no running statistics; None if unknown."""


def can_compute_batch_norms_again() -> bool:
    """Return True if this torch has all three."""
    return _norms.complete
