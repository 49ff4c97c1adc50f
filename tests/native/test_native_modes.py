"""A dispatch mode of the program sees the same ops with memwatch as without."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import memwatch


class Log(TorchDispatchMode):
    """Record the ops that it sees, as a program's own mode might."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def training():
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4), torch.nn.Sigmoid()
    )
    net(torch.randn(2, 4)).sum().backward()


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, _ = ctx.saved_tensors
        return gradient * x * 2


def own_function():
    x = torch.randn(8, requires_grad=True)
    _Square.apply(x.exp()).sum().backward()


def double_backward():
    x = torch.randn(8, requires_grad=True)
    (first,) = torch.autograd.grad((x.exp() * x.sin()).sum(), x, create_graph=True)
    first.pow(2).sum().backward()


def recomputed():
    block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    checkpoint(block, torch.randn(2, 4, requires_grad=True), use_reentrant=False).sum().backward()


def views_and_reads():
    x = torch.randn(4, 4, requires_grad=True)
    y = x.exp()
    (y.t() @ y).sum().backward(retain_graph=True)
    (y[0] * y[1]).sum().backward()


PROGRAMS = training, own_function, double_backward, recomputed, views_and_reads


def seen(program, outer, inner):
    torch.manual_seed(0)
    with outer as first, inner as second:
        program()
    return next(log for log in (first, second) if isinstance(log, Log)).seen


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_mode_of_the_program_sees_the_same_ops(program, intercept):
    """Whether it was entered before the block or in it: no `detach` of ours, or that a hook of ours causes."""
    plain = seen(program, contextlib.nullcontext(), Log())
    assert seen(program, Log(), memwatch.profile(intercept=intercept)) == plain
    assert seen(program, memwatch.profile(intercept=intercept), Log()) == plain


def test_what_is_unpacked_unseen_is_still_the_saved_tensor():
    """Backward through it reaches the same leaves, and writing it in place is still an error."""
    x = torch.randn(8, requires_grad=True)
    with Log(), memwatch.profile():
        y = x.exp()
        z = y * y
        (first,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="is at version 1; expected version 0"):
            z.sum().backward()
    assert torch.allclose(first, 2 * x.exp() ** 2)
    assert torch.allclose(second, 4 * x.exp() ** 2)
