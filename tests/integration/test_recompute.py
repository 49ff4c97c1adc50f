"""Tensors that checkpointing computes again in backward: their phase, their modules and lines, their category."""

from __future__ import annotations

import threading

import pytest
import torch
from recompute_models import VARIANTS, WIDTH, Block, Net, again, again_reentrant, places, train, train_plainly
from torch import nn

import memwatch
from memwatch._torch.dispatch import FREE_KEY, include_key
from memwatch.record import native


@pytest.fixture(scope="module", params=["native", "python"])
def recorder(request):
    """Record by C++, then by Python: a change of kernels takes a second."""
    assert request.param == "python" or native.backend() is not None, "run `memwatch build` first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMWATCH_NATIVE", "1" if request.param == "native" else "0")
        yield request.param


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_runs_again_has_its_own_line_and_module(variant, intercept, recorder):
    """Each op of a recomputation has the place of the same op in forward, in the same order."""
    net = VARIANTS[variant]()
    with memwatch.profile(intercept=intercept, holders=False) as prof:
        train(net)
    assert prof.meta["recorder"] == recorder
    ops, runs = prof.ops, prof.capture.tables["recomputes"]
    forward, recompute = (ops[ops["phase"] == phase] for phase in ("forward", "recompute"))
    assert len(runs["start_op"]) >= 2
    assert len(recompute) > 2 * len(runs["start_op"])
    assert set(places(recompute)) <= set(places(forward))
    for start, end in zip(runs["start_op"], runs["end_op"], strict=True):
        again = [place for place in places(recompute.loc[start : end - 1]) if "empty" not in place[0]]
        remaining = iter(places(forward))
        assert variant.startswith("nested") or all(place in remaining for place in again)
    storages = prof.storages
    made = storages[storages["op"].isin(recompute.index) & (storages["origin"] == "op")]
    assert set(made["category"]) == {"recomputed"}
    assert (made["rule"] == "torch.utils.checkpoint computed it again in backward").all()
    others = storages[~storages["op"].isin(recompute.index)]
    assert "recomputed" not in set(others["category"])


def _hook_that_runs_a_module():
    net, other = nn.Linear(4, 4), Block()
    x = torch.ones(2, 4, requires_grad=True)
    y = net(x)

    def hook(gradient):
        with torch.enable_grad():
            other(torch.ones(2, WIDTH))

    y.register_hook(hook)
    y.sum().backward()


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + x.sum() * 0


def _hook_of_a_function():
    other = Block()
    y = _Twice.apply(torch.ones(2, WIDTH, requires_grad=True))

    def hook(gradient):
        with torch.enable_grad():
            other(torch.ones(2, WIDTH))

    y.register_hook(hook)
    y.sum().backward()


def _double_backward():
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(_Twice.apply(x).exp().sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()


def _functions_of_torch_func():
    net = Block()
    parameters = dict(net.named_parameters())
    torch.func.grad(lambda p: torch.func.functional_call(net, p, (torch.ones(2, WIDTH),)).sum())(parameters)
    torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.ones(2, 3))
    torch.func.jacrev(lambda x: x.exp())(torch.ones(3))
    torch.func.hessian(lambda x: x.pow(3).sum())(torch.ones(2))


def _checkpoint_without_gradients():
    with torch.no_grad():
        Net(again)(torch.ones(2, WIDTH))


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize(
    "program",
    [
        _hook_that_runs_a_module, _hook_of_a_function, _double_backward, _functions_of_torch_func, train_plainly,
        _checkpoint_without_gradients,
    ],
)  # fmt: skip
def test_nothing_else_runs_again(program, intercept, recorder):
    """Hooks that run modules, gradients of gradients and torch.func are not recomputes."""
    with memwatch.profile(intercept=intercept, holders=False) as prof:
        program()
    assert set(prof.ops["phase"]) <= {"forward", "backward", "optimizer"}
    assert "recomputed" not in set(prof.storages["category"])


class _ByHand(torch.autograd.Function):
    """Computes its forward again in backward, as libraries with checkpoints of their own do."""

    @staticmethod
    def forward(ctx, x, block):
        ctx.block = block
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_checkpoint_by_hand_is_inferred(intercept, recorder):
    """A Function whose backward builds a graph of its own computes its forward again; its rule says so."""
    net = Net(lambda block, x: _ByHand.apply(x, block))
    with memwatch.profile(intercept=intercept, holders=False) as prof:
        train(net)
    ops, storages = prof.ops, prof.storages
    recompute = ops[ops["phase"] == "recompute"]
    assert set(recompute["module"]) >= {"blocks.0.up", "blocks.1.act", "blocks.2.down", "blocks.2"}
    rules = set(storages.loc[storages["category"] == "recomputed", "rule"])
    assert len(rules) == 1
    assert rules.pop().startswith("inferred: ")


@pytest.mark.parametrize("run", [again, again_reentrant], ids=["non-reentrant", "reentrant"])
def test_a_region_may_run_again_in_a_thread_of_autograd(run):
    """The backward of another device runs in a thread that inherits the key: its modules and lines are seen."""
    net = Net(run)

    def backward():
        include_key(FREE_KEY, True)  # as autograd does in the threads of devices
        try:
            loss.backward()
        finally:
            include_key(FREE_KEY, False)

    with memwatch.profile(intercept="key", holders=False) as prof:
        loss = net(torch.randn(8, WIDTH, requires_grad=True)).sum()
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    ops = prof.ops
    forward, recompute = (ops[ops["phase"] == phase] for phase in ("forward", "recompute"))
    assert len(recompute) > 12
    assert set(places(recompute)) <= set(places(forward))
    gelu = ops[ops["name"] == "aten.gelu_backward.default"]
    assert list(gelu["module"]) == ["blocks.2.act", "blocks.1.act", "blocks.0.act"]
