"""Shared by the tests of replay."""

from __future__ import annotations

import gc

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def light_heap():
    """Recording looks at every object of the process; what the test run imported need not be among them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors, two cores shared with others: one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
