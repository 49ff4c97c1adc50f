"""Tensor subclasses, function and dispatch modes: memwatch never calls the program's code on its own account."""

from __future__ import annotations

import torch
from compat_harness import unnoticed
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Tagged(Tensor):
    """A subclass that counts the calls of its __torch_function__."""

    calls: list = []  # noqa: RUF012  # counted over the class on purpose

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


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
