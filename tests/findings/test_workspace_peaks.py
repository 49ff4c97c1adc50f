"""Peaks within a kernel: samples are taken there too, and a kernel uses its workspace."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch.record.native import library

WIDE = 64


def convolve(prof, steps=3):
    """Most tensors are live at the sum; most memory is in the kernel of the convolution, which unfolds its input."""
    pixels, net = torch.ones(1, 8, WIDE, WIDE, dtype=torch.float64), nn.Conv2d(8, 2, 7, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(steps):
            scaled = pixels * 2
            torch.stack([scaled] * 4).sum()
            functional.conv2d(scaled, net.weight)
            del scaled
            prof.step()


def test_a_sample_is_taken_at_the_op_whose_workspace_makes_the_peak():
    """From the second iteration on: the recorder in C++ receives the allocator's events as they happen."""
    with memwatch.profile() as prof:
        convolve(prof)
    peak_op = int(prof.ops[prof.ops["step"] == 2]["peak_bytes"].idxmax())
    assert prof.ops["name"][peak_op] == "aten.convolution.default"
    sampled = {op - 1 for op in prof.capture.tables["holders"]["op"].tolist()}
    assert peak_op in sampled or not library.is_built() or not library.is_wanted()


def test_a_kernel_uses_its_workspace():
    """It is not void, for the op that allocates it works in it."""
    with memwatch.profile() as prof:
        convolve(prof)
    workspace = prof.at_peak[prof.at_peak["category"] == "workspace"]
    assert workspace["nbytes"].sum() > prof.peak_increase_bytes / 2
    assert set(workspace["phase"]) == {"use"}
    assert not prof.storages["void_ns"][prof.storages["category"] == "workspace"].any()


def test_of_memory_that_no_tensor_names_no_use_is_known():
    """Compiled code and C++ may use the memory that they allocate, so it does not count as void."""
    with memwatch.profile() as prof:
        convolve(prof)
    unnamed = prof.storages[prof.storages["category"] == "unknown"]
    assert not unnamed[["lag_ns", "use_ns", "drag_ns", "void_ns"]].any(axis=None)


def test_no_use_is_known_of_the_state_of_a_random_generator():
    """C++ makes it without an op, and reads it without one. A checkpoint keeps it until its backward."""
    net = torch.nn.Linear(8, 8)
    with memwatch.profile() as prof:
        y = torch.randn(4, 8, requires_grad=True)
        for _ in range(3):
            y = checkpoint(net, y, use_reentrant=True)
        y.sum().backward()
    states = prof.storages[prof.storages["nbytes"] == torch.get_rng_state().nbytes]
    assert len(states) >= 3
    assert not states[["lag_ns", "use_ns", "drag_ns", "void_ns"]].any(axis=None)
    assert [finding.holder for finding in prof.findings if finding.kind == "void"] == []
