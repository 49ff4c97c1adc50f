"""Activation checkpointing in all its forms."""

from __future__ import annotations

import functools

import torch
from compat_harness import unnoticed
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)


def _blocks() -> nn.ModuleList:
    return nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2)) for _ in range(3))


def _train(blocks: nn.ModuleList, run) -> object:
    x = torch.randn(8, 16, requires_grad=True)
    y = x
    for block in blocks:
        y = run(block, y)
    y.pow(2).sum().backward()
    return blocks, x, torch.rand(2)


@unnoticed
def test_checkpoint_without_reentrance():
    return _train(_blocks(), functools.partial(checkpoint, use_reentrant=False))


@unnoticed
def test_checkpoint_with_reentrance():
    return _train(_blocks(), functools.partial(checkpoint, use_reentrant=True))


@unnoticed
def test_nested_checkpoints():
    inner = functools.partial(checkpoint, use_reentrant=False)
    outer = lambda block, x: checkpoint(lambda y: inner(block, y) * 2, x, use_reentrant=False)  # noqa: E731
    return _train(_blocks(), outer)


@unnoticed
def test_checkpoint_sequential():
    net = nn.Sequential(*_blocks())
    x = torch.randn(8, 16, requires_grad=True)
    checkpoint_sequential(net, 2, x, use_reentrant=False).sum().backward()
    return net, x


@unnoticed
def test_selective_checkpoint_contexts():
    keep = {torch.ops.aten.addmm.default}

    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return _train(_blocks(), functools.partial(checkpoint, use_reentrant=False, context_fn=contexts))


@unnoticed(raises=True)
def test_checkpoint_that_recomputes_other_shapes_raises():
    calls = []

    def unstable(x):
        calls.append(1)
        return x[: 4 if len(calls) % 2 else 3].exp()

    x = torch.randn(4, requires_grad=True)
    checkpoint(unstable, x, use_reentrant=False).sum().backward()


@unnoticed
def test_a_region_that_asks_whether_its_inputs_are_one_tensor():
    attention = nn.MultiheadAttention(16, 2)
    query, memory = torch.randn(4, 2, 16, requires_grad=True), torch.randn(5, 2, 16, requires_grad=True)
    keys = memory * 2
    y, _ = checkpoint(attention, query * 2, keys, keys, use_reentrant=False)
    y.pow(2).sum().backward()
    return attention, query, memory
