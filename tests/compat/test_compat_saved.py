"""Saved tensors from the program's view: in custom Functions, and with the program's own hooks."""

from __future__ import annotations

import gc

import pytest
import torch
from compat_harness import INTERCEPTS, unnoticed
from torch import nn
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

import memwatch
from memwatch.record import saved_tensors


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
    """Make graphs inside a forward, between the node and the tensors that it saves."""

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
    """Tensors packed in the block are returned as they were saved. After the last one torch is unchanged."""
    # a program before may have left a graph for good, and the packs in it
    before = list(saved_tensors._hidden)
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
    gc.unfreeze()  # the harness froze packs of earlier programs too
    gc.collect()
    gc.freeze()
    assert saved_tensors._hidden == before
    assert ("saved_tensors" in vars(BackwardCFunction)) == bool(before)


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


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_hooks_of_the_program_around_the_block_are_not_replaced(intercept):
    """Torch takes one pair for a saved tensor, and the program's was there first."""
    x = torch.randn(8, requires_grad=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept),
        memwatch.profile(intercept=intercept),
    ):
        saved = x.exp().grad_fn._raw_saved_result
        with pytest.raises(RuntimeError, match="hooks have already been set"):
            saved.register_hooks(lambda kept: kept, lambda kept: kept)


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
