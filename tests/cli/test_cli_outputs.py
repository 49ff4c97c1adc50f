"""Outputs of verbs never replace an input, another output or a device. Paths are checked before the program runs."""

from __future__ import annotations

import os
import shutil
import signal
import stat

import pytest

import memwatch
from memwatch.capture.file import CaptureWriter, read_head
from memwatch.cli.main import main
from memwatch.output_files import OutputError, check_outputs, identity_of, remove_if_same, whole_file

PROGRAM = "import torch\nprint('ran')\nx = torch.ones(1000)\nfor _ in range(10): x = x + 1\n"

ONTO_AN_INPUT = {
    "run": "run -f -o {input} {folder}/train.py",
    "run with a page": "run -f -o {folder}/new.memwatch --html={input} {folder}/train.py",
    "estimate": "estimate -f -o {input} {folder}/train.py",
    "report": "report -f -o {input} {folder}/a.memwatch",
    "plan": "plan -f -o {input} {folder}/a.memwatch",
    "merge": "merge -f -o {input} {folder}/a.memwatch",
    "diff, the old one": "diff -f -o {input} {folder}/a.memwatch {folder}/b.memwatch",
    "diff, the new one": "diff -f -o {input} {folder}/b.memwatch {folder}/a.memwatch",
    "transform to csv": "transform {folder}/a.memwatch csv -f -o {input}",
    "transform to a snapshot": "transform {folder}/a.memwatch memory_viz -f -o {input}",
    "import": "import {folder}/a.pickle -f -o {input}",
}
"""Commands that would replace a file which they read."""


def read_by(verb):
    first = verb.split()[0]
    return "train.py" if first in ("run", "estimate") else "a.pickle" if first == "import" else "a.memwatch"


@pytest.fixture
def folder(narrow, wide, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    shutil.copy(narrow, tmp_path / "a.memwatch")
    shutil.copy(wide, tmp_path / "b.memwatch")
    assert main(["transform", str(narrow), "memory_viz", "-o", str(tmp_path / "a.pickle")]) == 0
    return tmp_path


@pytest.mark.parametrize("name", ["itself", "symbolic link", "hard link", "other spelling"])
@pytest.mark.parametrize("verb", ONTO_AN_INPUT)
def test_no_verb_replaces_a_file_that_it_reads(folder, capsys, verb, name):
    """By whatever name it is given, with -f too: exit code 1, one line, and the file is as it was."""
    source = folder / read_by(verb)
    before = source.read_bytes()
    other = folder / "other.name"
    if name == "symbolic link":
        other.symlink_to(source)
    elif name == "hard link":
        os.link(source, other)
    else:
        other = source if name == "itself" else folder / ".." / folder.name / source.name
    capsys.readouterr()
    words = ONTO_AN_INPUT[verb].format(folder=folder, input=other).split()
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("memwatch: error: ")
    assert "replace" in line
    assert source.read_bytes() == before
    assert identity_of(other) is not None
    assert not (folder / "new.memwatch").exists()


@pytest.mark.parametrize("form", ["module", "module of a package", "package"])
def test_run_does_not_replace_the_module_that_it_runs(folder, shell_memwatch, form):
    """`-m` names no file, and still the file is an input."""
    names = {"module": "train", "module of a package": "pack.train", "package": "pack"}
    file = {"module": "train.py", "module of a package": "pack/train.py", "package": "pack/__main__.py"}[form]
    (folder / "pack").mkdir()
    (folder / "pack/__init__.py").write_text("print('imported')\n")
    (folder / file).write_text(PROGRAM)
    done = shell_memwatch("run", "-f", "-o", file, "-m", names[form])
    assert (done.returncode, done.stdout) == (1, "")
    assert (folder / file).read_text() == PROGRAM


def test_two_outputs_of_one_name_are_refused_before_the_program_runs(folder, shell_memwatch):
    """`--html` equal to `-o` would replace the capture after the program has run."""
    for words in (["-o", "x.out", "--html=./x.out"], ["-f", "-o", "a.memwatch", "--html=a.memwatch"]):
        done = shell_memwatch("run", *words, "train.py")
        assert (done.returncode, done.stdout) == (1, "")
        assert "another output" in done.stderr
    assert not (folder / "x.out").exists()
    done = shell_memwatch("run", "-o", "x.out", "--html=y.html", "train.py")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert {"x.out", "y.html"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("verb", ["run", "report", "transform", "plan"])
def test_a_device_and_a_pipe_are_not_replaced(folder, capsys, verb):
    """As root a rename would put a file in place of /dev/null."""
    os.mkfifo(folder / "pipe")
    (folder / "null").symlink_to(os.devnull)
    words = {
        "run": ["run", "-f", "{}", str(folder / "train.py")],
        "report": ["report", "-f", "{}", str(folder / "a.memwatch")],
        "transform": ["transform", "-f", "{}", str(folder / "a.memwatch"), "csv"],
        "plan": ["plan", "-f", "{}", str(folder / "a.memwatch")],
    }[verb]
    for target in (folder / "pipe", folder / "null"):
        before = identity_of(target)
        assert main([word.replace("{}", f"-o{target}") for word in words]) == 1
        assert "is not a regular file" in capsys.readouterr().err
        assert identity_of(target) == before
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_link_is_replaced_and_its_target_stays(folder):
    """Every format is written beside the link and renamed: nothing is written through it."""
    (folder / "target").write_text("mine")
    for words in (["a.memwatch", "csv"], ["a.memwatch", "memory_viz"]):
        link = folder / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(folder / "target")
        assert main(["transform", str(folder / words[0]), words[1], "-f", "-o", str(link)]) == 0
        assert not link.is_symlink()
        assert (folder / "target").read_text() == "mine"
    assert not list(folder.glob(".memwatch-*"))


def test_a_link_that_leads_nowhere_is_a_file_that_exists(folder, capsys):
    (folder / "link").symlink_to(folder / "nowhere")
    assert main(["report", "-o", str(folder / "link"), str(folder / "a.memwatch")]) == 1
    assert "exists" in capsys.readouterr().err
    assert (folder / "link").is_symlink()


def test_the_standard_output_is_an_output(folder):
    """A page that replaces the file of the shell's `>` would lose the command's output."""
    saved = os.dup(1)
    with (folder / "said").open("w") as stdout:
        os.dup2(stdout.fileno(), 1)
    try:
        with pytest.raises(OutputError, match="standard output"):
            check_outputs([folder / "said"], force=True)
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def test_run_with_force_replaces_an_old_capture(folder, shell_memwatch):
    """The twin of all this: a file that is neither an input nor special is replaced as before."""
    done = shell_memwatch("run", "-f", "-o", "a.memwatch", "train.py")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert 8000 <= memwatch.load(folder / "a.memwatch").peak_bytes < 9000


def test_a_block_that_fails_leaves_the_old_file(tmp_path):
    target = tmp_path / "page"
    target.write_text("old")

    def fails():
        with whole_file(target, force=True) as part:
            part.write_text("half")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fails()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page", "old")]


def _race_of_writers(target, *, force):
    """Let four processes make a capture of one name at once; return their exit codes in order."""
    ready, go = os.pipe()
    children = []
    for _ in range(4):
        if (child := os.fork()) == 0:
            os.close(go)
            os.read(ready, 1)  # until the parent closes its end
            code = 0
            try:
                writer = CaptureWriter(target, force=force)
                writer.write_meta({"command": [str(os.getpid())]})
                writer.close()
            except memwatch.MemwatchError:
                code = 1
            except BaseException:
                code = 2
            finally:
                os._exit(code)
        children.append(child)
    os.close(ready)
    os.close(go)
    return sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def test_of_processes_that_create_one_name_one_wins_and_keeps_it(tmp_path):
    """The others fail and remove only their own files."""
    for number in range(30):
        target = tmp_path / f"{number}.memwatch"
        assert _race_of_writers(target, force=False) == [0, 1, 1, 1]
        assert read_head(target).meta["command"]
    assert len(list(tmp_path.iterdir())) == 30


def test_of_processes_that_replace_one_name_the_last_one_keeps_it(tmp_path):
    """However they meet, the file is whole and one of them wrote it; no two of them lose it together."""
    target = tmp_path / "one.memwatch"
    for _ in range(40):
        codes = _race_of_writers(target, force=True)
        assert codes[0] == 0
        assert set(codes) <= {0, 1}
        assert read_head(target).meta["command"]
        assert os.listdir(tmp_path) == ["one.memwatch"]


def test_only_the_file_that_was_made_is_removed(tmp_path):
    target = tmp_path / "x"
    target.touch()
    made = identity_of(target)
    target.rename(tmp_path / "y")  # its inode stays in use
    target.write_text("theirs")
    remove_if_same(target, made)
    assert target.read_text() == "theirs"
    remove_if_same(tmp_path / "y", made)
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("ending", ["SIGTERM", "SIGHUP"])
def test_run_writes_everything_before_a_signal_ends_it(ending, folder, shell_memwatch):
    """The last flush was long before: the ops since are in the file, and nothing of the program runs on."""
    code = f"import os, signal\nos.kill(os.getpid(), signal.{ending})\nprint('goes on')\n"
    (folder / "ended.py").write_text(PROGRAM + code)
    done = shell_memwatch("run", "-o", "ended.memwatch", "ended.py")
    assert done.returncode == -signal.Signals[ending]
    assert "goes on" not in done.stdout
    reading = memwatch.load(folder / "ended.memwatch")
    assert len(reading.ops) >= 11
    assert reading.meta["complete"] is False


@pytest.mark.parametrize("words", [["run", "-o"], ["import", "-o"], ["report", "-o"], ["run", "--html="]])
def test_force_replaces_captures_and_pages_and_no_other_file(folder, shell_memwatch, words):
    """`-o` before the name of another script would cost that script."""
    (folder / "other.py").write_text("print('mine')\n")
    name = [f"{words[1]}other.py"] if words[1].endswith("=") else [words[1], "other.py"]
    source = {"run": "train.py", "import": "dump.pickle", "report": "a.memwatch"}[words[0]]
    assert (
        main(["transform", str(folder / "a.memwatch"), "memory_viz", "-o", str(folder / "dump.pickle")]) == 0
    )
    done = shell_memwatch(words[0], "-f", *name, source)
    assert (done.returncode, done.stdout) == (1, "")
    assert "so -f does not replace it" in done.stderr
    assert (folder / "other.py").read_text() == "print('mine')\n"


def test_force_replaces_an_empty_file(folder, shell_memwatch):
    """`mktemp` makes one."""
    (folder / "made").touch()
    assert shell_memwatch("run", "-f", "-o", "made", "train.py").returncode == 0
    assert memwatch.load(folder / "made").peak_bytes > 0


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["-o", "x.memwatch"], True),
        (["--limit=3GiB"], True),
        (["--lr", "1"], False),
        (["-c", "config.py"], False),
    ],
)
def test_an_option_of_memwatch_behind_a_program_that_refuses_it_is_told(
    tmp_path, shell_memwatch, monkeypatch, words, is_told
):
    """The program gets it, and says only that it does not know it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    done = shell_memwatch("run", "train.py", *words)
    assert done.returncode == 2
    told = (
        f"`{words[0]}` went to the program; if you mean memwatch's option, put it before the program's name"
    )
    assert (told in done.stderr) is is_told


def test_a_limit_of_zero_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--limit", "0", "train.py"])
    assert "leaves no room for any tensor" in capsys.readouterr().err


def test_two_captures_for_a_verb_that_reads_one_lead_to_diff(capsys):
    with pytest.raises(SystemExit):
        main(["summary", "a.memwatch", "b.memwatch"])
    assert "`memwatch diff` compares two" in capsys.readouterr().err


def test_a_report_on_a_file_that_is_no_capture_says_so_before_the_page_that_exists(folder, capsys):
    (folder / "notes.txt").write_text("no capture")
    (folder / "notes.html").write_text("a page")
    assert main(["report", str(folder / "notes.txt")]) == 1
    assert "notes.html exists" not in capsys.readouterr().err
