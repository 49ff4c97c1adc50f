"""Sizes and numbers of options: a wrong one is wrong usage. The verb exits with 2 before anything runs."""

from __future__ import annotations

import pytest

from memwatch.cli.main import main
from memwatch.sizes import SizeError, parse_bytes

WRONG = (
    "fit --limit 8giga {program}",
    "fit {program} --limit 8giga",
    "fit --limit=-1 {program}",
    "fit --limit -5MiB {program}",
    "fit {program} --limit -5MiB",
    "fit --steps none {program}",
    "fit --ways nope --limit 1GiB {program}",
    "run --limit 8giga {program}",
    "run --limit cuda:0=8giga {program}",
    "run --limit cuda:0= {program}",
    "run --limit 0.5 {program}",
    "run --every 0 {program}",
    "plan --budget 8giga {capture}",
    "plan --budget sixty% {capture}",
    "plan --budget 0.5 {capture}",
    "plan --time-limit 1.5 {capture}",
    "plan --seed x {capture}",
    "estimate --rank=-1 {program}",
    "estimate --rank 2 --world-size 2 {program}",
    "estimate --world-size 0 {program}",
    "summary -n many {capture}",
    "stats -n 0 {capture}",
    "merge -n 0 {capture}",
    "diff --fail-above 5 {capture} {capture}",
)


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_number_is_wrong_usage(line, narrow, tmp_path, capsys):
    """The output is the usage of the verb and one line. The program does not run, and no file is written."""
    program = tmp_path / "train.py"
    program.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    verb, *words = line.format(program=program, capture=narrow).split()
    with pytest.raises(SystemExit) as error:
        main([verb, *words])
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: memwatch {verb} ")
    assert said.splitlines()[-1].startswith(f"memwatch {verb}: error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.words
@pytest.mark.parametrize(
    "line", ["fit --limit -5MiB train.py", "fit --limit=-5MiB train.py", "fit train.py --limit -5MiB"]
)
def test_a_negative_size_is_called_negative(line, capsys):
    with pytest.raises(SystemExit):
        main(line.split())
    assert "'-5MiB' is negative" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run --limit gpu0=1GiB train.py", "--limit has a limit of 'gpu0'; name"),
    ],
)
def test_a_name_that_means_nothing_is_wrong_usage(line, told, shell_memwatch, tmp_path):
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    done = shell_memwatch(*line.split())
    assert done.returncode == 2
    (error,) = done.stderr.splitlines()
    assert told in error
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_right_numbers_are_taken(narrow, capsys):
    """The twin: numbers that the same options take."""
    assert main(["summary", "-n", "3", str(narrow)]) == 0
    assert main(["diff", "--fail-above", "5%", str(narrow), str(narrow)]) == 0


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 400 + ".5 MiB", f"{'9' * 5000} TiB"])
def test_a_size_of_thousands_of_digits_is_no_size(text):
    with pytest.raises(SizeError, match="is not a size"):
        parse_bytes(text)


def test_a_small_number_without_a_unit_is_no_size():
    """It means gigabytes or a share. A number of bytes from a program has no unit either, and is taken."""
    with pytest.raises(SizeError, match="'8' has no unit"):
        parse_bytes("8")
    assert parse_bytes("0") == 0
    assert parse_bytes("8 B") == parse_bytes(8) == 8
    assert parse_bytes("8589934592") == 8 * 2**30


def test_a_program_without_tensors_has_no_peak_to_place(shell_memwatch, tmp_path):
    """The summary names no instant as the peak, and no limit to fit it into."""
    (tmp_path / "program.py").write_text("print(1)")
    done = shell_memwatch("run", "-q", "-o", "a.memwatch", "--html", "program.py")
    assert done.returncode == 0
    done = shell_memwatch("summary", "a.memwatch")
    assert "No tensor memory was recorded" in done.stdout
    assert "after the start" not in done.stdout
    assert "first op" not in done.stdout
    assert "--limit" not in done.stdout
    assert "after the start" not in (tmp_path / "a.html").read_text().split("<script")[0]
    done = shell_memwatch("run", "-q", "-o", "b.memwatch", "-c", "import torch; torch.ones(9)")
    assert "after the start" in shell_memwatch("summary", "b.memwatch").stdout
