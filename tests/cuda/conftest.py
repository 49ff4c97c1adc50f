"""Tests that need a CUDA device: `make gpu` runs them from a bare checkout with the machine's own Python and torch.

Without a device they are collected and skipped. `tests/accelerator` and FakeTensorMode test the parts that need no
real device.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parents[1]
# the programs are shared with other tests
sys.path += [str(TESTS), *(str(TESTS / folder) for folder in ("compat", "integration"))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder on a machine without a GPU."""
    if not torch.cuda.is_available():
        reason = f"torch {torch.__version__} finds no CUDA device here"
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def on_cuda():
    """Have tensors be made on the device, and begin with an allocator that holds nothing of earlier tests."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with torch.device("cuda"):
        yield torch.device("cuda", torch.cuda.current_device())
