"""The rows of a CUDA device in `process_memory` and in the monitor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import torch

import memwatch
from memwatch.devices.adapters import DEFAULT_POOL
from memwatch.monitor.device_memory import CACHE, ELSEWHERE, OUTSIDE, TENSORS_ON_DEVICE, device_memory

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
NOISE_BYTES = 256 * MIB
"""Another process may take or return so much of the device between two readings."""


def rows_on(device):
    """Return the rows of a device, read alone."""
    notes = []
    (found,) = (each for each in device_memory(notes) if each.device == str(device))
    assert not notes
    assert sum(found.rows.values()) == found.used_bytes <= found.capacity_bytes
    return dict(found.rows)


def run_program(program):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_rows_of_the_device_sum_to_its_use(on_cuda):
    kept, freed = (torch.empty(64 * MIB, dtype=torch.uint8) for _ in range(2))
    del freed
    table = memwatch.process_memory(children=False)
    free_bytes, capacity_bytes = torch.cuda.mem_get_info()
    (of_device,) = table.attrs["devices"]
    column = table.set_index("row")[str(on_cuda)]
    assert column.sum() == of_device["used_bytes"]
    assert abs(column.sum() - (capacity_bytes - free_bytes)) < NOISE_BYTES
    assert column[f"device: {TENSORS_ON_DEVICE}"] == torch.cuda.memory_allocated() >= kept.nbytes
    in_torch = [column[f"device: {row}"] for row in (TENSORS_ON_DEVICE, CACHE, ELSEWHERE)]
    assert sum(in_torch) == torch.cuda.memory_reserved()
    assert column[f"device: {CACHE}"] >= 64 * MIB
    assert column[f"device: {OUTSIDE}"] > 0  # the context
    assert table.nbytes.sum() == table.attrs["rss_bytes"]
    assert table.private_nbytes.sum() == table.attrs["uss_bytes"]


def test_free_memory_of_a_graph_is_reserved_elsewhere(on_cuda):
    x = torch.ones(4 * MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2).sin() + 1
    private = [
        segment
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) != DEFAULT_POOL
    ]
    free_bytes = sum(segment["total_size"] - segment["allocated_size"] for segment in private)
    assert rows_on(on_cuda)[ELSEWHERE] == free_bytes >= 16 * MIB
    del graph, y
    torch.cuda.empty_cache()
    assert rows_on(on_cuda)[ELSEWHERE] < free_bytes


def test_a_capture_goes_on_while_another_thread_reads_the_device(on_cuda):
    """CUDA refuses some calls of all threads during a capture."""
    x = torch.ones(1024)
    graph = torch.cuda.CUDAGraph()
    found = []
    with torch.cuda.graph(graph):
        y = x * 2
        reader = threading.Thread(target=lambda: found.append(rows_on(on_cuda)))
        reader.start()
        reader.join()
        y = y + 1
    x.fill_(4)
    graph.replay()
    torch.cuda.synchronize()
    assert found
    assert torch.equal(y, torch.full_like(y, 9))


def test_a_monitor_names_the_tensors_that_grow_on_the_device(on_cuda):
    kept = []
    with memwatch.monitor(interval_s=1000.0, oom=False) as watch:
        for _ in range(15):
            kept.append(torch.empty(32 * MIB, dtype=torch.uint8))
            watch.sample()
    growing = {each.row: each for each in watch.growth if each.device}
    assert growing[f"{on_cuda} {TENSORS_ON_DEVICE}"].nbytes % (32 * MIB) == 0
    assert "`kept`" in watch.report()
    gauges = {
        name.removeprefix(f"memwatch_cuda_{on_cuda.index}_"): value for name, value in watch.metrics().items()
    }
    rows = [gauges[f"{name}_bytes"] for name in ("tensors", "cache", "reserved_elsewhere", "outside_torch")]
    assert sum(rows) == gauges["used_bytes"]
    assert gauges["tensors_bytes"] >= 15 * 32 * MIB


def test_no_twin_that_drops_as_much_is_accused(on_cuda):
    with memwatch.monitor(interval_s=1000.0, oom=False) as watch:
        for _ in range(15):
            kept = [torch.empty(32 * MIB, dtype=torch.uint8)]
            watch.sample()
    del kept
    rows = {each.row for each in watch.growth if each.device}
    assert rows <= {f"{on_cuda} {OUTSIDE}"}  # another process may use the device


def test_a_program_that_has_not_used_cuda_stays_without_it():
    found = run_program(
        "import torch, memwatch\n"
        "table = memwatch.process_memory()\n"
        "with memwatch.monitor(oom=False): pass\n"
        "print(torch.cuda.is_initialized(), table.attrs['devices'])"
    )
    assert found == ["False", "[]"]


def test_a_fork_does_not_call_cuda():
    found = run_program(
        "import os, torch, memwatch\n"
        "kept = torch.ones(1, device='cuda')\n"
        "if not os.fork():\n"
        "    table = memwatch.process_memory()\n"
        "    os._exit(len(table.attrs['devices']))\n"
        "print(os.wait()[1], len(memwatch.process_memory().attrs['devices']))"
    )
    assert found == ["0", "1"]


def test_a_device_that_the_program_does_not_use_has_no_column(on_cuda):
    """CUDA takes memory of each device that it is asked about."""
    kept = torch.ones(1)
    assert [each.device for each in device_memory([])] == [str(kept.device)]
