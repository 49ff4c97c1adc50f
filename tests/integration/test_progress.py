"""Progress of long work on a terminal, and the random numbers that it must not take."""

from __future__ import annotations

import io
import subprocess
import sys
import time

from memwatch import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def put_terminal(monkeypatch):
    """Let standard error be a terminal, in the test itself: pytest puts its own file there before the test runs."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    return sys.stderr


def test_long_work_shows_what_it_does_and_leaves_nothing(monkeypatch):
    """The line names the work, and is erased at its end."""
    terminal = put_terminal(monkeypatch)
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    with progress.working("memwatch plan") as say:
        say("ordering")
        deadline_s = time.monotonic() + 60
        # another thread shows it
        while "ordering" not in terminal.getvalue() and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert "ordering" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased


def test_short_work_shows_nothing(monkeypatch):
    terminal = put_terminal(monkeypatch)
    with progress.working("memwatch plan"):
        pass
    assert terminal.getvalue() == ""


def test_nothing_is_shown_where_there_is_no_terminal(monkeypatch):
    """A log file has no progress in it."""
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.working("memwatch plan") as say:
        say("ordering")
    assert sys.stderr.getvalue() == ""


def test_a_summary_takes_no_random_number():
    """Python's random numbers continue as before, in a process that has not used rich yet."""
    program = (
        "import random, torch, memwatch\n"
        "with memwatch.profile() as prof:\n    x = torch.ones(3)\n"
        "random.seed(0)\nbefore = random.getstate()\nprof.summary()\n"
        "assert random.getstate() == before\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
