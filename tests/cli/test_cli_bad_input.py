"""Typical mistakes of newcomers: the message repeats the wrong input and names the right one."""

from __future__ import annotations

import errno
import re
import subprocess
import sys

import pandas as pd
import pytest

import memwatch
from memwatch.cli.main import main

WRONG = {
    "a capture that is a script": ("summary {folder}/train.py", "train.py is not a memwatch capture; record one"),
    "a capture that is a directory": ("summary {folder}", "is a directory; name a capture"),
    "captures that are scripts": ("merge {folder}/train.py", "train.py is not a memwatch capture; record one"),
    "a plan that is not there": ("replay {capture} --plan {folder}/no.plan", "no.plan is not a file; write one with"),
    "a plan that is a script": ("replay {capture} --plan {folder}/train.py", "train.py is not a plan; write one with"),
    "a capture to import": ("import {capture}", "is a memwatch capture already; memwatch summary shows it"),
    "a trace that is not there": ("transform {capture} chrome --into {folder}/no.json -o {folder}/both.json",
                                  "no.json is not a file; name a file that export_chrome_trace"),
    "a script that ends early": ("fit --in-place --limit 1GiB -c __import__('sys').exit(3)",
                                 "made no step of an optimizer of torch before it called sys.exit(3); train with one"),
}  # fmt: skip


USAGE = {
    "no capture": ("summary", "required: capture; name a capture, the file that `memwatch run SCRIPT` writes"),
    "one capture to compare": ("diff a.memwatch", "required: new; name a second capture"),
    "no captures to merge": ("merge", "required: captures; name captures, as `memwatch merge train.rank*.memwatch`"),
    "no plan": ("replay a.memwatch", "required: --plan; give --plan FILE; `memwatch plan CAPTURE -o FILE` writes"),
    "an option with a slip": ("run --stack a.py", "--stack; did you mean --stacks? `memwatch run --help` lists"),
    "an option of no verb": ("tree --zzz a.memwatch", "arguments: --zzz; `memwatch tree --help` lists the options"),
}  # fmt: skip


@pytest.mark.words
@pytest.mark.parametrize("wrong", USAGE)
def test_a_malformed_command_says_what_to_type(wrong, capsys):
    line, told = USAGE[wrong]
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.words
def test_a_pattern_that_matches_no_file_is_not_taken_for_a_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["merge", "train.rank*.memwatch"]) == 1
    assert "no file matches train.rank*.memwatch; name captures" in " ".join(capsys.readouterr().err.split())


@pytest.mark.words
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_input_is_one_line_with_the_next_step(narrow, tmp_path, capsys, monkeypatch, wrong):
    """Exit code 1, without a traceback, a file, or advice that leads nowhere."""
    line, told = WRONG[wrong]
    (tmp_path / "train.py").write_text("print('ran')\n")
    monkeypatch.chdir(tmp_path)
    assert main([word.format(folder=tmp_path, capture=narrow) for word in line.split()]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (error,) = [line for line in said.err.splitlines() if not line.startswith("memwatch: fit runs")]
    assert told in error
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("verb", ["run", "leaks"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_capture_in_place_of_a_program_is_not_run(tmp_path, monkeypatch, capsys, verb, exists):
    """Also not if the file holds Python: its name is that of a capture. The message has the way to run it."""
    monkeypatch.chdir(tmp_path)
    if exists:
        (tmp_path / "text.memwatch").write_text("print('ran')\n")
    assert main([verb, "text.memwatch"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "rename it if it is a program" in said.err
    assert said.err.endswith("summary text.memwatch\n")


def test_swapped_arguments_of_transform_are_put_right(narrow, capsys):
    """An unknown format is another error."""
    for words, told in (
        (["csv", str(narrow)], f"transform {narrow} csv"),
        ([str(narrow), "cvs"], "no format 'cvs'"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["transform", *words])
        assert told in capsys.readouterr().err


def test_a_merge_without_one_of_its_captures_fails(narrow, wide, tmp_path, capsys):
    """The others are shown. Without a file that cannot be read, the exit code is 0."""
    lost = tmp_path / "lost.memwatch"
    lost.write_text("no capture")
    assert main(["merge", str(narrow), str(wide), str(lost)]) == 1
    said = capsys.readouterr()
    assert "2 processes" in said.out
    assert re.search(r"error: .*1 of 3 captures.*lost\.memwatch", said.err)
    assert main(["merge", str(narrow), str(wide)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["train.py", "--epochs", "1"], "memwatch run train.py --epochs 1"),
        (["train.memwatch"], "memwatch summary train.memwatch"),
    ],
)
def test_a_file_in_place_of_a_verb_is_told_the_command(words, meant, capsys):
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(f"{meant}\n")


def test_a_file_in_place_of_a_module_is_told_the_option(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["run", "-m", "package/train.py"])
    assert "leave -m out to run package/train.py" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["summary", "estimate", "run"])
def test_an_unknown_option_is_told_by_the_verb(capsys, verb):
    """The usage above the error is the verb's own, which has the options that there are."""
    with pytest.raises(SystemExit, match="2"):
        main([verb, "--nonsense", "x"])
    assert capsys.readouterr().err.startswith(f"usage: memwatch {verb} ")


@pytest.mark.parametrize(
    "line",
    [
        "transform {capture} json --table storages",
        "transform {capture} chrome --table storages",
        "estimate --in-place --rank 5 train.py",
        "estimate --in-place train.py --device H100",
        "estimate --in-place train.py --device=H100 --epochs 1",
        "estimate --in-place --largest-batch --device cpu --device-memory 1GiB train.py --batch {{batch}}",
    ],
)
def test_an_option_that_another_one_makes_meaningless_is_refused(line, narrow, capsys):
    """It would be ignored in silence, and the result would be another one than asked for."""
    with pytest.raises(SystemExit, match="2"):
        main([word.format(capture=narrow) for word in line.split()])
    assert capsys.readouterr().out == ""


OWN_BLOCKS = """
import torch, memwatch
model = torch.nn.Linear(64, 64)
for _ in range(2):
    with memwatch.profile() as prof:
        model(torch.ones(256, 64)).sum().backward()
    print(len(prof.ops))
"""


def test_a_recording_of_a_program_ends_where_the_program_opens_a_block(
    shell_memwatch, fresh_python, tmp_path
):
    """The first thing that `memwatch run` meets is often the script of the quick start, which has a block."""
    plain = fresh_python(OWN_BLOCKS)
    (tmp_path / "program.py").write_text(OWN_BLOCKS)
    done = shell_memwatch("run", "-o", "a.memwatch", "program.py")
    assert done.stdout == plain.stdout
    assert not done.returncode
    before = memwatch.load(tmp_path / "a.memwatch")
    assert any(kind == "ended" for kind, _ in before.notes)
    assert "addmm" not in " ".join(before.ops["name"])
    assert len(before.ops)


def test_a_page_after_a_blank_is_told_the_equals_sign(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--html", "page.html", "train.py"])
    assert "--html=page.html" in capsys.readouterr().err


def test_an_interrupt_of_memwatchs_own_work_is_one_line(narrow, capsys, monkeypatch):
    """Ctrl-C while a verb reads or writes shows no way through memwatch's code, and still ends by the signal."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # put back after the test
    monkeypatch.setattr("memwatch.reading.load", interrupted)
    with pytest.raises(KeyboardInterrupt) as error:
        main(["summary", str(narrow)])
    sys.excepthook(error.type, error.value, error.tb)
    assert capsys.readouterr().err == "memwatch: interrupted\n"


def test_words_of_a_script_about_a_card_stay_the_scripts(shell_memwatch, tmp_path):
    """An argument may contain what looks like an option."""
    program = "import sys, torch\nassert sys.argv[2] == 'use --device H100 now'\ntorch.ones(9)\n"
    (tmp_path / "program.py").write_text(program)
    done = shell_memwatch("estimate", "--in-place", "program.py", "--prompt", "use --device H100 now")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Estimated peak")


@pytest.mark.words
@pytest.mark.parametrize(
    ("verb", "meant"), [("summry", "did you mean summary? "), ("qqqq", "")], ids=["near", "far"]
)
def test_an_unknown_verb_is_told_the_nearest_one(verb, meant, capsys):
    assert main([verb, "train.memwatch"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error == f"memwatch: error: there is no verb {verb}; {meant}`memwatch --help` lists all verbs"


@pytest.mark.words
@pytest.mark.parametrize("name", ["{foo}.memwatch", "{rank", "a.{rank}.{}.memwatch"])
def test_an_unknown_field_of_a_file_name_is_told_the_known_ones(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('ran')\n")
    assert main(["run", "-o", name, "train.py"]) == 2
    said = capsys.readouterr()
    assert "unknown field {" in said.err
    assert said.err.endswith("; use {rank}, {pid}, {host}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_script_may_have_braces_in_its_name(shell_memwatch, tmp_path):
    """The twin: the capture is named after the script, which has no fields."""
    (tmp_path / "{foo}.py").write_text("print('ran')\n")
    assert shell_memwatch("run", "{foo}.py").returncode == 0
    assert list(tmp_path.glob("{foo}.*.memwatch"))


@pytest.mark.words
def test_a_working_directory_that_is_gone_is_told(tmp_path, capsys, monkeypatch):
    (tmp_path / "gone").mkdir()
    (tmp_path / "train.py").write_text("print('ran')\n")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["run", str(tmp_path / "train.py")]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error == "memwatch: error: the working directory no longer exists; change to another one"


def test_a_standard_output_without_room_is_told(narrow, tmp_path):
    with open("/dev/full", "w", encoding="utf-8") as full:
        words = [sys.executable, "-m", "memwatch", "summary", narrow]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert done.returncode == 1
    (error,) = done.stderr.splitlines()
    assert error.startswith("memwatch: error: cannot write to standard output: No space left on device; ")


@pytest.mark.words
@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda _: memwatch.load(None), "None is not a path"),
        (lambda _: memwatch.estimate(3), "estimate() runs a function, and 3 is not one"),
        (lambda _: memwatch.find_leaks(3), "find_leaks() runs a function, and 3 is not one"),
        (lambda _: memwatch.profile(intercept="x"), "intercept='x' is unknown"),
        (lambda capture: memwatch.load(capture).summary(rows=float("nan")), "rows=nan is not a whole number"),
        (lambda capture: memwatch.load(capture).summary(rows=-1), "rows=-1 is not a whole number"),
    ],
)
def test_a_wrong_argument_of_a_function_is_an_error_of_memwatch(narrow, call, told):
    with pytest.raises(memwatch.MemwatchError, match=re.escape(told)):
        call(narrow)


def test_a_dataset_that_cannot_be_finished_leaves_nothing(narrow, tmp_path, monkeypatch):
    """The disk is full at the third table. A second try with room succeeds."""
    folder, tries = tmp_path / "ds", iter(range(100))
    write = pd.DataFrame.to_parquet

    def full_at_the_third(*args, **options):
        if next(tries) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args, **options)

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full_at_the_third)
    assert main(["transform", str(narrow), "parquet", "-o", str(folder)]) == 1
    assert not folder.exists()
    assert main(["transform", str(narrow), "parquet", "-o", str(folder)]) == 0
    assert len(list(folder.rglob("*.parquet"))) > 3
