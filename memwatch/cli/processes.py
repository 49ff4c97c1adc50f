"""Verbs of processes that run already. Each is a class: its docstring is the help of the verb."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from memwatch._version import __version__
from memwatch.attach.channel import AttachError, Channel, require_credentials, require_private, socket_path
from memwatch.cli.activation import VARIABLE
from memwatch.cli.common import add_json, command_line, emit, emit_json, make_room, positive, say
from memwatch.words.processes import HAS_ENDED, counted

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS: Final = 10
"""Seconds that `memwatch attach` records if the user gives no number. A guess."""
_SILENT_S: Final = 3.0
"""Seconds after which the user hears that the process does not answer. After two seconds, a process that answers says
why it waits. A guess."""
_POLL_S: Final = 0.02
"""Seconds between two checks whether the process has answered. A guess."""
_MODE: Final = "attach"
_HOME: Final = Path(__file__).parents[2]
_REMOTE_EXEC: Final = (3, 14)
"""The first Python that lets another process run a script in it."""
_SCRIPT: Final = """\
import importlib.util, sys
if importlib.util.find_spec("memwatch") is None:
    sys.path.append({home!r})
try:
    from memwatch.attach.listener import let_in
    let_in()
except Exception as error:
    with open({failed!r}, "w") as file:
        file.write(f"{{type(error).__name__}}: {{error}}")
"""
_LEAST_WIDTH: Final = 60
"""Characters that a line of `memwatch ps` has at least: in a narrower terminal, the terminal wraps it. A guess."""
_MOST_SECONDS: Final = 1e6
"""The most seconds of one recording, 11 days: longer is a typing error. A guess."""


class Attach:
    """Record a process that runs already for a while, and print its summary.

    The process must have been started with MEMWATCH=attach in its environment, or run Python 3.14 or later. The memory
    that it used before is the baseline of the recording. Without `--seconds` and `--steps` the recording takes 10
    seconds.

        memwatch attach 4242 --steps 3
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("pid", metavar="PID", type=positive, help="the number of the process")
        ends = parser.add_mutually_exclusive_group()
        ends.add_argument(
            "--seconds", metavar="N", type=positive, help=f"how long to record (default: {_SECONDS})"
        )
        ends.add_argument(
            "--steps",
            metavar="N",
            type=positive,
            help="record until N more iterations have begun and ended; the optimizer's steps are counted",
        )
        parser.add_argument(
            "-o", "--output", metavar="FILE", type=Path, help="the capture (default: attach.PID.memwatch)"
        )
        parser.add_argument("-f", "--force", action="store_true", help="replace an existing file")
        add_json(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Record, and print the summary; return 0."""
        from memwatch.cli.captures import Summary  # it imports numpy, and `ps` does without

        require_credentials()
        capture = (options.output or Path(f"attach.{options.pid}.memwatch")).absolute()
        make_room(capture=capture, force=options.force)
        process = _process(options.pid)
        try:
            with _connect(process) as connection:
                _record(options, Channel(connection), process, capture)
        except psutil.NoSuchProcess:
            raise AttachError(f"process {options.pid} ended before its recording began") from None
        say(f"wrote {capture}")
        return Summary.execute(argparse.Namespace(capture=capture, rows=None, json=options.json, device=None))


def _process(pid: int) -> psutil.Process:
    """Return the process.

    Raises:
        AttachError: there is none, or it is another user's.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            raise AttachError(f"process {pid} has ended already")
        user = process.uids().effective
        if os.geteuid() not in (0, user):
            raise AttachError(f"process {pid} belongs to {process.username()}; attach to it as that user")
    except psutil.NoSuchProcess:
        raise AttachError(
            f"there is no process {pid}; `pgrep -af python` lists the Python processes"
        ) from None
    return process


def _connect(process: psutil.Process) -> socket.socket:
    """Return a connection to the listener in the process. If it has none and runs Python 3.14, start one there.

    Raises:
        AttachError: there is no listener. The message says what to do.
        psutil.NoSuchProcess: the process has ended.
    """
    connection = _reach(process)
    if connection is not None:
        return connection
    maps = _maps(process)
    if maps is not None and "/libtorch" not in maps:
        raise AttachError(f"process {process.pid} has not loaded torch, so it has nothing to record")
    version = re.search(r"/(?:lib)?python(3)\.(\d+)[/.\n]", maps or "")
    theirs = tuple(map(int, version.groups())) if version else sys.version_info[:2]
    if theirs < _REMOTE_EXEC:
        raise AttachError(_how_to_start(process))
    if theirs != sys.version_info[:2]:
        name = ".".join(map(str, theirs))
        raise AttachError(
            f"process {process.pid} runs Python {name}; attach with the memwatch of a Python {name}"
        )
    return _enter(process)


def _reach(process: psutil.Process) -> socket.socket | None:
    """Return a connection to the listener of the process; None without a listener."""
    user = process.uids().effective
    path = socket_path(process.pid, user)
    connection = socket.socket(socket.AF_UNIX)
    try:
        require_private(path.parent, user)
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):  # refused: the socket of an earlier process
        connection.close()
        return None
    peer = Channel(connection)
    if (peer.pid, peer.user) != (process.pid, user):
        connection.close()
        raise AttachError(
            f"{path} is not the socket of process {process.pid}; remove it, and start that again"
        )
    return connection


def _maps(process: psutil.Process) -> str | None:
    """Return the list of the files that a process has mapped, None where the system does not show it."""
    try:
        return Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(process.pid) from None
    except OSError:
        return None


def _how_to_start(process: psutil.Process) -> str:
    """Return why a process cannot be entered, and how to start it so that it can."""
    with contextlib.suppress(psutil.AccessDenied):
        words = process.environ().get(VARIABLE, "").split(",")
        if _MODE in words:
            return (
                f"process {process.pid} has {VARIABLE}={_MODE} and does not listen: it is still importing torch (try "
                "again), or another Python process forked it (attach to that one)"
            )
    # only the program: its arguments may hold passwords
    program = f"{command_line(process.name())} ..."
    return (
        f"memwatch cannot attach to process {process.pid}; start it as `{VARIABLE}={_MODE} {program}`. "
        "From Python 3.14 on, a process needs no variable"
    )


def _enter(process: psutil.Process) -> socket.socket:
    """Have the process run a script that starts its listener, and return a connection to it."""
    folder = Path(tempfile.mkdtemp(prefix="memwatch-attach-"))
    script, failed = folder / "listen.py", folder / "failed"
    script.write_text(_SCRIPT.format(home=str(_HOME), failed=str(failed)))
    user = process.uids().effective
    if user != os.geteuid():
        os.chown(folder, user, -1)
        os.chown(script, user, -1)
    remote_exec: Any = getattr(sys, "remote_exec")  # noqa: B009  # Python 3.14
    try:
        remote_exec(process.pid, str(script))
    except (OSError, RuntimeError) as error:
        raise AttachError(
            f"Python cannot enter process {process.pid}: {error}. The system may allow it to root alone "
            f"(`sysctl kernel.yama.ptrace_scope`); else start the process with {VARIABLE}={_MODE}"
        ) from None
    began_s, is_told = time.monotonic(), False
    while (connection := _reach(process)) is None:
        if failed.exists():
            raise AttachError(f"process {process.pid} cannot import memwatch: {failed.read_text()}")
        if not is_told and time.monotonic() - began_s > _SILENT_S:
            is_told = True
            say(_silent(process))
        time.sleep(_POLL_S)
    script.unlink()  # it has run; a process that does not find its script prints an error
    folder.rmdir()
    return connection


def _silent(process: psutil.Process) -> str:
    return f"process {process.pid} stays in C++ code or a system call; the recording begins when it returns"


def _record(options: argparse.Namespace, channel: Channel, process: psutil.Process, capture: Path) -> None:
    """Start a recording in the process, and return when it has ended.

    Raises:
        AttachError: it did not begin, or failed.
    """
    steps = options.steps
    seconds = None if steps is not None else options.seconds or _SECONDS
    channel.send(memwatch=__version__, seconds=seconds, steps=steps, output=str(capture), force=options.force)
    has_started = False
    for message in _messages(channel, process):
        event = message.get("event")
        if event == "waiting":
            where = f" at {message['where']}" if message.get("where") else ""
            end = "ends" if has_started else "begins"
            say(f"process {process.pid} {message['why']}{where}; the recording {end} when it is past that")
        elif event == "heard":
            continue
        elif event == "started":
            has_started = True
            extent = counted(steps, "step") if steps is not None else f"{seconds} s"
            say(f"recording process {process.pid} for {extent} (Ctrl-C ends it now)")
        elif event == "ended":
            return
        else:
            raise AttachError(f"process {process.pid} was not recorded: {message.get('text')}")
    if not has_started or not capture.exists():
        raise AttachError(f"process {process.pid} ended before its recording began")
    say(f"process {process.pid} ended while it was recorded; the capture has what was recorded until then")


def _messages(channel: Channel, process: psutil.Process) -> Iterator[dict[str, Any]]:
    """Yield what the process sends, until it closes the connection. The first Ctrl-C ends the recording."""
    is_told = has_answered = is_asked = False
    while True:
        try:
            message = channel.receive(_SILENT_S)
        except TimeoutError:
            if not (is_told or has_answered):
                is_told = True
                say(_silent(process))
            continue
        except KeyboardInterrupt:
            if is_asked or not has_answered:
                raise
            is_asked = True
            channel.send(event="end")
            continue
        if message is None:
            return
        has_answered = True
        yield message


class Ps:
    """Print the memory of a running process in rows: libraries, malloc, stacks, files, shared memory.

    Everything comes from /proc, so the program needs no preparation and does not notice. /proc doesn't distinguish
    tensors from other memory of malloc, and has no memory of GPUs: call `memwatch.process_memory()` in the program for
    these rows. The processes that it started, such as the workers of a DataLoader, are listed below. RSS is all of its
    memory in RAM, PSS is RSS with shared memory divided among its users, and USS is the memory that no other process
    shares. Without a PID, `memwatch ps` lists the running Python processes, largest first. With `--seconds`, memwatch
    reads twice and shows the growth between the readings, of the rows of a process or of each process's USS.

        memwatch ps 4242
        memwatch ps --seconds 60 4242
        memwatch ps --json 4242
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument(
            "pid", nargs="?", help="the number of a process; by default all Python processes are listed"
        )
        parser.add_argument(
            "--seconds",
            type=_seconds,
            metavar="S",
            help="read again after so many seconds, and show the growth",
        )
        add_json(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the rows; return 0."""
        from memwatch.errors import OptionError
        from memwatch.monitor.mappings import ProcessError
        from memwatch.monitor.process import Earlier, of_process, of_processes, record_of, record_of_processes
        from memwatch.monitor.rows import python_processes, rows_of

        seconds = options.seconds
        earlier: Earlier | None = None
        if options.pid is None:
            processes = python_processes()
            if seconds is not None:
                begun_s = _wait(seconds)
                before = {process.pid: process.uss_bytes for process in processes}
                processes = python_processes()
                earlier = Earlier(round(time.monotonic() - begun_s, 3), {}, before)
            if options.json:
                emit_json(record_of_processes(processes, earlier))
            else:
                emit(of_processes(processes, earlier))
            return 0
        # `isdecimal` accepts the digits of other scripts too
        if not (options.pid.isascii() and options.pid.isdecimal()) or not int(options.pid):
            raise OptionError(f"{options.pid!r} is not a process; give its number, as `memwatch ps` lists it")
        found = rows_of(int(options.pid))
        if seconds is not None:
            begun_s = _wait(seconds)
            before = {child.pid: child.uss_bytes for child in found.children}
            rows = {row.row: row.nbytes for row in found.rows}
            try:
                found = rows_of(int(options.pid))
            except ProcessError:
                if psutil.pid_exists(int(options.pid)):
                    raise
                raise ProcessError(HAS_ENDED.format(pid=options.pid)) from None
            earlier = Earlier(round(time.monotonic() - begun_s, 3), rows, before)
        if options.json:
            emit_json(record_of(found, earlier))
        else:
            # a program that reads the text gets one line for each row
            is_terminal = sys.stdout is not None and sys.stdout.isatty()
            width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH) if is_terminal else None
            emit(of_process(found, earlier=earlier, width=width))
        return 0


def _wait(seconds: float) -> float:
    """Wait, and return when the wait began."""
    begun_s = time.monotonic()
    time.sleep(seconds)
    return begun_s


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MOST_SECONDS:  # nan too
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
