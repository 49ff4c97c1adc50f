"""Captures from anybody: a hostile file is refused in one line, within 5 seconds and 1 GiB, and nothing of it runs."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import pickle
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import traceback

import numpy as np
import psutil
import pytest
import torch
from hostile_files import ESCAPE, HOSTILE, database

import memwatch
from memwatch.capture import CaptureError, load, save
from memwatch.capture.check import check_is_database
from memwatch.capture.columns import INTEGER_TABLES, Capture
from memwatch.capture.file import CaptureWriter, add_summary, read_head
from memwatch.cli.common import command_line
from memwatch.cli.main import main
from memwatch.encoding import decode
from memwatch.ranks.summary import is_summary, summarise
from memwatch.text import JsonError, read_json

MOST_S, MOST_BYTES = 5, 1 << 30


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "good.memwatch"
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    with memwatch.profile(path):
        for _ in range(5):
            model(torch.ones(16, 8)).sum().backward()
    return path


def exit_code(*words, said):
    """Run a verb in a child that may take no more than a hostile file is granted; return its exit code."""
    resident_bytes = psutil.Process().memory_info().rss
    child = os.fork()
    if child == 0:
        code = 99
        try:
            for number, name in ((1, os.devnull), (2, said)):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
            # the test measures resident memory; pyarrow alone reserves more addresses than that
            most = pages * resource.getpagesize() + 4 * MOST_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))
            with open(2, "w", closefd=False) as sys.stderr:
                code = main(list(words))
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    assert usage.ru_maxrss * 1024 < resident_bytes + MOST_BYTES
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("verb", ["summary", "merge"])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_file_is_refused_in_little_time_and_memory(hostile, verb, good, tmp_path):
    """Exit code 1 and one line that names the file and holds no character that would steer a terminal."""
    path = tmp_path / "x.memwatch"
    shutil.copy(good, path)
    HOSTILE[hostile](path)
    assert exit_code(verb, str(path), said=tmp_path / "said") == 1
    (line,) = (tmp_path / "said").read_text().splitlines()
    assert line.startswith("memwatch: error: ")
    assert "x.memwatch" in line
    assert line.isprintable()


@pytest.mark.parametrize("verb", ["summary", "merge", "stats"])
def test_the_good_file_is_read_within_the_same_limits(good, tmp_path, verb):
    assert exit_code(verb, str(good), said=tmp_path / "said") == 0


@pytest.mark.parametrize("hostile", ["nested brackets", "meta without end", "strings in a ring"])
def test_one_hostile_file_does_not_end_a_merge(hostile, good, tmp_path, capsys):
    paths = [tmp_path / f"{number}.memwatch" for number in range(3)]
    for path in paths:
        shutil.copy(good, path)
    HOSTILE[hostile](paths[1])
    assert main(["merge", *map(str, paths)]) == 1
    assert "1.memwatch" in "".join(capsys.readouterr().out.split())  # a long path is broken between lines


@pytest.mark.whole
def test_many_equal_rows_are_read_if_memwatch_saved_them(tmp_path):
    """In the file of an imported snapshot all rows of a column may be equal. It is made as long as its rows claim."""
    rows = 3 << 20
    empty = Capture.from_columns({}, ["cpu"], {"complete": True}, [])
    columns = {"history": [np.zeros(rows, dtype=np.int64)] * len(empty.tables["history"])}
    save(Capture.from_columns(columns, ["cpu"], {"complete": True}, []), tmp_path / "x.memwatch")
    assert load(tmp_path / "x.memwatch").rows("history") == rows
    assert sum(load(tmp_path / "x.memwatch").rows(name) for name in INTEGER_TABLES) == rows


def killed_in_a_write(good, path):
    """Leave a file whose writer was killed after it had changed pages, and its journal."""
    child = os.fork()
    if child == 0:
        shutil.copy(good, path)
        writing = sqlite3.connect(path, isolation_level=None)
        writing.execute("PRAGMA cache_size = 1")
        writing.execute("PRAGMA cache_spill = 1")
        writing.execute("BEGIN")
        writing.executemany("INSERT INTO strings VALUES (?, ?)", [(9000 + n, "x" * 3000) for n in range(200)])
        writing.execute("UPDATE strings SET text = text || 'x'")
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    journal = path.with_name(f"{path.name}-journal")
    assert journal.stat().st_size > 0
    return journal


def test_what_a_killed_writer_had_half_written_is_undone(good, tmp_path):
    path = tmp_path / "x.memwatch"
    journal = killed_in_a_write(good, path)
    assert load(path).strings == load(good).strings
    assert not journal.exists()
    killed_in_a_write(good, path)
    assert read_head(path).meta == read_head(good).meta


def test_a_new_capture_has_nothing_of_a_killed_writer_of_its_name(good, tmp_path):
    """SQLite would put the pages of the old file back into the new one."""
    path = tmp_path / "x.memwatch"
    for force in (True, False):
        journal = killed_in_a_write(good, path)
        if not force:
            path.unlink()
        writer = CaptureWriter(path, force=force)
        writer.write_meta({"command": ["new"]})
        writer.close()
        assert read_head(path).meta == {"command": ["new"]}
        assert not journal.exists()


def test_a_half_written_file_that_you_may_not_write_is_read_from_a_copy(good, tmp_path, monkeypatch):
    """The write is undone in the copy. The file and its journal stay, and the copy goes."""
    path, copies = tmp_path / "x.memwatch", tmp_path / "copies"
    copies.mkdir()
    journal = killed_in_a_write(good, path)
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    connect = sqlite3.connect

    def read_only_here(database, **options):
        """Root may write in every folder, so a folder that may not be written is simulated."""
        return connect(database.replace("x.memwatch?mode=rw", "x.memwatch?mode=ro"), **options)

    monkeypatch.setattr(sqlite3, "connect", read_only_here)
    before = path.read_bytes(), journal.read_bytes()
    assert load(path).strings == load(good).strings
    assert read_head(path).meta == read_head(good).meta
    assert (path.read_bytes(), journal.read_bytes()) == before
    assert not list(copies.iterdir())


def test_a_journal_that_names_another_file_is_refused_and_that_file_stays(good, tmp_path):
    """After a rollback SQLite removes the file that a journal names as its super-journal, whatever it is."""
    path, victim = tmp_path / "x.memwatch", tmp_path / "victim"
    victim.write_bytes(b"")
    journal = killed_in_a_write(good, path)
    name = os.fsencode(victim)
    checksum = sum(name).to_bytes(4, "big")
    end = len(name).to_bytes(4, "big") + checksum + bytes.fromhex("d9d505f920a163d7")
    journal.write_bytes(journal.read_bytes() + (1 << 30).to_bytes(4, "big") + name + end)
    with pytest.raises(CaptureError, match=r"x\.memwatch-journal names another file"):
        load(path)
    assert victim.exists()


def test_reading_does_not_write(good, tmp_path):
    path = tmp_path / "x.memwatch"
    shutil.copy(good, path)
    before = path.stat().st_mtime_ns
    load(path)
    read_head(path)
    assert path.stat().st_mtime_ns == before
    assert os.listdir(tmp_path) == ["x.memwatch"]


def test_a_summary_of_a_newer_format_is_read_whatever_other_tables_it_has(good, tmp_path):
    """A merge names the version of a rank; only the table that it reads has to be as it knows it."""
    path = tmp_path / "x.memwatch"
    shutil.copy(good, path)
    with database(path) as opened:
        opened.execute("PRAGMA user_version = 999")
        opened.execute("CREATE TABLE later (x INTEGER)")
    assert read_head(path).format_version == 999
    check_is_database(path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 500 + "]" * 500,
        '{"a":' * 65 + "1" + "}" * 65,
        "9" * 10**6,
        "-" + "1" * 5000,
        "{",
        "\ud800",
    ],
)
def test_json_that_is_deep_long_or_wrong_is_one_error(text):
    with pytest.raises(JsonError):
        read_json(text)


def test_json_that_memwatch_writes_is_read():
    value = {"a": [[1, -2.5, "x", None, True]] * 3, "b": {"c": [[[[1 << 62]]]]}, "d": 10**300}
    assert read_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": "memwatch-plan", "version": 2, "kind": [' + "[" * 2000]
)
def test_a_plan_that_is_nested_deeply_is_no_plan(text, good, tmp_path, capsys):
    (tmp_path / "x.plan").write_text(text)
    assert main(["replay", str(good), "--plan", str(tmp_path / "x.plan")]) == 1
    assert "is not a plan" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["summary"], ["merge"], ["report", "-f"], ["stats"]])
def test_a_file_name_with_escape_sequences_is_printed_without_them(words, good, tmp_path, capsys):
    """This holds for the "Next:" line, for errors and for tables. The shell gets the name unchanged."""
    path = tmp_path / f"a'{ESCAPE.replace('/', '')}.memwatch"
    shutil.copy(good, path)
    assert main([*words, str(path)]) == 0
    said = capsys.readouterr()
    if words[0] != "report":  # its path is for programs, where no terminal reads it
        assert "\x1b" not in said.out + said.err
    path.write_bytes(b"no capture")
    assert main([*words, str(path)]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_the_next_command_can_be_typed_whatever_the_name(good, tmp_path):
    name = "a'b\\c\x1b[31m\x07\udcff é $HOME"
    line = command_line("printf", "%s", name)
    assert line.isprintable()
    assert subprocess.run(["bash", "-c", line], check=True, capture_output=True).stdout == os.fsencode(name)


def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path, capsys):
    """`import` reads memory snapshots of torch, which are pickles, without Python's unpickler."""

    class Runs:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    (tmp_path / "x.pickle").write_bytes(pickle.dumps({"segments": [Runs()], "device_traces": []}))
    assert main(["import", str(tmp_path / "x.pickle")]) == 1
    assert "none of it was run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.pickle"]


WRONG_SUMMARIES = {
    "nothing else": lambda summary: {"version": summary["version"]},
    "a device that is a number": lambda summary: summary | {"device": 3},
    "a peak that is text": lambda summary: summary | {"peak_bytes": "much"},
    "a peak of 80 bits": lambda summary: summary | {"peak_bytes": 1 << 80},
    "steps of unequal length": lambda summary: summary | {"steps": {**summary["steps"], "end_ns": []}},
    "steps that are no list": lambda summary: (
        summary | {"steps": {**summary["steps"], "peak_bytes": {"a": 1}}}
    ),
    "sites that are short": lambda summary: summary | {"sites": [["a", "b"]]},
    "a million sites": lambda summary: summary | {"sites": [["a", "b", "c", "d", 1, 1]] * 1000},
    "categories that are a list": lambda summary: summary | {"category_bytes": [1]},
    "a place that is null": lambda summary: summary | {"peak_at": None},
}


@pytest.mark.parametrize("wrong", WRONG_SUMMARIES)
def test_a_wrong_summary_of_a_rank_is_not_believed(wrong, good, tmp_path, capsys):
    """The tables of the file are read instead, so that the merge says the same as without the summary."""
    path = tmp_path / "x.memwatch"
    shutil.copy(good, path)
    right = summarise(load(good))
    assert is_summary(json.loads(json.dumps(right)))
    add_summary(path, WRONG_SUMMARIES[wrong](right))
    other = tmp_path / "y.memwatch"
    shutil.copy(good, other)
    assert main(["merge", str(path), str(other), "-o", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    add_summary(path, right)
    assert main(["merge", str(path), str(other), "-f", "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    "text", ['{"dtype": "load"}', '{"t": ["hub", [1], [1], 0, ""]}', '{"x": 1}', "{}", "[" * 10**5]
)
def test_an_argument_that_no_recorder_writes_is_one_error(text):
    """A file cannot name just any function of torch as a dtype."""
    with pytest.raises(memwatch.MemwatchError):
        decode(text)
    assert decode('{"dtype": "float32"}') is torch.float32


def repeated(table, rows):
    """Return the columns of a table with its last row many times more."""
    return {name: np.concatenate([values, np.repeat(values[-1:], rows)]) for name, values in table.items()}


def saved(capture, path, **tables):
    save(dataclasses.replace(capture, tables={**capture.tables, **tables}), path)
    return str(path)


@pytest.mark.parametrize("form", ["chain", "ring"])
def test_modules_within_modules_without_end_are_read_as_modules_of_their_own(form, good, tmp_path, capsys):
    """The name of each holds the names above it: 5000 levels would take gigabytes."""
    capture = load(good)
    modules = repeated(capture.tables["modules"], 5000)
    numbers = np.arange(len(modules["module"]))
    modules["module"], modules["parent"] = numbers, numbers - 1
    modules["name"][:] = modules["name"][-1]
    if form == "ring":
        modules["parent"][0] = numbers[-1]
    path = saved(capture, tmp_path / "x.memwatch", modules=modules)
    assert exit_code("summary", path, said=tmp_path / "said") == 0
    assert any("are read as modules of their own" in text for _, text in memwatch.load(path).notes)
    assert not any("modules" in text for kind, text in memwatch.load(good).notes if kind == "damaged")


def test_functions_within_functions_without_end_are_read(good, tmp_path):
    capture = load(good)
    vertices = repeated(capture.tables["vertices"], 5000)
    vertices["vertex"] = np.arange(len(vertices["vertex"]))
    vertices["inner"] = vertices["vertex"] - 1
    edges = {name: np.asarray(values).copy() for name, values in capture.tables["edges"].items()}
    edges["owner"][:] = vertices["vertex"][-1]
    path = saved(capture, tmp_path / "x.memwatch", vertices=vertices, edges=edges)
    for kind in range(20):
        vertices["kind"][:] = kind
        (tmp_path / "x.memwatch").unlink()
        saved(capture, tmp_path / "x.memwatch", vertices=vertices, edges=edges)
        assert "Peak" in memwatch.load(path).summary()


def test_a_name_of_megabytes_is_cut_and_a_note_says_so(good, tmp_path):
    """The name would be repeated in every row. Arguments of ops are not names and stay whole."""
    path = tmp_path / "x.memwatch"
    for number, name in enumerate(load(good).strings):
        if name.isidentifier():
            shutil.copy(good, path)
            with database(path) as opened:
                opened.execute("UPDATE strings SET text = ? WHERE id = ?", ("ab.c/" * 10**6, number))
            break
    assert exit_code("summary", str(path), said=tmp_path / "said") == 0
    assert max(map(len, load(path).strings)) == 4096
    assert any("longer than 4,096 characters" in text for _, text in memwatch.load(path).notes)
    with memwatch.profile(replay=True) as prof:
        torch.cat([torch.ones(2) for _ in range(200)])
    prof.save(tmp_path / "replay.memwatch")
    longest = max(prof.capture.strings, key=len)
    assert len(longest) > 4096
    assert longest in load(tmp_path / "replay.memwatch").strings


@pytest.mark.parametrize(
    ("table", "change"), [("births", lambda values: values * 0 - 1), ("deaths", lambda values: values[::-1])]
)
def test_times_in_an_impossible_order_are_read_by_each_verb(table, change, good, tmp_path):
    read = load(good)
    columns = {
        each: [np.array(read.tables[each][name]) for name in read.tables[each]] for each in INTEGER_TABLES
    }
    place = list(read.tables[table]).index("time_ns")
    columns[table][place] = change(columns[table][place])
    path = tmp_path / "x.memwatch"
    save(Capture.from_columns(columns, list(read.strings), dict(read.meta), []), path)
    for words in (["summary"], ["stats"], ["report", "-f"]):
        assert main([*words, str(path)]) in (0, 1)
