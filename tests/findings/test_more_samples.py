"""More samples never make an answer worse: a holder that one sample saw counts if the nearest found none."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import memwatch
from memwatch.kinds.holders import HolderKind
from memwatch.record.holders.state import SamplingSchedule

WIDE = 64


class Gelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0))))


@torch.no_grad()
def activate():
    """`0.5 * x` waits on the evaluation stack of `forward` while its other factor is computed."""
    gelu, x = Gelu(), torch.randn(1024, WIDE)
    return gelu(x)


def profiled(program, ops, monkeypatch):
    """Record a program with samples in the middle of some ops."""
    left = sorted(ops, reverse=True)

    def is_worth_it(self, born_bytes, live_bytes, started):
        return bool(left) and started == left[-1] + 1 and left.pop() == started - 1

    with monkeypatch.context() as patch:
        patch.setattr(SamplingSchedule, "is_worth_it", is_worth_it)
        patch.setattr(SamplingSchedule, "worth_from_bytes", lambda self: -(1 << 60))
        torch.manual_seed(0)
        with memwatch.profile() as prof:
            kept = program()
    del kept
    return prof


def test_a_value_that_the_next_sample_saw_on_the_stack_was_on_it_before(monkeypatch):
    """Only the second sample that misses a variable searches deeper."""
    ops = activate_ops()
    half = ops.index("aten.mul.Tensor")  # 0.5 * x
    prof = profiled(activate, [half + 2, half + 3], monkeypatch)
    allocations, holders = prof._tables.facts.allocations, prof._tables._holders
    made = np.flatnonzero(allocations.op == half)
    value = int(made[np.argmax(allocations.nbytes[made])])
    (found,) = holders.variables(value, half + 2)
    assert found.kind is HolderKind.EVALUATION_STACK
    assert "of `forward`" in found.told


def activate_ops():
    with memwatch.profile() as prof:
        activate()
    return prof.ops["name"].tolist()
