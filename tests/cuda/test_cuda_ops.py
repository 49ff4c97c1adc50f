"""PyTorch's own op database on a CUDA device: forward and backward with and without memwatch, bit for bit."""

from __future__ import annotations

import pytest
import torch

GROUPS = 16
SAMPLES = 2


@pytest.fixture
def repeatable():
    """Have kernels that add in any order run in one order, so that two plain runs agree."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("group", range(GROUPS))
def test_ops_are_bit_equal(repeatable, group, intercept):
    """Every entry with float32 samples there: equal, or, with the mode, as under an empty mode."""
    from compat_opinfo import compare, entries, name_of  # the database takes seconds to import

    verdicts = {
        name_of(op): compare(op, intercept, SAMPLES, device="cuda") for op in entries("cuda")[group::GROUPS]
    }
    assert {name: verdict for name, verdict in verdicts.items() if verdict == "different"} == {}
    assert "equal" in verdicts.values()
