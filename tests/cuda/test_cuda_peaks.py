"""The peak on a CUDA device equals the caching allocator's own counter and its own history of events."""

from __future__ import annotations

import pytest
import torch
from cuda_events import counted, events_of
from truth_events import seeded
from truth_models import MAKERS

import memwatch

WAYS = ("key", "mode", "key-python", "mode-python")
BLOCK_BYTES = 512


@pytest.fixture
def intercept(request, monkeypatch):
    """Return the way to intercept, and choose the recorder that the parameter names."""
    way, _, recorder = request.param.partition("-")
    monkeypatch.setenv("MEMWATCH_NATIVE", "0" if recorder == "python" else "1")
    return way


def blocks_of(nbytes):
    """Return how many of the allocator's smallest blocks hold some bytes."""
    return -(-abs(nbytes) // BLOCK_BYTES)


@pytest.mark.parametrize("intercept", WAYS, indirect=True)
@pytest.mark.parametrize("name", MAKERS)
def test_peak_is_the_allocators(on_cuda, name, intercept):
    """The counter runs in the same block, so both saw the same allocations; nothing older is freed in it."""
    seeded(MAKERS[name])()  # workspaces of cuBLAS and cuDNN are made once
    program = seeded(MAKERS[name])
    with memwatch.profile(intercept=intercept) as prof:
        most_bytes, result = counted(program)
    del result
    assert prof.device == str(on_cuda)
    assert prof.peak_increase_bytes == most_bytes
    assert prof.at_peak["nbytes"].sum() == prof.peak_bytes


@pytest.mark.parametrize("name", MAKERS)
def test_observing_does_not_lift_the_peak(on_cuda, name):
    """With the key, a program takes the same memory as without memwatch."""
    seeded(MAKERS[name])()
    plain_bytes, result = counted(seeded(MAKERS[name]))
    del result
    program = seeded(MAKERS[name])
    with memwatch.profile(intercept="key"):
        observed_bytes, result = counted(program)
    del result
    assert observed_bytes == plain_bytes


def test_every_event_is_the_histories(on_cuda):
    """The timeline has the allocations and frees of torch's memory history, in its order, rounded to blocks."""
    seeded(MAKERS["mlp"])()
    program = seeded(MAKERS["mlp"])
    found: list[tuple[int, int]] = []
    with memwatch.profile() as prof:
        found += events_of(program)
    rounded = [(1 if nbytes > 0 else -1) * blocks_of(nbytes) * BLOCK_BYTES for _, nbytes in found]
    # the first row of the timeline is the entry, at which nothing comes or goes
    assert prof.timeline["delta_bytes"].tolist()[1 : 1 + len(rounded)] == rounded


def test_the_host_is_another_device(on_cuda):
    """Tensors of the host are in no figure of the device, and the other way round."""
    with memwatch.profile() as prof:
        there = torch.empty(1 << 20, dtype=torch.uint8)
        here = torch.empty(3 << 20, dtype=torch.uint8, device="cpu")
        kept = there + 1, here + 1
    del kept, there, here
    assert prof.device == str(on_cuda)
    assert prof.peak_increase_bytes == 2 << 20
    # the kernel that adds 1 on the host makes tensors of it, of 8 bytes and of 1
    assert prof.on("cpu").peak_increase_bytes == (6 << 20) + 9


def test_a_limit_stops_at_the_op(on_cuda):
    """A limit of the device is of its own bytes."""
    limited = memwatch.profile(limit_bytes={"cuda": "8 MiB"})
    with limited:
        torch.empty(64 << 20, dtype=torch.uint8, device="cpu")
    with pytest.raises(memwatch.MemoryLimitError, match="cuda:"), limited:
        torch.empty(16 << 20, dtype=torch.uint8)
