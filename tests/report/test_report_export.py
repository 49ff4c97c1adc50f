"""Exports: other programs read what the tables say."""

from __future__ import annotations

import io
import json

import pandas as pd
import pytest
import report_readings

from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.report.export import FORMATS, ExportError, export


@pytest.mark.parametrize("table", sorted(DERIVED_BY_NAME))
def test_csv_reads_back_as_the_table(training, table):
    """Every derived table survives the way through CSV."""
    frame = getattr(training, table)
    back = pd.read_csv(
        io.StringIO(export(training, "csv", table=table)), index_col="index", keep_default_na=False
    )
    assert back.columns.tolist() == frame.columns.tolist()
    for column in frame:
        if frame[column].dtype.kind in "iufb":
            # an unknown number is an empty field
            assert pd.to_numeric(back[column]).tolist() == pytest.approx(frame[column].tolist(), nan_ok=True)
        else:
            assert back[column].astype(str).tolist() == frame[column].astype(str).tolist()


def test_json_holds_every_table(training):
    """JSON has the totals and each table's columns and rows."""
    value = json.loads(export(training, "json"))
    assert value["stats"]["peak_bytes"] == training.peak_bytes
    for name in DERIVED_BY_NAME:
        frame = getattr(training, name)
        assert value["tables"][name]["columns"][1:] == frame.columns.tolist()
        assert len(value["tables"][name]["rows"]) == len(frame)


def test_speedscope_weighs_the_peak(training):
    """The samples of the flame graph weigh the peak together; each starts at the root."""
    value = json.loads(export(training, "speedscope"))
    (profile,) = value["profiles"]
    assert profile["unit"] == "bytes"
    assert sum(profile["weights"]) == profile["endValue"] == training.peak_bytes
    assert len(profile["samples"]) == len(profile["weights"])
    frames = value["shared"]["frames"]
    assert all(frames[sample[0]]["name"] == "peak" for sample in profile["samples"])
    assert max(max(sample) for sample in profile["samples"]) < len(frames)


def test_the_chrome_trace_has_every_op_and_the_curve(training):
    """Each op is a complete event; the counter's categories add up to the live bytes at every event."""
    events = json.loads(export(training, "chrome"))["traceEvents"]
    ops = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in ops] == training.ops["name"].tolist()
    counters = [sum(event["args"].values()) for event in events if event["ph"] == "C"]
    assert counters == training.timeline["live_bytes"].tolist()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_hostile_names_survive_every_format(name):
    """Undecodable and controlling names neither break a format nor its reader."""
    text = export(report_readings.hostile(), name)
    text.encode("utf-8")
    if name != "csv":
        json.loads(text)


def test_what_does_not_exist_is_named():
    """An unknown format or table is one clear error that lists the known ones."""
    with pytest.raises(ExportError, match="'pdf' is not an export format; choose one of csv, json"):
        export(report_readings.empty(), "pdf")
    with pytest.raises(ExportError, match="'capture' is not a table; choose one of ops"):
        export(report_readings.empty(), "csv", table="capture")
