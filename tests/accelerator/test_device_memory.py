"""The rows of a device beside those of the process: they sum to the use of the device."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import pretend
import pytest
import torch

import memwatch
from memwatch.devices import adapter_of
from memwatch.devices.adapters import Accelerator
from memwatch.monitor.device_memory import CACHE, ELSEWHERE, OUTSIDE, TENSORS_ON_DEVICE, device_memory
from memwatch.monitor.process import record_of
from memwatch.monitor.rows import rows_of

MIB = 1 << 20
CAPACITY = 4096 * MIB
DEVICE, OTHER = "pretend:0", "pretend:1"
HELD = []


def make(nbytes, device=DEVICE):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def rows_on(device):
    """Return the rows of a device, empty if it has none."""
    notes = []
    found = {each.device: each for each in device_memory(notes)}
    assert not notes
    return dict(found[device].rows) if device in found else {}


def start_anew():
    """Have two devices of 4 GiB without memory in use."""
    HELD.clear()
    torch.accelerator.empty_cache()
    for number in range(2):
        pretend.set_limit(number, CAPACITY)
        pretend.set_outside(number, 0)
        pretend.set_pool(number, 0, 0)


def test_a_device_that_the_program_has_not_used_is_not_read():
    """Reading the use of a device for the first time can start it."""
    adapter_type = type(adapter_of(DEVICE))
    asked, use = [], adapter_type.use
    adapter_type.use = lambda self, name: asked.append(name) or use(self, name)
    try:
        assert device_memory([]) == []
        kept = make(1)
        assert [each.device for each in device_memory([])] == [DEVICE]
    finally:
        adapter_type.use = use
    assert asked == [DEVICE]
    del kept


def test_the_rows_of_a_device_sum_to_its_use():
    start_anew()
    HELD.extend(make(12 * MIB) for _ in range(4))
    del HELD[1]
    pretend.set_pool(0, 0, 7)
    graph = make(30 * MIB)
    pretend.set_pool(0, 0, 0)
    del graph
    pretend.set_outside(0, 100 * MIB)
    assert rows_on(DEVICE) == {
        TENSORS_ON_DEVICE: 36 * MIB,
        CACHE: 12 * MIB,
        ELSEWHERE: 30 * MIB,
        OUTSIDE: 100 * MIB,
    }
    free_bytes, capacity_bytes = torch.accelerator.get_memory_info(torch.device(DEVICE))
    (found,) = (each for each in device_memory([]) if each.device == DEVICE)
    assert sum(found.rows.values()) == found.used_bytes == capacity_bytes - free_bytes == 178 * MIB
    assert (found.torch_bytes, found.capacity_bytes) == (78 * MIB, CAPACITY)


def test_tensors_in_a_private_pool_are_tensors():
    start_anew()
    pretend.set_pool(0, 3, 0)
    HELD.extend([make(12 * MIB), make(14 * MIB)])
    pretend.set_pool(0, 0, 0)
    assert rows_on(DEVICE)[ELSEWHERE] == 0
    del HELD[0]
    rows = rows_on(DEVICE)
    assert (rows[TENSORS_ON_DEVICE], rows[CACHE], rows[ELSEWHERE]) == (14 * MIB, 0, 12 * MIB)


def test_the_blocks_are_listed_only_after_the_allocator_took_memory():
    """Torch lists its pools with all their blocks, and a sample shall be cheap."""
    start_anew()
    HELD.append(make(12 * MIB))
    rows_on(DEVICE)
    listed, list_all = [], Accelerator._segments_of_all
    Accelerator._segments_of_all = lambda self, pool: listed.append(pool) or list_all(self, pool)
    try:
        HELD.clear()
        HELD.append(make(12 * MIB))
        rows_on(DEVICE)
        assert listed == []
        pretend.set_pool(0, 0, 9)
        HELD.append(make(12 * MIB))
        pretend.set_pool(0, 0, 0)
        rows_on(DEVICE)
        assert listed == [None, (0, 9)]
        rows_on(DEVICE)
        assert listed == [None, (0, 9), (0, 9)]
    finally:
        Accelerator._segments_of_all = list_all


def test_memory_that_is_reserved_between_two_figures_is_not_outside_torch():
    start_anew()
    HELD.append(make(12 * MIB))
    use, calls = Accelerator.use, []

    def busy(self, name):
        found = use(self, name)
        if not calls:
            calls.append(name)
            HELD.append(make(40 * MIB))
        return found

    Accelerator.use = busy
    try:
        rows = rows_on(DEVICE)
    finally:
        Accelerator.use = use
    assert (rows[TENSORS_ON_DEVICE], rows[OUTSIDE]) == (52 * MIB, 0)


def test_the_table_has_a_column_for_each_device_beside_rss_and_uss():
    start_anew()
    HELD.extend([make(12 * MIB), make(20 * MIB, OTHER)])
    pretend.set_outside(1, 5 * MIB)
    table = memwatch.process_memory(children=False)
    assert table.nbytes.sum() == table.attrs["rss_bytes"]
    assert table.private_nbytes.sum() == table.attrs["uss_bytes"]
    of_devices = table[table.row.str.startswith("device: ")]
    assert of_devices.row.str.removeprefix("device: ").tolist() == [
        TENSORS_ON_DEVICE,
        CACHE,
        ELSEWHERE,
        OUTSIDE,
    ]
    assert (of_devices[["nbytes", "private_nbytes"]] == 0).all(axis=None)
    assert of_devices[OTHER].tolist() == [20 * MIB, 0, 0, 5 * MIB]
    for each in table.attrs["devices"]:
        assert table[each["device"]].sum() == each["used_bytes"]
        assert each["capacity_bytes"] == CAPACITY
    assert [each["device"] for each in table.attrs["devices"]] == [DEVICE, OTHER]
    assert OTHER in repr(table).splitlines()[0]
    explained = (
        1 - table.nbytes[table.row.isin(["native", "other mappings"])].sum() / table.attrs["rss_bytes"]
    )
    assert table.attrs["coverage"] == pytest.approx(explained)


def test_a_device_that_fails_is_a_note_and_the_other_rows_stay():
    start_anew()
    HELD.append(make(12 * MIB))

    def fail(_self, _name):
        raise torch.AcceleratorError("the device has failed")

    use, Accelerator.use = Accelerator.use, fail
    try:
        found = rows_of(children=False)
    finally:
        Accelerator.use = use
    assert found.devices == []
    assert [note for note in found.notes if DEVICE in note and "the device has failed" in note]
    assert sum(row.nbytes for row in found.rows) == found.rss_bytes


def test_a_backend_without_the_figures_has_no_rows():
    start_anew()
    HELD.append(make(12 * MIB))
    for name, value in (("use", None), ("statistics", {})):
        kept = getattr(Accelerator, name)
        setattr(Accelerator, name, lambda _self, _name, value=value: value)
        try:
            assert device_memory([]) == []
        finally:
            setattr(Accelerator, name, kept)


def test_a_process_that_may_not_use_the_device_does_not_read_it():
    """A fork of a process with an initialised device must not call it."""
    start_anew()
    HELD.append(make(12 * MIB))
    module = torch.pretend
    module.is_initialized = lambda: False  # as in torch's modules in a fork
    try:
        assert device_memory([]) == []
    finally:
        del module.is_initialized
    assert rows_on(DEVICE)


def test_another_process_has_no_rows_of_devices():
    start_anew()
    HELD.append(make(12 * MIB))
    found = rows_of(os.getppid(), children=False)
    assert found.devices == []
    assert record_of(found)["devices"] == []


@cache
def watched(turn):
    """Run a monitor over the turns of a program; return the monitor and its samples in the file."""
    start_anew()
    pretend.set_outside(1, 50 * MIB)
    file = Path(f"{turn.__name__}.jsonl")
    with memwatch.monitor(file, interval_s=1000.0, oom=False) as watch:
        for number in range(15):
            turn(number)
            watch.sample()
    return watch, [json.loads(line) for line in file.read_text().splitlines()]


def grow(number):
    """Keep tensors on one device, and drop them on the other one, where another process takes memory."""
    HELD.append(make(4 * MIB))
    make(4 * MIB, OTHER)
    pretend.set_outside(1, (50 + 4 * number) * MIB)


def stay(_number):
    HELD[:] = [make(4 * MIB), make(4 * MIB, OTHER)]


@pytest.mark.words
def test_each_row_of_a_device_that_grows_is_in_the_report():
    watch, samples = watched(grow)
    growing = [(each.row, each.device) for each in watch.growth]
    assert sorted(growing) == [(f"{DEVICE} {TENSORS_ON_DEVICE}", DEVICE), (f"{OTHER} {OUTSIDE}", OTHER)]
    assert all(each.nbytes % (4 * MIB) == 0 for each in watch.growth)
    report = watch.report()
    assert "global `HELD`" in report
    assert "other processes on the device" in report
    assert samples[-1]["devices"][f"{DEVICE} {TENSORS_ON_DEVICE}"] == 60 * MIB
    assert not [row for row in samples[-1]["rows"] if row.startswith("pretend")]


def test_a_twin_that_drops_as_much_is_not_accused():
    watch, _ = watched(stay)
    assert not watch.growth


def test_metrics_have_the_gauges_of_each_device():
    gauges = watched(grow)[0].metrics()
    names = ("tensors", "cache", "reserved_elsewhere", "outside_torch")
    for number, used_bytes in ((0, 60 * MIB), (1, 126 * MIB)):
        rows = [gauges[f"memwatch_pretend_{number}_{name}_bytes"] for name in names]
        assert sum(rows) == gauges[f"memwatch_pretend_{number}_used_bytes"] == used_bytes
        assert gauges[f"memwatch_pretend_{number}_capacity_bytes"] == CAPACITY
    assert gauges["memwatch_pretend_0_tensors_growth_bytes_per_hour"] > 0


@pytest.mark.words
def test_the_report_shows_each_device_below_the_rows_of_the_process():
    lines = watched(stay)[0].report().splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith(f"{OTHER}: "))
    assert lines[at].startswith(f"{OTHER}: 70.00 MiB of 4.00 GiB are in use, by all processes")
    rows = [line.split("  ")[0].strip() for line in lines[at + 1 : at + 5]]
    assert rows == [TENSORS_ON_DEVICE, CACHE, ELSEWHERE, OUTSIDE]
