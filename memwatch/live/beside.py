"""The program's side of `memwatch run --live`: a viewer in its own process has the terminal while the program runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from memwatch.errors import MemwatchError
from memwatch.job import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.job import JobPlace

_LOOK_S: Final = 0.2
"""Seconds between two checks whether the program has ended. A guess."""


class ProgramOutput:
    """The output of the program that started this process, and whether it has ended.

    Args:
        path: the file that it prints to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._program = os.getppid()
        self._was_told = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self._was_told = True

    @property
    def has_ended(self) -> bool:
        """Whether the program asked for the end of the view, or is gone."""
        return self._was_told or os.getppid() != self._program

    def interrupt(self) -> None:
        """Do to the program what Ctrl-C does."""
        os.kill(self._program, signal.SIGINT)

    def print_to_the_end(self) -> None:
        """Print what the program prints until it ends, and remove the file."""
        with self._path.open("rb") as file:
            while not self.has_ended:
                _copy(file)
                time.sleep(_LOOK_S)
            _copy(file)
        self._path.unlink()


def print_rest(path: Path) -> None:
    """Print what a program printed into a file, if nobody has, and remove the file."""
    if path.exists():
        with path.open("rb") as file:
            _copy(file)
        path.unlink()


def _copy(file: IO[bytes]) -> None:
    """Print what is new in a file."""
    shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


_HOME: Final = Path(__file__).parents[2]
_START: Final = (
    # the folder of the program may hold modules of any name
    "import sys; sys.path[:] = [path for path in sys.path if path] + [sys.argv.pop(1)]; "
    "from memwatch.cli import main; sys.exit(main())"
)
_END_S: Final = 10.0
"""Seconds that a viewer may take to give the terminal back. A guess."""


def require_textual() -> None:
    """Raise if the package that shows the view is not installed.

    Raises:
        MemwatchError: it is not.
    """
    if importlib.util.find_spec("textual") is None:
        raise MemwatchError('the live view needs the package textual: pip install "memwatch[live]"')


@contextlib.contextmanager
def live_view(capture: Path, place: JobPlace) -> Iterator[None]:
    """Show a recording on the terminal while the block runs; what the block prints to the terminal comes after.

    Input from the terminal is the viewer's. Pipes to and from the program stay as they are.

    Args:
        capture: the file that this process is about to write.
        place: the place of this process in its job.

    Raises:
        MemwatchError: there is no terminal, textual is missing, or other ranks need the terminal too.
    """
    if place.is_one_of_many:
        raise MemwatchError(
            f"--live shows one process, and this is a rank of {place.world_size}; leave it out, and type "
            f"`memwatch live {capture}` in another terminal"
        )
    require_textual()
    process = os.getpid()
    viewer, output = _started(capture)
    terminal = {number: os.dup(number) for number in (0, 1, 2) if os.isatty(number)}
    _flush()
    _put(terminal, output)
    try:
        yield
    finally:
        if os.getpid() == process:  # the view of a process that the program forked is its parent's
            _flush()
            _end(viewer)
            for number, saved in terminal.items():
                os.dup2(saved, number)
                os.close(saved)
            print_rest(output)


def _started(capture: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the viewer on the terminal. Return its process, and the file for the program's output."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError as error:
        raise MemwatchError(
            "--live needs a terminal, and this process has none; leave it out, and type "
            f"`memwatch live {capture}` in a terminal"
        ) from error
    log, path = tempfile.mkstemp(prefix="memwatch-", suffix=".log")
    os.close(log)
    command = [sys.executable, "-c", _START, str(_HOME), "live", "--program-output", path, str(capture)]
    environment = {name: value for name, value in os.environ.items() if name != CHILDREN}
    # Ctrl-C is the program's, and the terminal would send it to both
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        viewer = subprocess.Popen(  # noqa: S603  # our own command
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(terminal)
    return viewer, Path(path)


def _put(terminal: dict[int, int], output: Path) -> None:
    """Put the file in the place of the terminal; there is nothing to read."""
    for number in terminal:
        target = os.open(output, os.O_WRONLY | os.O_APPEND) if number else os.open(os.devnull, os.O_RDONLY)
        os.dup2(target, number)
        os.close(target)


def _end(viewer: subprocess.Popen[bytes]) -> None:
    viewer.terminate()
    try:
        viewer.wait(_END_S)
    except subprocess.TimeoutExpired:
        viewer.kill()
        viewer.wait()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or taken away by the program
            stream.flush()
