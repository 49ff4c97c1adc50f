"""The graph generators of the reports are the fixtures of these tests. The kernels are compiled first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from memwatch.planner.native import library

sys.path.insert(0, str(Path(__file__).parents[2] / "reports"))


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    """Have the kernels: most tests are about the searches that need them."""
    library.build()
