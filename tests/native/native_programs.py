"""Programs whose recording by C++ and by Python is compared row by row."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nested import nested_tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(functional.gelu(self.wide(self.norm(x))))


def training() -> None:
    net = nn.Sequential(_Block(16), _Block(16))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()


def convolutions() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    net(torch.randn(2, 3, 12, 12)).sum().backward()


def recurrent() -> None:
    net = nn.LSTM(8, 16, num_layers=2)
    net(torch.randn(5, 3, 8))[0].sum().backward()


def checkpointed() -> None:
    x = torch.randn(4, 16, requires_grad=True)
    checkpoint(_Block(16), x, use_reentrant=False).sum().backward()


def double_backward() -> None:
    x = torch.randn(8, requires_grad=True)
    (gradient,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
    gradient.square().sum().backward()


def sparse_gradients() -> None:
    table = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    table(torch.arange(5)).sum().backward()
    optimizer.step()


def given_results() -> None:
    out = torch.empty(0)
    torch.add(torch.ones(8), torch.ones(8), out=out)
    out.resize_(32).fill_(2)
    out.set_(torch.zeros(4))
    out.data = torch.ones(6)
    torch.cat([out, out], out=torch.empty(12))


def numbers_and_lists() -> None:
    x = torch.ones(6)
    y = 2 - x * 3.0 + torch.tensor(1.5)
    torch.stack([x, y])[:, torch.tensor([0])] = 1.0
    torch._foreach_add_([x, y], 1.0)
    torch.where(x > 0, x, 0.5).split(2)


def dimensions_and_reductions() -> None:
    x = torch.randn(3, 4, 5)
    torch.sort(x, dim=0, stable=True)  # the overload takes these two by name only
    x.sort(), x.sum((0, -1)), x.sum(()), x.amax(0), torch.tensor(1.0).softmax(0)
    x[:1].clone().squeeze_(0).unsqueeze_(1).cumsum_(1)
    torch.cumsum(x, 1, out=torch.empty(0))
    for reduction in ("none", "mean", "sum"):
        functional.mse_loss(x, x.flip(0), reduction=reduction)
    torch.func.vmap(lambda rows: rows.softmax(0))(x)


def failing_ops() -> None:
    for wrong in (lambda: torch.ones(2, 3) @ torch.ones(2, 3), lambda: torch.ones(3).view(2)):
        with contextlib.suppress(RuntimeError):
            wrong()


def wrappers() -> None:
    class Tagged(Tensor):
        pass

    tagged = torch.randn(4, 4).as_subclass(Tagged)
    (tagged @ tagged).relu()
    nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged).sin()
    torch.eye(4).to_sparse() @ torch.ones(4, 2)
    torch.randn(3, dtype=torch.complex64).conj().mul(2)


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x * 2)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        _, twice = ctx.saved_tensors
        return gradient * twice


def own_function() -> None:
    x = torch.randn(8, requires_grad=True)
    _Square.apply(x.exp()).sum().backward()


def hooks_around() -> None:
    x = torch.randn(8, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = x.sin().exp()
    y.sum().backward(retain_graph=True)
    y.sum().backward()


def lists_of_lists() -> None:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        dist.all_gather([torch.empty(4)], torch.ones(4))
        dist.all_reduce(torch.ones(4))
    finally:
        dist.destroy_process_group()


def defined_anew() -> None:
    for schema, function in (
        ("f(Tensor x) -> Tensor", lambda x: x.clone()),
        ("f(Tensor(a!) x) -> ()", lambda x: (x.add_(1), None)[1]),
    ):
        library = torch.library.Library("memwatch_tests", "FRAGMENT")
        library.define(schema)
        library.impl("f", function, "CompositeExplicitAutograd")
        torch.ops.memwatch_tests.f(torch.ones(3))
        library._destroy()


PROGRAMS = (
    training, convolutions, recurrent, checkpointed, double_backward, sparse_gradients, given_results,
    numbers_and_lists, dimensions_and_reductions, failing_ops, wrappers, own_function, hooks_around, lists_of_lists,
    defined_anew,
)  # fmt: skip
