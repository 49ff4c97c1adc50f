"""Shared by the tests of replay."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Run each test with one thread."""


@pytest.fixture
def fresh_dynamo():
    """Compiled code of one test is not seen by the next."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
