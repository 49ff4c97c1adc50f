"""FX graphs as planner graphs: views folded, mutation kept, sizes and names as in the graph."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from memwatch.errors import UnsupportedOpError
from memwatch.planner import Effect, program_peak
from memwatch.replay.api import plan
from memwatch.replay.fx import graph_from_fx


def traced(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs)


def test_views_are_folded_away():
    """A view reads and makes nothing. An op that reads the view reads the buffer."""

    def step(x, w):
        return (x @ w).view(-1)[::2].sum()

    graph = graph_from_fx(traced(step, torch.ones(8, 8), torch.ones(8, 8)))
    assert [name.split("_")[0] for name in graph.op_names] == ["mm", "sum"]
    assert program_peak(graph).peak_bytes - graph.baseline_bytes == 8 * 8 * 4 + 4
    assert graph.baseline_bytes == 2 * 8 * 8 * 4


def test_mutation_orders_its_readers():
    """An op that writes in place comes after readers of the old bytes and before readers of the new ones."""

    def step(x):
        a = x + 1
        b = a * 2
        a.mul_(3)
        return b, a + b

    graph = graph_from_fx(traced(step, torch.ones(4)))
    position = {name: index for index, name in enumerate(graph.op_names)}
    write = next(
        index for name, index in position.items() if name.startswith("mul_") and graph.writes.row(index).size
    )
    assert set(graph.preds.row(write).tolist()) == {0, 1}


def test_joint_graph_of_a_model_plans():
    """A whole forward and backward, with several outputs of one op; the plan names nodes of the graph."""
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 4)
    )
    parameters = dict(model.named_parameters())

    def step(parameters, x):
        loss = torch.func.functional_call(model, parameters, (x,)).square().mean()
        return (loss, *torch.autograd.grad(loss, list(parameters.values())))

    module = traced(step, parameters, torch.ones(32, 16))
    planned = plan(graph_from_fx(module), budget="90%", time_limit_s=2)
    nodes = {node.name for node in module.graph.nodes}
    assert set(planned.order) <= nodes
    assert planned.peak_increase_bytes <= 0.9 * planned.program_peak_increase_bytes


def test_random_ops_of_a_graph_are_never_run_twice():
    """An FX graph holds no generator states to restore."""
    graph = graph_from_fx(traced(lambda x: torch.nn.functional.dropout(x, 0.5).sum(), torch.ones(64)))
    random = [index for index in range(graph.num_ops) if graph.op_effect[index] == Effect.RNG]
    assert len(random) == 1
    assert not graph.op_recomputable[random[0]]


def test_graph_of_python_functions_is_refused():
    """A graph that is not in ATen ops says so, with the node."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(3, device="meta")
    graph.output(graph.call_function(operator.add, (x, 1)))
    with pytest.raises(UnsupportedOpError, match=r"node 'add'.*no ATen op"):
        graph_from_fx(fx.GraphModule({}, graph))
