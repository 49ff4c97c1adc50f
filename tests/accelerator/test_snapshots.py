"""The memory history of the device in torch's format: imported, it gives the allocator's figures."""

from __future__ import annotations

import pathlib
import pickle
import tempfile

import pretend
import torch

from memwatch.memory_snapshot import read_snapshot, snapshot_of
from memwatch.reading import Reading

KIB, MIB = 1024, 1 << 20


def make(nbytes, device="pretend:0"):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def imported():
    """Return the snapshot since the history began, and the reading of it."""
    snapshot = pretend.snapshot()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "snapshot.pickle")
        file.write_bytes(pickle.dumps(snapshot))
        return Reading(read_snapshot(file, device="pretend")), snapshot


def test_peaks_of_both_devices_are_those_of_the_counters():
    """In requested bytes, which the allocator counts beside its blocks."""
    pretend.record_history(True)
    kept = [make(3 * MIB), make(5000), make(7 * MIB, "pretend:1")]
    del kept[0]
    kept.append(make(MIB))
    reading, _ = imported()
    for device in ("pretend:0", "pretend:1"):
        assert reading.on(device).peak_bytes == pretend.stats(device)["requested_bytes.all.peak"]


def test_reserved_and_free_bytes_are_those_of_the_counters():
    """Also of a block that a stream still uses."""
    pretend.record_history(True)
    pretend.hold(0, 1, True)
    kept, waiting = make(3 * MIB), make(15 * MIB)
    waiting.record_stream(torch.Stream(device="pretend:0"))
    del waiting
    reading, _ = imported()
    stats = pretend.stats("pretend:0")
    assert reading.meta["reserved_bytes"]["pretend:0"] == stats["reserved_bytes.all.current"] == 20 * MIB
    told = next(text for kind, text in reading.notes if kind == "reserved")
    assert "15.00 MiB still in use by another stream" in told
    assert "3.00 MiB allocated for the 3.00 MiB" in told
    del kept


def test_memory_that_ran_out_is_told():
    """The note has the size of the request and the free bytes of the device."""
    pretend.record_history(True)
    pretend.set_limit(0, 10 * MIB)
    kept = make(KIB)
    try:
        make(4 * MIB)
    except torch.OutOfMemoryError:
        pass
    reading, _ = imported()
    told = next(text for kind, text in reading.notes if kind == "out of memory")
    assert "4.00 MiB were requested while the device had 8.00 MiB free" in told
    del kept


def test_a_snapshot_comes_back_with_every_byte():
    """Snapshot to capture to snapshot."""
    pretend.record_history(True)
    kept = [make(3 * MIB), make(5000), make(7 * MIB, "pretend:1")]
    del kept[1]
    reading, snapshot = imported()
    again = snapshot_of(reading.capture)
    for name in ("total_size", "allocated_size", "active_size", "requested_size"):
        assert [each[name] for each in again["segments"]] == [each[name] for each in snapshot["segments"]]
    sizes = [[(entry["action"], entry["size"]) for entry in trace] for trace in again["device_traces"]]
    assert sizes == [
        [(entry["action"], entry["size"]) for entry in trace] for trace in snapshot["device_traces"]
    ]
