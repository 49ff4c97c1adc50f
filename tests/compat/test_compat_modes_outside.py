"""Modes, hooks and fake tensors that the program entered before the block opened, or holds open across its end."""

from __future__ import annotations

import pytest
import torch
from compat_harness import INTERCEPTS, unnoticed
from compat_state import differences, torch_state
from test_compat_subclasses import Functions, Ops, _step
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import memwatch


def _fake_step() -> tuple:
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return tuple(p.shape for p in net.parameters()), tuple(type(p.grad).__name__ for p in net.parameters())


@unnoticed
def test_fake_tensor_mode_inside():
    with FakeTensorMode():
        fake = _fake_step()
    return fake, torch.randn(3)


@unnoticed
def test_fake_tensors_made_from_real_ones():
    mode = FakeTensorMode()
    real = torch.randn(4, 4)
    with mode:
        fake = mode.from_tensor(real) @ torch.randn(4, 4)
    return fake.shape, real


@unnoticed
def test_saved_tensor_hooks_inside():
    seen = []
    with saved_tensors_hooks(lambda t: seen.append(tuple(t.shape)) or t.clone(), lambda t: t * 1):
        result = _step()
    return result, seen


@unnoticed
def test_saved_tensor_hooks_around_the_forward_only():
    x = torch.randn(4, requires_grad=True)
    with saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        y = x.exp().sin()
    y.sum().backward()
    return x


@unnoticed
def test_save_on_cpu_inside():
    with save_on_cpu():
        return _step()


@unnoticed(raises=True)
def test_disabled_saved_tensor_hooks_inside():
    with (
        torch.autograd.graph.disable_saved_tensors_hooks("not here"),
        saved_tensors_hooks(lambda t: t, lambda t: t),
    ):
        _step()


@unnoticed
def test_disabled_saved_tensor_hooks_that_are_not_used():
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return _step()


@unnoticed
def test_allow_mutation_on_saved_tensors():
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        x = torch.randn(4, requires_grad=True)
        y = x * 1
        z = y.exp()
        y.add_(1)
        z.mul_(2)
        z.sum().backward()
    return x


OUTSIDE = {
    "dispatch mode": Ops,
    "function mode": Functions,
    "fake tensors": FakeTensorMode,
    "saved tensor hooks": lambda: saved_tensors_hooks(lambda t: t.clone(), lambda t: t),
    "save_on_cpu": save_on_cpu,
    "no grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
@pytest.mark.parametrize("name", OUTSIDE)
def test_context_that_was_open_before_the_block(name, intercept):
    """A context that the program opened before the block works in it and is left unchanged."""

    def program():
        if name in ("no grad", "inference mode"):
            return torch.ones(4, 4) @ torch.ones(4, 4) + 1
        return _fake_step()

    def seen(context):
        return [call for call in getattr(context, "calls", []) if not _is_alias(call)]

    with OUTSIDE[name]():
        program()  # first-time effects
    with OUTSIDE[name]() as expected_context:
        expected = program()
    with OUTSIDE[name]() as context:
        before = torch_state()
        getattr(context, "calls", []).clear()
        with memwatch.profile(intercept=intercept) as prof:
            result = program()
        calls = seen(context)
        assert differences(before, torch_state()) == []
    assert repr(result) == repr(expected)
    assert calls == seen(expected_context)
    assert len(prof.ops) > 0


def _is_alias(call: str) -> bool:
    """A saved tensor is kept by an alias, which a dispatch mode around the block sees being made."""
    return call == "aten.detach.default"


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_hooks_pushed_in_the_block_survive_its_end(intercept):
    hooks = saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 2)
    with memwatch.profile(intercept=intercept):
        hooks.__enter__()
    x = torch.ones(3, requires_grad=True)
    x.exp().sum().backward()
    hooks.__exit__(None, None, None)
    assert torch.equal(x.grad, 2 * x.detach().exp())
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_graph_made_in_the_block_and_run_after_it(intercept):
    w = torch.randn(4, 4, requires_grad=True)
    with memwatch.profile(intercept=intercept):
        loss = (w @ w).exp().sum()
    loss.backward()
    plain = w.grad.clone()
    w.grad = None
    (w @ w).exp().sum().backward()
    assert torch.equal(plain, w.grad)


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
@pytest.mark.parametrize("replay", [False, True])
def test_tensors_of_symbolic_size_may_be_alive_before_the_block(intercept, replay):
    """The size of dynamo's fake tensors is a symbol. They count as 0 bytes, and the block opens."""
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fakes = [  # as in two compiled functions, which do not know each other's symbols
        FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(7, 5), source=ConstantSource(name))
        for name in ("x", "y")
    ]
    assert not any(isinstance(fake.untyped_storage().nbytes(), int) for fake in fakes)
    with memwatch.profile(intercept=intercept, replay=replay) as prof:
        torch.ones(1000).exp()
    assert prof.peak_increase_bytes == 8000
    del fakes
