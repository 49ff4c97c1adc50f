"""Custom autograd Functions and hooks of every kind."""

from __future__ import annotations

import gc

import pytest
import torch
from compat_harness import INTERCEPTS, unnoticed
from torch import nn
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction, once_differentiable

import memwatch


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


class Scale(nn.Parameter):
    """A parameter of the program's own class."""


class FusedLinear(Function):
    """Add up the weight's gradient in an attribute of it, as Megatron does."""

    @staticmethod
    def forward(ctx, x, weight, scale):
        y = x @ weight * scale
        ctx.save_for_backward(x, weight, None, scale, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight, nothing, scale, y = ctx.saved_tensors
        weight.main_grad += x.t() @ (grad * scale)
        scale.seen += [type(scale).__name__, nothing, y.grad_fn is ctx, getattr(x, "mark", None), x.grad_fn]
        return (grad * scale) @ weight.t(), None, (grad * y / scale).sum().reshape(1)


class Enclosing(Function):
    """Make graphs inside a forward, between the node and what it saves."""

    @staticmethod
    def forward(ctx, x, weight, scale):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            y = FusedLinear.apply(inner, weight, scale)
        ctx.save_for_backward(inner, y, weight, x)
        return y.detach()

    @staticmethod
    def backward(ctx, grad):
        inner, y, weight, x = ctx.saved_tensors
        torch.autograd.backward(y, grad)
        weight.seen.append((inner.is_leaf, x.requires_grad, type(weight) is nn.Parameter))
        return inner.grad, None, None


def fused_parameters():
    weight, scale = nn.Parameter(torch.randn(4, 4)), Scale(torch.ones(1))
    weight.main_grad, weight.seen, scale.seen = torch.zeros(4, 4), [], []
    return weight, scale


@unnoticed
def test_saved_tensors_are_the_very_parameters_with_their_classes_and_attributes():
    weight, scale = fused_parameters()
    x = torch.randn(3, 4, requires_grad=True)
    hidden = FusedLinear.apply(x, weight, scale)
    hidden.mark = "of the program"
    FusedLinear.apply(hidden.tanh(), weight, scale).sum().backward()
    FusedLinear.apply(FusedLinear.apply(x, weight, scale), weight, scale).sum().backward()
    kinds = [str(type(seen)) for seen in scale.seen]
    return x.grad, weight.main_grad, scale.grad, kinds, [seen for seen in scale.seen if isinstance(seen, str)]


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@unnoticed
def test_saved_intermediate_keeps_its_attributes_where_the_program_holds_it():
    weight, scale = fused_parameters()
    hidden = Doubled.apply(torch.randn(3, 4, requires_grad=True))
    hidden.mark = "of the program"
    FusedLinear.apply(hidden, weight, scale).sum().backward()
    return scale.seen[:4], hidden.grad_fn is scale.seen[4]


@pytest.mark.parametrize("intercept", ["key", "mode"], indirect=True)
def test_saved_intermediate_keeps_its_attributes_where_only_the_graph_holds_it(intercept):
    """The native recorder tells an input from an output of a function in Python, as autograd does."""
    weight, scale = fused_parameters()
    with memwatch.profile(intercept=intercept):
        hidden = Doubled.apply(torch.randn(3, 4, requires_grad=True))
        hidden.mark = "of the program"
        y = FusedLinear.apply(hidden, weight, scale)
        del hidden
        y.sum().backward()
    assert scale.seen[3] == "of the program"


@unnoticed
def test_function_that_makes_a_graph_in_its_forward():
    weight, scale = fused_parameters()
    x = torch.randn(3, 4, requires_grad=True)
    Enclosing.apply(x, weight, scale).sum().backward()
    return x.grad, weight.main_grad, weight.seen


@unnoticed(raises=True)
def test_function_whose_saved_tensors_were_freed_raises():
    weight, scale = fused_parameters()
    y = FusedLinear.apply(torch.randn(3, 4, requires_grad=True), weight, scale)
    y.sum().backward()
    y.sum().backward()


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_backward_after_the_block_finds_the_parameters_too(intercept):
    """What was packed in the block is given as it was saved; with the last of it torch is as it was."""
    weight, scale = fused_parameters()
    with memwatch.profile(intercept=intercept):
        y = FusedLinear.apply(torch.randn(3, 4, requires_grad=True), weight, scale)
        kept = FusedLinear.apply(torch.randn(3, 4, requires_grad=True), weight, scale)
    y.sum().backward()
    assert scale.seen[0] == "Scale"
    with memwatch.profile(intercept=intercept):
        FusedLinear.apply(torch.randn(3, 4, requires_grad=True), weight, scale).sum().backward()
    kept.sum().backward()
    assert scale.seen[10] == "Scale"
    del y, kept
    gc.collect()
    assert "saved_tensors" not in vars(BackwardCFunction)


@unnoticed
def test_hooks_on_one_saved_tensor():
    seen = []
    x = torch.randn(8, requires_grad=True)
    y = (x * 2).exp()
    y.grad_fn._raw_saved_result.register_hooks(
        lambda saved: seen.append((saved.requires_grad, saved.shape)) or saved.double() * 4,
        lambda packed: (packed / 4).float(),
    )
    z = y**3
    z.grad_fn._raw_saved_self.register_hooks(lambda saved: saved.numpy(), torch.from_numpy)
    z.sum().backward()
    return x, seen


def expect_an_error(function):
    try:
        function()
    except Exception as error:
        return type(error), str(error).partition("Invoked with")[0]
    return None


@unnoticed
def test_hooks_on_one_saved_tensor_that_are_refused():
    x = torch.randn(8, requires_grad=True)
    y, other = x.exp(), x.exp()
    saved = y.grad_fn._raw_saved_result
    found = [expect_an_error(lambda: saved.register_hooks(3, 4))]
    found += [
        expect_an_error(lambda: other.grad_fn._raw_saved_result.register_hooks(torch.Tensor.zero_, abs))
    ]
    saved.register_hooks(lambda kept: kept, lambda kept: kept)
    found += [expect_an_error(lambda: saved.register_hooks(lambda kept: kept, lambda kept: kept))]
    y.sum().backward()
    found += [expect_an_error(lambda: saved.register_hooks(lambda kept: kept, lambda kept: kept))]
    return found


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


class ExpWithGraph(Function):
    """Make nodes in its forward, so that its own is not the newest when it saves its output."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            x.detach().requires_grad_().exp().sum()
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[1]


@unnoticed
def test_output_saved_by_a_function_that_makes_nodes_is_freed_with_the_graph():
    x = torch.randn(8, requires_grad=True)
    y = ExpWithGraph.apply(x)
    z = ExpWithGraph.apply(ExpWithGraph.apply(y))
    return y, z


@unnoticed(raises=True)
def test_saved_output_of_a_function_that_makes_nodes_changed_in_place_raises():
    y = ExpWithGraph.apply(torch.randn(8, requires_grad=True))
    y.mul_(2)
    y.sum().backward()


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
