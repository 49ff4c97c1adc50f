"""Custom autograd Functions and hooks of every kind."""

from __future__ import annotations

import torch
from compat_harness import unnoticed
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.power = 3
        ctx.extra = x * 2
        return x**ctx.power

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.power * x**2 + 0 * ctx.extra


class OnceExp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.mark_non_differentiable()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


class Scaled(Function):
    @staticmethod
    def forward(x, factor):
        return x * factor, x.detach() + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.factor, None


class AddInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, grad):
        return grad


@unnoticed
def test_function_with_saved_tensors_and_attributes():
    x = torch.randn(8, requires_grad=True)
    y = Cube.apply(x)
    y.sum().backward()
    return x, y


@unnoticed
def test_function_differentiated_twice():
    x = torch.randn(8, requires_grad=True)
    (first,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first.detach(), second


@unnoticed(raises=True)
def test_once_differentiable_function_raises_the_second_time():
    x = torch.randn(8, requires_grad=True)
    (first,) = torch.autograd.grad(OnceExp.apply(x).sum(), x, create_graph=True)
    first.sum().backward()


@unnoticed
def test_function_with_setup_context():
    x = torch.randn(8, requires_grad=True)
    y, flag = Scaled.apply(x, 2.5)
    y.sum().backward()
    return x, y, flag


@unnoticed
def test_function_that_writes_its_input():
    x = torch.randn(8, requires_grad=True)
    y = x * 2
    z = AddInPlace.apply(y)
    z.pow(2).sum().backward()
    return x, y, z


@unnoticed(raises=True)
def test_saved_output_changed_in_place_raises():
    x = torch.randn(8, requires_grad=True)
    y = OnceExp.apply(x)
    y.mul_(2)
    y.sum().backward()


@unnoticed
def test_tensor_hooks():
    seen = []
    x = torch.randn(8, requires_grad=True)
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    x.register_hook(lambda grad: grad + 1)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    z = y.exp()
    z.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs[0].clone(), outputs[0].clone())))
    z.grad_fn.register_prehook(lambda outputs: seen.append(outputs[0].clone()))
    z.sum().backward()
    return x, y.grad, seen


@unnoticed
def test_multi_grad_hook():
    seen = []
    x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    torch.autograd.graph.register_multi_grad_hook(
        (x, y), lambda grads: seen.append([g.clone() for g in grads])
    )
    (x * y).sum().backward()
    return x, y, seen


@unnoticed
def test_module_hooks():
    seen = []
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    net[1].register_forward_hook(lambda module, args, out: seen.append(out.detach().clone()))
    net[2].register_full_backward_hook(lambda module, gin, gout: seen.append(gout[0].clone()))
    net[0].register_full_backward_pre_hook(lambda module, gout: (gout[0] * 0.5,))
    net.register_state_dict_pre_hook(lambda *args: seen.append("saved"))
    net(torch.randn(4, 8)).sum().backward()
    net.state_dict()
    return net, seen


@unnoticed
def test_global_module_hooks():
    seen = []
    module = torch.nn.modules.module
    handles = [
        module.register_module_forward_pre_hook(lambda m, args: seen.append(type(m).__name__)),
        module.register_module_forward_hook(lambda m, args, out: seen.append(tuple(out.shape))),
        module.register_module_full_backward_hook(lambda m, gin, gout: seen.append(len(gout))),
    ]
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    net(torch.randn(4, 8)).sum().backward()
    for handle in handles:
        handle.remove()
    return net, seen


@unnoticed
def test_optimizer_hooks():
    seen = []
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: seen.append("before"))
    optimizer.register_step_post_hook(lambda opt, args, kwargs: seen.append("after"))
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return net, optimizer, seen


@unnoticed
def test_optimizer_step_inside_backward():
    """The optimizer runs in a post-accumulate-grad hook, so gradients never pile up."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    steppers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

    def step(parameter):
        steppers[parameter].step()
        steppers[parameter].zero_grad()

    for parameter in steppers:
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        net(torch.randn(4, 8)).sum().backward()
    return net


@unnoticed(raises=True)
def test_exception_in_a_backward_hook():
    x = torch.randn(4, requires_grad=True)

    def fail(grad):
        raise ValueError("the hook says no")

    x.register_hook(fail)
    x.exp().sum().backward()
