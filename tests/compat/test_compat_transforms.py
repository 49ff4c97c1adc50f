"""torch.func, forward-mode AD and parametrisations."""

from __future__ import annotations

import torch
import torch.autograd.forward_ad as fwd
from compat_harness import unnoticed
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)


def _f(x):
    return (x.sin() * x.exp()).sum()


@unnoticed
def test_func_grad():
    return grad(_f)(torch.randn(6)), grad(grad(lambda x: x**3))(torch.tensor(2.0))


@unnoticed
def test_func_vmap():
    return vmap(lambda x, y: (x * y).cumsum(0))(torch.randn(5, 3), torch.randn(5, 3))


@unnoticed
def test_func_vmap_with_randomness():
    return vmap(lambda x: x + torch.randn(3), randomness="different")(torch.randn(5, 3))


@unnoticed
def test_func_jvp_and_vjp():
    x = torch.randn(6)
    value, pull = vjp(torch.sin, x)
    return jvp(torch.sin, (x,), (torch.ones(6),)), value, pull(torch.ones(6))


@unnoticed
def test_func_hessian_and_jacobians():
    x = torch.randn(4)
    return hessian(_f)(x), jacrev(torch.cumsum)(x, 0), jacfwd(torch.tanh)(x)


@unnoticed
def test_func_linearize():
    value, push = linearize(torch.sin, torch.randn(4))
    return value, push(torch.ones(4))


@unnoticed
def test_per_sample_gradients():
    """vmap(grad(functional_call)), on which MemTracker raises."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    params = {name: p.detach() for name, p in net.named_parameters()}

    def loss(weights, x):
        return functional_call(net, weights, (x,)).pow(2).mean()

    return vmap(grad_and_value(loss), (None, 0))(params, torch.randn(5, 6))


@unnoticed
def test_functional_call_trains():
    net = nn.Linear(6, 2)
    weights = {name: torch.randn_like(p, requires_grad=True) for name, p in net.named_parameters()}
    functional_call(net, weights, (torch.randn(3, 6),)).sum().backward()
    return weights


@unnoticed
def test_func_inside_a_training_step():
    """A transform between forward and backward of an ordinary graph."""
    w = torch.randn(6, requires_grad=True)
    x = torch.randn(6)
    loss = (w * x).exp().sum()
    slope = grad(_f)(x)
    (loss * slope.sum()).backward()
    return w, slope


@unnoticed(raises=True)
def test_func_inside_the_programs_own_saved_tensor_hooks_raises():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        grad(_f)(torch.randn(4))


@unnoticed(raises=True)
def test_data_dependent_control_flow_under_vmap_raises():
    vmap(lambda x: x if x.sum() > 0 else -x)(torch.randn(4, 2))


@unnoticed
def test_forward_mode_ad():
    net, x, t = nn.Linear(6, 3), torch.randn(4, 6), torch.randn(4, 6)
    with fwd.dual_level():
        out = net(fwd.make_dual(x, t)).tanh()
        primal, tangent = fwd.unpack_dual(out)
        result = primal.detach().clone(), tangent.detach().clone()
    return result


@unnoticed
def test_forward_over_reverse():
    x = torch.randn(4, requires_grad=True)
    with fwd.dual_level():
        dual = fwd.make_dual(x, torch.ones(4))
        (slope,) = torch.autograd.grad(dual.pow(3).sum(), x, create_graph=True)
        result = fwd.unpack_dual(slope).tangent
        result = None if result is None else result.detach()
    return result, slope.detach()


@unnoticed
def test_weight_norm_parametrisation():
    net = torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))
    net(torch.randn(2, 6)).sum().backward()
    return net
