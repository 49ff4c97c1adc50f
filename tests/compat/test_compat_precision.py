"""Autocast, gradient scaling and other precisions."""

from __future__ import annotations

import torch
from compat_harness import unnoticed
from torch import nn


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


@unnoticed
def test_autocast():
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(torch.randn(8, 16)), torch.randint(4, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net, loss.detach()


@unnoticed
def test_autocast_inside_checkpoint():
    from torch.utils.checkpoint import checkpoint

    net = _net()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = checkpoint(net, torch.randn(8, 16), use_reentrant=False)
    out.float().sum().backward()
    return net


@unnoticed(
    formula="_amp_foreach_non_finite_check_and_unscale_ leaves the version counters of the gradients alone"
)
def test_grad_scaler():
    net = _net()
    optimizer = torch.optim.Adam(net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        loss = net(torch.randn(8, 16)).pow(2).mean() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return net, scaler.state_dict()


@unnoticed
def test_half_and_double():
    double = nn.Linear(8, 8).double()
    double(torch.randn(4, 8, dtype=torch.float64)).sum().backward()
    half = nn.Linear(8, 8).bfloat16()
    half(torch.randn(4, 8, dtype=torch.bfloat16)).sum().backward()
    return double, half


@unnoticed
def test_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        net = nn.Linear(4, 4)
        net(torch.randn(2, 4)).sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    return net


@unnoticed
def test_deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.randn(8, 4, requires_grad=True)
        out = x.index_select(0, torch.tensor([1, 1, 3]))
        out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    return x, out
