"""torch.jit.trace under a profile writes down the program, never the recorder."""

from __future__ import annotations

import pytest
import torch

import memwatch


class Halves(torch.nn.Module):
    """Its sizes are part of the trace."""

    def forward(self, x):
        return x.reshape(x.shape[0], x.shape[1] // 2, 2).sum(1)


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_trace_is_the_same_graph_and_the_report_says_that_it_was_not_seen(intercept):
    """Sizes that the recorder reads must not become constants of the traced graph."""
    plain = torch.jit.trace(Halves(), torch.randn(3, 4))
    with memwatch.profile(intercept=intercept) as prof:
        observed = torch.jit.trace(Halves(), torch.randn(3, 4))
        after = torch.ones(1000) * 2
    assert observed.code == plain.code
    assert any(kind == "traced" for kind, _ in prof.notes)
    assert "aten.mul.Tensor" in set(prof.ops["name"])
    assert torch.jit.trace.__module__ == "torch.jit._trace"
    assert after.sum() == 2000


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_traced_function_runs_first_inside_the_block(intercept):
    """Its graph is optimised then, and constants are compared, which any other dispatch mode makes it fail at."""
    traced = torch.jit.trace(lambda x: x.reshape(x.shape[0] // 2, x.shape[1] // 3, 6), torch.randn(4, 6))
    x = torch.randn(4, 6)
    with memwatch.profile(intercept=intercept) as prof:
        y = traced(x)
    assert torch.equal(y, x.reshape(2, 2, 6))
    assert not prof.ops["failed"].any()
    others = ("observer", "threads")  # threads that other tests left: a worker of torch's compiler
    assert [kind for kind, _ in prof.notes if kind not in others] == []
