"""The file format: a capture is read as it was written. Damaged, foreign and newer files are refused in one error."""

from __future__ import annotations

import os
import re
import sqlite3

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import memwatch
from memwatch.capture import Capture, CaptureError, load, save
from memwatch.capture.check import check_is_database
from memwatch.capture.columns import INTEGER_TABLES, Note
from memwatch.capture.derived import DERIVED
from memwatch.capture.schema import FORMAT_VERSION, OLDEST_FORMAT, RECORDED_BY_NAME

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(), max_size=20)  # with lone surrogates: file names may hold them
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXTS | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def captures(draw):
    """Any texts, notes and values of the program, beside rows that refer to nothing."""
    columns = {}
    for name, kept in {"process": 3, "allocator": 0}.items():
        width = len(RECORDED_BY_NAME[name].columns)
        rows = draw(st.lists(st.lists(st.integers(0, 2**50), min_size=width, max_size=width), max_size=kept))
        columns[name] = list(np.array(rows, dtype=np.int64).reshape(-1, width).T)
    notes = draw(st.lists(st.builds(Note, INTEGERS, TEXTS, TEXTS), max_size=3))
    names = TEXTS.map("of the program: {}".format)  # else one may be memwatch's own, whose values are checked
    meta = draw(st.dictionaries(names, VALUES, max_size=4))
    return Capture.from_columns(columns, draw(st.lists(TEXTS, max_size=5)), meta, notes)


def assert_same(one, other):
    assert (one.strings, one.meta, one.notes) == (other.strings, other.meta, other.notes)
    for name in INTEGER_TABLES:
        for column, values in one.tables[name].items():
            np.testing.assert_array_equal(values, other.tables[name][column])


@given(capture=captures())
@settings(deadline=None, max_examples=60)
def test_what_is_saved_is_loaded(capture, tmp_path_factory):
    """Every text and every JSON value survives."""
    path = tmp_path_factory.mktemp("file") / "x.memwatch"
    save(capture, path)
    assert_same(load(path), capture)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A real capture in a file."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("recorded") / "real.memwatch"
    model = torch.nn.Linear(8, 8)
    with memwatch.profile(path) as prof:
        model(torch.ones(4, 8)).sum().backward()
        prof.step()
    return path


def test_a_file_reads_as_the_profile_did(recorded, tmp_path):
    """Recording into a file, saving and loading keep every table, total and text."""
    first = memwatch.load(recorded)
    first.save(tmp_path / "again.memwatch")
    second = memwatch.load(tmp_path / "again.memwatch")
    for table in DERIVED:
        frame = getattr(first, table.name)
        assert list(frame.columns) == list(table.names)
        assert frame.equals(getattr(second, table.name))
    assert first.summary() == second.summary()


def test_a_file_is_kept_unless_forced(recorded, tmp_path):
    """Neither recording nor saving replaces a file unasked, and a failed save leaves nothing behind."""
    taken = tmp_path / "taken.memwatch"
    taken.write_text("precious")
    reading = memwatch.load(recorded)
    with pytest.raises(CaptureError, match=r"exists; .* pass force=True to replace it"):
        reading.save(taken)
    with pytest.raises(CaptureError, match=r"exists; .* remove it first"), memwatch.profile(taken):
        pass
    with pytest.raises(CaptureError, match="create it first"):
        reading.save(tmp_path / "nowhere" / "x.memwatch")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.memwatch"]
    assert taken.read_text() == "precious"
    reading.save(taken, force=True)
    assert memwatch.load(taken).peak_bytes == reading.peak_bytes


INTERNAL = re.compile(r": 'births?\\|: 'tables'|int\(\)|argument|NoneType|object")
"""Texts of Python's own errors."""


@given(share=st.floats(0, 1, exclude_max=True))
@settings(deadline=None, max_examples=40)
def test_a_truncated_file_is_refused(share, recorded, tmp_path_factory):
    """Whatever the length it was cut to, the file is refused with its name, its length and the next step."""
    whole = recorded.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "cut.memwatch"
    length = int(share * len(whole))
    path.write_bytes(whole[:length])
    said = f"it is cut off: it has {length} of " if length else "is not a memwatch capture"
    with pytest.raises(CaptureError, match=rf"cut\.memwatch .*{said}.*record"):
        load(path)


@given(data=st.data())
@settings(deadline=None, max_examples=80)
def test_a_damaged_file_is_refused_or_read(data, recorded, tmp_path_factory):
    """Bytes that changed give a capture or one clear error, never another failure."""
    damaged = bytearray(recorded.read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "x.memwatch"
    path.write_bytes(damaged)
    try:
        assert isinstance(load(path), Capture)
    except CaptureError as error:
        assert "x.memwatch" in str(error)  # noqa: PT017  # both ways are right


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE chunks SET rows = 'text'",
        "UPDATE chunks SET rows = rows + 1",
        "UPDATE chunks SET low = NULL",
        "UPDATE chunks SET high = 1 << 40",
        "UPDATE chunks SET data = x'00'",
        "UPDATE chunks SET data = NULL",
        "UPDATE chunks SET data = x'00', checksum = 3523407757",
        "UPDATE chunks SET \"column\" = 'colour'",
        "UPDATE chunks SET \"table\" = 'tables'",
        "UPDATE chunks SET \"table\" = 'birth' || char(0)",
        "DELETE FROM chunks WHERE \"column\" = 'storage'",
        "UPDATE strings SET id = 'one'",
        "UPDATE strings SET id = 9000000000000",
        "DELETE FROM strings",
        "UPDATE meta SET value = '{'",
        "UPDATE meta SET value = NULL",
        "UPDATE meta SET value = x'80'",
        "DROP TABLE chunks",
        "ALTER TABLE chunks DROP COLUMN low",
    ],
)
def test_wrong_values_are_refused(change, recorded, tmp_path):
    """A database of the right kind whose values are of the wrong kind is refused in one clear error."""
    path = tmp_path / "wrong.memwatch"
    path.write_bytes(recorded.read_bytes())
    with sqlite3.connect(path) as database:
        database.execute(change)
    with pytest.raises(CaptureError, match=r"wrong\.memwatch") as refused:
        load(path)
    assert not INTERNAL.search(str(refused.value))


def test_a_newer_format_asks_for_an_upgrade(recorded, tmp_path):
    """A file of a later memwatch is distinguished from a damaged one."""
    path = tmp_path / "newer.memwatch"
    path.write_bytes(recorded.read_bytes())
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    with pytest.raises(CaptureError, match=r"newer\.memwatch.*upgrade"):
        load(path)


def test_an_older_format_is_recorded_again(recorded, tmp_path):
    """A file of an earlier memwatch lacks columns: one sentence explains this, and the next step."""
    path = tmp_path / "older.memwatch"
    path.write_bytes(recorded.read_bytes())
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {OLDEST_FORMAT - 1}")
    with pytest.raises(CaptureError, match=r"older\.memwatch.*an older memwatch wrote.*record it again"):
        load(path)


def test_an_older_format_that_lacks_only_a_table_is_read(recorded, tmp_path):
    """A file that was recorded before views were reads as before: every peak and every word of other ops."""
    path = tmp_path / "older.memwatch"
    path.write_bytes(recorded.read_bytes())
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {OLDEST_FORMAT}")
        database.execute("DELETE FROM chunks WHERE \"table\" IN ('views', 'numbers')")
    older, now = load(path), load(recorded)
    assert older.rows("views") == older.rows("numbers") == 0 < now.rows("views")
    older, now = (memwatch.load(each) for each in (path, recorded))
    assert older.peak_bytes == now.peak_bytes
    assert older.storages[["nbytes", "category", "op_name"]].equals(
        now.storages[["nbytes", "category", "op_name"]]
    )


def test_reading_leaves_the_file_alone(recorded):
    """Reading writes nothing: a file in a place where nothing may be written is read as well."""
    before = recorded.read_bytes()
    recorded.chmod(0o444)
    recorded.parent.chmod(0o555)
    try:
        memwatch.load(recorded).summary()
    finally:
        recorded.parent.chmod(0o755)
    assert recorded.read_bytes() == before
    assert [path.name for path in recorded.parent.iterdir()] == [recorded.name]


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to(path), lambda path: path.symlink_to("gone")]
)
def test_what_is_there_but_no_file_is_not_named_as_an_output(tmp_path, make):
    path = tmp_path / "run.memwatch"
    make(path)
    with pytest.raises(CaptureError, match="not a regular file; name a capture") as info:
        check_is_database(path)
    assert "memwatch run -o" not in str(info.value)
