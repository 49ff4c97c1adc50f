"""A capture of a small training."""

from __future__ import annotations

import pytest
import torch

import memwatch


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Record three marked iterations that keep one more tensor each."""
    torch.set_num_threads(1)
    path, kept = tmp_path_factory.mktemp("live") / "trained.memwatch", []
    model = torch.nn.Linear(64, 64)
    with memwatch.profile(path) as prof:
        for _ in range(3):
            model(torch.ones(32, 64)).square().sum().backward()
            kept.append(torch.ones(1 << 14))
            prof.step()
    return path
