"""Shared by the tests of replay."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Run each test with one thread."""
