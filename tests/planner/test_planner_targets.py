"""The exact optima of the literature and of other planners' issues, all of them proven here."""

from __future__ import annotations

import planner_graphs as graphs
import pytest

from memwatch.planner import best_order, program_peak

CASES = [
    *[(f"thunder-{paths}", graphs.thunder_1337(paths), 768 * 1024) for paths in (10, 40)],
    *[(f"thunder-{paths}-relus-first", graphs.thunder_1337(paths, True), 768 * 1024) for paths in (10, 40)],
    ("inductor-foo", graphs.inductor_foo(), 90_116),
    ("inductor-reductions", graphs.inductor_reductions(), 2**20 + 2**11),
    ("inductor-mutation", graphs.inductor_mutation(), 3 * 2048),
    *[(f"tree-{height}", graphs.binary_tree(height), height + 2) for height in (2, 3, 4, 5, 7, 10)],
    *[(f"pyramid-{base}", graphs.pyramid(base), base + 1) for base in range(2, 8)],
    *[(f"grid-{rows}x6", graphs.grid(rows, 6), rows + 1) for rows in range(2, 6)],
    *[(f"butterfly-{stages}", graphs.butterfly(stages), peak) for stages, peak in ((1, 4), (2, 6), (3, 10))],
    *[(f"fork-join-{branches}", graphs.fork_join(branches), 8 + branches) for branches in (4, 8)],
    *[(f"unet-{levels}", graphs.unet_inference(levels), 3 * 4**levels) for levels in (2, 3, 4)],
]


@pytest.mark.parametrize(
    ("graph", "peak_bytes"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_known_optimum_is_met_and_proven(graph, peak_bytes):
    result = best_order(graph)
    assert (result.peak_bytes, result.proven) == (peak_bytes, True)


def test_the_programs_start_where_the_issues_say():
    """The peaks in program order are the published ones, so the cases are the published cases."""
    assert program_peak(graphs.thunder_1337(10, relus_first=True)).peak_bytes == 2.75 * 2**20
    assert program_peak(graphs.inductor_foo()).peak_bytes == 98_304
    assert program_peak(graphs.fork_join(4)).peak_bytes == 33
    assert program_peak(graphs.fork_join(8)).peak_bytes == 65
    assert [program_peak(graphs.butterfly(stages)).peak_bytes for stages in (1, 2, 3)] == [4, 7, 13]
    assert program_peak(graphs.binary_tree(4)).peak_bytes == 2**4 + 1


def test_an_in_place_op_costs_nothing_and_its_buffer_counts_once():
    graph = graphs.inductor_mutation(size=2048, times=4)
    made = graph.makes.sum_per_row(graph.buffer_nbytes)
    for op, name in enumerate(graph.op_names):
        assert made[op] == (0 if str(name).startswith("to_bf16") else 2048)


def test_chains_from_one_parent_need_no_second_computation_of_any_op():
    """DTR's adversary: whatever keeps the interleaved order pays; each op once is enough when reordered."""
    graph = graphs.dtr_adversary(chains=8, length=20)
    result = best_order(graph)
    assert sorted(result.order.tolist()) == list(range(graph.num_ops))
    assert (program_peak(graph).peak_bytes, result.peak_bytes) == (9, 3)
