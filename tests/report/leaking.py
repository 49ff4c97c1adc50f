"""A function that leaks in each of the three ways, and its leaks, for the tests of the reports."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from memwatch import find_leaks

KEPT: list[torch.Tensor] = []


def leaky():
    KEPT.append(torch.ones(1000))
    ring = [torch.ones(5000)]
    ring.append(ring)
    weight = torch.ones(300, requires_grad=True)
    squared = weight * weight
    squared.register_hook(lambda grad: grad * squared.sum())


def write_leaks():
    """Write the leaks into the current folder."""
    Path("leaks.pickle").write_bytes(pickle.dumps(find_leaks(leaky)))
