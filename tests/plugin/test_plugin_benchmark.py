"""With pytest-benchmark, the fixture `memwatch` puts peaks beside the times."""

from __future__ import annotations

import json

import pytest

SOURCE = """
import pytest, torch
def step(n=1000):
    torch.ones(n).neg()
@pytest.fixture
def other():
    pass
def test_both(benchmark, memwatch):
    benchmark.pedantic(step, rounds=2)
    with memwatch.profile() as large:
        step(2000)
    with memwatch.profile():
        step(100)
    assert benchmark.extra_info["memwatch_peak_bytes"] == large.peak_bytes
def test_other_order(memwatch, benchmark):
    benchmark.pedantic(step, rounds=2)
    with memwatch.profile():
        step()
def test_nothing_measured(memwatch, benchmark):
    benchmark.pedantic(step, rounds=2)
def test_without_memwatch(benchmark):
    benchmark.pedantic(step, rounds=2)
"""
OF_ANOTHER = """
import pytest, torch
@pytest.fixture
def benchmark():
    return object()
def test_it(memwatch, benchmark):
    with memwatch.profile():
        torch.ones(10)
"""


def test_extra_info_has_the_peak_of_the_profiled_blocks(pytester, monkeypatch):
    """pytest-benchmark writes it to its JSON. Only tests with a profiled block have an entry."""
    pytest.importorskip("pytest_benchmark")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # in a worker of xdist it measures nothing
    pytester.makepyfile(SOURCE)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--benchmark-json=out.json").assert_outcomes(
        passed=4
    )
    found = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    info = {each["name"]: each["extra_info"] for each in found}
    assert set(info["test_both"]) == {
        "memwatch_device", "memwatch_peak_bytes", "memwatch_peak_increase_bytes"
    }  # fmt: skip
    assert info["test_both"]["memwatch_device"] == "cpu"
    assert info["test_both"]["memwatch_peak_increase_bytes"] == 2 * 4 * 2000
    assert info["test_other_order"]["memwatch_peak_increase_bytes"] == 2 * 4 * 1000
    assert info["test_nothing_measured"] == info["test_without_memwatch"] == {}


def test_a_fixture_of_that_name_from_elsewhere_is_left_alone(session):
    session(OF_ANOTHER).assert_outcomes(passed=1)
