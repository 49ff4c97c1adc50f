"""A plan as policy of torch's selective checkpointing: same gradients, and the saved tensors of the plan."""

from __future__ import annotations

import pytest
import torch
from replay_programs import GPT
from replay_recording import record
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from memwatch.replay.api import apply_plan, plan
from memwatch.replay.measure import measure_peak


class Counter(TorchDispatchMode):
    """Counts matrix products and softmaxes, or other ops by name."""

    def __init__(self, names=frozenset({"mm", "addmm", "bmm", "_softmax"})):
        super().__init__()
        self.names, self.count = names, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._opname in self.names
        return func(*args, **(kwargs or {}))


def build(dropout=0.0, layers=3, width=32):
    """Return a model whose blocks run through `around`, and its loss."""
    torch.manual_seed(0)
    model = GPT(layers=layers, width=width, length=64, dropout=dropout)
    ids = torch.randint(0, 64, (8, 64))

    def loss(around=lambda block, x: block(x)):
        x = model.tokens(ids) + model.places(torch.arange(64))
        for block in model.blocks:
            x = around(block, x)
        return functional.cross_entropy(model.head(model.norm(x)).flatten(0, 1), ids.flatten())

    return model, loss


def step(model, loss, *around):
    torch.manual_seed(1)
    model.zero_grad()
    loss(*around).backward()
    return [p.grad.clone() for p in model.parameters()]


def measured(model, loss, *around):
    """Return (peak increase in bytes, products and softmaxes computed) of one step."""
    step(model, loss, *around)
    model.zero_grad()
    with measure_peak("cpu") as peak:
        loss(*around).backward()
    model.zero_grad()
    with Counter() as counter:
        loss(*around).backward()
    return peak.peak_increase_bytes, counter.count


def checkpointed(planned):
    """Run a block as a checkpointed region under a plan."""
    return lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=planned.checkpoint_contexts)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_the_program(dropout):
    """Whatever a plan saves and computes again, gradients are bitwise the same, step after step."""
    model, loss = build(dropout)
    wanted = step(model, loss)
    model.zero_grad()
    planned = plan(record(lambda: loss().backward()), budget="50%", time_limit_s=3)
    for _ in range(3):
        found = step(model, loss, checkpointed(planned))
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_memory_and_recomputation_follow_the_budget():
    """Between all and nothing saved lies an applied plan; regions of the program's own are never above plain ones."""
    model, loss = build()
    step(model, loss)
    model.zero_grad()
    prof = record(lambda: loss().backward())
    everything = measured(model, loss)
    nothing = measured(model, loss, lambda block, x: checkpoint(block, x, use_reentrant=False))
    found = []
    for budget in ("80%", "60%", "45%"):
        planned = plan(prof, budget=budget, time_limit_s=3)
        with apply_plan(model, planned):
            found.append(measured(model, loss))
        peak, count = measured(model, loss, checkpointed(planned))
        assert peak <= nothing[0]
        assert count <= nothing[1]
    peaks, counts = zip(everything, *found, strict=True)
    assert list(peaks) == sorted(peaks, reverse=True)
    assert list(counts) == sorted(counts)
    assert peaks[0] > peaks[1] > peaks[-1] >= nothing[0]
    assert counts[1] < counts[-1] <= nothing[1]


def test_first_step_saves_already_where_the_blocks_of_the_model_are_the_regions():
    """Saved products are used: fewer products are computed again than with plain checkpoints."""
    model, loss = build(width=128)
    step(model, loss)
    model.zero_grad()
    planned = plan(record(lambda: loss().backward()), budget="100%", order="program", recompute=False)
    with Counter({"addmm", "bmm"}) as counter:
        loss(checkpointed(planned)).backward()
    with Counter({"addmm", "bmm"}) as plain:
        loss(lambda block, x: checkpoint(block, x, use_reentrant=False)).backward()
    with Counter({"addmm", "bmm"}) as eager:
        loss().backward()
    assert eager.count <= counter.count < plain.count


def test_region_that_was_never_recorded_is_computed_again_as_a_whole():
    """Ops with other shapes than the recorded ones have no plan; the region is an ordinary checkpoint."""
    model, loss = build()
    step(model, loss)
    planned = plan(record(lambda: loss().backward()), budget="60%", time_limit_s=2)
    x = torch.randn(3, 7, 32, requires_grad=True)
    block = model.blocks[0]
    for around in (lambda: block(x), lambda: checkpointed(planned)(block, x)):
        x.grad = None
        around().square().sum().backward()
        wanted, x.grad = x.grad, None
    assert torch.isfinite(wanted).all()
