"""Every figure is about one device: curves, peaks, tables and findings of programs that use several.

The tensors on accelerators are fake tensors, so no accelerator is needed: memwatch counts each of them with the bytes
of a real tensor. The tests compute the expected figures of each device from these sizes.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import memwatch

FLOAT_BYTES = 4
KIB = 1024
DEVICES = ("cpu", "cuda:0", "cuda:1")


def floats(nbytes, device):
    return torch.empty(nbytes // FLOAT_BYTES, device=device)


@pytest.fixture
def fake():
    with FakeTensorMode():
        yield


def test_each_device_has_its_own_peak(fake):
    """Two devices with 2 MiB each have two peaks of 2 MiB, and none of 4 MiB."""
    with memwatch.profile() as prof:
        there, here = floats(1024 * KIB, "cuda"), floats(1024 * KIB, "cpu")
        kept = there + 1, here + 1
    del kept
    assert prof.devices == ["cuda:0", "cpu"]
    assert prof.device == "cuda:0"
    assert prof.peak_bytes == prof.on("cpu").peak_bytes == 2048 * KIB
    assert prof.peak_increase_bytes == prof.on("cpu").peak_increase_bytes == 2048 * KIB


@pytest.mark.parametrize("seed", range(3))
def test_the_curve_of_each_device_is_its_own(fake, seed):
    """Random births and deaths on three devices: each curve follows the sizes of its own tensors, to the byte."""
    draw = random.Random(seed)
    held: list[tuple[str, int, torch.Tensor]] = []
    live, curve = dict.fromkeys(DEVICES, 0), {device: [] for device in DEVICES}
    with memwatch.profile() as prof:
        for _ in range(60):
            if held and draw.random() < 0.45:
                device, nbytes, tensor = held.pop(draw.randrange(len(held)))
                del tensor
                live[device] -= nbytes
            else:
                device, nbytes = draw.choice(DEVICES), draw.randrange(1, 100) * KIB
                held.append((device, nbytes, floats(nbytes, device)))
                live[device] += nbytes
                curve[device].append(live[device])
    held.clear()
    for device in DEVICES:
        reading = prof.on(device)
        births = reading.timeline[reading.timeline["delta_bytes"] > 0]
        assert births["live_bytes"].tolist() == curve[device]
        assert reading.peak_bytes == max(curve[device])
        assert reading.at_peak["nbytes"].sum() == max(curve[device])
    by_peak = [max(curve[device]) for device in prof.devices]
    assert by_peak == sorted(by_peak, reverse=True)
    accelerators = {device: max(curve[device]) for device in DEVICES[1:]}
    assert prof.device == max(accelerators, key=accelerators.__getitem__)


def test_tables_hold_one_device(fake):
    """No row of a table is about a storage of another device, and numbers of storages agree between tables."""
    with memwatch.profile() as prof:
        first, second = floats(64 * KIB, "cpu").requires_grad_(), floats(32 * KIB, "cuda")
        loss = first.sin().sum() + second.cos().sum().cpu()
    del loss
    for device in ("cpu", "cuda:0"):
        reading = prof.on(device)
        assert set(reading.storages["device"]) == {device}
        known = set(reading.storages.index)
        assert set(reading.uses["storage"]) <= known
        assert set(reading.saved["storage"]) <= known
        assert set(reading.timeline["storage"]) - {-1} <= known
        assert set(reading.at_peak.index) <= known
        assert reading.ops["name"].tolist() == prof.ops["name"].tolist()
    sines = prof.on("cpu").saved
    assert sines["nbytes"].max() == 64 * KIB
    assert not len(prof.saved)


def test_what_was_live_at_entry_counts_on_its_device(fake):
    """The baseline of a device has the memory that was alive there when the block was entered."""
    there, here = floats(48 * KIB, "cuda"), floats(16 * KIB, "cpu")
    with memwatch.profile() as prof:
        there.add_(1)
        here.add_(1)
    before = prof.baseline_bytes, prof.on("cpu").baseline_bytes
    del there, here
    with memwatch.profile() as prof:
        floats(8, "cuda"), floats(8, "cpu")
    assert before[0] - prof.baseline_bytes == 48 * KIB
    assert before[1] - prof.on("cpu").baseline_bytes == 16 * KIB


def layer(device):
    linear = nn.Linear(64, 64, bias=False, device="meta")
    linear.weight = nn.Parameter(torch.empty(64, 64, device=device), requires_grad=False)
    return linear


def test_categories_and_modules_are_of_the_device(fake):
    """A layer's parameters count on its own device alone; a module has the same name on every device."""
    with memwatch.profile() as prof:
        model = nn.Sequential(layer("cpu"), layer("cuda"), layer("cuda"))
        activation = model[0](torch.empty(8, 64))
        result = model[2](model[1](torch.empty(8, 64, device="cuda")))
        del activation, result
    weight_bytes = 64 * 64 * FLOAT_BYTES
    for device, weights in (("cpu", 1), ("cuda", 2)):
        reading = prof.on(device)
        assert reading.at_peak.query("category == 'parameter'")["nbytes"].sum() == weights * weight_bytes
        owned = reading.modules["parameter_bytes"]
        assert owned.sum() == weights * weight_bytes
    assert list(prof.modules.index) == list(prof.on("cpu").modules.index)


def test_findings_are_of_the_device(fake):
    """Memory that is never used again is a finding on its own device, with the peak of that device."""
    with memwatch.profile() as prof:
        unused = floats(256 * KIB, "cuda")
        rest = floats(64 * KIB, "cpu")
        for _ in range(3):
            rest = rest + 1
        used = floats(64 * KIB, "cuda")
        used = used + used
    del unused, rest, used
    assert prof.findings[0].nbytes == 256 * KIB
    assert prof.findings[0].predicted_peak_bytes == prof.peak_bytes - 256 * KIB
    assert all(finding.nbytes < 256 * KIB for finding in prof.on("cpu").findings)


def test_meta_tensors_count_on_no_device(fake):
    """A tensor on the meta device has no bytes, in an estimate too."""
    with memwatch.profile() as prof:
        kept = floats(1024 * KIB, "meta"), floats(4 * KIB, "cpu")
    del kept
    assert prof.devices == ["cpu"]
    assert prof.peak_increase_bytes == 4 * KIB


def test_another_device_is_refused_with_the_known_ones(fake):
    """The error names the wanted device and the existing ones."""
    with memwatch.profile() as prof:
        kept = floats(KIB, "cuda:0"), floats(KIB, "cuda:1"), floats(KIB, "cpu")
    del kept
    with pytest.raises(memwatch.UnknownDeviceError, match=r"'xpu'.*cuda:0, cuda:1, cpu"):
        prof.on("xpu")
    with pytest.raises(memwatch.MemwatchError, match="'cuda' names several"):
        prof.on("cuda")
    with pytest.raises(memwatch.MemwatchError, match="'cuda:2'"):
        prof.on("cuda:2")


def test_a_device_may_be_named_without_its_index(fake):
    """`cuda` is the only CUDA device that had bytes."""
    with memwatch.profile() as prof:
        kept = floats(KIB, "cuda:1"), floats(KIB, "cpu")
    del kept
    assert prof.on("cuda").device == "cuda:1"
    assert prof.on(torch.device("cuda", 1)).peak_bytes == KIB


def test_a_file_tells_the_same_of_each_device(fake, tmp_path):
    """A reading that was saved and loaded has the same devices and figures."""
    with memwatch.profile() as prof:
        kept = floats(32 * KIB, "cuda"), floats(16 * KIB, "cpu")
    del kept
    prof.save(tmp_path / "two.memwatch")
    loaded = memwatch.load(tmp_path / "two.memwatch")
    assert loaded.devices == prof.devices
    for device in prof.devices:
        assert loaded.on(device).peak_bytes == prof.on(device).peak_bytes


def test_a_program_on_the_host_is_of_the_host():
    """A block without an accelerator has one device, and `on` gives the same as the profile itself."""
    with memwatch.profile() as prof:
        kept = torch.ones(KIB) + 1
    del kept
    assert prof.devices == [prof.device] == ["cpu"]
    assert prof.on("cpu").peak_increase_bytes == prof.peak_increase_bytes
    assert prof.on("cpu").storages.equals(prof.storages)
