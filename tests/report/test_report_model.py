"""The page's model, without a browser: its figures and texts equal the reading's."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import report_readings
from hypothesis import given
from hypothesis import strategies as st

import memwatch
from memwatch.kinds.roles import CATEGORIES
from memwatch.report.page.columns import Words, pack_frame, pack_ints
from memwatch.report.page.events import clearer_axis, live_by_category, pack_detail, peak_keeping_events, thin
from memwatch.report.page.model import page_model
from memwatch.report.page.parts import CodeReader
from memwatch.report.page.privacy import PathHider
from memwatch.report.page.write import json_for_script
from memwatch.text import visible

INT64 = st.integers(-(2**52), 2**52)


def unpack_ints(packed) -> list[int]:
    """Read a packed column, written from the definition of LEB128 and zigzag rather than from the writer."""
    values, value, shift = [], 0, 0
    for byte in gzip.decompress(base64.b64decode(packed["data"])):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append((value >> 1) ^ -(value & 1))
            value = shift = 0
    return np.cumsum(values).tolist() if packed["delta"] else values


@given(st.lists(INT64), st.booleans())
def test_columns_come_back_as_they_were(values, delta):
    """Packing loses nothing, for any integers, as they are or as differences."""
    assert unpack_ints(pack_ints(values, delta=delta)) == values


def test_the_step_of_the_peak_has_the_peak_in_it(training):
    """Its start and end are moments of the recording. A run without steps has none."""
    model = page_model(training)
    start, end = model["peak"]["step"]
    assert start in [{name: step[name] for name in ("time_ns", "event")} for step in model["steps"]]
    for name in ("time_ns", "event"):
        assert start[name] <= model["peak"][name] <= end[name]
    assert (end["event"] - start["event"]) < model["totals"]["events"]
    step = training.ops["step"].loc[model["peak"]["op"]]
    times_ns = training.timeline["time_ns"]
    assert start["time_ns"] <= times_ns[start["event"]]
    assert [each["name"] for each in model["steps"] if each["event"] == start["event"]] == [str(step)]


@given(st.lists(st.text()))
def test_texts_come_back_as_they_were(texts):
    """A text column is codes into the words, each word once."""
    words = Words(str)
    block = pack_frame(pd.DataFrame({"text": pd.Series(texts, dtype="str")}), words)
    known = json.loads(gzip.decompress(base64.b64decode(words.pack())))
    assert [known[code] for code in unpack_ints(block["columns"]["text"])] == texts
    assert len(set(known)) == len(known)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1), st.integers(1, 20))
def test_every_bin_keeps_its_maximum(steps, bins):
    """The overview has, in each stretch of time, the highest event of it, and the overall peak."""
    times = np.cumsum([step for step, _ in steps]).astype(np.int64)
    live = np.array([height for _, height in steps], dtype=np.int64)
    chosen = peak_keeping_events(times, live, bins)
    assert (np.diff(chosen) > 0).all()
    assert live[chosen].max() == live.max()
    assert live.argmax() in chosen
    span = max(times[-1] - times[0], 1)
    of_event = np.minimum((times - times[0]) / span * bins, bins - 1).astype(int)
    for each in set(of_event):
        assert live[chosen[of_event[chosen] == each]].max() == live[of_event == each].max()


def test_the_page_starts_with_the_axis_on_which_more_of_the_width_has_changes():
    """A slow start leaves an axis of time empty. Many small tensors leave one of events empty. Neither: time."""
    ups_and_downs = np.tile(np.array([8, 0], dtype=np.int64), 50)
    steady = np.arange(100, dtype=np.int64) * 1000
    slow_start = steady + np.where(steady > 0, 10**6, 0)
    small = np.concatenate([ups_and_downs, np.tile(np.array([0, 0, 0, 0], dtype=np.int64), 250)])
    assert clearer_axis(slow_start, ups_and_downs) == "events"
    assert clearer_axis(np.append(steady, steady[-1] + np.arange(1, 1001)), small) == "time"
    assert clearer_axis(steady, ups_and_downs) == "time"
    assert clearer_axis(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)) == "time"
    assert clearer_axis(np.zeros(9, dtype=np.int64), np.zeros(9, dtype=np.int64)) == "time"


def test_the_categories_add_up_at_every_event(training):
    """Splitting the curve by category loses no byte at any event."""
    timeline = training.timeline
    curves = live_by_category(training, np.arange(len(timeline)))
    assert (sum(curves.values()) == timeline["live_bytes"]).all()
    assert all((curve >= 0).all() for curve in curves.values())


def test_the_overview_of_a_long_run_holds_its_peak():
    """Of 20,000 events about 2,000 are drawn, the peak among them."""
    reading = report_readings.many_events(20_000)
    overview = page_model(reading)["overview"]
    assert not overview["complete"]
    totals = np.sum([overview["live_bytes"][name] for name in CATEGORIES], axis=0)
    assert totals.max() == reading.peak_bytes
    assert 1000 < len(totals) <= 2002


def test_packed_events_replay_to_the_timeline(training):
    """From storages and events alone every change of the live bytes follows."""
    detail = pack_detail(training, Words(str))
    storages, events = (
        {name: unpack_ints(column) for name, column in detail[block]["columns"].items()}
        for block in ("storages", "events")
    )
    last: dict[int, int] = {}
    sizes = []
    for site, grown in zip(storages["site"], storages["grown_bytes"], strict=True):
        last[site] = last.get(site, 0) + grown
        sizes.append(last[site])
    following = len(sizes) - events["who"].count(0)
    deltas, touched = [], []
    for who, beyond in zip(events["who"], events["beyond_bytes"], strict=True):
        number = following - who
        following += who == 0
        touched.append(storages["id"][number])
        deltas.append((sizes[number] if who == 0 else -sizes[number]) + beyond)
    assert deltas == training.timeline["delta_bytes"].tolist()[1:]
    assert touched == training.timeline["storage"].tolist()[1:]
    assert detail["other_baseline_bytes"] == 0


def packed_bytes(detail) -> int:
    blocks = (detail["sites"], detail["storages"], detail["events"])
    return sum(len(column["data"]) for block in blocks for column in block["columns"].values())


def test_a_page_too_large_leaves_out_short_lives_only():
    """With a third of the room the maxima that stay are exact, the peak among them."""
    reading = report_readings.many_events(40_000)
    room = packed_bytes(pack_detail(reading, Words(str))) // 3
    detail = pack_detail(reading, Words(str), most_bytes=room)
    assert packed_bytes(detail) <= room
    assert detail["left_out"] == len(reading.storages) - detail["storages"]["rows"] > 0
    timeline, _ = thin(reading.timeline, reading.storages, detail["storages"]["rows"])
    assert unpack_ints(detail["events"]["columns"]["row"]) == timeline.index.tolist()[1:]
    live = reading.baseline_bytes + timeline["delta_bytes"].cumsum()
    peak = reading.timeline["live_bytes"].idxmax()
    assert live.loc[:peak].iloc[-1] == reading.peak_bytes
    assert (live <= timeline["live_bytes"]).all()
    assert (live == timeline["live_bytes"]).sum() > 100


@given(st.text() | st.lists(st.text()))
def test_json_in_a_script_element_cannot_end_it(value):
    """No text can close the element, open a comment or break a line of script; it reads back unchanged."""
    written = json_for_script(value)
    assert not set(written) & set("<>&\u2028\u2029")
    assert json.loads(written) == value


@given(st.text())
def test_visible_text_has_no_control_characters(text):
    """The result cannot control a terminal. A text without control characters is unchanged."""
    assert visible(text).isprintable() or not any(
        ord(char) < 32 or 127 <= ord(char) < 160 for char in visible(text)
    )
    visible(text).encode("utf-8")
    if text.isascii() and text.isprintable():
        assert visible(text) == text


def test_paths_become_numbers():
    """Known files get a number each, longest first; any other absolute path is dropped."""
    hide = PathHider(["/home/me/a.py", "/home/me/a.py.bak/b.py", "relative/c.py"])
    assert hide("/home/me/a.py:3") == "file-1:3"
    assert hide("at /home/me/a.py.bak/b.py:4") == "at file-2:4"
    assert hide("relative/c.py:5") == "file-3:5"
    assert hide("saved to /home/me/secret/model.pt, C:\\Users\\me\\x.py") == "saved to (path) (path)"
    assert hide("aten.div.Tensor / 2 and a/b") == "aten.div.Tensor / 2 and a/b"


def test_source_lines_come_from_unchanged_python_files_only(tmp_path):
    """A line is shown only from a Python file that is as old as the run; no other file is ever read."""
    script, secret = tmp_path / "train.py", tmp_path / "secret.txt"
    script.write_text("x = 1\n    y = 2\n")
    secret.write_text("password\n")
    started = script.stat().st_mtime + 10
    code = CodeReader(started)
    assert code.line(str(script), 2) == "y = 2"
    assert code.line(str(script), 9) == ""
    assert code.line(str(secret), 1) == ""
    assert code.line("\0", 1) == code.line(str(tmp_path), 1) == code.line("<stdin>", 1) == ""
    assert "<stdin>" not in code.unread
    assert str(script) not in code.unread
    os.utime(script, (started + 5, started + 5))
    later = CodeReader(started)
    assert later.line(str(script), 2) == ""
    assert later.unread == [str(script)]


def test_the_page_names_files_whose_code_it_does_not_show(tmp_path):
    """A script that was edited after the run has other lines. Without paths, the page names no file."""
    script, capture = tmp_path / "train.py", tmp_path / "run.memwatch"
    script.write_text("import torch\nkept = [torch.ones(100_000).mul(2)]\n")
    command = [sys.executable, "-m", "memwatch", "run", "-q", "-o", str(capture), str(script)]
    subprocess.run(command, check=True, cwd=tmp_path)
    reading = memwatch.load(capture)
    assert page_model(reading)["unread"] == ""
    os.utime(script, (time.time() + 100, time.time() + 100))
    assert "no code of train.py." in page_model(reading)["unread"]
    assert page_model(reading, source=False)["unread"] == ""


def test_memory_without_a_line_is_of_no_file():
    """A line that is not known has an empty file, which is none that was left unread."""
    code = CodeReader(0.0)
    assert code.line("", 1) == ""
    assert code.unread == []


def test_a_shared_text_names_no_file_by_its_short_name_either():
    """Advice names files as a person does. Two files with one name are not distinguished, and other words stay."""
    hide = PathHider(["/home/me/job/train.py", "/home/me/a/net.py", "/home/me/b/net.py"])
    told = hide("used at job/train.py:7, train.py:12 and net.py:3 of pretrain.py:1; see train.py")
    assert told == "used at file-3:7, file-3:12 and (file):3 of pretrain.py:1; see train.py"


def test_the_bundle_is_built_from_its_sources():
    """Whoever changes web/ builds the page again (`make page`); the digest that the build wrote tells."""
    web = Path(__file__).parents[2] / "web"
    digest = hashlib.sha256()
    for path in [web / "build.mjs", web / "package-lock.json", *sorted((web / "src").iterdir())]:
        digest.update(path.read_bytes())
    assert digest.hexdigest() == (web / "sources.sha256").read_text().strip(), "run `make page`"


@pytest.mark.parametrize("name", ["uplot", "d3-flame-graph", "@tanstack/virtual-core"])
def test_the_licences_go_with_the_page(name):
    """The page holds the licence of every library bundled in it."""
    assert (
        f"\n{name} "
        in "\n" + (Path(__file__).parents[2] / "memwatch/report/page/assets/licences.txt").read_text()
    )
