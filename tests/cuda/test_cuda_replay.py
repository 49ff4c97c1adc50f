"""A program that was recorded on a CUDA device is planned, and replayed there with its activations in pinned memory."""

from __future__ import annotations

import torch

import memwatch


def test_buffers_are_offloaded_to_pinned_memory_and_come_back(on_cuda):
    """The replay is bitwise equal and makes the moves of the plan. Its peak equals the allocator's."""
    layers = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(6))
    )
    x = torch.randn(1024, 256)

    def step():
        layers.zero_grad()
        loss = layers(x).pow(2).mean()
        loss.backward()
        return loss

    step()
    with memwatch.profile(replay=True, holders=False) as prof:
        step()
    planned = memwatch.plan(prof, budget="70%", recompute=False, offload=True)
    result = memwatch.replay(planned)
    assert result.identical
    assert result.moved_bytes == planned.moved_bytes > 0
    assert result.peak_increase_bytes == planned.peak_increase_bytes < prof.peak_increase_bytes


def test_generators_of_the_device_are_replayed(on_cuda):
    """Dropout draws the same again."""
    x = torch.randn(256, 256, requires_grad=True)
    with memwatch.profile(replay=True, holders=False) as prof:
        torch.nn.functional.dropout(x, 0.5).sum().backward()
    assert memwatch.replay(memwatch.plan(prof)).identical
