"""Shared by the tests of fit()."""

from __future__ import annotations

import re

import pytest

from memwatch.fit import trial


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Run each test with one thread."""


@pytest.fixture
def beside_progress():
    """Return what a command wrote to standard error beside the lines about its runs."""
    return lambda text: re.sub(r"^memwatch: (fit runs|run \d+:) .*\n", "", text, flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def two_steps(monkeypatch):
    """Run each way for as few steps as show its peak. These tests do not compare times."""
    monkeypatch.setattr(trial, "_MOST_STEPS", 2)
