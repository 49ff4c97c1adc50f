"""The recorder's figures by device while the program runs: live bytes, limits, and samples of holders."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import memwatch

KIB = 1024
BOTH_RECORDERS = pytest.mark.parametrize("native", ["1", "0"])


@pytest.fixture
def recorder(native, monkeypatch):
    monkeypatch.setenv("MEMWATCH_NATIVE", native)


@pytest.fixture
def fake():
    with FakeTensorMode():
        yield


def make(nbytes, device):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


@BOTH_RECORDERS
def test_a_limit_is_of_each_device(recorder, fake):
    """Two devices may each hold almost as much as the limit. The device that exceeds it is named."""
    with memwatch.profile(limit_bytes=100 * KIB):
        kept = [make(90 * KIB, "cpu"), make(90 * KIB, "cuda"), make(90 * KIB, "cuda:1")]
    with (
        pytest.raises(memwatch.MemoryLimitError, match="are live on cuda:1"),
        memwatch.profile(limit_bytes=100 * KIB),
    ):
        kept += [make(5 * KIB, "cuda:0"), make(11 * KIB, "cuda:1")]
    del kept


@BOTH_RECORDERS
def test_a_limit_of_one_device_leaves_the_others(recorder, fake):
    """`{"cuda": ...}` limits every CUDA device, and the host not at all."""
    with memwatch.profile(limit_bytes={"cuda": "10 KiB", "cuda:1": "20 KiB"}):
        kept = [make(90 * KIB, "cpu"), make(10 * KIB, "cuda:0"), make(20 * KIB, "cuda:1")]
    del kept
    for device, nbytes in (("cuda:0", 11 * KIB), ("cuda:1", 21 * KIB)):
        with (
            pytest.raises(memwatch.MemoryLimitError, match=device),
            memwatch.profile(limit_bytes={"cuda": "10 KiB", "cuda:1": "20 KiB"}),
        ):
            make(nbytes, device)


def test_a_limit_of_no_device_is_refused():
    """The error repeats the unknown name."""
    with pytest.raises(memwatch.MemwatchError, match="'the gpu'"):
        memwatch.profile(limit_bytes={"the gpu": 1})
    with pytest.raises(memwatch.MemwatchError, match="'much'"):
        memwatch.profile(limit_bytes={"cpu": "much"})


@BOTH_RECORDERS
def test_a_meta_tensor_is_above_no_limit(recorder, fake):
    """It has no memory, in an estimate too."""
    with memwatch.profile(limit_bytes=10 * KIB):
        make(1024 * KIB, "meta")


@BOTH_RECORDERS
@pytest.mark.parametrize(("first", "then"), [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1")])
def test_each_device_is_sampled_at_its_own_peak(recorder, fake, first, then):
    """The memory of another device does not influence when holders are sampled."""

    def much():
        large = make(4096 * KIB, first)
        return large + 1

    def little():
        small = make(64 * KIB, then)
        return small + 1

    with memwatch.profile() as prof:
        much()
        little()
    for device, name in ((first, "large"), (then, "small")):
        peak = prof.on(device).at_peak
        assert peak["holder"].str.contains(f"`{name}`, local variable of").sum() == 1, peak["holder"].tolist()
