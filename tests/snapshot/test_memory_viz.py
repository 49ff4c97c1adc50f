"""`memwatch transform CAPTURE memory_viz`: torch's own viewer code reads it, and no byte total changes on the way."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from snapshot_dicts import PEAK_BYTES, two_devices, with_pinned_memory
from torch.cuda import _memory_viz as viewer

import memwatch
from memwatch.cli.main import main


def transformed(capture):
    """Return the snapshot that the command line writes of a capture."""
    target = capture.with_suffix(".out")
    assert main(["transform", str(capture), "memory_viz", "-f", "-o", str(target)]) == 0
    return pickle.loads(target.read_bytes())


def round_trip(snapshot, folder, *words):
    """Return a snapshot that became a capture and a snapshot again."""
    (folder / "dump.pickle").write_bytes(pickle.dumps(snapshot))
    assert main(["import", str(folder / "dump.pickle"), "-f", *words]) == 0
    return transformed(folder / "dump.memwatch")


def as_text(text, *_):
    """Replace the script that the viewer downloads to draw flame graphs: give back the lines."""
    return text


def views(snapshot):
    """Return the result of each view of torch's viewer for a snapshot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "segsum": viewer.segsum(snapshot),
            "trace": viewer.trace(snapshot),
            "segments": viewer.segments(snapshot, as_text),
            "memory": viewer.memory(snapshot, as_text),
            "compare": viewer.compare(snapshot["segments"], snapshot["segments"][1:], as_text),
            "trace_plot": viewer.trace_plot(snapshot),
            "segment_plot": viewer.segment_plot(snapshot),
            "segments over time": viewer.trace_plot(snapshot, plot_segments=True),
            "not freed": viewer.trace_plot(pickle.loads(pickle.dumps(snapshot)), filter_freed=True),
        }


def peaks(snapshot):
    """Return the peak of each device in the viewer's drawing: blocks from the history and from before it."""
    found = []
    for number, trace in enumerate(snapshot["device_traces"]):
        delta, begun, before = [], set(), 0
        for entry in trace:
            if entry["action"] == "alloc":
                begun.add(entry["addr"])
                delta.append(entry["size"])
            elif entry["action"] == "free_completed":
                before += 0 if entry["addr"] in begun else entry["size"]
                begun.discard(entry["addr"])
                delta.append(-entry["size"])
        for segment in snapshot["segments"]:
            if segment["device"] == number:
                address = segment["address"]
                for block in segment["blocks"]:
                    is_there = block["state"] == "active_allocated" and address not in begun
                    before += block["requested_size"] if is_there else 0
                    address += block["size"]
        found.append(before + max(np.cumsum([0, *delta])))
    return found


def test_a_recording_of_the_host_comes_back_as_one(tmp_path):
    """The format of torch only numbers devices. A file of memwatch names them, and the host reserves nothing."""
    with memwatch.profile() as prof:
        kept = [torch.ones(2**18) for _ in range(3)]
    prof.save(tmp_path / "run.memwatch")
    snapshot = transformed(tmp_path / "run.memwatch")
    assert round_trip(snapshot, tmp_path) == {**snapshot, "external_annotations": []}
    loaded = memwatch.load(tmp_path / "dump.memwatch")
    assert (loaded.device, loaded.peak_bytes) == ("cpu", prof.peak_bytes)
    assert loaded.reserved is None
    assert "reserved" not in loaded.summary().replace("not recorded", "").lower()
    del kept


@pytest.mark.parametrize("names", [{"0": "cpu"}, ["\x1b[31m"], [7], ["cpu"] * 300, "cpu"])
def test_wrong_names_of_devices_count_as_none(names, tmp_path):
    """They are in a file that anybody may have written."""
    (tmp_path / "dump.pickle").write_bytes(pickle.dumps({**two_devices(), "memwatch_device_names": names}))
    assert main(["import", str(tmp_path / "dump.pickle"), "-f"]) == 0
    assert memwatch.load(tmp_path / "dump.memwatch").device.startswith("cuda:")


def test_an_imported_snapshot_comes_back_equal(tmp_path):
    """Two devices, streams, pools, a free that waits, an OOM, annotations, settings: every field is there again."""
    snapshot = two_devices()
    written = round_trip(snapshot, tmp_path)
    assert written == snapshot
    drawn, expected = views(written), views(snapshot)
    for name in ("segsum", "trace", "segments", "memory", "compare"):  # the plots hold the pickle itself
        assert drawn[name] == expected[name]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_pinned_memory_of_the_host_comes_back_equal(nested, blocks, tmp_path):
    snapshot = with_pinned_memory(nested=nested, blocks=blocks)
    assert round_trip(snapshot, tmp_path) == snapshot


def test_another_round_changes_nothing(tmp_path):
    """The written file gives the same capture as its source."""
    first = round_trip(two_devices(), tmp_path)
    assert round_trip(first, tmp_path) == first


def test_a_map_of_expandable_segments_comes_back(tmp_path):
    """Actions that memwatch does not use, unknown fields, and old segments without sums are kept."""
    snapshot = two_devices()
    entry = {"action": "segment_map", "addr": 5, "size": 2, "stream": 3, "time_us": 1_790_000_000_000_900}
    snapshot["device_traces"][1].append({**entry, "compile_context": "0/1", "user_metadata": "epoch 3"})
    snapshot["segments"][0]["is_expandable"] = True
    assert round_trip(snapshot, tmp_path) == snapshot
    for segment in snapshot["segments"]:
        for name in ("allocated_size", "active_size", "requested_size"):
            del segment[name]
    sums = [segment["allocated_size"] for segment in round_trip(snapshot, tmp_path)["segments"]]
    assert sums == [1024 + 5120 + 512, 512]


@pytest.fixture(scope="module")
def profiled():
    """A training step as torch's own code writes it: `_profile_to_snapshot` of a profile of the CPU."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    with torch.profiler.profile(profile_memory=True, with_stack=True, record_shapes=True) as profile:
        model(torch.ones(16, 32)).sum().backward()
        torch.ones(50_000).mul(2).sum()
    return viewer._profile_to_snapshot(profile)


def totals(snapshot):
    """Return the byte totals of a snapshot: allocated bytes per segment, and the sum of each action."""
    blocks = []
    for segment in snapshot["segments"]:
        sums = dict.fromkeys(STATES, 0)
        for block in segment["blocks"]:
            sums[block["state"]] += block["size"]
        blocks.append((segment["device"], segment["address"], segment["total_size"], segment["stream"], sums))
    actions = [
        {name: sum(entry["size"] for entry in trace if entry["action"] == name) for name in ACTIONS}
        for trace in snapshot["device_traces"]
    ]
    return blocks, actions


STATES = ("active_allocated", "active_pending_free", "inactive")
ACTIONS = ("alloc", "free_requested", "free_completed")


def test_a_snapshot_that_torch_wrote_keeps_its_bytes(profiled, tmp_path):
    """Every total of the snapshot equals the capture's. A snapshot written from the capture has it too."""
    assert profiled["device_traces"][0], "torch recorded something"
    written = round_trip(profiled, tmp_path, "--device", "cpu")
    assert totals(written) == totals(profiled)
    assert peaks(written) == peaks(profiled)
    reading = memwatch.load(tmp_path / "dump.memwatch")
    assert [reading.peak_bytes] == peaks(profiled)
    assert reading.device == "cpu"
    assert any("test_memory_viz.py" in line for line in reading.storages["own_line"])
    categories = {entry.get("category") for entry in profiled["device_traces"][0]}
    assert {entry.get("category") for entry in written["device_traces"][0]} == categories
    views(written)


def test_the_peak_of_two_devices_is_the_viewers(tmp_path):
    """The viewer's drawing of the written file has the peak of the original file.

    The viewer counts a block until its free completes, memwatch until the free is requested. In between, this file
    has only 400 bytes.
    """
    snapshot = two_devices()
    assert peaks(round_trip(snapshot, tmp_path)) == peaks(snapshot) == list(PEAK_BYTES.values())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A capture of memwatch's own, with memory from before the block that is freed in it and that is not."""
    path = tmp_path_factory.mktemp("recorded") / "run.memwatch"
    before, kept = torch.ones(3000), torch.ones(500)
    with memwatch.profile(path):
        model = torch.nn.Linear(64, 128)
        loss = model(torch.ones(16, 64)).relu().sum()
        del before
        loss.backward()
        held = torch.ones(10_000)
    assert len(kept) + len(held) == 10_500
    return path


def test_a_capture_of_memwatchs_is_drawn_with_its_peak(recorded):
    """The viewer's curve has memwatch's peak and end. The sums of its segments are the live bytes at the end."""
    reading, written = memwatch.load(recorded), transformed(recorded)
    assert peaks(written) == [reading.peak_bytes]
    live = int(reading.timeline["live_bytes"].iloc[-1])
    for name in ("total_size", "allocated_size", "active_size", "requested_size"):
        assert sum(segment[name] for segment in written["segments"]) == live
    drawn = views(written)
    assert "test_memory_viz.py" in drawn["memory"]


def test_the_viewer_can_walk_back_through_it(recorded):
    """At every entry each living block lies in a segment: "Allocator State History" needs it."""
    written = transformed(recorded)
    segments = {segment["address"]: segment["total_size"] for segment in written["segments"]}
    blocks = dict(segments)
    for entry in reversed(written["device_traces"][0]):
        address, size = entry["addr"], entry["size"]
        if entry["action"] == "segment_alloc":
            assert segments.pop(address) == size
        elif entry["action"] == "segment_free":
            segments[address] = size
        elif entry["action"] == "alloc":
            assert blocks.pop(address) == size
        elif entry["action"] == "free_completed":
            blocks[address] = size
        assert blocks.keys() <= segments.keys()


def test_categories_are_memwatchs_and_unknown_is_among_them(recorded):
    """The viewer colours by category, and fails without the category `unknown`."""
    written = transformed(recorded)
    found = {entry["category"] for entry in written["device_traces"][0] if "category" in entry}
    assert {"unknown", "parameter", "gradient"} <= found


def test_an_estimate_is_drawn_at_addresses_of_its_own(tmp_path):
    """Fake tensors have no address: each gets one, and the bytes add up."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), memwatch.profile(tmp_path / "run.memwatch") as prof:
        kept = [torch.ones(1000) for _ in range(3)]
        kept.pop()
    written = transformed(tmp_path / "run.memwatch")
    assert peaks(written) == [prof.peak_bytes] == [12_000]
    assert len({segment["address"] for segment in written["segments"]}) == 2


def test_the_cpu_stands_behind_the_accelerators():
    """Devices keep their numbers. The CPU gets a number of its own, so no list mixes devices."""
    from memwatch.report.memory_viz import _numbers

    assert _numbers({"cpu"}) == {"cpu": 0}
    assert _numbers({"cpu", "cuda:0"}) == {"cuda:0": 0, "cpu": 1}
    assert _numbers({"cpu", "cuda:0", "cuda:3"}) == {"cuda:0": 0, "cuda:3": 3, "cpu": 4}
    assert len(set(_numbers({"cpu", "cuda:0", "xpu:0"}).values())) == 3


def test_a_file_is_written_beside_the_capture_and_over_nothing(recorded, capsys):
    """Without -o it takes the capture's name; it replaces a file only with -f."""
    capsys.readouterr()
    assert main(["transform", str(recorded), "memory_viz"]) == 0
    assert capsys.readouterr().out == f"{recorded.with_suffix('.pickle')}\n"
    assert main(["transform", str(recorded), "memory_viz"]) == 1


def test_each_device_of_a_capture_is_drawn_by_itself(tmp_path):
    """A program on two devices: the trace of each has that device's peak, and no list mixes them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), memwatch.profile(tmp_path / "run.memwatch") as prof:
        kept = [torch.ones(1000, device="cuda"), torch.ones(500)]
        kept.pop()
    written = transformed(tmp_path / "run.memwatch")
    assert prof.devices == ["cuda:0", "cpu"]
    assert peaks(written) == [prof.on(device).peak_bytes for device in prof.devices] == [4000, 2000]
