"""The option `--device` of the verbs that read captures."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import memwatch
from memwatch.cli.main import main
from memwatch.sizes import format_bytes

HERE_BYTES, THERE_BYTES = 96 * 1024, 160 * 1024
VERBS = [["summary"], ["stats"], ["tree"], ["transform", "json"], ["report", "-f"]]


def record(path, there, here_bytes=HERE_BYTES):
    """Record a program with tensors of the host and of an accelerator into a file."""
    with FakeTensorMode(), memwatch.profile(path):
        kept = (
            torch.empty(here_bytes, dtype=torch.uint8),
            torch.empty(THERE_BYTES, dtype=torch.uint8, device=there),
        )
    del kept
    return str(path)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return record(tmp_path_factory.mktemp("devices") / "two.memwatch", "cuda:0")


@pytest.mark.parametrize(
    ("device", "nbytes"), [("cpu", HERE_BYTES), ("cuda:0", THERE_BYTES), ("cuda", THERE_BYTES)]
)
def test_a_verb_is_about_the_device_that_is_named(two, capsys, device, nbytes):
    """Totals and tables are of the device; JSON has the peak of every device."""
    assert main(["stats", "--json", two, "--device", device]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["peak_bytes"] == figures["allocated_bytes"] == nbytes
    assert {name: each["peak_bytes"] for name, each in figures["devices"].items()} == {
        "cuda:0": THERE_BYTES,
        "cpu": HERE_BYTES,
    }
    assert main(["transform", two, "json", "--device", device]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["peak_bytes"] == nbytes
    for verb in ("summary", "tree", "diff"):
        assert main([verb, two, *([two] if verb == "diff" else []), "--device", device]) == 0
        assert format_bytes(nbytes) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sizes"), [([], {HERE_BYTES, THERE_BYTES}), (["--device", "cpu"], {HERE_BYTES})]
)
def test_a_snapshot_has_every_device_or_the_one_that_is_named(two, tmp_path, words, sizes):
    target = tmp_path / "two.pickle"
    assert main(["transform", two, "memory_viz", "-o", str(target), *words]) == 0
    events = [event for events in pickle.loads(target.read_bytes())["device_traces"] for event in events]
    assert {event["size"] for event in events} - {0} == sizes


def test_the_summary_begins_with_every_device(two, capsys):
    """The peaks of all devices come before any table, first the device that the tables describe."""
    assert main(["summary", two]) == 0
    head = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert head[0].startswith(f"Peak {format_bytes(THERE_BYTES)} ")
    assert head[0].endswith("(cuda:0)")
    assert any(
        line.startswith(f"Peak {format_bytes(HERE_BYTES)} ") and line.endswith("(cpu)") for line in head
    )
    assert not any(format_bytes(HERE_BYTES + THERE_BYTES) in line for line in head)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_an_unknown_device_is_one_line(verb, two, capsys):
    """Exit code 1, with the wanted device and the existing ones."""
    assert main([verb[0], two, *verb[1:], "--device", "xpu"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert all(word in told.err for word in ("'xpu'", "cuda:0", "cpu"))


def test_diff_compares_the_same_device(two, tmp_path, capsys):
    """Each device is compared with itself; captures about different ones are refused in one line."""
    grown = record(tmp_path / "grown.memwatch", "cuda:0", HERE_BYTES + 1024)
    other = record(tmp_path / "other.memwatch", "cuda:1")
    assert main(["diff", "--json", two, grown]) == 0
    assert not any(site["delta_bytes"] for site in json.loads(capsys.readouterr().out)["sites"])
    assert main(["diff", "--json", two, grown, "--device", "cpu"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["device"] == "cpu"
    assert figures["new_peak_bytes"] - figures["old_peak_bytes"] == 1024
    assert sum(site["delta_bytes"] for site in figures["sites"]) == 1024
    assert main(["diff", two, other]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "cuda:0" in told
    assert "cuda:1" in told
