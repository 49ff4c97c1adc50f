"""The kernels in C++ and their twins in Python: the same plans, and a plan in time where nothing is compiled."""

from __future__ import annotations

import itertools

import planner_graphs as graphs
import pytest
from planner_recompute_graphs import linear_graph

from memwatch.errors import MemwatchError
from memwatch.planner import BudgetError, Graph, OpSpec, kernels, plan_graph
from memwatch.planner.native import library


def _counting_net() -> Graph:
    """A chain of ops that count their calls in a buffer each, as batch norm does, and its backward."""
    forward = [
        OpSpec(f"norm{at}", [f"x{at - 1}"] if at else [], {f"x{at}": 5_000}, 1.0 + at % 2, [f"count{at}"],
               writes_once=[f"count{at}"])
        for at in range(3)
    ]  # fmt: skip
    backward = [
        OpSpec(f"back{at}", [f"x{at}", *([f"g{at + 1}"] if at < 2 else [])], {f"g{at}": 1_000}, 1.0)
        for at in reversed(range(3))
    ]
    return Graph.build([*forward, *backward], keep=["g0", *(f"count{at}" for at in range(3))])


PROGRAMS = {
    "skips": (lambda: linear_graph(3), {"budget": 4}),
    "order": (lambda: graphs.pyramid(3), {"budget": None}),
    "layers": (lambda: graphs.random_layered(8, 4, 1, fan_in=2), {"budget": "85%"}),
    "once": (_counting_net, {"budget": "75%"}),
    "moves": (_counting_net, {"budget": "75%", "offload": True, "bandwidth": 2_000.0}),
}


@pytest.fixture
def loader(monkeypatch) -> kernels._Loader:
    """Return a loader of a process without a library and a compiler."""
    fresh = kernels._Loader()
    fresh._has_looked = True
    monkeypatch.setattr(kernels, "_loader", fresh)
    return fresh


@pytest.fixture(scope="module")
def compiled() -> kernels._Loader:
    """Have a process that has loaded the library."""
    kernels.compile_kernels()
    fresh = kernels._Loader()
    assert fresh.look() is not None
    return fresh


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_and_twins_find_the_same_plan(name, compiled, loader, monkeypatch):
    """Every search runs the same steps in both, down to the last bit of a cost."""
    make, request = PROGRAMS[name]
    loader._has_failed = True

    def found() -> tuple[object, ...]:
        try:
            plan = plan_graph(make(), time_limit_s=600, **request)
        except BudgetError as error:
            plan = error.best
        return plan.schedule, plan.extra_cost_ratio, plan.peak_increase_bytes, plan.lower_bound_bytes

    in_python = found()
    monkeypatch.setattr(kernels, "_loader", compiled)
    assert found() == in_python


class _SlowBuild:
    """A compiler that needs longer than anybody waits; it notes for how long it was waited for (seconds)."""

    waited_s: list[float]

    def __init__(self) -> None:
        self.waited_s = []
        type(self).last = self

    def is_done(self, within_s: float) -> bool:
        self.waited_s.append(within_s)
        return False


def test_a_plan_that_cannot_wait_for_the_compiler_is_found_in_python(loader, monkeypatch, capsys):
    """The time limit covers the compiler. memwatch waits for it within the limit, and reports this once."""
    monkeypatch.setattr(library, "Build", _SlowBuild)
    plan = plan_graph(linear_graph(2), budget=3, time_limit_s=4)
    assert plan.peak_increase_bytes <= 3
    assert sum(_SlowBuild.last.waited_s) <= 4.8
    assert capsys.readouterr().err.count("\n") == 1


def test_a_program_that_fits_compiles_nothing(loader, monkeypatch):
    """The kernels serve searches, and this program needs none."""

    def build() -> None:
        raise AssertionError("the compiler was started")

    monkeypatch.setattr(library, "Build", build)
    graph = graphs.thunder_1337(3)
    assert plan_graph(graph).peak_increase_bytes == 768 * 1024
    assert plan_graph(graph, budget="100%").extra_cost_ratio == 0


def test_without_a_compiler_plans_are_found_in_python(loader, monkeypatch, tmp_path, capsys):
    """One message names the missing program and how to install it."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("MEMWATCH_CACHE", str(tmp_path))
    for budget in (3, 3):
        assert plan_graph(linear_graph(2), budget=budget).peak_increase_bytes <= budget
    said = capsys.readouterr().err
    assert "g++" in said
    assert said.count("\n") == 1


def test_sources_that_do_not_compile_are_told(monkeypatch, tmp_path):
    """The first lines of the compiler are in the error, and no library is left."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "kernels.cpp").write_text("int broken(;\n")
    monkeypatch.setenv("MEMWATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "SOURCES", tmp_path / "src")
    with pytest.raises(MemwatchError, match="error"):
        library.build()
    assert not list(itertools.chain((tmp_path / "cache").iterdir()))
