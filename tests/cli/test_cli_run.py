"""`memwatch run`: the program ends as it would have ended, and leaves a file that can be read."""

from __future__ import annotations

import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

import memwatch

HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""A shell's `&` starts its programs with SIGINT ignored, and so `make test &` the programs of these tests."""

ENDINGS = {
    "falls off the end": "print('done')",
    "exits with a code": "import sys; print('so far'); sys.exit(3)",
    "exits with a message": "import sys; sys.exit('that was it')",
    "raises in a module": "def f():\n    return torch.nn.Linear(3, 4)(torch.ones(2, 2))\nf()",
    "raises from another error": "try: 1 / 0\nexcept Exception as error: raise KeyError(1) from error",
    "raises an error of memwatch": "import memwatch; memwatch.profile().step()",
    "is no Python": "print('never')\nx = = 1",
    "is interrupted": f"{HEARD}import os; os.kill(os.getpid(), signal.SIGINT)",
    "leaves without cleaning up": "import os; os._exit(7)",
    "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "warns and speaks late": "import atexit, warnings; atexit.register(print, 'late'); warnings.warn('oh')",
    "sets its own hook": "import sys; sys.excepthook = lambda *error: print('mine', error[0]); 1 / 0",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_as_it_would_have_ended(ending, shell_memwatch, command, tmp_path):
    """Exit code, output, warnings and traceback equal `python`'s, letter for letter, and the file is good."""
    code = ENDINGS[ending]
    (tmp_path / "program.py").write_text(f"import torch\n{code}\n" if "torch" in code else f"{code}\n")
    plain = command(sys.executable, "program.py")
    ours = shell_memwatch("run", "-q", "-o", "a.memwatch", "program.py", whole_end=True)
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    if ending != "is no Python":
        assert memwatch.load(tmp_path / "a.memwatch").meta["argv"] == ["program.py"]


@pytest.mark.parametrize("words", [["program.py"], ["-m", "program"], ["-c", "import program"]])
def test_the_options_behind_the_program_are_its_own(words, shell_memwatch, tmp_path):
    """Words after the program go to it, even if memwatch has an option of the same name."""
    (tmp_path / "program.py").write_text("import sys, torch\nprint(sys.argv[1:])\ntorch.ones(1000).exp()\n")
    done = shell_memwatch("run", "-o", "a.memwatch", *words, "-o", "b", "-q", "--html=x", "-m", "--", "")
    assert done.stdout == "['-o', 'b', '-q', '--html=x', '-m', '--', '']\n"
    assert memwatch.load(tmp_path / "a.memwatch").peak_bytes >= 8000


@pytest.mark.parametrize("native", ["0", "1"])
def test_the_threads_of_memwatch_are_not_threads_of_the_program(shell_memwatch, tmp_path, native):
    """Without a native recorder each run listed its own thread as one that it could not observe."""
    work = "import torch, threading\ntorch.ones(9)\n"
    (tmp_path / "alone.py").write_text(work)
    (tmp_path / "threaded.py").write_text(f"{work}threading.Thread(target=torch.ones, args=(9,)).start()\n")
    for name, unheard in (("alone", 0), ("threaded", int(native == "0"))):
        done = shell_memwatch("run", "-q", "-o", f"{name}.memwatch", f"{name}.py", MEMWATCH_NATIVE=native)
        assert done.returncode == 0, done.stderr
        assert memwatch.load(tmp_path / f"{name}.memwatch").meta["threads_unheard"] == unheard


def test_the_last_lines_are_commands_that_work(shell_memwatch, tmp_path):
    """A run ends with the commands to type next, after everything that the program says, and they work."""
    (tmp_path / "my train.py").write_text(
        "import atexit, torch\natexit.register(print, torch.ones(9))\n1 / 0\n"
    )
    done = shell_memwatch("run", "my train.py")
    said = done.stderr.splitlines()
    capture = re.fullmatch(r"memwatch: wrote (my train\.\d+\.memwatch)", said[-4])[1]
    assert "ZeroDivisionError: division by zero" in said[:-4]
    for line, verb in zip(said[-2:], ("summary", "report"), strict=True):
        assert verb in shlex.split(line)
        assert capture in shlex.split(line)
        subprocess.run(line, shell=True, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert (tmp_path / capture).with_suffix(".html").read_text().startswith("<!")


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize(
    ("name", "locale"),
    [
        (b"bad\xff.py", {}),
        ("n\xe9.py".encode(), {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    ],
    ids=["not UTF-8", "not in the locale"],
)
def test_a_program_may_have_any_name(name, locale, native, tmp_path):
    """The capture has that name, and its texts hold it; the commands that are printed can be typed."""
    script = tmp_path / os.fsdecode(name)
    script.write_text("import torch\ntorch.ones(1000).exp()\n")
    settings = {**os.environ, **locale, "MEMWATCH_NATIVE": native, "OMP_NUM_THREADS": "1"}
    run = functools.partial(subprocess.run, cwd=tmp_path, env=settings, capture_output=True, timeout=120)
    done = run([sys.executable, "-m", "memwatch", "run", script], check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stderr.splitlines()[-2:]:
        run(["bash", "-c", line], check=True)
    (capture,) = tmp_path.glob("*.memwatch")
    lines = memwatch.load(capture).ops["line"]
    assert all(os.fsencode(line).endswith(b"/" + name + b":2") for line in lines)


def test_the_page_is_written_where_it_was_asked_for(shell_memwatch, tmp_path):
    """`--html=PATH` names the page, also for a program that goes to another folder and fails there."""
    (tmp_path / "sub").mkdir()
    code = "import os, torch; torch.ones(10).add(1); os.chdir('sub'); raise SystemExit(5)"
    done = shell_memwatch("run", "-q", "-o", "a.memwatch", "--html=page.html", "-c", code)
    assert (done.returncode, done.stderr) == (5, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.memwatch", "page.html", "sub"]


def test_files_that_exist_are_kept(shell_memwatch, tmp_path):
    """Files are replaced only with -f. Otherwise the program does not even start."""
    for name, options in (("a.memwatch", []), ("b.html", ["--html=b.html"])):
        (tmp_path / name).write_text("precious")
        done = shell_memwatch("run", "-o", "a.memwatch", *options, "-c", "print('started')")
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"memwatch: error: \S+ exists; .* -f\n", done.stderr)
        assert (tmp_path / name).read_text() == "precious"
        (tmp_path / name).unlink()
    (tmp_path / "a.memwatch").write_bytes(b"SQLite format 3\0 of an old capture")
    done = shell_memwatch("run", "-qf", "-o", "a.memwatch", "-c", "import torch; torch.ones(3)")
    assert done.returncode == 0
    assert memwatch.load(tmp_path / "a.memwatch").peak_bytes > 0


def test_a_forked_child_leaves_the_file_to_its_parent(shell_memwatch, tmp_path):
    """Children of the program end as they would have; the file and the last lines are the parent's."""
    code = """
import os, torch
x = torch.ones(1000)
for ending in ("raise SystemExit(4)", "1 / 0", "pass"):
    if not (child := os.fork()):
        torch.ones(50_000)
        exec(ending)
        raise SystemExit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
y = torch.ones(2000)
"""
    done = shell_memwatch("run", "-o", "a.memwatch", "-c", code)
    assert done.stdout.split() == ["4", "1", "0"]
    assert done.stderr.count("memwatch: wrote") == 1
    assert memwatch.load(tmp_path / "a.memwatch").peak_bytes == 12_000


def test_an_interrupted_run_can_be_read(tmp_path):
    """Ctrl-C in the middle leaves the capture, the commands to type, and the exit of an interrupt."""
    code = f"{HEARD}import torch\nwhile True:\n    for i in range(500): torch.ones(9)\n    print('on', flush=True)"
    words = [sys.executable, "-m", "memwatch", "run", "-o", "a.memwatch", "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=tmp_path, **pipes) as process:
        assert process.stdout.readline() == "on\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in said.splitlines()
    assert "memwatch: wrote a.memwatch" in said.splitlines()
    assert len(memwatch.load(tmp_path / "a.memwatch").ops) >= 500


def test_a_full_disk_costs_the_file_not_what_was_recorded(shell_memwatch, tmp_path):
    """The program ends as without memwatch, the recording is printed, and the exit code is 1.

    No table of a long summary is left out, because no capture shows it later.
    """
    (tmp_path / "program.py").write_text(
        "import resource, torch\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "print(torch.ones(250_000).exp().shape)\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for _ in range(3):\n"
        "    model(torch.ones(8192, 64)).relu().sum().backward()\n"
        "    optimizer.step(), optimizer.zero_grad()\n"
    )
    done = shell_memwatch("run", "-o", "a.memwatch", "program.py")
    assert (done.returncode, done.stdout) == (1, "torch.Size([250000])\n")
    assert "Left out" not in done.stderr
    assert "Lines that" in done.stderr
    assert re.search(r"Peak \d+", done.stderr)
    assert done.stderr.splitlines()[-1].startswith("memwatch: error: cannot write ")
    assert "Traceback" not in done.stderr
    assert "wrote" not in done.stderr


def test_each_device_may_have_a_limit_of_its_own(shell_memwatch):
    """The device that exceeds its limit stops the program. A limit for all devices excludes further limits."""
    code = "import torch; torch.ones(1 << 20)"
    within = shell_memwatch("run", "--limit", "cpu=16MiB", "--limit", "cuda:0=1KiB", "-c", code)
    above = shell_memwatch("run", "--limit", "cpu=1MiB", "-c", code)
    both = shell_memwatch("run", "--limit", "1MiB", "--limit", "cpu=2MiB", "-c", code)
    assert (within.returncode, above.returncode) == (0, 1)
    assert "MemoryLimitError: 4.00 MiB" in above.stderr
    assert "`memwatch summary FILE`" in above.stderr
    assert "DEVICE=SIZE" in both.stderr


def test_a_limit_of_a_device_that_is_not_there_is_told(shell_memwatch):
    """A limit of the device that the program used is the twin."""
    code = "import torch; torch.ones(1 << 20)"
    limits = ("--limit", "cuda:99=5GiB", "--limit", "cpu=1GiB")
    done = shell_memwatch("run", "-q", *limits, "-c", code)
    assert (done.returncode, done.stderr) == (
        0, "memwatch: this machine has no device cuda:99, so --limit cuda:99=5GiB limited nothing\n"
    )  # fmt: skip


def test_a_rank_that_is_started_again_keeps_what_it_left(shell_memwatch, tmp_path):
    """The second try of torchrun writes beside the files of the first. A page has its rank once in its name."""
    for restart, made in (("0", "a.rank1"), ("1", "a.rank1.restart1")):
        place = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": restart}
        done = shell_memwatch("run", "-q", "-o", "a.memwatch", "--html", "-c", "1", **place)
        assert done.returncode == 0, done.stderr
        assert {f"{made}.memwatch", f"{made}.html"} <= {path.name for path in tmp_path.iterdir()}
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize(
    ("ending", "failed"),
    [("raise ValueError('no data')", True), ("raise SystemExit(0)", False)],
    ids=["error", "success"],
)
def test_a_program_that_failed_is_told_from_one_that_ended(ending, failed, shell_memwatch, tmp_path):
    """Its peak may be that of a part. A comparison warns of it."""
    (tmp_path / "program.py").write_text(f"import torch\nx = torch.ones(1000)\n{ending}\n")
    shell_memwatch("run", "-q", "-o", "program.memwatch", "program.py")
    summary = shell_memwatch("summary", "program.memwatch").stdout
    assert ("ValueError ended the recorded code" in summary) is failed
    done = shell_memwatch("diff", "program.memwatch", "program.memwatch")
    assert ("program.memwatch: ValueError ended" in done.stderr) is failed
