"""Captures that disagree with themselves: read as far as they go, with a note, or refused in a sentence."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch.capture import load, save
from memwatch.capture.check import _KINDS, checked
from memwatch.capture.columns import Capture, empty_tables, encoded
from memwatch.capture.file import read_tables
from memwatch.capture.schema import RECORDED
from memwatch.errors import CaptureError, DamagedCaptureError
from memwatch.reading import Reading
from memwatch.report.stats import stats

FAR = (-7, 10**6, 2**40, 2**62, -(2**63), 2**63 - 1)
READ_EVERY = 60
"""All captures are checked, but only one of so many is read, because reading takes most of the time."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A capture with a row in most tables."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("whole") / "x.memwatch"
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    with memwatch.profile(path) as prof:
        for _ in range(2):
            checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
        torch.ones(4).untyped_storage().resize_(400)
    return path


@pytest.fixture(scope="module")
def tables(path):
    return {name: dict(table) for name, table in read_tables(path).items() if table.rows}


@pytest.fixture(scope="module")
def chunks(tables):
    """The tables as a file has them: made once, for each test changes one table of them."""
    return {name: encoded(np.stack(list(columns.values()), axis=1)) for name, columns in tables.items()}


def with_table(chunks, name, columns):
    """Return the tables as a file has them, one of them changed."""
    found = empty_tables()
    for each, whole in chunks.items():
        if each != name:
            found[each].append_chunks(whole)
    found[name].append(np.stack(list(columns.values()), axis=1))
    return found


def changes(tables):
    """Yield a table and its columns: emptied, halved, or with a number that cannot be, in one row or in all."""
    for name, columns in tables.items():
        rows = len(next(iter(columns.values())))
        for part in (slice(0), slice(rows // 2), slice(rows // 2, None)):
            yield name, {column: values[part] for column, values in columns.items()}
        for column, values in columns.items():
            for number in FAR:
                for part in (slice(rows // 2, rows // 2 + 1), slice(None)):
                    changed = values.astype(np.int64)
                    changed[part] = number
                    yield name, {**columns, column: changed}


def test_every_table_and_column_that_disagrees_is_read_or_refused(path, tables, chunks, sampled):
    """Every table emptied and halved, every column with numbers out of range: no reading ends in a traceback.

    A sample of the tests has a fifth of these, and so each column in several of the ways.
    """
    whole, outcomes = load(path), {"read": 0, "refused": 0}
    for number, (name, columns) in enumerate(sampled(changes(tables), 5)):
        try:
            capture = checked(with_table(chunks, name, columns), whole.strings, whole.meta, whole.notes)
            outcomes["read"] += 1
            if number % READ_EVERY == 0:
                reading = Reading(capture)
                assert reading.summary()
                assert stats(reading)
                assert [len(getattr(reading, each)) for each in ("uses", "modules", "steps", "saved")]
        except DamagedCaptureError as error:
            outcomes["refused"] += 1
            assert "`" in str(error)  # noqa: PT017  # both ways are right
    assert min(outcomes.values()) > 0.06 * sum(outcomes.values())  # 100 of all


def test_what_was_changed_is_noted(path, tables, chunks):
    """A use of an unknown storage is left out, an unknown module becomes "no module", and the notes report both."""
    whole = load(path)
    uses, ops = tables["uses"], tables["ops"]
    capture = checked(
        with_table(chunks, "uses", {**uses, "storage": np.where(uses["op"] == 3, 10**6, uses["storage"])}),
        whole.strings, whole.meta, [],
    )  # fmt: skip
    assert capture.rows("uses") == (uses["op"] != 3).sum()
    assert [note.kind for note in capture.notes] == ["damaged"]
    assert "`uses` were changed or left out, for `storage` holds 1000000" in capture.notes[0].text
    capture = checked(
        with_table(chunks, "ops", {**ops, "module": np.full(len(ops["op"]), 9)}),
        whole.strings,
        whole.meta,
        [],
    )
    assert set(capture.tables["ops"]["module"].tolist()) == {-1}


OF_NO_KIND = (None, -1, "x", True, {"a": {"b": 1}}, [[1]], 10**400, float("inf"), float("nan"))
"""No entry of `meta` may have more than two of these as its value."""


def test_every_entry_of_where_it_was_recorded_may_be_wrong(path, tables, chunks, tmp_path):
    """An entry whose value cannot be is left out, which the notes say; nothing that reads ends in a traceback."""
    whole = load(path)
    assert set(whole.meta) <= set(_KINDS)
    for number, name in enumerate(whole.meta):
        wrong = [value for value in OF_NO_KIND if not _KINDS[name](value)]
        assert len(wrong) >= len(OF_NO_KIND) - 2
        for value in wrong:
            changed = checked(
                with_table(chunks, "ops", tables["ops"]), whole.strings, {**whole.meta, name: value}, []
            )
            assert name not in changed.meta
            assert [note.kind for note in changed.notes] == ["damaged"]
            assert f"`{name}`" in changed.notes[0].text
        if number % 8 == 0:
            assert Reading(changed).summary()
    missing = checked(with_table(chunks, "ops", tables["ops"]), whole.strings, {}, [])
    assert Reading(missing).summary()
    Reading(missing).report(tmp_path / "page.html")
    assert "memwatch-ready" in (tmp_path / "page.html").read_text()


def test_a_job_is_merged_though_a_rank_has_lost_its_place(path, tmp_path):
    """A file's facts about its process are checked even if only the summary is read."""
    broken = tmp_path / "broken.memwatch"
    shutil.copy(path, broken)
    with contextlib.closing(sqlite3.connect(broken)) as database, database:
        for name in ("pid", "parent_pid", "rank", "world_size", "host", "started_s"):
            database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, json.dumps({"a": [1]})))
            database.execute("DELETE FROM meta WHERE key = ? AND value NOT LIKE '{%'", (name,))
    assert memwatch.merge([path, broken]).peak_bytes == memwatch.load(path).peak_bytes


def test_a_whole_capture_has_no_note_of_damage(path):
    assert [note.kind for note in load(path).notes if note.kind == "damaged"] == []


def test_ops_without_their_numbers_are_refused(path, tables, tmp_path):
    """Other tables refer to ops by number, so the file is useless. One sentence names the column and the file."""
    whole = load(path)
    columns = {each: list(table.values()) for each, table in tables.items()}
    columns["ops"][0] = columns["ops"][0][::-1] // 2
    save(Capture.from_columns(columns, whole.strings, whole.meta, []), tmp_path / "y.memwatch")
    with pytest.raises(CaptureError, match=r"y\.memwatch.*`op` of `ops` does not number.*record it again"):
        load(tmp_path / "y.memwatch")


def test_the_schema_says_what_each_number_refers_to():
    """A reference names a table of integers or the texts; a number of things has no other bound."""
    names = {table.name for table in RECORDED}
    for table in RECORDED:
        for column in table.columns:
            assert column.refers is None or (column.refers.to in names) != bool(column.refers.choices)
