"""Any program with mutation and effects: plans are valid, fit, are never above the program, monotone, repeatable."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_reference import reference_peak
from test_planner_properties import programs

from memwatch.planner import BudgetError, Graph, Plan, check_schedule, lower_bound, plan_graph, program_peak

SHARES = (100, 85, 70, 50, 0)


def plan_or_best(graph: Graph, share: int, **options) -> tuple[Plan, bool]:
    """Plan for a share of the program's peak; the best plan and False if that is not reached."""
    try:
        return plan_graph(graph, budget=f"{share}%", **options), True
    except BudgetError as error:
        return error.best, False


@given(programs(max_ops=10), st.booleans(), st.sampled_from(["auto", "program"]), st.integers(0, 3))
@settings(max_examples=10, deadline=None)
def test_plans_of_any_program(graph, offload, order, seed):
    """Both simulators agree on a valid plan within its budget; a smaller budget never has a higher peak."""
    graph = graph.with_sizes(lambda nbytes: nbytes * 4096)
    program = program_peak(graph).peak_bytes - graph.baseline_bytes
    peaks = []
    for share in SHARES:
        plan, fits = plan_or_best(graph, share, offload=offload, order=order, seed=seed)
        check_schedule(graph, plan.schedule)
        assert reference_peak(graph, plan.schedule) == plan.peak_increase_bytes + graph.baseline_bytes
        assert plan.peak_increase_bytes <= program
        bound = lower_bound(graph, recompute=True, offload=offload)
        assert plan.peak_increase_bytes >= bound - graph.baseline_bytes
        if fits:
            assert plan.peak_increase_bytes <= program * share // 100
            peaks.append(plan.peak_increase_bytes)
        else:
            assert plan.peak_increase_bytes > program * share // 100
        if not offload:
            assert plan.moved_bytes == 0
    assert peaks == sorted(peaks, reverse=True)


@given(programs(max_ops=10), st.booleans())
@settings(max_examples=5, deadline=None)
def test_the_same_seed_gives_the_same_plan(graph, offload):
    """A copy of the program, without any cached state, gets the same plan."""
    first, _ = plan_or_best(graph, 60, offload=offload, seed=5)
    again, _ = plan_or_best(graph.with_sizes(lambda nbytes: nbytes), 60, offload=offload, seed=5)
    assert first.schedule == again.schedule


@given(programs(max_ops=12), st.permutations(SHARES))
@settings(max_examples=5, deadline=None)
def test_peaks_are_monotone_whatever_the_order_of_the_questions(graph, shares):
    """Budgets in any order: a smaller budget never ends with a higher peak."""
    peaks = {}
    for share in shares:
        plan, fits = plan_or_best(graph, share)
        if fits:
            peaks[share] = plan.peak_increase_bytes
    assert [peaks[share] for share in sorted(peaks)] == sorted(peaks.values())
