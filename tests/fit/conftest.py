"""Shared by the tests of fit()."""

from __future__ import annotations

import gc

import pytest
import torch

from memwatch.fit import live_trial


@pytest.fixture(autouse=True, scope="module")
def light_heap():
    """Every trial looks at all objects of the process; what the test run imported need not be among them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors, cores shared with others: one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def two_steps(monkeypatch):
    """Run each way for as few steps as show its peak; which of two ways is faster is no subject of these tests."""
    monkeypatch.setattr(live_trial, "_MOST_STEPS", 2)
