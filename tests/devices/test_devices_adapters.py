"""Adapters: the questions that memwatch has for each kind of device. No other code names a kind."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import memwatch
from memwatch.devices import adapter_of, devices_in_use, is_out_of_memory
from memwatch.encoding import read_states, restore_states
from memwatch.leaks.find import most_growth_bytes
from memwatch.report.facts import describe_meta

SOURCES = pathlib.Path(memwatch.__file__).parent


def test_one_file_names_cuda():
    """All code that is special to CUDA is in its adapter."""
    naming = [path for path in SOURCES.rglob("*.py") if "torch.cuda" in path.read_text()]
    assert naming == [SOURCES / "devices" / "adapters.py"]


def test_the_host_is_always_in_use():
    """Asking for the devices in use wakes none."""
    was_initialized = torch.cuda.is_initialized()
    assert devices_in_use()[0] == "cpu"
    if not was_initialized:
        assert adapter_of("cuda:0").names == []
        assert not torch.cuda.is_initialized()


def test_the_host_counts_what_malloc_hands_out():
    """A large array is in the figure while it lives."""
    adapter = adapter_of("cpu")
    before = adapter.allocated_bytes("cpu")
    if not before:
        pytest.skip("this C library does not count")
    held = np.ones(1 << 26, dtype=np.uint8)
    assert adapter.allocated_bytes("cpu") - before >= held.nbytes
    assert adapter.reserved_bytes("cpu") == 0


def test_random_states_are_put_back():
    """Draws after the states are restored are those after they were read, of the default and of own generators."""
    own = [torch.Generator().manual_seed(3)]
    states = read_states([*devices_in_use(), "generator:0"], own)
    first = torch.rand(3), torch.rand(3, generator=own[0])
    restore_states(states, own)
    again = torch.rand(3), torch.rand(3, generator=own[0])
    assert all(map(torch.equal, first, again))


class Backend(SimpleNamespace):
    """The module that a backend of PrivateUse1 registers as `torch.NAME`."""

    def __init__(self, *, initialized):
        states = {torch.device("cpu"): torch.zeros(1, dtype=torch.uint8)}
        super().__init__(
            is_available=lambda: True,
            is_initialized=lambda: initialized,
            device_count=lambda: 2,
            get_rng_state=lambda device: states.get(
                device, torch.full((1,), device.index or 0, dtype=torch.uint8)
            ),
            set_rng_state=lambda state, device: states.__setitem__(device, state),
        )


@pytest.mark.parametrize(("initialized", "names"), [(False, []), (True, ["xpu:0", "xpu:1"])])
def test_a_backend_is_asked_once_it_runs(monkeypatch, initialized, names):
    """Any accelerator is reached by the module that its backend registers, and not before it is initialised."""
    monkeypatch.setattr(torch, "xpu", Backend(initialized=initialized))
    adapter = adapter_of("xpu:1")
    assert adapter.names == names
    assert adapter.random_state("xpu:1").tolist() == [1]
    adapter.set_random_state("xpu:1", torch.tensor([7], dtype=torch.uint8))
    assert adapter.random_state("xpu:1").tolist() == [7]


def test_a_backend_without_statistics_counts_nothing():
    """If an allocator reports no figures, its device counts 0 bytes. There is no error."""
    adapter = adapter_of("nothing:0")
    assert adapter.names == []
    assert adapter.allocated_bytes("nothing:0") == adapter.reserved_bytes("nothing:0") == 0
    assert len(adapter.random_state("nothing:0")) == 0
    assert adapter.host_copy(64).nbytes == 64


def test_growth_of_one_device_is_not_set_off_by_another():
    """Bytes that one device gave back do not hide bytes that another one got."""
    assert most_growth_bytes({"cpu": 100, "cuda:0": 0}, {"cpu": 20, "cuda:0": 60, "cuda:1": 5}) == 60


def test_every_allocator_says_that_memory_is_out():
    """An allocator's errors are recognised by type, and the host's by its words; other errors are not."""
    with pytest.raises(RuntimeError) as host:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(host.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shape mismatch"))


def test_reserved_memory_stands_among_the_facts_of_a_run():
    """Each device's own figure, with a unit."""
    facts = dict(describe_meta({"reserved_bytes": {"cuda:0": 3 << 20, "cuda:1": 1 << 10}}))
    assert facts == {"reserved by allocators": "3.00 MiB on cuda:0, 1.00 KiB on cuda:1"}
