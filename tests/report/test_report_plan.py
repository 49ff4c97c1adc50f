"""A plan as data and as text: the report describes exactly what the plan does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memwatch
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.leaks import Leak
from memwatch.planner import Graph
from memwatch.planner.plan import load_plan
from memwatch.report import PlanMismatchError, html, leak_page, plan_summary, trade_off
from memwatch.report.facts import module_parents
from memwatch.report.page.sections import leak_page_model, plan_headline, plan_to_do
from memwatch.report.plan import Places, PlanFigures, _in_place, moves_by_module, plan_curves
from memwatch.report.plan_terminal import cheapest
from memwatch.sizes import format_bytes
from memwatch.words.leaks import path_lines


def names(plan) -> list:
    """Return the ops that a plan computes again, in order."""
    seen: set = set()
    return [name for name in plan.order if name in seen or seen.add(name)]


@pytest.mark.parametrize("bins", [2000, 37, 1])
def test_the_curves_hold_both_peaks(planned, bins):
    """However few rows the curves have, the highest of each is the peak of program and plan."""
    curves = plan_curves(planned.plan, Places(planned.reading), bins)
    assert len(curves) <= bins
    assert curves["program_bytes"].max() == planned.plan.program_peak_increase_bytes
    assert curves["plan_bytes"].max() == planned.plan.peak_increase_bytes


def test_the_program_curve_is_the_one_recorded(planned):
    """Step for step the program's curve is, at its peak, what the recording measured."""
    curves = plan_curves(planned.plan, Places(planned.reading))
    assert curves["program_bytes"].max() == planned.reading.peak_increase_bytes
    assert (curves["plan_step"] >= 0).sum() == len(planned.plan.schedule)
    assert (curves["program_step"] >= 0).sum() == planned.plan.graph.num_ops
    assert curves["plan_what"].str.contains("computed again").sum() == len(names(planned.plan))


def test_every_recompute_is_told_under_its_module(planned):
    """By module, the recomputed ops are those of the plan, and their costs add up to the plan's."""
    moves = moves_by_module(planned.plan, Places(planned.reading))
    modules = planned.reading.ops["module"]
    expected = sorted(modules[name] for name in names(planned.plan))
    assert sum(each.recomputed.total() for each in moves) == len(expected) > 0
    assert {module for each in moves for module in each.modules if each.recomputed} == set(expected)
    assert sum(each.cost_ratio or 0 for each in moves) == pytest.approx(planned.plan.extra_cost_ratio)
    assert all(len(each.steps) >= each.recomputed.total() for each in moves)


def diamond(widths: dict[str, int]) -> Graph:
    """Make wide buffers first and reduce each later, as a program that wastes memory does."""
    makes = [(f"make{name}", [], {f"wide{name}": nbytes}, 1.0) for name, nbytes in widths.items()]
    cuts = [(f"cut{name}", [f"wide{name}"], {f"thin{name}": 8}, 1.0) for name in widths]
    return Graph.build([*makes, *cuts], keep=[f"thin{name}" for name in widths])


def test_a_move_to_another_place_is_told():
    """A plan that only reorders says how many ops run at another place, and that nothing is computed again."""
    plan = memwatch.plan(diamond({"A": 1000, "B": 1000, "C": 1000}))
    (moves,) = moves_by_module(plan, Places())
    assert (moves.recomputed.total(), moves.moved) == (0, 0)
    order = [plan.graph.op_index[name] for name in plan.order]
    assert moves.earlier + moves.later == len(order) - longest_rise(order) > 0
    assert re.fullmatch(r"run \d+ ops? (earlier|later)(; run \d+ ops? later)?", moves.words())


def test_what_is_moved_out_is_told_with_its_bytes():
    """Bytes moved out and back equal the plan's, under the op that made them."""
    plan = memwatch.plan(chain(6, 8192), budget="75%", order="program", recompute=False, offload=True)
    moves = moves_by_module(plan, Places())
    assert plan.moved_bytes > 0
    assert sum(each.moved_bytes for each in moves) == plan.moved_bytes
    assert any("move the result of" in step for each in moves for step in each.steps)
    assert "moved out and back" in plan_summary(plan, width=120, color=False)


def longest_rise(order: list[int]) -> int:
    """Length of the longest increasing subsequence, by the quadratic definition."""
    best: list[int] = []
    for place, number in enumerate(order):
        best.append(1 + max((best[i] for i in range(place) if order[i] < number), default=0))
    return max(best, default=0)


@given(st.permutations(range(9)))
def test_as_few_ops_as_possible_are_called_moved(order):
    """The ops that stay in place are in order, and no larger set of ops is."""
    kept = _in_place(order)
    assert [number for number in order if number in kept] == sorted(kept)
    assert len(kept) == longest_rise(order)


def test_modules_treated_alike_are_one_entry():
    """Blocks with the same recomputed ops share one entry, with their number."""
    plan = memwatch.plan(chain(6), budget=450, order="program")
    again = names(plan)
    assert len(again) > 1

    class Ops(Places):
        def of(self, op):
            number = int(str(op).removeprefix("op"))
            return super().of(op)._replace(op="mm", module=f"blocks.{number}")

    moves = moves_by_module(plan, Ops())
    assert [each.label for each in moves if each.recomputed] == [f"{len(set(again))} x blocks.*"]


def chain(length: int, nbytes: int = 100) -> Graph:
    """Make a chain whose links are all needed again on the way back."""
    ops = [(f"op{i}", [f"b{i - 1}"] if i else [], {f"b{i}": nbytes}, 1.0) for i in range(length)]
    back = [
        (f"op{2 * length - i}", [f"b{i}", *([f"g{i + 1}"] if i < length - 1 else [])], {f"g{i}": nbytes}, 1.0)
        for i in reversed(range(length))
    ]
    return Graph.build([*ops, *back], keep=["g0"])


def test_the_trade_off_costs_more_the_less_it_allows(planned):
    """Each plan fits its budget; less memory never costs less; the last is the lowest that was found."""
    plans = planned.tradeoff
    assert len(plans) == 4
    peaks = [plan.peak_increase_bytes for plan in plans]
    assert peaks == sorted(peaks, reverse=True)
    assert all(plan.peak_increase_bytes <= plan.budget_bytes for plan in plans[:-1])
    assert plans[-1].budget_bytes is None
    costs = [plan.extra_cost_ratio for plan in cheapest([planned.plan, *plans])]
    assert costs == sorted(costs)


def test_the_trade_off_agrees_with_the_plan_beside_it(planned):
    """No plan of the table is dearer than the plan where that one fits; asked again, the plan is as cheap as any."""
    plan = planned.plan
    fitting = [each for each in planned.tradeoff if each.peak_increase_bytes <= (plan.budget_bytes or 0)]
    for each in planned.tradeoff:
        if each.budget_bytes is not None and plan.peak_increase_bytes <= each.budget_bytes:
            assert each.extra_cost_ratio <= plan.extra_cost_ratio
    again = memwatch.plan(planned.reading, budget=plan.budget_bytes)
    assert all(again.extra_cost_ratio <= each.extra_cost_ratio for each in (plan, *fitting))


def test_a_plan_says_what_its_recomputes_took_when_they_were_recorded(planned):
    """Each op was timed by the recording; the repeated ones count as often as they repeat."""
    plan = planned.plan
    times = plan.graph.op_time_ns
    assert (times > 0).all()
    extra = sum(int(times[op]) for op in plan.schedule.ops) - int(times.sum())
    assert plan.extra_time_ratio == pytest.approx(extra / int(times.sum()))
    told = " ".join(plan_summary(plan, reading=planned.reading).split())  # lines break anywhere
    assert f"{100 * plan.extra_time_ratio:.1f} % of the recorded time" in told


def test_a_plan_that_another_beats_is_left_out(planned):
    """Of two plans with the same peak only the cheaper is drawn.

    A higher peak at a higher cost is not drawn either.
    """
    plan = planned.plan
    dearer = replace(plan, extra_cost_ratio=plan.extra_cost_ratio + 1)
    higher = replace(dearer, peak_increase_bytes=plan.peak_increase_bytes + 1)
    assert cheapest([dearer, higher, plan]) == [plan]


def test_a_plan_from_a_file_is_told_without_its_program(planned, tmp_path):
    """Figures and moves need the plan alone; curves and other budgets need its program."""
    planned.plan.save(tmp_path / "step.plan")
    loaded = load_plan(tmp_path / "step.plan")
    places = Places(planned.reading)
    assert plan_curves(loaded, places) is None
    assert trade_off(loaded) == []
    told, known = (
        {
            label: words
            for each in moves_by_module(plan, places)
            for label, words in [(each.label, each.words())]
        }
        for plan in (loaded, planned.plan)
    )
    assert told == known
    page = html(planned.reading, tmp_path / "page.html", plan=loaded)
    assert 'id="plan-curves"' not in page.read_text(encoding="utf-8")


def test_the_summary_says_before_after_and_measured(planned):
    """Program, plan, replay, budget, bound, gap and cost stand in the text, and the modules by cost."""
    plan, result = planned.plan, planned.result
    text = plan_summary(
        plan, result, reading=planned.reading, tradeoff=planned.tradeoff, width=120, color=False
    )
    for label, nbytes in {
        "program": plan.program_peak_increase_bytes,
        "plan": plan.peak_increase_bytes,
        "replayed": result.peak_increase_bytes,
        "budget": plan.budget_bytes,
        "lower bound": plan.lower_bound_bytes,
    }.items():
        assert re.search(rf"^{label} +{re.escape(format_bytes(nbytes))} ", text, re.MULTILINE), label
    assert f"It adds {100 * plan.extra_cost_ratio:.1f} % of work, counted in FLOPs and bytes moved" in text
    assert "memwatch.apply_plan(model, plan)" in text
    assert (
        f"Gap to the lower bound: {format_bytes(plan.peak_increase_bytes - plan.lower_bound_bytes)}" in text
    )
    assert f"as planned, to the byte; {result.num_checked} storages bitwise equal" in text
    for each in moves_by_module(plan, Places(planned.reading)):
        assert f"{each.label} " in text
    rows = [
        line for line in text.splitlines() if format_bytes(planned.tradeoff[0].peak_increase_bytes) in line
    ]
    assert rows


def test_the_summary_of_a_reading_can_end_with_its_plan(planned):
    """One text has the parts of the peak and the lowest possible peak."""
    text = planned.reading.summary(plan=planned.plan, result=planned.result, width=120, color=False)
    assert text.index("Peak ") < text.index("Plan: peak increase ")
    assert "as planned, to the byte" in text
    assert "Plan:" not in planned.reading.summary(width=120, color=False)


def test_what_a_replay_did_not_reach_is_said(planned):
    """A peak off the plan, a difference and made-up inputs are words of their own."""
    result = planned.result
    off = replace(
        result, peak_increase_bytes=result.peak_increase_bytes + 1024, identical=False, max_abs_diff=0.5
    )
    text = plan_summary(planned.plan, off, width=160, color=False)
    assert "1.00 KiB above the plan; not identical: largest difference 0.5" in text
    made_up = replace(result, identical=None, max_abs_diff=float("nan"), synthetic=True)
    assert "nothing to compare" in plan_summary(planned.plan, made_up, width=160, color=False)


def test_a_result_of_another_plan_is_refused(planned, tmp_path):
    """A measured figure never stands beside another plan than its own."""
    other = planned.tradeoff[0]
    with pytest.raises(PlanMismatchError, match="replay this plan"):
        plan_summary(other, planned.result)
    with pytest.raises(PlanMismatchError, match="replay this plan"):
        html(planned.reading, tmp_path / "page.html", plan=other, result=planned.result, tradeoff=())
    assert not (tmp_path / "page.html").exists()


def test_a_plan_that_changes_nothing_is_told_so(tmp_path, planned):
    """A program that is as low as can be has no moves; neither text nor page fails."""
    plan = memwatch.plan(Graph.build([("only", [], {"out": 100}, 1.0)], keep=["out"]))
    assert moves_by_module(plan, Places()) == []
    text = plan_summary(plan, width=100, color=False)
    assert "Gap to the lower bound: none" in text
    assert "Without a budget, a plan only changes the order" in text
    page = html(planned.reading, tmp_path / "page.html", plan=plan)
    assert "Nothing: the ops run in the order of the program" in page.read_text(encoding="utf-8")


def test_modules_stand_under_their_root(planned):
    """The root has the name of its variable. It is the parent of the modules that the model holds directly."""
    modules = planned.reading.modules
    listed = modules.index.tolist()
    parents = module_parents(listed, modules["parent"].tolist())
    parent = {name: listed[row] if row >= 0 else None for name, row in zip(listed, parents, strict=True)}
    (root,) = modules.index[modules["class_name"] == "TinyGPT"]
    assert parent[root] is None
    assert {name for name in listed if parent[name] == root} == {"embed", "blocks", "head"}
    assert parent["blocks.0"] == "blocks"
    assert parent["blocks.1.mlp.2"] == "blocks.1.mlp"


def test_two_models_keep_their_trees_apart():
    """Each row names its parent, which is found whatever stands between the two."""
    listed = ["net", "net.body", "other", "net.body.0", "other.body", "loss"]
    parents = ["", "net", "", "net.body", "other", ""]
    assert module_parents(listed, parents) == [-1, 0, -1, 1, 2, -1]


def test_a_list_of_leaks_adds_up(leaked):
    """Totals equal the leaks', largest first. Each leak has its holder, its path and its advice."""
    model = leak_page_model(leaked, title="a test", source=True)
    total_bytes = sum(leak.nbytes for leak in leaked)
    assert model["totals"]["sizes"] == [{"device": "cpu", "nbytes": total_bytes}]
    assert {each["kind"] for each in model["kinds"]} == {"cycle", "uncollectable", "retained"}
    assert sum(size["nbytes"] for each in model["kinds"] for size in each["sizes"]) == total_bytes
    sizes = [each["nbytes"] for each in model["leaks"]]
    assert sizes == sorted(sizes, reverse=True)
    shown = sorted(
        (each["site"], each["holder"], tuple(each["path"]), each["advice"]) for each in model["leaks"]
    )
    assert shown == sorted((leak.site, leak.holder, leak.path, leak.advice) for leak in leaked)


def test_the_line_that_adds_is_on_the_page_unless_it_shows_no_code(tmp_path):
    leak = Leak(
        "retained", 2048, 1, "`kept`", (), None, "drop it", added_at="a.py:3 in f: `kept.append(secret)`"
    )
    for source in (True, False):
        text = leak_page([leak], tmp_path / f"{source}.html", source=source).read_text(encoding="utf-8")
        assert ("kept.append(secret)" in text) is source


def test_the_first_sentences_on_leaks_say_how_much_each_call_leaks_and_what_to_cut():
    """They name hooks and tensors apart, and the call as its program does: a call, a step, a pass, or none."""
    tensors = Leak("retained", 2048, 1, "global `history`", (), None, "drop it", per_call=True, repeat="step")
    hooks = Leak("hooks", 0, 3, "hooks of `net`", (), None, "remove it", per_call=True, repeat="step")

    def said(*leaks):
        model = leak_page_model(leaks, title="", source=True)
        return model["headline"], model["to_do"]

    assert said(tensors) == (
        "Each step leaks 2.00 KiB in 1 tensor.",
        "To end it, cut this reference: global `history`.",
    )
    assert said(hooks, tensors) == (
        "Each step leaks 2.00 KiB in 1 tensor and 3 hooks.",
        "Begin with the largest. To end it, cut this reference: global `history`.",
    )
    once = "2.00 KiB in 1 tensor leaked."
    assert said(replace(tensors, per_call=False))[0] == once
    assert said(replace(tensors, every=3))[0] == once
    assert said() == ("", "")


def test_the_first_sentences_on_a_plan_say_what_it_saves_and_how_to_use_it():
    """A plan that computes nothing again in a module needs the compiler. One that saves nothing says so."""
    lower = memwatch.plan(diamond({"A": 1000, "B": 1000, "C": 1000}))
    before, after = (
        format_bytes(size) for size in (lower.program_peak_increase_bytes, lower.peak_increase_bytes)
    )
    said = plan_headline(PlanFigures.of(lower))
    assert said == f"The plan lowers the peak increase from {before} to {after} for no extra work."
    assert "torch.compile(model" in plan_to_do(lower, moves_by_module(lower, Places()))
    same = memwatch.plan(diamond({"A": 1000}))
    assert "does not lower the peak increase" in plan_headline(PlanFigures.of(same))
    assert plan_to_do(same, moves_by_module(same, Places())) == ""


def test_a_list_of_leaks_can_leave_its_paths_out(leaked):
    """Without sources no file of a leak is named: neither the file that made it nor files on its path."""
    text = str(leak_page_model(leaked, title=f"{__file__}::test", source=False))
    assert "leaking.py:" in str(leak_page_model(leaked, title="", source=True))
    assert "conftest.py" not in text
    assert str(Path(__file__).parent) not in text
    assert re.search(r"\(file-\d+:21\)", text)  # the line in `leaky` stays


@pytest.mark.parametrize("file", ["secret notes/my train.py", "secret.pyx", "secret"])
def test_the_file_of_every_end_of_a_reference_is_left_out(file):
    """A file is found in the edges, so it may have spaces and any suffix, and be shown relative or absolute."""
    path = str(Path.cwd() / file)
    function = Vertex(VertexKind.FUNCTION, "f", path, 3)
    method = Vertex(VertexKind.METHOD, inner=function)
    edges = (
        Edge(EdgeKind.GLOBAL, "x", owner=Vertex(VertexKind.MODULE, "m"), file=path, reader=function),
        Edge(EdgeKind.CLOSURE_CELL, "y", owner=function, target=method),
        Edge(EdgeKind.BOUND_SELF, owner=method),
    )
    told = path_lines(edges, None)
    leak = Leak(
        "retained", 8, 1, told[0], told, f"{file}:7 in f", f"{path}: drop it", edges=edges, cut=edges[0],
        beside=(("Note", 2),),
    )  # fmt: skip
    assert "secret" in str(leak_page_model([leak], title="", source=True))
    model = leak_page_model([leak], title="", source=False)
    assert "secret" not in str(model)
    assert model["leaks"][0]["beside"] == "2 more objects of type Note"


def test_the_page_names_the_objects_that_grow_beside_a_leak(tmp_path):
    """The leak's text does the same. Without such objects the line is missing."""
    leak = Leak("retained", 8, 1, "x", (), None, "drop it", per_call=True, beside=(("Note", 2),))
    page = leak_page([leak, replace(leak, beside=())], tmp_path / "leaks.html", title="t")
    assert (
        page.read_text(encoding="utf-8").count('<dd class="beside">2 more objects of type Note per call</dd>')
        == 1
    )
