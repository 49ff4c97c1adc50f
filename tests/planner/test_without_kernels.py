"""The planner in Python, where the kernels cannot be loaded: valid plans, never above program order, with a note."""

from __future__ import annotations

import random

import planner_graphs as graphs
import pytest
from planner_recompute_graphs import linear_graph, training_chain, unet_step
from planner_reference import reference_peak

from memwatch.errors import MemwatchError
from memwatch.planner import BudgetError, Graph, OpSpec, best_order, load_plan, lower_bound, plan_graph
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
    "skips": lambda: linear_graph(8),
    "training": lambda: training_chain(12, random.Random(0)),
    "u-net": lambda: unet_step(2, random.Random(0)),
    "layers": lambda: graphs.random_layered(10, 5, 2, fan_in=3),
    "mutation": _counting_net,
}
REQUESTS = ({}, {"order": "program"}, {"offload": True, "bandwidth": 2_000.0}, {"recompute": False})


@pytest.fixture
def no_compiler(monkeypatch, tmp_path) -> None:
    """Have a process that has loaded no library and finds no compiler."""
    monkeypatch.setattr(library, "_loader", library.Loader())
    monkeypatch.setattr(library, "BUILT", tmp_path / "none")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("MEMWATCH_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_in_python_is_valid_and_never_above_program_order(name, no_compiler):
    """A second simulator agrees with its peak, whether or not it fits the budget."""
    for request in REQUESTS:
        for budget in (None, "80%", "50%"):
            graph = PROGRAMS[name]()
            try:
                plan = plan_graph(graph, budget=budget, **request)
            except BudgetError as error:
                plan = error.best
            peak_bytes = reference_peak(graph, list(plan.schedule)) - graph.baseline_bytes
            assert plan.lower_bound_bytes <= peak_bytes == plan.peak_increase_bytes
            assert peak_bytes <= plan.program_peak_increase_bytes


@pytest.mark.parametrize("name", ["skips", "training", "u-net"])
def test_checkpoints_and_cuts_reach_a_budget_in_python(name, no_compiler):
    plan = plan_graph(PROGRAMS[name](), budget="70%")
    assert plan.peak_increase_bytes <= plan.budget_bytes
    assert plan.extra_cost_ratio > 0


def test_a_plan_in_python_says_so_in_its_text_its_file_and_the_error(no_compiler, tmp_path):
    plan = plan_graph(linear_graph(8), budget="70%")
    (note,) = plan.notes
    assert "memwatch build" in note
    assert note in str(plan)
    plan.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").notes == [note]
    with pytest.raises(BudgetError, match="memwatch build"):
        plan_graph(unet_step(3, random.Random(0)), budget="40%")


def test_a_plan_that_no_search_could_improve_has_no_note(no_compiler):
    """Program order fits the budget, so the kernels would not have been used."""
    assert plan_graph(linear_graph(8), budget="100%").notes == []


def test_a_plan_of_the_kernels_has_no_note():
    assert plan_graph(linear_graph(8), budget="70%").notes == []


def test_the_kernels_plan_again_once_they_are_there(monkeypatch):
    """A plan in Python does not stand in the way of a search."""
    graph = linear_graph(8)
    with monkeypatch.context() as patch:
        patch.setattr(library, "_loader", library.Loader())
        patch.setattr(library, "load", lambda file: None)
        patch.setenv("CXX", "no-such-compiler")
        first = plan_graph(graph, budget="70%")
    again = plan_graph(graph, budget="70%")
    assert (bool(first.notes), again.notes) == (True, [])
    assert again.extra_cost_ratio <= first.extra_cost_ratio


def test_an_order_in_python_is_not_worse_than_the_program(no_compiler):
    graph = graphs.random_layered(20, 10, 2, fan_in=3)
    best = best_order(graph)
    assert lower_bound(graph, recompute=False) <= best.lower_bound_bytes <= best.peak_bytes
    assert best.peak_bytes < plan_graph(graph, budget="100%").program_peak_increase_bytes


class _SlowBuild:
    """A compiler that needs longer than anybody waits; it notes for how long it was waited for (seconds)."""

    waited_s: list[float]

    def __init__(self) -> None:
        self.waited_s = []
        type(self).last = self

    def is_done(self, within_s: float) -> bool:
        self.waited_s.append(within_s)
        return False


def test_a_plan_that_cannot_wait_for_the_compiler_is_made_in_python(no_compiler, monkeypatch, capsys):
    """The time limit covers the compiler. memwatch waits for it within the limit, and reports this once."""
    monkeypatch.setattr(library, "Build", _SlowBuild)
    plan = plan_graph(linear_graph(2), budget=3, time_limit_s=4)
    assert plan.peak_increase_bytes <= 3
    assert plan.notes
    assert sum(_SlowBuild.last.waited_s) <= 8
    assert "compiling" in capsys.readouterr().err


def test_a_program_that_fits_compiles_nothing(no_compiler, monkeypatch):
    """The kernels serve searches, and this program needs none."""

    def build() -> None:
        raise AssertionError("the compiler was started")

    monkeypatch.setattr(library, "Build", build)
    assert plan_graph(graphs.thunder_1337(3), budget="100%").extra_cost_ratio == 0


def test_a_missing_compiler_is_named_once(no_compiler, capsys):
    """One message names the missing program and how to install it."""
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
    assert not list((tmp_path / "cache").iterdir())
