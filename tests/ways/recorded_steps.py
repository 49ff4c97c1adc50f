"""Record steps of a program that has run one step before, so that its gradients and optimizer state exist."""

from __future__ import annotations

import gc

import memwatch


def record_steps(step, steps=2):
    """Return the profile of some steps, after one that is not recorded."""
    step()
    gc.collect()  # tensors of earlier tests
    with memwatch.profile(holders=False) as prof:
        for _ in range(steps):
            step()
    return prof
