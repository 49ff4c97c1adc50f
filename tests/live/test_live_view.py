"""The view on a terminal, as plain text, and beside a program that runs."""

from __future__ import annotations

import asyncio
import sys

import pytest

import memwatch
from memwatch.cli import main
from memwatch.live.app import LiveApp, head_of
from memwatch.live.watch import State, View, Watch
from memwatch.sizes import format_bytes, format_duration


def screen_of(app, *keys, columns=80):
    """Run a view and press keys. Return the text that it shows then, and whether it has ended."""

    async def run():
        async with app.run_test(size=(columns, 24)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            lines = ["".join(part.text for part in strip) for strip in app.screen._compositor.render_strips()]
            await pilot.press(*keys)
            await pilot.pause()
            return "\n".join(lines), not app.is_running

    return asyncio.run(run())


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_the_screen_has_the_figures_until_the_user_quits(key, trained):
    """80 columns hold the state, live and peak, categories, storages and iterations; q and Ctrl-C end it."""
    reading = memwatch.load(trained)
    shown, has_ended = screen_of(LiveApp(Watch(trained)), key)
    assert "trained.memwatch  ended" in shown
    assert f"peak {format_bytes(reading.peak_bytes)}" in shown  # "so far" only while it runs
    assert "live at the end" in shown
    assert f"live {format_bytes(reading.timeline['live_bytes'].iloc[-1])} on cpu" in shown
    alive = reading.live_at(len(reading.timeline) - 1)
    for category, nbytes in alive.groupby("category")["nbytes"].sum().items():
        assert any(
            line.lstrip().startswith(format_bytes(nbytes)) and category in line for line in shown.splitlines()
        )
    assert alive.nlargest(1, "nbytes")["name"].iloc[0][:20] in shown
    for nbytes in alive["nbytes"].nlargest(3):
        assert f"\n{format_bytes(nbytes):>9}  " in shown
    for peak_bytes in reading.steps["peak_bytes"]:
        assert format_bytes(peak_bytes) in shown
    assert has_ended


def test_a_narrow_terminal_cuts_off_no_category_and_no_figure(trained):
    reading = memwatch.load(trained)
    shown, _ = screen_of(LiveApp(Watch(trained)), columns=60)
    alive = reading.live_at(len(reading.timeline) - 1)
    for category in alive["category"].unique():
        assert category in shown
    head = " ".join(shown.partition("live at the end")[0].split())
    peak_ns = int(reading.timeline["time_ns"].iloc[reading.peak_event])
    assert f"peak {format_bytes(reading.peak_bytes)} at {format_duration(peak_ns)}" in head


@pytest.mark.parametrize(
    ("age_s", "read_s", "said"),
    [(0.4, 31.2, "flushed 0 s ago; the figures below are from 31 s ago"), (3.0, 3.2, "flushed 3 s ago")],
)
def test_figures_that_are_older_than_the_last_flush_say_so(age_s, read_s, said, trained):
    """While the program flushes on, a view that waits until its next look is paid for tells how old its figures are."""
    figures = Watch(trained).look().figures
    first, _, _ = head_of(View("a.memwatch", State.RUNNING, age_s, read_s, figures)).plain.partition("\n")
    assert first == f"a.memwatch  running, {said}"


def test_a_view_beside_a_program_ends_with_it(trained):
    """Ctrl-C is the program's there, and the end of the program ends the view."""
    interrupted, ended = [], []
    app = LiveApp(
        Watch(trained),
        interrupt=lambda: interrupted.append(1) or ended.append(1),
        has_ended=lambda: bool(ended),
    )

    async def run():
        async with app.run_test() as pilot:
            await pilot.press("ctrl+c")
            for _ in range(100):
                await pilot.pause(0.05)
                if not app.is_running:
                    return

    asyncio.run(run())
    assert (interrupted, app.is_running) == ([1], False)


def test_without_a_terminal_a_line_is_printed(trained, capsys):
    """A capture that has ended gives one line with the live bytes and the peak."""
    assert main(["live", str(trained)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert f"peak {format_bytes(memwatch.load(trained).peak_bytes)} on cpu" in line
    assert line.endswith("ended")


def test_what_cannot_be_shown_is_said_in_a_sentence(tmp_path, capsys):
    """The cases are a missing file and a file that is not a capture."""
    (tmp_path / "text").write_text("no capture")
    for name, words in (("none", "is not a file"), ("text", "is not a memwatch capture")):
        assert main(["live", str(tmp_path / name)]) == 1
        assert words in capsys.readouterr().err


def test_without_textual_the_pip_line_is_printed(trained, monkeypatch, capsys):
    """The view needs textual; without it, the program is not started."""
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr("memwatch.cli.captures._is_terminal", lambda: True)
    assert main(["live", str(trained)]) == 1
    assert 'pip install "memwatch[live]"' in capsys.readouterr().err


def test_run_live_without_a_terminal_runs_nothing(shell_memwatch, tmp_path):
    """The view has no place, and the sentence explains how to run it in a terminal."""
    done = shell_memwatch("run", "--live", "-o", "a.memwatch", "-c", "print('never')")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--live needs a terminal" in done.stderr
    assert "memwatch live" in done.stderr


def test_a_program_that_is_shown_live_prints_and_ends_as_ever(fresh_python, tmp_path):
    """On a terminal: the view comes and goes; then the program's own words are there, and its exit code."""
    (tmp_path / "program.py").write_text(
        "import pathlib, sys, time, torch\n"
        "print('first words')\n"
        "while not pathlib.Path('seen').exists():\n"
        "    torch.ones(16)\n"
        "    time.sleep(0.02)\n"
        "print('input:', sys.stdin.read())\n"
        "sys.exit(3)\n"
    )
    done = fresh_python(
        """
        import os, pathlib, pty, sys
        from memwatch.cli import main
        program, terminal = pty.fork()
        if program == 0:
            sys.__stdout__.flush()
            sys.exit(main(["run", "--live", "-q", "-o", "a.memwatch", "program.py"]))
        written = b""
        while True:
            try:
                written += os.read(terminal, 1 << 16)
            except OSError:
                break
            if b"peak so far" in written:
                pathlib.Path("seen").touch()
        _, status = os.waitpid(program, 0)
        pathlib.Path("written").write_bytes(written)
        sys.exit(os.waitstatus_to_exitcode(status))
        """
    )
    screen, _, after = (tmp_path / "written").read_text().partition("\x1b[?1049l")
    assert done.returncode == 3, done.stderr
    assert "peak so far" in screen
    assert "first words" not in screen
    assert "first words" in after
    assert "input: \n" in after
    assert memwatch.load(tmp_path / "a.memwatch").meta["complete"]
