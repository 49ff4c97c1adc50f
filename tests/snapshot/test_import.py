"""A memory snapshot becomes a capture with the peaks, lines, timeline and notes of its history."""

from __future__ import annotations

import json
import pickle
import re

import numpy as np
import pytest
from snapshot_dicts import (
    BASE,
    END_BYTES,
    LOAD,
    MIB,
    PEAK_BYTES,
    PINNED_END_BYTES,
    PINNED_PEAK_BYTES,
    STEP,
    Trace,
    block,
    segment,
    two_devices,
    with_pinned_memory,
)

import memwatch
from memwatch.capture.schema import NONE
from memwatch.cli.main import main
from memwatch.memory_snapshot import SnapshotError, read_snapshot
from memwatch.memory_snapshot.read import owner_of
from memwatch.own_code import CodeOwner
from memwatch.report.stats import stats


@pytest.fixture
def imported(tmp_path):
    """Return a function that writes a snapshot as torch does, imports it, and returns the reading of the file."""

    def read(snapshot, *words):
        path = tmp_path / "dump.pickle"
        path.write_bytes(pickle.dumps(snapshot))
        assert main(["import", str(path), "-f", *words]) == 0
        return memwatch.load(path.with_suffix(".memwatch"))

    return read


def of_device(index):
    """Return the snapshot of one of the two devices alone."""
    snapshot = two_devices()
    snapshot["segments"] = [each for each in snapshot["segments"] if each["device"] == index]
    snapshot["device_traces"][1 - index] = []
    return snapshot


def curve(capture, device):
    """Return the live bytes of a device after each birth and death, from the recorded tables alone."""
    births, deaths = capture.tables["births"], capture.tables["deaths"]
    here = np.array(capture.text(births["device"])) == device
    nbytes = dict(zip(births["storage"][here].tolist(), births["nbytes"][here].tolist(), strict=True))
    events = list(zip(births["time_ns"][here].tolist(), births["nbytes"][here].tolist(), strict=True))
    died = zip(deaths["storage"].tolist(), deaths["time_ns"].tolist(), strict=True)
    events += [(time_ns, -nbytes[storage]) for storage, time_ns in died if storage in nbytes]
    times = [time_ns for time_ns, _ in events if time_ns > capture.meta["start_ns"]]
    assert len(set(times)) == len(times), "each entry has a time of its own"
    return np.cumsum([delta for _, delta in sorted(events)])


@pytest.mark.parametrize("device", PEAK_BYTES)
def test_the_peak_of_each_device_is_the_histories(device, imported):
    """Two devices in one file: each has its own peak and its own bytes at the end, to the byte."""
    capture = imported(two_devices()).capture
    assert curve(capture, device).max() == PEAK_BYTES[device]
    assert curve(capture, device)[-1] == END_BYTES[device]


@pytest.mark.parametrize("index", [0, 1])
def test_a_reading_has_the_peak_of_its_device(index, imported):
    """Peak, baseline, timeline and the rows at the peak add up."""
    reading, device = imported(of_device(index)), f"cuda:{index}"
    assert reading.device == device
    assert reading.peak_bytes == PEAK_BYTES[device] == reading.at_peak["nbytes"].sum()
    assert reading.baseline_bytes == (1600 if index == 0 else 0)
    assert reading.timeline["live_bytes"].iloc[-1] == END_BYTES[device]
    assert set(reading.storages["device"]) == {device}


def test_lines_are_those_of_the_calls(imported):
    """Each allocation has the call that made it, torch's frames and C++ ones left out; before the history none."""
    rows = imported(of_device(0)).storages.set_index("nbytes")
    trainer = STEP[1]["filename"]
    assert rows.loc[5000, "line"] == f"{trainer}:7"
    assert rows.loc[5000, "own_line"] == "/home/me/train.py:40"
    assert rows.loc[1000, "line"] == "/home/me/train.py:12"  # from its block: it was there before the history
    assert rows.loc[600, "line"] == ""  # the history has only its free
    reading = imported(of_device(0))
    stack = reading.stack(int(reading.storages.set_index("nbytes").loc[1000, "stack"]))
    assert [frame[2] for frame in stack] == [frame["name"] for frame in LOAD]


def test_what_a_snapshot_does_not_know_is_not_told(imported, capsys):
    """Ops, holders, modules, phases, findings and categories stay empty.

    Summary, stats and page name the missing parts.
    """
    reading = imported(of_device(0))
    assert set(reading.at_peak["category"]) == {"unknown"}
    for column in ("holder", "holder_kind", "holder_evidence", "phase", "module", "op_name", "tensor"):
        assert set(reading.at_peak[column]) == {""}, column
    assert reading.findings == []
    for table in (reading.ops, reading.uses, reading.saved, reading.modules):
        assert len(table) == 0
    assert not reading.storages[["lag_ns", "use_ns", "drag_ns", "void_ns"]].any(axis=None)
    said = " ".join(reading.summary(width=200).split())
    assert "not recorded: ops, uses, modules, phases, saved tensors, categories, holders" in said
    for claim in (
        "Kept only for backward",
        "In use",
        "Findings",
        "not seen",
        "Before the first op",
        "compiled code",
    ):
        assert claim not in said
    capsys.readouterr()
    figures = stats(reading)
    for name in ("ops", "workspaces", "findings", "only_for_backward_ratio", "saved_for_backward_bytes"):
        assert figures[name] is None


@pytest.mark.parametrize("verb", ["summary", "stats", "tree", "report", "diff", "transform"])
def test_every_verb_reads_it(verb, imported, tmp_path, capsys):
    """The capture is one like any other; `stats --json` has the peak of the history."""
    imported(of_device(0))
    path = str(tmp_path / "dump.memwatch")
    words = {"diff": [path, path], "transform": [path, "json"], "stats": ["--json", path]}.get(verb, [path])
    capsys.readouterr()
    assert main([verb, *words]) == 0
    out = capsys.readouterr().out
    if verb == "stats":
        assert json.loads(out)["peak_bytes"] == PEAK_BYTES["cuda:0"]
    if verb == "summary":
        assert "Peak 9.38 KiB" in out
        assert "Allocation at train.py:40, in transformers (trainer.py:7)" in out


def test_diff_tells_the_calls_that_grew(imported, tmp_path, capsys):
    """Two snapshots are compared by the functions that allocated."""
    small = Trace().add("alloc", BASE, 1000, STEP)
    imported({"segments": [], "device_traces": [small.entries]})
    (tmp_path / "dump.memwatch").rename(tmp_path / "old.memwatch")
    imported({"segments": [], "device_traces": [small.add("alloc", BASE + 4096, 500, LOAD).entries]})
    capsys.readouterr()
    assert main(["diff", "--json", str(tmp_path / "old.memwatch"), str(tmp_path / "dump.memwatch")]) == 0
    sites = json.loads(capsys.readouterr().out)["sites"]
    assert (sites[0]["site"], sites[0]["delta_bytes"]) == ("load (train.py)", 500)


def test_notes_tell_reserved_memory_and_where_it_ran_out(imported):
    """The notes have each device's reserved, allocated, requested and free bytes, and errors of the history."""
    notes = [f"{kind}: {text}" for kind, text in imported(two_devices()).notes]
    reserved = [text for text in notes if text.startswith("reserved: ")]
    assert len(reserved) == 2
    assert "2.00 MiB were reserved in 1 segment: 6.50 KiB allocated for the 6.25 KiB" in reserved[0]
    assert "3.00 KiB still in use by another stream" in reserved[0]
    assert any(
        "ran out 1 time; at first 90.00 MiB were requested while the device had 7.00 MiB" in text
        for text in notes
    )
    assert any("1 allocation of 600 B began before the history" in text for text in notes)


def test_segments_alone_are_a_capture(imported):
    """Without a history the live blocks exist all along.

    The result of torch.cuda.memory_snapshot() is read so too.
    """
    for snapshot in ({**of_device(0), "device_traces": []}, of_device(0)["segments"]):
        reading = imported(snapshot)
        assert reading.peak_bytes == reading.baseline_bytes == END_BYTES["cuda:0"]
        assert len(reading.timeline) == 1


def test_a_free_that_another_stream_delays_ends_the_life_where_it_is_asked_for(imported):
    """As `torch.cuda.memory_allocated` counts: the tensor is gone, the block is not free yet."""
    trace = Trace().add("alloc", BASE, 700, STEP).add("free_requested", BASE, 700, STEP)
    trace.add("alloc", BASE + 1024, 600, STEP).add("free_completed", BASE, 700, STEP)
    assert imported({"segments": [], "device_traces": [trace.entries]}).peak_bytes == 700


def test_a_history_without_requests_frees_where_they_complete(imported):
    """`skip_actions=["free_requested"]` leaves only completed frees."""
    trace = Trace().add("alloc", BASE, 700, STEP).add("free_completed", BASE, 700, STEP)
    trace.add("free_completed", BASE + 4096, 50, STEP)
    reading = imported({"segments": [], "device_traces": [trace.entries]})
    assert (reading.peak_bytes, reading.baseline_bytes) == (750, 50)
    assert reading.timeline["live_bytes"].iloc[-1] == 0


def test_an_address_is_used_again_within_a_microsecond(imported):
    """Entries of one microsecond keep their order: a free and the next allocation at its address do not overlap."""
    trace = Trace(step_us=0)
    for _ in range(50):
        trace.add("alloc", BASE, 512, STEP).free(BASE, 512)
    reading = imported({"segments": [], "device_traces": [trace.entries]})
    assert reading.peak_bytes == 512
    assert len(reading.storages) == 50


def test_a_free_that_was_lost_ends_with_the_next_allocation(imported):
    """An address that is allocated twice was freed between, whatever the history says."""
    trace = Trace().add("alloc", BASE, 700, STEP).add("alloc", BASE, 300, STEP)
    assert imported({"segments": [], "device_traces": [trace.entries]}).peak_bytes == 700


def test_a_snapshot_without_times_tells_none(imported):
    """Older snapshots have no `time_us`. Their events are in order, without durations."""
    trace = Trace().add("alloc", BASE, 700, STEP).free(BASE, 700)
    for entry in trace.entries:
        del entry["time_us"]
    reading = imported({"segments": [], "device_traces": [trace.entries]})
    assert reading.peak_bytes == 700
    assert "after the start" not in reading.summary()
    assert "duration" not in dict(stats(reading)["meta"])


def test_old_blocks_have_a_history_in_place_of_frames(imported):
    """The blocks of torch 1.13 to 2.0 keep size and call in `history`."""
    old = {
        "size": 1024,
        "state": "active_allocated",
        "history": [{"addr": BASE, "real_size": 900, "frames": LOAD}],
    }
    old_segment = {"address": BASE, "total_size": 1024, "stream": 0, "blocks": [old]}
    reading = imported({"segments": [old_segment], "device_traces": []})
    assert reading.peak_bytes == 900
    assert reading.at_peak["line"].tolist() == ["/home/me/train.py:12"]


def test_the_type_of_the_device_is_the_users_to_say(imported):
    """The file numbers its devices; `--device` names their type, and the CPU has no number."""
    assert imported(of_device(1), "--device", "xpu").device == "xpu:1"
    assert imported(of_device(0), "--device", "cpu").device == "cpu"
    with pytest.raises(SystemExit) as ended:
        main(["import", "--device", "cuda:0", "dump.pickle"])
    assert ended.value.code == 2


def test_an_existing_capture_is_kept_and_a_missing_file_is_named(imported, tmp_path, capsys):
    """As with every verb that writes, only -f replaces a file, and one line reports a missing file."""
    imported(of_device(0))
    before = (tmp_path / "dump.memwatch").read_bytes()
    assert main(["import", str(tmp_path / "dump.pickle")]) == 1
    assert (tmp_path / "dump.memwatch").read_bytes() == before
    assert main(["import", str(tmp_path / "none.pickle")]) == 1
    assert "none.pickle is not a file" in capsys.readouterr().err


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_pinned_memory_of_the_host_is_a_device_of_its_own(nested, blocks, imported, tmp_path, capsys):
    reading = imported(with_pinned_memory(nested=nested, blocks=blocks))
    capture = reading.capture
    assert curve(capture, "pinned").max() == PINNED_PEAK_BYTES
    assert curve(capture, "pinned")[-1] == PINNED_END_BYTES
    for device, nbytes in PEAK_BYTES.items():  # the others keep their figures
        assert curve(capture, device).max() == nbytes
    assert reading.device.startswith("cuda")
    pinned = reading.on("pinned")
    assert pinned.peak_bytes == PINNED_PEAK_BYTES
    assert pinned.at_peak["line"].str.contains("train.py:12").all()
    capsys.readouterr()
    assert main(["summary", "--device", "pinned", str(tmp_path / "dump.memwatch")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "pinned: at the end 8.00 MiB were reserved in 3 segments" in shown
    assert "which torch rounds up" in shown


def test_a_snapshot_of_pinned_memory_alone_is_a_capture(imported):
    whole = with_pinned_memory()
    reading = imported(
        {"segments": [], "device_traces": [], **{name: whole[name] for name in whole if "host" in name}}
    )
    assert (reading.device, reading.peak_bytes) == ("pinned", PINNED_PEAK_BYTES)


def test_empty_lists_of_pinned_memory_add_nothing(imported):
    """As a new torch writes them that did not record pinned memory."""
    with_lists, without = (
        imported({**two_devices(), **lists}) for lists in ({"host_segments": [], "host_traces": []}, {})
    )
    assert list(with_lists.devices) == list(without.devices)
    assert with_lists.notes == without.notes


def test_a_pinned_block_that_a_stream_still_uses_is_no_live_tensor(imported):
    snapshot = with_pinned_memory()
    snapshot["host_segments"][1]["active"] = True
    reading = imported(snapshot)
    blocks = reading.capture.tables["blocks"]
    states = reading.capture.text(blocks["state"])
    assert "active_pending_free" in list(states)
    assert curve(reading.capture, "pinned")[-1] == PINNED_END_BYTES


ODD = {
    "host segments are text": {"host_segments": "x"},
    "a host segment is a number": {"host_segments": [7]},
    "a host segment without a size": {"host_segments": [{"address": BASE, "allocated": True}]},
    "a host segment without an address": {"host_segments": [{"size": 1, "allocated": True}]},
    "a host segment of negative size": {"host_segments": [{"address": BASE, "size": -1}]},
    "a host segment is allocated by a text": {
        "host_segments": [{"address": BASE, "size": 1, "allocated": "yes"}]
    },
    "a host segment of more than all machines": {
        "host_segments": [{"address": BASE + at, "size": 1 << 61, "allocated": True} for at in range(9)]
    },
    "host traces are a number": {"host_traces": 7},
    "host traces are a dict": {"host_traces": {"action": "alloc"}},
    "host traces are lists and entries": {"host_traces": [[], {"action": "alloc", "addr": BASE, "size": 1}]},
    "a host entry is text": {"host_traces": ["alloc"]},
    "a host entry without a size of bytes": {"host_traces": [{"action": "alloc", "addr": BASE, "size": "1"}]},
    "a thousand host traces": {"host_traces": [[]] * 1000},
    "segments are a number": {"segments": 7, "device_traces": []},
    "entries are numbers": {"device_traces": [[1, 2]]},
    "a trace is text": {"device_traces": ["alloc"]},
    "no size": {"device_traces": [[{"action": "alloc", "addr": BASE, "size": "1"}]]},
    "no address": {"device_traces": [[{"action": "alloc", "size": 1}]]},
    "address 0": {"device_traces": [[{"action": "alloc", "addr": 0, "size": 1}]]},
    "negative size": {"device_traces": [[{"action": "alloc", "addr": BASE, "size": -1}]]},
    "more than 64 bits": {"device_traces": [[{"action": "alloc", "addr": BASE, "size": 1 << 70}]]},
    "more than all machines": {
        "device_traces": [[{"action": "alloc", "addr": BASE + at, "size": 1 << 61} for at in range(9)]]
    },
    "action is a list": {"device_traces": [[{"action": ["alloc"], "addr": BASE, "size": 1}]]},
    "frames are numbers": {"device_traces": [[{"action": "alloc", "addr": BASE, "size": 1, "frames": [1]}]]},
    "a line is text": {
        "device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "frames": [{"line": "x"}]}]]
    },
    "a device of a billion": {"segments": [{**segment(0, [block(BASE, 512, 9)]), "device": 10**9}]},
    "a thousand devices": {"segments": [], "device_traces": [[]] * 1000},
    "time is text": {"device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "time_us": "now"}]]},
    "block is a list": {"segments": [{**segment(0, [block(BASE, 512, 9)]), "blocks": [[]]}]},
}


@pytest.mark.parametrize("name", ODD)
def test_plain_data_of_another_form_is_refused_in_a_sentence(name, tmp_path, capsys):
    """A field of another type or size than torch writes is named; nothing is written."""
    (tmp_path / "odd.pickle").write_bytes(pickle.dumps(ODD[name]))
    assert main(["import", str(tmp_path / "odd.pickle")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("memwatch: error: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "odd.memwatch").exists()


def test_one_list_named_many_times_does_not_multiply(tmp_path, monkeypatch):
    """A small file can name one history for each device, or one segment a thousand times: entries are limited."""
    monkeypatch.setattr("memwatch.memory_snapshot.read.MOST_ENTRIES", 1000)
    trace = Trace().add("alloc", BASE, 1).entries * 20
    blocks = segment(0, [block(BASE + at * 512, 512, 9) for at in range(20)])
    for snapshot in (
        {"device_traces": [trace] * 100},
        {"segments": [blocks] * 100},
        {"host_traces": trace * 60},
        {"host_segments": [{"address": BASE, "size": 512, "allocated": True}] * 1001},
    ):
        (tmp_path / "many.pickle").write_bytes(pickle.dumps(snapshot))
        with pytest.raises(SnapshotError, match="more than 1,000"):
            read_snapshot(tmp_path / "many.pickle")


def test_text_that_steers_a_terminal_or_is_no_text_is_shown_escaped(imported):
    """File names of frames come from outside. They are printed like the names of a program's own files."""
    frames = [{"filename": "/tmp/\x1b[31m\ud800\0.py", "line": 3, "name": "f\nalloc"}]
    trace = Trace().add("alloc", BASE, 700, frames)
    said = imported({"segments": [], "device_traces": [trace.entries]}).summary()
    assert "\x1b[31m" not in said
    assert "\\x1b[31m\\ud800\\x00.py:3" in said


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/me/train.py", CodeOwner.PROGRAM),
        ("/home/me/torch/train.py", CodeOwner.PROGRAM),
        ("C:\\Users\\me\\train.py", CodeOwner.PROGRAM),
        ("<stdin>", CodeOwner.PROGRAM),
        ("/opt/conda/lib/python3.12/site-packages/torch/_tensor.py", CodeOwner.TORCH),
        ("C:\\venv\\Lib\\site-packages\\torch\\_tensor.py", CodeOwner.TORCH),
        ("/usr/lib/python3/dist-packages/lightning/trainer.py", CodeOwner.INSTALLED),
        ("/usr/lib/python3.12/runpy.py", CodeOwner.PYTHON),
        ("??", CodeOwner.TORCH),
        ("/pytorch/aten/src/ATen/native/Linear.cpp", CodeOwner.TORCH),
    ],
)
def test_whose_code_a_file_of_another_machine_is(file, owner):
    """The folders of the machine that wrote the snapshot are not here; their names tell."""
    assert owner_of(file) is owner


def test_annotations_and_settings_are_kept(imported):
    """`record_function`s stand in a table, the allocator's settings in the metadata."""
    capture = imported(two_devices()).capture
    assert capture.rows("annotations") == 2
    assert [json.loads(text)["stage"] for text in capture.text(capture.tables["annotations"]["extra"])] == [
        "START",
        "END",
    ]
    assert capture.meta["allocator_settings"]["roundup_power2_divisions"] == {"1": 0, "2": 0}
    assert (capture.tables["births"]["op"] == NONE).all()
    assert capture.tables["segments"]["nbytes"].tolist() == [2 * MIB, 2 * MIB]
    assert capture.meta["reserved_bytes"] == {"cuda:0": 2 * MIB, "cuda:1": 2 * MIB}


def test_the_page_tells_what_is_known(imported, tmp_path):
    """The page has the peak and its call. A card that would only have zeros is left out."""
    imported(of_device(0)).report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f'data-bytes="{PEAK_BYTES["cuda:0"]}"' in page
    assert "Allocation at /home/me/train.py:40" in page
    assert 'id="saved-share"' not in page
    assert 'id="op-count"' not in page


def test_each_device_of_a_file_has_its_own_reading(imported):
    """In `devices` the device with most bytes comes first. Every figure and table is about one device."""
    reading = imported(two_devices())
    assert reading.devices == ["cuda:1", "cuda:0"]
    for device, peak_bytes in PEAK_BYTES.items():
        there = reading.on(device)
        assert there.peak_bytes == peak_bytes == there.at_peak["nbytes"].sum()
        assert there.timeline["live_bytes"].iloc[-1] == END_BYTES[device]
        lines = there.storages.set_index("nbytes")["own_line"]
        assert lines[100 if device == "cuda:1" else 5000] == "/home/me/train.py:40"


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (
            {"segments": [{"total_size": -5}]},
            "its field 'total_size' is -5, not an integer from 0 to 4611686018427387903",
        ),
        (
            {"segments": [{"total_size": 1 << 63}]},
            "its field 'total_size' is 9223372036854775808, not an integer from 0",
        ),
        ({"segments": [{"total_size": "5"}]}, "its field 'total_size' is of type str, not an integer"),
        ({"segments": [{}]}, "its field 'total_size' is missing, not an integer"),
        ({"segments": [5]}, "one of its segments is of type int, not a dict"),
        ({"segments": {}}, "its segments are of type dict, not a list"),
        ({"device_traces": [[]] * 5000}, "it has 5,000 device_traces; memwatch reads at most "),
    ],
)
def test_an_error_shows_the_wrong_value(snapshot, words, tmp_path):
    path = tmp_path / "dump.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    with pytest.raises(SnapshotError, match=re.escape(words)):
        read_snapshot(path)
