"""`--json` on an imported snapshot, which lacks data that was not recorded: each record has the documented fields."""

from __future__ import annotations

import json
import pickle

import pytest
from pydantic import ConfigDict, TypeAdapter, with_config
from snapshot_dicts import PEAK_BYTES, two_devices

from memwatch.cli.main import main
from memwatch.report.records import schema

RECORDS = {"summary": schema.SummaryRecord, "tree": schema.TreeRecord, "diff": schema.DifferenceRecord}


@pytest.fixture
def capture(tmp_path, capsys):
    """Return the path of a capture that was imported from a snapshot."""
    path = tmp_path / "dump.pickle"
    path.write_bytes(pickle.dumps(two_devices()))
    assert main(["import", str(path)]) == 0
    capsys.readouterr()
    return path.with_suffix(".memwatch")


@pytest.mark.parametrize("verb", RECORDS)
def test_records_of_a_snapshot_have_the_documented_fields(verb, capture, capsys):
    """Missing data are empty values of their own type, at every depth of the record."""
    files = [str(capture)] * (1 + (verb == "diff"))
    assert main([verb, "--json", *files]) == 0
    record = json.loads(capsys.readouterr().out)
    kind = TypeAdapter(with_config(ConfigDict(extra="forbid"))(RECORDS[verb]))
    assert kind.validate_python(record, strict=True) == record


def test_figures_of_a_snapshot_are_plain_json(capture, capsys):
    """`stats` has no figure that JSON lacks, as NaN, and the peak of the device."""
    assert main(["stats", "--json", "--device", "cuda:0", str(capture)]) == 0
    figures = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert figures["peak_bytes"] == PEAK_BYTES["cuda:0"]


def test_a_plan_of_a_snapshot_is_refused_in_a_sentence(capture, capsys):
    """A snapshot has no arguments of ops. The sentence shows how to record them."""
    assert main(["plan", "--json", str(capture)]) == 1
    assert "profile(replay=True)" in capsys.readouterr().err
