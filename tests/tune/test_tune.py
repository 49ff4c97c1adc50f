"""`memwatch.tune`: settings of torch's CUDA allocator for a recorded program, from captures and memory snapshots."""

from __future__ import annotations

import json
import pickle
import random
import sys
from pathlib import Path

import pytest
import torch

import memwatch
from memwatch.cli.main import main
from memwatch.devices.cuda_allocator.torchs_own import VARIABLE
from memwatch.errors import MemwatchError, OptionError
from memwatch.report.records.schema import TuneRecord
from memwatch.tune import SETTINGS, _with_one_change

sys.path.insert(0, str(Path(__file__).parent.parent / "snapshot"))
from snapshot_dicts import BASE, MIB, Trace, block, segment

FLOATS = MIB // 4


@pytest.fixture(autouse=True)
def _model(monkeypatch):
    """Have the model answer, whatever torch is installed."""
    monkeypatch.setenv(VARIABLE, "/nowhere/libc10_cuda.so")


def varying(*, early):
    """Again and again, free a large tensor and make a small tensor that stays in its place."""
    kept = [torch.empty(2 * FLOATS) for _ in range(4)] if early else []
    for _ in range(4):
        large = torch.empty(33 * FLOATS)
        del large
        if not early:
            kept.append(torch.empty(2 * FLOATS))
    return kept


@pytest.fixture
def late():
    with memwatch.profile() as prof:
        kept = varying(early=False)
    assert kept
    return prof


def test_no_setting_reserves_less_than_the_peak_of_tensors(late):
    tuning = memwatch.tune(late)
    assert tuning.lower_bound_bytes == late.peak_bytes
    assert (tuning.table["most_reserved_bytes"] >= late.peak_bytes).all()
    assert len(tuning.outcomes) >= 30
    assert not tuning.rejected


def test_the_best_setting_comes_first_and_as_an_environment_line(late):
    """The tensors that stay split four large segments, but not a segment that grows."""
    tuning = memwatch.tune(late, settings=["max_split_size_mb:512", "expandable_segments:True"])
    assert [each.settings for each in tuning.outcomes] == [
        "expandable_segments:True",
        "",
        "max_split_size_mb:512",
    ]
    assert tuning.environment == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert tuning.best.most_reserved_bytes < tuning.default.most_reserved_bytes


def test_equal_settings_leave_the_default():
    with memwatch.profile() as prof:
        torch.empty(10)
    tuning = memwatch.tune(prof, settings=["max_split_size_mb:512"])
    assert tuning.best is tuning.default
    assert tuning.environment == ""
    assert "No setting is better than the default" in str(tuning)
    assert "export" not in str(tuning)


def test_lines_whose_tensors_split_segments_are_named_with_what_moving_them_saves(late):
    (line,) = memwatch.tune(late, settings=[]).earlier
    file, _, number = line.line.rpartition(":")
    assert file == __file__
    assert "kept.append" in Path(__file__).read_text().splitlines()[int(number) - 1]
    with memwatch.profile() as moved:
        kept = varying(early=True)
    assert kept
    twin = memwatch.tune(moved, settings=[])
    assert line.most_reserved_bytes == twin.default.most_reserved_bytes
    assert twin.earlier == ()


def test_a_device_that_is_too_small_is_told(late):
    enough, little = memwatch.tune(late, device_memory="1 GiB"), memwatch.tune(late, device_memory="20 MiB")
    assert enough.best.fits
    assert not little.best.fits
    assert "No setting fits the device of 20.00 MiB" in str(little)


def test_the_text_says_that_the_model_answered_and_why(late):
    text = " ".join(str(memwatch.tune(late)).split())
    assert (
        "These figures come from memwatch's model of torch's allocator, because MEMWATCH_C10_CUDA names"
        in text
    )


def test_figures_of_a_program_on_the_cpu_are_called_those_of_a_gpu_with_the_same_tensors(late):
    assert memwatch.tune(late).reading.device == "cpu"
    text = " ".join(str(memwatch.tune(late)).split())
    assert "recorded on the CPU, which has no such allocator" in text


def test_unknown_settings_and_sizes_are_wrong_usage(late):
    with pytest.raises(OptionError, match="does not know nonsense:1"):
        memwatch.tune(late, settings=["nonsense:1"])
    with pytest.raises(OptionError, match="without memory"):
        memwatch.tune(late, device_memory=0)


def test_a_block_without_allocations_has_nothing_to_tune():
    with memwatch.profile() as prof:
        pass
    with pytest.raises(MemwatchError, match="nothing to tune"):
        memwatch.tune(prof)


def snapshot_file(path, traces, segments):
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [each.entries for each in traces]}))
    return path


def test_a_snapshot_gives_streams_pools_and_completed_frees(tmp_path):
    """A block that another stream uses is still in use, and a block of another pool never becomes free."""
    trace = Trace()
    trace.add("alloc", BASE, 30 * MIB)
    trace.add("free_requested", BASE, 30 * MIB)
    trace.add("alloc", BASE + 40 * MIB, 30 * MIB)  # the first is still in use
    trace.add("free_completed", BASE, 30 * MIB)
    trace.free(BASE + 40 * MIB, 30 * MIB)
    trace.add("alloc", BASE, 30 * MIB)  # takes a free one
    trace.add("alloc", BASE + 80 * MIB, 30 * MIB, stream=7)
    trace.add("alloc", BASE + 120 * MIB, 30 * MIB, pool_id=(0, 1))
    file = snapshot_file(tmp_path / "snapshot.pickle", [trace], [])
    tuning = memwatch.tune(file, settings=[])
    assert tuning.default.reserved_bytes.tolist() == [n * 30 * MIB for n in (1, 2, 2, 2, 2, 3, 4)]


def test_each_device_of_a_snapshot_has_its_own_trace(tmp_path):
    first, second = Trace().add("alloc", BASE, 30 * MIB), Trace().add("alloc", BASE, 3 * MIB)
    second.add("alloc", BASE + 3 * MIB, 50 * MIB)
    file = snapshot_file(tmp_path / "snapshot.pickle", [first, second], [])
    assert memwatch.tune(file, settings=[], device="cuda:0").default.most_reserved_bytes == 30 * MIB
    assert memwatch.tune(file, settings=[], device="cuda:1").default.most_reserved_bytes == 70 * MIB


def test_blocks_from_before_the_history_are_allocated_first(tmp_path):
    old = segment(0, [block(BASE, 30 * MIB, 30 * MIB)], stream=7, kind="large")
    trace = Trace().add("alloc", BASE + 40 * MIB, 30 * MIB, stream=7)
    tuning = memwatch.tune(snapshot_file(tmp_path / "snapshot.pickle", [trace], [old]), settings=[])
    assert tuning.default.reserved_bytes.tolist() == [30 * MIB, 60 * MIB]


def test_a_free_that_the_history_lacks_comes_before_the_next_block_at_the_address(tmp_path):
    trace = Trace().add("alloc", BASE, 30 * MIB).add("alloc", BASE, 30 * MIB)
    tuning = memwatch.tune(snapshot_file(tmp_path / "snapshot.pickle", [trace], []), settings=[])
    assert tuning.default.most_reserved_bytes == 30 * MIB


@pytest.fixture
def capture(tmp_path):
    path = tmp_path / "late.memwatch"
    with memwatch.profile(path):
        kept = varying(early=False)
    assert kept
    return path


def test_the_command_prints_the_best_setting_last(capture, capsys):
    assert main(["tune", str(capture)]) == 0
    out = capsys.readouterr().out
    best = memwatch.tune(capture).best.settings
    assert best
    assert out.endswith(f"export PYTORCH_ALLOC_CONF={best}\n")
    assert "No setting can reserve less than" in out


def test_the_json_has_the_fields_of_its_record(capture, capsys):
    assert (
        main(
            [
                "tune",
                "--json",
                "--device-memory",
                "1GiB",
                "--setting",
                "expandable_segments:True",
                str(capture),
            ]
        )
        == 0
    )
    record = json.loads(capsys.readouterr().out)
    assert record.keys() == TuneRecord.__annotations__.keys()
    assert [each["settings"] for each in record["settings"]] == ["expandable_segments:True", ""]
    assert record["is_model"]


def test_the_command_exits_with_1_where_nothing_fits_and_2_for_wrong_usage(capture, capsys):
    assert main(["tune", "--device-memory", "20MiB", str(capture)]) == 1
    assert main(["tune", "--setting", "nonsense:1", str(capture)]) == 2
    assert "does not know nonsense:1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--device-memory", "much", str(capture)])
    assert ended.value.code == 2


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x80\x04junk", pickle.dumps(["a"]), b"neither"])
def test_other_files_end_in_one_line(tmp_path, capsys, content):
    file = tmp_path / "file"
    file.write_bytes(content)
    assert main(["tune", str(file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("memwatch: error: ")
    assert error.count("\n") == 1


def test_a_missing_file_ends_in_one_line(tmp_path, capsys):
    assert main(["tune", str(tmp_path / "none.memwatch")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_all_settings_that_are_tried_are_known_and_different():
    assert len(set(SETTINGS)) == len(SETTINGS)


def test_no_change_of_one_option_is_better_than_the_chosen_settings():
    """Sizes of many lengths: the best of the settings that are tried first gets better with another option."""
    chance = random.Random(0)

    def program():
        kept = []
        for _ in range(300):
            kept.append(torch.empty(chance.randrange(1, 40) * FLOATS))
            while len(kept) > 12:
                kept.pop(chance.randrange(len(kept)))

    with memwatch.profile() as prof:
        program()
    tuning = memwatch.tune(prof)
    others = list(_with_one_change(tuning.best.settings))
    assert len(others) > 15
    best = memwatch.tune(prof, settings=others).best
    assert tuning.best.most_reserved_bytes <= best.most_reserved_bytes
