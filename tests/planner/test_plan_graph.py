"""plan_graph(): budgets, orders, errors, words, files."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys

import pytest
from planner_clocks import clock_of_readings
from planner_recompute_graphs import layered_graph, linear_graph, training_chain

from memwatch.planner import (
    BudgetError,
    Graph,
    OptionError,
    OrderError,
    load_plan,
    plan_graph,
    program_peak,
    simulate,
)
from memwatch.planner.graph import fingerprint
from memwatch.planner.plan import PlanFileError
from memwatch.planner.plan_search import plan_before
from memwatch.planner.request import PlanRequest
from memwatch.sizes import SizeError

KIB = 2**10


@pytest.fixture(scope="module")
def chain() -> Graph:
    """A training chain of 24 steps; shared, because plans of the same graph and budget are remembered."""
    return training_chain(24, random.Random(3))


def test_without_a_budget_the_order_alone_lowers_the_peak():
    """budget=None: every op once, no extra cost, as low as an order can be."""
    graph = layered_graph(6, 5, random.Random(2))
    plan = plan_graph(graph)
    assert sorted(plan.order) == list(range(graph.num_ops))
    assert plan.extra_cost_ratio == 0
    assert plan.lower_bound_bytes <= plan.peak_increase_bytes < plan.program_peak_increase_bytes


def test_a_budget_that_the_program_keeps_changes_nothing(chain):
    """100% of the program's own peak is the program."""
    plan = plan_graph(chain, budget="100%")
    assert plan.order == list(chain.op_names)
    assert plan.moves == []
    assert plan.extra_cost_ratio == 0


def test_budgets_in_bytes_text_and_percent_agree():
    """Three ways to write the same budget give the same plan."""
    graph = linear_graph(8, nbytes=KIB)
    assert program_peak(graph).peak_bytes == 10 * KIB
    plans = [plan_graph(graph, budget=budget) for budget in (6 * KIB, "6 KiB", "60%")]
    assert [plan.budget_bytes for plan in plans] == [6 * KIB] * 3
    assert len({tuple(plan.order) for plan in plans}) == 1


@pytest.mark.parametrize("budget", ["sixty", "sixty%", "-3%", -1, "nan%", "1 potato", True])
def test_a_budget_that_is_none_is_refused(chain, budget):
    """An unreadable budget is an error that shows it."""
    with pytest.raises(SizeError, match=str(budget)):
        plan_graph(chain, budget=budget)


def test_an_impossible_budget_names_the_bound_and_the_op():
    """Below the working set of one op: the error names op and bytes, and holds the lowest plan found."""
    graph = linear_graph(6, nbytes=KIB)
    with pytest.raises(BudgetError, match=r"no plan fits 2\.00 KiB.*3\.00 KiB.*op \d+ needs that") as caught:
        plan_graph(graph, budget=2 * KIB)
    error = caught.value
    assert error.bound_bytes == 3 * KIB
    assert error.best.peak_increase_bytes == 3 * KIB
    assert error.best.graph is graph


def test_what_is_kept_can_be_the_bound():
    """When the kept outputs alone are above the budget, the error says so."""
    graph = Graph.build([(name, [], {name: 10}, 1) for name in "abc"], keep="abc")
    with pytest.raises(BudgetError, match="No plan goes below 30 B, which stays alive at the end"):
        plan_graph(graph, budget=20)


def test_without_recompute_the_error_says_what_would_help():
    """recompute=False: no op twice, and the error proposes to allow it."""
    graph = linear_graph(6)
    with pytest.raises(BudgetError, match="allow recompute or offload") as caught:
        plan_graph(graph, budget=5, recompute=False)
    assert len(caught.value.best.order) == graph.num_ops


def test_program_order_keeps_first_computations_in_place(chain):
    """order="program": only recomputes are inserted."""
    plan = plan_graph(chain, budget="70%", order="program")
    assert list(dict.fromkeys(plan.order)) == list(chain.op_names)
    assert len(plan.order) > chain.num_ops


def test_a_function_gives_the_order():
    """The user's own order is taken, and recomputes are added to it."""
    graph = layered_graph(5, 4, random.Random(5))
    late_first = sorted(range(graph.num_ops), key=lambda op: (op // 4, -op))
    plan = plan_graph(graph, order=lambda _: late_first)
    assert plan.order == late_first
    tight = plan_graph(graph, order=lambda _: late_first, budget=int(plan.peak_increase_bytes * 0.9))
    assert list(dict.fromkeys(tight.order)) == late_first


@pytest.mark.parametrize(
    "order", ["best", 3, None, lambda graph: [0], lambda graph: list(range(graph.num_ops))[::-1]]
)
def test_an_order_that_is_none_is_refused(chain, order):
    """An unknown word, a wrong type, an incomplete or invalid order: OrderError."""
    with pytest.raises(OrderError):
        plan_graph(chain, order=order)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("time_limit_s", value) for value in (0, -1, float("nan"), float("inf"), "10", True)],
        *[(name, value) for name in ("recompute", "offload") for value in ("no", 1, None)],
        *[("seed", value) for value in ("a", -1, 1.5, True, None)],
    ],
)
def test_options_of_a_wrong_type_or_range_are_refused(chain, name, value):
    """A search needs a positive number of seconds; words for switches would silently mean yes."""
    with pytest.raises(OptionError, match=f"{name}={value!r}"):
        plan_graph(chain, **{name: value})


@pytest.mark.parametrize(
    ("budget", "share"), [(0.5, "'50%'"), ("0.5", "'50%'"), (0.125, "'12.5%'"), (0.0, "'0%'")]
)
def test_a_share_written_as_a_number_is_refused(chain, budget, share):
    """Half a byte is not a budget. The message says how to write half of the program's peak."""
    with pytest.raises(SizeError, match=share):
        plan_graph(chain, budget=budget)


def test_advice_names_the_options_that_the_caller_has(chain):
    """Advice that needs a missing option is left out."""
    with pytest.raises(BudgetError, match="allow recompute or offload") as caught:
        plan_graph(chain, budget=0, recompute=False)
    assert str(caught.value.for_options(["recompute"])).endswith("allow recompute")
    assert str(caught.value.for_options([])) == caught.value.reason


@pytest.mark.parametrize("readings", [0, 3, 10, 30])
def test_a_plan_cut_off_by_the_time_limit_is_still_within_the_budget_or_an_error(chain, readings):
    """Wherever the search is cut off: a plan that fits, or a BudgetError with the lowest plan so far."""
    budget_bytes = program_peak(chain).peak_bytes // 2
    try:
        plan = plan_before(chain, budget_bytes, PlanRequest(), clock_of_readings(readings))
        assert plan.peak_increase_bytes <= budget_bytes
    except BudgetError as error:
        plan = error.best
        assert budget_bytes < plan.peak_increase_bytes <= plan.program_peak_increase_bytes
    assert simulate(chain, plan.schedule).peak_bytes == plan.peak_increase_bytes + chain.baseline_bytes


def test_a_search_that_was_not_cut_off_does_not_depend_on_the_clock():
    """Two clocks that run at different speeds, neither to its end, give the same plan."""
    orders = []
    for readings in (10**6, 10**9):
        chain = training_chain(12, random.Random(3))  # a new graph, as plans of the same one are remembered
        orders.append(plan_before(chain, "60%", PlanRequest(), clock_of_readings(readings)).order)
    assert orders[0] == orders[1]


def test_the_summary_says_what_the_plan_does(chain):
    """Budget, peaks, bound, extra cost and the first moves."""
    plan = plan_graph(chain, budget="60%")
    text = str(plan)
    assert f"{100 * plan.extra_cost_ratio:.1f} %" in text
    assert "lower bound" in text
    assert plan.moves[-1] in text or "more moves" in text
    recomputed = [move for move in plan.moves if move.startswith("recompute")]
    assert len(recomputed) == len(plan.order) - chain.num_ops
    shares = [float(re.search(r"\(([0-9.]+) % of the program's work\)", move)[1]) for move in recomputed]
    assert sum(shares) == pytest.approx(100 * plan.extra_cost_ratio, abs=0.05 * len(shares))


def test_a_plan_survives_the_disk(chain, tmp_path):
    """Everything but the graph comes back; the fingerprint ties it to its program."""
    plan = plan_graph(chain, budget="60%")
    plan.save(tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")
    assert loaded.schedule == plan.schedule
    assert (loaded.order, loaded.moves, str(loaded)) == (plan.order, plan.moves, str(plan))
    assert loaded.fingerprint == fingerprint(chain)
    assert loaded.fingerprint != fingerprint(training_chain(24, random.Random(4)))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": "memwatch-plan", "version": 99}',
        '{"format": "memwatch-plan", "version": 1}',
    ],
)
def test_a_file_that_holds_no_plan_is_refused(tmp_path, content):
    """Any other file is an error that names it."""
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(PlanFileError, match=r"other\.json"):
        load_plan(path)


def test_names_that_json_cannot_hold_are_refused(tmp_path):
    """A tuple would come back as a list: refuse it while the plan can still be named."""
    plan = plan_graph(Graph.build([(("a", 1), [], {"x": 1}, 1)]))
    with pytest.raises(PlanFileError, match=r"\('a', 1\)"):
        plan.save(tmp_path / "plan.json")


def test_the_file_is_plain_json(chain, tmp_path):
    """Any program can read it."""
    plan_graph(chain, budget="80%").save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "memwatch-plan"


def test_the_same_seed_gives_the_same_plan_in_another_process(chain):
    """Hash seeds, time and earlier plans have no influence."""
    code = (
        "import sys, random; sys.path.insert(0, sys.argv[1])\n"
        "from planner_recompute_graphs import training_chain; from memwatch.planner import plan_graph\n"
        "print(plan_graph(training_chain(24, random.Random(3)), budget='60%', seed=7).order)"
    )
    reports = str(next(path for path in sys.path if path.endswith("reports")))
    done = subprocess.run([sys.executable, "-c", code, reports], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(plan_graph(chain, budget="60%", seed=7).order)


def test_planning_needs_no_torch():
    """The planner is imported and used without torch."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from memwatch.planner import Graph, plan_graph\n"
        "print(plan_graph(Graph.build([('a', [], {'x': 1}, 1)]), budget=1).order)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['a']"
