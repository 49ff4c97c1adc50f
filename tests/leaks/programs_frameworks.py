"""Leaks through hooks, contexts, transforms and scripted models, as frameworks on top of torch make them."""

from __future__ import annotations

import torch
from leak_program import collect
from torch import nn

W = torch.randn(32, 32, requires_grad=True)
NET = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
KEPT = []


def tensor():
    return torch.randn(32, 8)


class GradCam:
    def __init__(self, model):
        self.model, self.activations = model, []
        self.handle = model[0].register_forward_hook(self.save)

    def save(self, module, args, out):
        self.activations.append(out)


def leak_hook_of_a_wrapper():
    model = nn.Sequential(nn.Linear(8, 8))
    GradCam(model)
    model(torch.randn(2, 8))


def clean_hook_of_a_wrapper():
    model = nn.Sequential(nn.Linear(8, 8))
    cam = GradCam(model)
    model(torch.randn(2, 8))
    cam.handle.remove()


def leak_hooks_of_two_tensors():
    a, b = W.exp(), W.sin()
    a.register_hook(lambda grad: grad * b)
    b.register_hook(lambda grad: grad * a)


def clean_hooks_of_two_tensors():
    a, b = W.exp(), W.sin()
    a.register_hook(lambda grad: grad * b)


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = {"outputs": [x.exp(), x.sin()]}
        return tuple(ctx.kept["outputs"])

    @staticmethod
    def backward(ctx, *grads):
        return sum(grads)


def leak_ctx_keeps_two_outputs():
    a, b = TwoOutputs.apply(W)
    (a * b).sum()


def clean_ctx_keeps_two_outputs():
    a, b = TwoOutputs.apply(W)
    (a * b).sum()
    a.grad_fn.kept.clear()


ESCAPED = []


def escapes(x):
    ESCAPED.append(x * 2)
    return x.sum()


def leak_escape_from_vmap():
    torch.func.vmap(torch.func.grad(escapes))(torch.randn(4, 8))


def clean_escape_from_vmap():
    torch.func.vmap(torch.func.grad(lambda x: (x * 2).sum()))(torch.randn(4, 8))


def leak_scripted_models():
    KEPT.append(torch.jit.script(nn.Linear(8, 8)))


def clean_scripted_models():
    torch.jit.script(nn.Linear(8, 8))


def leak_torch_future():
    future = torch.futures.Future()
    future.set_result(tensor())
    KEPT.append(future)


def clean_torch_future():
    future = torch.futures.Future()
    future.set_result(tensor().sum().item())
    KEPT.append(future)


STATISTICS = nn.Module()
STATISTICS.register_buffer("mean", torch.zeros(()))


def leak_buffer_with_its_graph():
    STATISTICS.mean = STATISTICS.mean * 0.9 + NET(torch.randn(4, 16)).mean()


def clean_buffer_with_its_graph():
    STATISTICS.mean = (STATISTICS.mean * 0.9 + NET(torch.randn(4, 16)).mean()).detach()


PARAMETER = nn.Parameter(torch.randn(16))
PARAMETER.history = []


def leak_attribute_of_a_parameter():
    PARAMETER.history.append((PARAMETER * 2).exp())


def clean_attribute_of_a_parameter():
    PARAMETER.history.append((PARAMETER * 2).exp().sum().item())


PROGRAMS = collect(
    globals(),
    [
        ("hook_of_a_wrapper", "cycle", ("attribute .model of GradCam", "bound method GradCam.save")),
        ("hooks_of_two_tensors", "uncollectable", ("closure cell `a`", "closure cell `b`", "hooks")),
        ("ctx_keeps_two_outputs", "uncollectable", ("attribute .kept of", "ctx", "'outputs'")),
        ("escape_from_vmap", "retained", ("global `ESCAPED`",)),
        ("scripted_models", "retained", ("global `KEPT`", "parameter 'weight' of RecursiveScriptModule")),
        ("torch_future", "retained", ("global `KEPT`", "result of Future")),
        ("buffer_with_its_graph", "retained", ("global `STATISTICS`", "buffer 'mean'")),
        ("attribute_of_a_parameter", "retained", ("global `PARAMETER`", "attribute .history of Parameter")),
    ],
)
