"""The use of a CUDA device and its pools, read through functions of torch that these tests replace."""

from __future__ import annotations

import pytest
import torch

from memwatch.devices import adapters
from memwatch.devices.adapters import Cuda, DeviceUse
from memwatch.monitor.device_memory import CACHE, ELSEWHERE, OUTSIDE, TENSORS_ON_DEVICE, device_memory

RELAXED = 2


@pytest.mark.parametrize("raised", [False, True])
def test_a_reading_leaves_the_rule_for_captures_and_returns_to_it(monkeypatch, raised):
    """CUDA refuses some calls of all threads while one thread captures a graph."""
    mode_of_thread, modes = [0], []

    def exchange(pointer):
        mode = pointer._obj
        mode_of_thread[0], mode.value = mode.value, mode_of_thread[0]
        return 0

    def mem_get_info(_name):
        modes.append(mode_of_thread[0])
        if raised:
            raise RuntimeError("the device has failed")
        return 3, 10

    monkeypatch.setattr(adapters, "_exchange_of_capture_mode", lambda: exchange)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    if raised:
        with pytest.raises(RuntimeError):
            Cuda().use("cuda:0")
    else:
        assert Cuda().use("cuda:0") == DeviceUse(used_bytes=7, capacity_bytes=10)
    assert modes == [RELAXED]
    assert mode_of_thread == [0]


def test_without_the_driver_the_use_is_read_all_the_same(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _name: (3, 10))
    assert Cuda().use("cuda:1") == DeviceUse(used_bytes=7, capacity_bytes=10)


@pytest.mark.parametrize("is_older", [False, True])
def test_the_segments_of_one_pool_are_those_of_the_device_and_the_pool(monkeypatch, is_older):
    """An older torch lists all pools."""
    segments = [
        {"device": device, "segment_pool_id": pool} for device in (0, 1) for pool in ((0, 0), (0, 4), (2, 0))
    ]

    def memory_snapshot(mempool_id=None, include_traces=None):
        if is_older and include_traces is not None:
            raise TypeError("an unexpected keyword argument")
        return [each for each in segments if mempool_id in (None, each["segment_pool_id"])]

    monkeypatch.setattr(torch.cuda, "memory_snapshot", memory_snapshot)
    assert Cuda().segments("cuda:1", (0, 4)) == [{"device": 1, "segment_pool_id": (0, 4)}]
    assert Cuda().segments("cuda:1", (0, 0)) == [{"device": 1, "segment_pool_id": (0, 0)}]
    assert len(Cuda().segments("cuda:0")) == 3


def test_an_allocator_without_a_list_of_its_blocks_has_no_segments(monkeypatch):
    """The backend cudaMallocAsync has the figures of the rows, but raises an error for the list."""

    def memory_snapshot(mempool_id=None, include_traces=None):
        raise RuntimeError("Calling snapshot with backend:cudaMallocAsync is not meaningful.")

    figures = {"allocated_bytes.all.current": 5, "reserved_bytes.all.current": 7}
    monkeypatch.setattr(torch.cuda, "memory_snapshot", memory_snapshot)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _name: figures)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _name: (10, 20))
    monkeypatch.setattr("memwatch.devices.devices_in_use", lambda: ["cuda:0"])
    notes = []
    (found,) = device_memory(notes)
    assert found.rows == {TENSORS_ON_DEVICE: 5, CACHE: 2, ELSEWHERE: 0, OUTSIDE: 3}
    assert notes == []
