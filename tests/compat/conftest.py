"""The compatibility matrix's harness asserts, so pytest shall explain its asserts too."""

from __future__ import annotations

import gc

import pytest
import torch

pytest.register_assert_rewrite("compat_harness")


@pytest.fixture(scope="module", autouse=True)
def _quick_collections():
    """Let the collections of the harness look at the programs' objects only, and torch use one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)
