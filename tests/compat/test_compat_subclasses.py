"""Tensor subclasses, function and dispatch modes: memwatch never calls the program's code on its own account."""

from __future__ import annotations

import torch
from compat_harness import unnoticed
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class Tagged(Tensor):
    """A subclass that counts the calls of its __torch_function__."""

    calls: list = []  # noqa: RUF012  # counted over the class on purpose

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Seen(Tensor):
    """A wrapper that notes each attribute that is looked up on it, and each op that it runs."""

    seen: list = []  # noqa: RUF012  # counted over the class on purpose

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __getattribute__(self, name):
        Seen.seen.append(name)
        return super().__getattribute__(name)

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        args, kwargs = tree_map_only(Seen, _inner_of, (args, kwargs or {}))
        return tree_map_only(Tensor, Seen, func(*args, **kwargs))


def _inner_of(wrapper):
    return object.__getattribute__(wrapper, "inner")


class Saving(Function):
    """A function that saves its input. It runs while a mode for functions is on."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + 0 * x


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.ops.aten.mm.default else out


def _step() -> tuple:
    net = nn.Linear(6, 3)
    x = torch.randn(4, 6)
    loss = (net(x) @ torch.randn(3, 2)).sum()
    loss.backward()
    return net, loss.detach()


@unnoticed
def test_function_subclass():
    Tagged.calls.clear()
    x = torch.randn(4, 4).as_subclass(Tagged).requires_grad_()
    y = (x @ x).exp()
    y.sum().backward()
    return y.detach(), x.grad, list(Tagged.calls)


@unnoticed
def test_function_subclass_as_a_parameter():
    Tagged.calls.clear()
    net = nn.Linear(4, 4)
    net.weight = nn.Parameter(torch.randn(4, 4).as_subclass(Tagged))
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    net(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    return type(net.weight), net.weight.detach().as_subclass(Tensor), list(Tagged.calls)


@unnoticed
def test_wrapper_subclass():
    x = TwoTensor(torch.randn(4, 4), torch.randn(4, 4)).requires_grad_()
    y = (x @ x).relu()
    y.sum().backward()
    return y.detach(), x.grad


@unnoticed
def test_wrapper_subclass_that_notes_each_look_at_it():
    x = Seen(torch.randn(4, 4)).requires_grad_()
    Seen.seen.clear()
    (x @ x).exp() * x
    return list(Seen.seen)


@unnoticed
def test_wrapper_subclass_whose_backward_reads_outputs():
    """It reads no saved inputs: torch detaches what any hook returns for those (docs/observing.md)."""
    x = Seen(torch.randn(4, 4)).requires_grad_()
    Seen.seen.clear()
    x.exp().sigmoid().sum().backward()
    return list(Seen.seen)


@unnoticed
def test_nested_wrapper_subclass():
    pair = TwoTensor(torch.randn(4), torch.randn(4))
    x = TwoTensor(pair, TwoTensor(torch.randn(4), torch.randn(4))).requires_grad_()
    (x * 2).exp().sum().backward()
    return x.grad


@unnoticed
def test_parameters_and_buffers():
    net = nn.Module()
    net.weight = nn.Parameter(torch.randn(3))
    net.register_buffer("count", torch.zeros(1))
    net.lazy = nn.LazyLinear(4)
    net.lazy(torch.randn(2, 3)).sum().backward()
    return net, nn.UninitializedParameter().__class__


@unnoticed
def test_function_mode_inside():
    with Functions() as mode:
        result = _step()
    return result, mode.calls


@unnoticed
def test_function_mode_around_a_function_that_saves():
    x = torch.randn(4, requires_grad=True)
    with Functions() as mode:
        Saving.apply(x).sum().backward()
    return x, mode.calls


@unnoticed
def test_dispatch_mode_inside():
    with Ops() as mode:
        result = _step()
    return result, mode.calls


@unnoticed
def test_dispatch_mode_that_changes_results():
    with Doubling():
        return _step()


@unnoticed
def test_dispatch_mode_inside_backward():
    x = torch.randn(4, requires_grad=True)
    mode = Ops()
    x.register_hook(lambda grad: _under(mode, grad))
    x.exp().sum().backward()
    return x, mode.calls


def _under(mode, grad):
    with mode:
        return grad * 2


@unnoticed
def test_default_device_mode():
    with torch.device("cpu"):
        return _step()


@unnoticed
def test_deferred_init_and_skip_init():
    return torch.nn.utils.skip_init(nn.Linear, 4, 4).weight.shape


@unnoticed(raises=True)
def test_error_in_a_dispatch_mode():
    class Failing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise ValueError(f"no {func}")

    with Failing():
        torch.ones(3)
