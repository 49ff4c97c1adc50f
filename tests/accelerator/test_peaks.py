"""Peaks of the pretend accelerator equal its allocator's own figures, to the byte."""

from __future__ import annotations

import random

import pretend
import pytest
import torch
from torch import nn

import memwatch

KIB, MIB = 1024, 1 << 20
FIRST, SECOND = "pretend:0", "pretend:1"


def make(nbytes, device=FIRST):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def counted(device, what="allocated_bytes.all.current"):
    return pretend.stats(device)[what]


def assert_as_counted(prof, before, devices=(FIRST,)):
    """Compare peak, increase and the whole curve of each device with the allocator's figures."""
    for device in devices:
        reading, at_peak = prof.on(device), counted(device, "allocated_bytes.all.peak")
        assert reading.baseline_bytes == before[device]
        assert reading.peak_bytes == at_peak
        assert reading.timeline["live_bytes"].iloc[-1] == counted(device)
        assert reading.at_peak["nbytes"].sum() == at_peak


def observed(program, native, devices=(FIRST,), intercept="auto"):
    """Run a program in a block and compare; return the reading."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMWATCH_NATIVE", native)
        pretend.reset_peaks()
        before = {device: counted(device) for device in devices}
        with memwatch.profile(intercept=intercept) as prof:
            kept = program()
        assert prof.meta["recorder"] == ("native" if native == "1" else "python")
        assert_as_counted(prof, before, devices)
        del kept
    return prof


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_backward_adds_gradients_in_place_as_it_does_plainly(native):
    """Autograd adds in place to a storage that has one owner, so memwatch must not own it: the peak would rise."""

    def step():
        x = torch.ones(MIB, device=FIRST, requires_grad=True)
        (gradient,) = torch.autograd.grad((x / (x.abs() + 1)).sum(), x)
        return gradient

    def measured():
        pretend.reset_peaks()
        gradient = step()
        return gradient._version, counted(FIRST, "allocated_bytes.all.peak")

    plain = measured()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMWATCH_NATIVE", native)
        with memwatch.profile() as prof:
            seen = measured()
    assert seen == plain
    assert prof.peak_bytes == plain[1]
    assert "aten.add_.Tensor" in set(prof.ops["name"])


@pytest.mark.parametrize("native", ["1", "0"])
def test_observing_adds_no_byte(native):
    """The peak of a function with the allocator's events alone is the observed one, and the counters'."""
    tensor = torch.rand(MIB, device=FIRST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMWATCH_NATIVE", native)
        before = counted(FIRST)
        pretend.reset_peaks()
        verified = memwatch.verify(lambda: tensor.sin().cos().sum().item())
    assert verified.difference_bytes == 0
    assert verified.plain_peak_increase_bytes == counted(FIRST, "allocated_bytes.all.peak") - before


NATIVE = pytest.mark.parametrize("native", ["1", "0"])


@NATIVE
def test_blocks_are_rounded_as_the_allocator_rounds_them(native):
    """A tensor of one byte takes 512 bytes. A tensor that almost fills a segment takes the whole segment."""
    prof = observed(lambda: [make(1), make(513), make(19 * MIB + 512 * KIB)], native)
    assert prof.device == FIRST
    assert prof.peak_increase_bytes == 512 + 1024 + 20 * MIB


@NATIVE
def test_what_was_there_at_entry_counts_as_the_allocator_counts_it(native):
    """Blocks are rounded up, whether they are freed or kept, and memory without a Python tensor counts."""
    kept, freed = make(1000), [make(3), make(MIB + 1)]
    held_by_c = pretend.take(0, 5000)
    freed_by_c = pretend.take(0, 7000)

    def program():
        freed.pop()
        pretend.give_back(freed_by_c)
        freed.pop()
        return make(2 * MIB)

    observed(program, native)
    pretend.give_back(held_by_c)
    del kept


@NATIVE
@pytest.mark.parametrize("seed", range(3))
def test_two_devices_and_the_host_at_once(native, seed):
    """Random births and deaths: each device has the peak of its own counters."""
    draw = random.Random(seed)

    def program():
        held = []
        for _ in range(80):
            if held and draw.random() < 0.45:
                held.pop(draw.randrange(len(held)))
            else:
                held.append(make(draw.randrange(1, 3 * MIB), draw.choice([FIRST, SECOND, "cpu"])))
        return held

    prof = observed(program, native, (FIRST, SECOND))
    assert set(prof.devices) == {FIRST, SECOND, "cpu"}


@NATIVE
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_training_step(native, intercept):
    """Forward, backward (in a thread of the device) and optimizer, twice."""
    model = nn.Sequential(nn.Linear(300, 200), nn.GELU(), nn.Linear(200, 10)).to(FIRST)
    optimizer = torch.optim.AdamW(model.parameters())

    def program():
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(64, 300, device=FIRST)).square().mean().backward()
            optimizer.step()

    prof = observed(program, native, intercept=intercept)
    categories = set(prof.at_peak["category"])
    assert {"parameter", "gradient", "optimizer state"} <= categories
    assert "backward" in set(prof.ops["phase"])


@NATIVE
def test_memory_of_a_kernel_is_workspace(native):
    """Memory that an op allocates and frees itself has a row as the op's workspace."""
    tensor = make(MIB)
    prof = observed(lambda: torch.ops.pretend.copy_with_workspace(tensor, 3 * MIB), native)
    workspace = prof.storages.query("origin == 'workspace'")
    assert workspace["nbytes"].tolist() == [3 * MIB]
    assert prof.at_peak["category"].tolist().count("workspace") == 1
