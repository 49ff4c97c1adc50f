"""The peak that `memwatch fit` measures: allocations and frees of a stretch of code, older blocks included."""

from __future__ import annotations

import pytest
import torch

from memwatch.fit.live_bytes import count_live_bytes

_SMALL, _LARGE = 1 << 20, 4 << 20


def _at_the_address_of_an_earlier_block(former_bytes, nbytes):
    """Return a tensor where an earlier one lay, which was made in a counted block and freed after it."""
    kept = []
    for _ in range(50):
        with count_live_bytes("cpu"):
            former = torch.empty(former_bytes, dtype=torch.uint8)
        address = former.data_ptr()
        del former
        found = torch.empty(nbytes, dtype=torch.uint8)
        if found.data_ptr() == address:
            return found
        kept.append(found)
    pytest.skip("the allocator did not use an address again")


def test_a_block_at_the_address_of_an_earlier_one_is_freed_with_its_own_size():
    """The profiler of torch remembers the size of the earlier block, whose free it did not see."""
    older = _at_the_address_of_an_earlier_block(2 * _SMALL, _SMALL)
    with count_live_bytes("cpu") as found:
        del older
        assert len(torch.empty(_LARGE, dtype=torch.uint8)) == _LARGE
    assert found.peak_bytes == found.baseline_bytes - _SMALL + _LARGE


def test_a_block_from_before_is_freed_with_its_own_size():
    """The allocator did not report this block before."""
    older = torch.empty(_SMALL, dtype=torch.uint8)
    with count_live_bytes("cpu") as found:
        del older
        assert len(torch.empty(_LARGE, dtype=torch.uint8)) == _LARGE
    assert found.peak_bytes == found.baseline_bytes - _SMALL + _LARGE
