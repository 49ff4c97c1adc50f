"""Programs whose tensors refcounting, gc or nothing frees, as measured on torch 2.13, and that fit no other file."""

from __future__ import annotations

import warnings

import torch
from leak_program import collect
from torch.autograd.graph import register_multi_grad_hook

W = torch.randn(32, 32, requires_grad=True)
KEPT = []


class KeepsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = x.exp()
        return ctx.result

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.result


def leak_tensor_attribute_cycle():
    y = torch.randn(32)
    y.me = y


def clean_tensor_attribute_cycle():
    y = torch.randn(32)
    y.me = y.shape


def leak_ctx_attribute_after_backward():
    torch.autograd.grad(KeepsOutput.apply(W).sum(), W)


def clean_ctx_attribute_after_backward():
    y = KeepsOutput.apply(W)
    torch.autograd.grad(y.sum(), W)
    del y.grad_fn.result


def leak_ctx_attribute_with_kept_consumer():
    KEPT.append(KeepsOutput.apply(W).exp())


def clean_ctx_attribute_with_kept_consumer():
    y = KeepsOutput.apply(W)
    KEPT.append(y.exp().detach())
    KEPT.pop()
    del y.grad_fn.result


def leak_ctx_loop_through_a_consumer():
    y = KeepsOutput.apply(W)
    y.grad_fn.result = y.exp()


def clean_ctx_loop_through_a_consumer():
    y = KeepsOutput.apply(W)
    y.grad_fn.result = y.exp().detach()


def leak_prehook_over_its_own_node():
    y = W.exp()
    group = {"nodes": [y.grad_fn]}
    y.grad_fn.register_prehook(lambda grads: group.update(grads=grads))


def clean_prehook_over_its_own_node():
    y = W.exp()
    group = {"nodes": [y.grad_fn]}
    y.grad_fn.register_prehook(lambda grads: group.update(grads=grads))
    group.clear()


def leak_create_graph_on_a_living_parameter():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (W**3).sum().backward(create_graph=True)


def clean_create_graph_on_a_living_parameter():
    leak_create_graph_on_a_living_parameter()
    W.grad = None


PROGRAMS = collect(
    globals(),
    [
        ("tensor_attribute_cycle", "cycle", ("attribute .me of Tensor",)),
        ("ctx_attribute_after_backward", "cycle", ("attribute .result of", "ctx")),
        ("ctx_attribute_with_kept_consumer", "retained", ("global `KEPT`",)),
        ("ctx_loop_through_a_consumer", "uncollectable", ("attribute .result of", "ctx")),
        ("prehook_over_its_own_node", "cycle", ("closure cell `group`", "'nodes'", "register_prehook")),
        ("create_graph_on_a_living_parameter", "retained", ("global `W`", ".grad of")),
    ],
)


class KeepsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.x.exp()


def ctx_keeps_its_input():
    KeepsInput.apply(torch.randn(32, requires_grad=True))


def ctx_keeps_its_input_through_backward():
    KeepsInput.apply(torch.randn(32, requires_grad=True)).sum().backward()


def node_as_attribute_of_its_output():
    y = torch.randn(32, requires_grad=True).exp()
    y.node = y.grad_fn


def accumulate_grad_hook_over_its_leaf():
    leaf = torch.randn(32, requires_grad=True)
    accumulate = leaf.view_as(leaf).grad_fn.next_functions[0][0]
    accumulate.register_hook(lambda grads_in, grads_out: leaf.grad)


def multi_grad_hook_on_any():
    a, b = torch.randn(16, requires_grad=True), torch.randn(16, requires_grad=True)
    register_multi_grad_hook((a, b), lambda grad: None, mode="any")
    (a * b).sum().backward()


def loop_variable_of_enumerate():
    for _, batch in enumerate(torch.randn(8) for _ in range(3)):
        del batch


class Deletes(torch.nn.Module):
    def forward(self, x):
        y = x.exp()
        del x
        return y.sum()


def argument_deleted_in_forward():
    Deletes()(torch.randn(32, requires_grad=True)).backward()


def exception_name_alone():
    activations = torch.randn(32)
    try:
        raise ValueError(activations.shape)
    except ValueError as error:
        return str(error)


FREED_BY_REFCOUNT = [
    ctx_keeps_its_input,
    ctx_keeps_its_input_through_backward,
    node_as_attribute_of_its_output,
    accumulate_grad_hook_over_its_leaf,
    multi_grad_hook_on_any,
    loop_variable_of_enumerate,
    argument_deleted_in_forward,
    exception_name_alone,
]
