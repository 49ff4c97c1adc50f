"""A disk that fills up while a program is recorded: the program goes on, and no row is lost."""

from __future__ import annotations

import contextlib
import resource

import pytest
import torch

import memwatch
from memwatch.capture import CaptureError, load
from memwatch.capture.file import CaptureWriter
from memwatch.record import flush

KIB = 1024


@contextlib.contextmanager
def files_up_to(nbytes):
    """Let no file grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def work(ops):
    x = torch.ones(64, 64)
    for _ in range(ops):
        x = x + 1
    return x


@pytest.mark.parametrize("native", ["1", "0"], ids=["native", "python"])
def test_a_full_disk_does_not_stop_the_program_and_loses_no_row(native, tmp_path, monkeypatch):
    """Rows that do not fit into the file stay in memory.

    A warning and a note report it, and every tensor dies on time.
    """
    monkeypatch.setenv("MEMWATCH_NATIVE", native)
    monkeypatch.setattr(flush, "FLUSH_OPS", 200)
    path = tmp_path / "full.memwatch"
    with (
        files_up_to(100 * KIB),
        pytest.warns(RuntimeWarning, match=r"full\.memwatch.*make room"),
        memwatch.profile(path) as prof,
    ):
        result = work(5000)
    with memwatch.profile() as whole:
        work(5000)
    assert result[0, 0] == 5001
    assert list(prof.ops["name"]) == list(whole.ops["name"])
    assert prof.peak_increase_bytes == whole.peak_increase_bytes
    assert [note for note in prof.notes if note not in whole.notes] == [
        note for note in prof.notes if note[0] == "file"
    ]
    assert [kind for kind, _ in prof.notes].count("file") == 1
    assert 0 < len(memwatch.load(path).ops) < len(prof.ops)


def test_rows_go_into_the_file_in_the_end_when_there_is_room_again(tmp_path, monkeypatch):
    """A disk that was full for a while leaves no trace."""
    monkeypatch.setattr(flush, "FLUSH_OPS", 200)
    path = tmp_path / "room.memwatch"
    with memwatch.profile(path) as prof:
        work(200)
        with files_up_to(KIB):
            work(2000)
        work(100)
    with memwatch.profile() as whole:
        work(2300)
    assert prof.notes == whole.notes
    assert len(memwatch.load(path).ops) == len(prof.ops)
    assert memwatch.load(path).peak_bytes == prof.peak_bytes


def test_a_write_that_does_not_fit_leaves_no_journal(tmp_path):
    """SQLite has written a part of it into the file when the disk is full. A copy of the file alone is whole."""
    path = tmp_path / "full.memwatch"
    writer = CaptureWriter(path)
    writer.write_meta({"complete": False})
    rows = [(number, f"{number:x}" * 1000) for number in range(4000)]  # more than SQLite's cache
    with files_up_to(200 * KIB), pytest.raises(CaptureError, match="make room"):
        writer.write({}, rows)
    assert [each.name for each in tmp_path.iterdir()] == ["full.memwatch"]
    assert load(path).meta == {"complete": False}
    writer.write({}, rows)  # there is room again
    writer.close()
    assert len(load(path).strings) == len(rows)


def test_a_file_that_cannot_be_begun_leaves_nothing(tmp_path):
    """Entering the block raises, torch is unchanged, and no half-written file is left."""
    path = tmp_path / "none.memwatch"
    with files_up_to(0), pytest.raises(CaptureError, match=r"cannot write .*none\.memwatch"):
        memwatch.profile(path).__enter__()
    assert not path.exists()
    with memwatch.profile(path) as prof:
        work(10)
    assert len(prof.ops) == 11
