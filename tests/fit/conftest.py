"""Shared by the tests of fit()."""

from __future__ import annotations

import pytest

from memwatch.fit import trial


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Run each test with one thread."""


@pytest.fixture(autouse=True)
def two_steps(monkeypatch):
    """Run each way for as few steps as show its peak. These tests do not compare times."""
    monkeypatch.setattr(trial, "_MOST_STEPS", 2)
