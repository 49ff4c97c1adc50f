"""Ways to run backward: twice, through itself, checkpointed, with custom Functions."""

from __future__ import annotations

import torch
from compat_harness import unnoticed
from torch import nn


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


@unnoticed
def test_training_steps():
    """Several AdamW steps of a small network."""
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters())
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(torch.randn(8, 16)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return net, optimizer, losses


@unnoticed
def test_retain_graph_with_two_backwards():
    net, x = _net(), torch.randn(8, 16, requires_grad=True)
    loss = net(x).pow(2).sum()
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    return net, x, first, loss.detach()


@unnoticed(raises=True)
def test_second_backward_without_retain_graph_raises():
    x = torch.randn(8, requires_grad=True)
    loss = x.exp().sum()
    loss.backward()
    loss.backward()


@unnoticed
def test_double_backward():
    net, x = _net(), torch.randn(8, 16, requires_grad=True)
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    slope.pow(2).sum().backward()
    result = slope.detach()
    return net, x, result


@unnoticed
def test_gradient_penalty():
    """A WGAN step: the norm of a gradient is part of the loss."""
    critic = _net()
    optimizer = torch.optim.Adam(critic.parameters())
    real, fake = torch.randn(8, 16), torch.randn(8, 16)
    for _ in range(2):
        mixed = (real + torch.rand(8, 1) * (fake - real)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + ((slope.norm(dim=1) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return critic, loss.detach()


@unnoticed(raises=True)
def test_backward_through_a_vector_raises():
    torch.randn(3, requires_grad=True).exp().backward()


@unnoticed
def test_anomaly_mode():
    with torch.autograd.set_detect_anomaly(True):
        net, x = _net(), torch.randn(8, 16)
        net(x).sum().backward()
    return net


@unnoticed
def test_autograd_functional():
    f = lambda x: (x.exp() * x).sum(-1)  # noqa: E731
    x = torch.randn(4)
    return torch.autograd.functional.jacobian(torch.sin, x), torch.autograd.functional.hessian(f, x)
