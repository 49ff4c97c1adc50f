"""Leaks through autograd: hooks, ctx, metadata, create_graph, saved views, pack hooks."""

from __future__ import annotations

import warnings
import weakref

import torch
from leak_program import collect
from torch.autograd.graph import register_multi_grad_hook, saved_tensors_hooks

W = torch.randn(32, 32, requires_grad=True)


def leak_tensor_hook():
    y = W.exp()
    y.register_hook(lambda grad: grad * y)


def clean_tensor_hook():
    y = W.exp()
    y.register_hook(lambda grad: grad * 2)


def leak_tensor_hook_after_backward():
    y = W.exp()
    y.register_hook(lambda grad: grad * y)
    torch.autograd.grad(y.sum(), W)


def clean_tensor_hook_after_backward():
    y = W.exp()
    handle = y.register_hook(lambda grad: grad * y)
    torch.autograd.grad(y.sum(), W)
    handle.remove()


def leak_leaf_hook():
    p = torch.randn(32, requires_grad=True)
    p.register_hook(lambda grad: grad + p)


def clean_leaf_hook():
    p = torch.randn(32, requires_grad=True)
    ref = weakref.ref(p)
    p.register_hook(lambda grad: grad + ref())


def leak_node_hook():
    y = W.exp()
    y.grad_fn.register_hook(lambda grad_in, grad_out: y.add_(0))


def clean_node_hook():
    y = W.exp()
    y.grad_fn.register_hook(lambda grad_in, grad_out: None)


def leak_node_prehook():
    y = W.exp()
    y.grad_fn.register_prehook(lambda grads: y.add_(0))


def clean_node_prehook():
    y = W.exp()
    y.grad_fn.register_prehook(lambda grads: None)


def leak_metadata():
    y = W.exp()
    y.grad_fn.metadata["activation"] = y


def clean_metadata():
    y = W.exp()
    y.grad_fn.metadata["activation"] = weakref.ref(y)


def leak_post_accumulate():
    p = torch.randn(32, 32, requires_grad=True)
    p.register_post_accumulate_grad_hook(lambda _: p.grad.zero_())


def clean_post_accumulate():
    p = torch.randn(32, 32, requires_grad=True)
    p.register_post_accumulate_grad_hook(lambda q: q.grad.zero_())


def leak_optimizer_in_backward():
    model = torch.nn.Linear(16, 16)
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    model(torch.randn(4, 16)).sum().backward()


def clean_optimizer_in_backward():
    model = torch.nn.Linear(16, 16)
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]
    model(torch.randn(4, 16)).sum().backward()
    for handle in handles:
        handle.remove()
    optimizers.clear()


def leak_multi_grad_hook():
    a, b = torch.randn(16, requires_grad=True), torch.randn(16, requires_grad=True)
    register_multi_grad_hook((a, b), lambda grads: None, mode="all")
    (a * b).sum().backward()


def clean_multi_grad_hook():
    a, b = torch.randn(16, requires_grad=True), torch.randn(16, requires_grad=True)
    handle = register_multi_grad_hook((a, b), lambda grads: None, mode="all")
    (a * b).sum().backward()
    handle.remove()


def leak_child_attribute():
    y = torch.randn(32, requires_grad=True)
    y.child = y.sin()


def clean_child_attribute():
    y = torch.randn(32, requires_grad=True)
    y.child = y.sin().detach()


def leak_accumulate_grad_attribute():
    p = torch.randn(32, requires_grad=True)
    p.accumulator = p.view_as(p).grad_fn.next_functions[0][0]


def clean_accumulate_grad_attribute():
    p = torch.randn(32, requires_grad=True)
    p.accumulator = p.view_as(p).grad_fn.next_functions[0][0].name()


def leak_create_graph():
    p = torch.randn(32, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (p**3).sum().backward(create_graph=True)


def clean_create_graph():
    p = torch.randn(32, requires_grad=True)
    (grad,) = torch.autograd.grad((p**3).sum(), p, create_graph=True)
    grad.sum().backward()


def leak_retain_grad_create_graph():
    p = torch.randn(32, requires_grad=True)
    y = p * 2
    y.retain_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (y**3).sum().backward(create_graph=True, inputs=[y])


def clean_retain_grad_create_graph():
    p = torch.randn(32, requires_grad=True)
    y = p * 2
    y.retain_grad()
    (y**3).sum().backward(inputs=[y])


class SavesView(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y.view(-1))
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y.view_as(grad)


class SavesOutput(SavesView):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y


def leak_saved_view():
    SavesView.apply(W)


def clean_saved_view():
    SavesOutput.apply(W)


class KeepsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.result = y
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.result


def leak_ctx_attribute():
    KeepsOutput.apply(W)


def clean_ctx_attribute():
    SavesOutput.apply(W)


def leak_ctx_attribute_with_consumer():
    KeepsOutput.apply(W).exp().sum()


def clean_ctx_attribute_with_consumer():
    SavesOutput.apply(W).exp().sum()


def leak_identity_pack():
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        W.exp()


def clean_identity_pack():
    with saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        W.exp()


class Packed:
    def __init__(self, tensor):
        self.tensor = tensor


def leak_wrapping_pack():
    with saved_tensors_hooks(Packed, lambda packed: packed.tensor):
        torch.softmax(W, 0)


def clean_wrapping_pack():
    with saved_tensors_hooks(lambda t: Packed(t.detach()), lambda packed: packed.tensor):
        torch.softmax(W, 0)


def leak_save_on_cpu():
    with torch.autograd.graph.save_on_cpu():
        W.sigmoid()


def clean_save_on_cpu():
    with torch.autograd.graph.save_on_cpu():
        torch.autograd.grad(W.sigmoid().sum(), W)


def leak_function_class_per_call():
    scale = torch.randn(32, 32)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * scale

        @staticmethod
        def backward(ctx, grad):
            return grad * scale

    Scaled.apply(W)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def clean_function_class_per_call():
    Scale.apply(W, torch.randn(32, 32))


def leak_prehook_over_group():
    y = W.exp()
    z = y.sin()
    group = {"intermediates": [y.grad_fn, z.grad_fn]}
    y.grad_fn.register_prehook(lambda grads: group.update(grads=grads))


def clean_prehook_over_group():
    y = W.exp()
    z = y.sin()
    group = {"intermediates": [y.grad_fn, z.grad_fn]}
    y.grad_fn.register_prehook(lambda grads: group.update(grads=grads))
    del group["intermediates"]


PROGRAMS = collect(
    globals(),
    [
        ("tensor_hook", "uncollectable", ("closure cell `y`", "hooks")),
        ("tensor_hook_after_backward", "uncollectable", ("closure cell `y`", "hooks")),
        ("leaf_hook", "cycle", ("closure cell `p`", "hooks")),
        ("node_hook", "uncollectable", ("closure cell `y`", "register_hook")),
        ("node_prehook", "uncollectable", ("closure cell `y`", "register_prehook")),
        ("metadata", "uncollectable", (".metadata", "'activation'")),
        ("post_accumulate", "uncollectable", ("closure cell `p`", "post-accumulate-grad hooks")),
        (
            "optimizer_in_backward",
            "uncollectable",
            ("closure cell `optimizers` of", "post-accumulate-grad hooks"),
        ),
        ("multi_grad_hook", "uncollectable", ("hooks", "closure cell")),
        ("child_attribute", "uncollectable", ("attribute .child of",)),
        ("accumulate_grad_attribute", "uncollectable", ("attribute .accumulator of",)),
        ("create_graph", "uncollectable", (".grad of",)),
        ("retain_grad_create_graph", "uncollectable", (".grad of",)),
        ("saved_view", "uncollectable", ("saved tensors[0]",)),
        ("ctx_attribute", "cycle", ("attribute .result of", "ctx")),
        ("ctx_attribute_with_consumer", "cycle", ("attribute .result of", "ctx")),
        ("identity_pack", "uncollectable", ("packed by a saved-tensor hook",)),
        ("wrapping_pack", "uncollectable", ("packed by a saved-tensor hook", "attribute .tensor of Packed")),
        ("save_on_cpu", "uncollectable", ("packed by a saved-tensor hook",)),
        ("function_class_per_call", "cycle", ("Scaled",)),
        (
            "prehook_over_group",
            "uncollectable",
            ("closure cell `group`", "'intermediates'", "register_prehook"),
        ),
    ],
)
