"""Shared by the tests of words: each program of a file runs once, for all tests of it."""

from __future__ import annotations

import pytest
import torch

pytest.register_assert_rewrite("truth_checks")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with the fixture `ran` for every program of its file."""
    if "ran" in metafunc.fixturenames:
        metafunc.parametrize("ran", metafunc.module.PROGRAMS, indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def ran(request):
    """One program, run once for all tests, and its name."""
    from truth_checks import run

    return request.param, run(request.param)
