"""What a program prints while its live view has the terminal: it waits in a file until the view ends."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_LOOK_S: Final = 0.2


class ProgramOutput:
    """What the program that started this process prints, and whether it has ended.

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
