"""Count the processes that start while a block is open: their memory is not in its capture, and the report says so."""

from __future__ import annotations

import collections
import multiprocessing.process
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from memwatch.job import CHILDREN
from memwatch.record.patches import Patches
from memwatch.signal_handlers import pass_on
from memwatch.words.processes import StartedAs, started_text

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_LOADERS: Final = "torch.utils.data."
"""Where the function lies that the workers of a DataLoader run."""
_forks: Final = [0]  # of this process so far: what is registered with os.register_at_fork stays


def _forked() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_parent=_forked)


class StartedProcesses:
    """The processes that start between `start` and `stop`, by kind."""

    def __init__(self) -> None:
        self._counts: collections.Counter[StartedAs] = collections.Counter()
        self._unreached: collections.Counter[StartedAs] = collections.Counter()
        self._patches = Patches()
        self._forks = 0

    def start(self) -> None:
        """Begin to count."""
        self._forks = _forks[0]
        self._patches.put(multiprocessing.process.BaseProcess, "start", self._process)
        self._patches.put(subprocess.Popen, "__init__", self._popen)

    def stop(self) -> None:
        """Count no more."""
        self._patches.take_off()
        if forks := _forks[0] - self._forks:
            self._counts[StartedAs.FORK] = self._unreached[StartedAs.FORK] = forks

    @property
    def text(self) -> str:
        """The sentence on them, empty where none started."""
        if not self._counts.total():
            return ""
        return started_text(self._counts, self._unreached, asked=CHILDREN in os.environ)

    def _process(self, start: Callable[[Any], Any], process: Any) -> Any:
        before, target = _forks[0], getattr(process, "_target", None)
        is_worker = str(getattr(target, "__module__", "")).startswith(_OF_LOADERS)
        started = start(process)
        self._forks += _forks[0] - before  # it is counted as what it is
        self._counts[StartedAs.LOADER_WORKER if is_worker else StartedAs.MULTIPROCESSING] += 1
        return started

    def _popen(self, init: Callable[..., None], popen: Any, args: Any, *rest: Any, **options: Any) -> None:
        before = _forks[0]
        init(popen, args, *rest, **options)
        self._forks += _forks[0] - before
        if _is_python(options.get("executable") or args):
            self._counts[StartedAs.PYTHON] += 1
            environment = options.get("env")
            self._unreached[StartedAs.PYTHON] += (
                CHILDREN in os.environ and environment is not None and CHILDREN not in environment
            )


def _is_python(command: Any) -> bool:
    """Return True for a command whose first word is a Python."""
    try:
        text = os.fsdecode(command)
    except TypeError as error:  # a list of words
        pass_on(error)
        words = [os.fsdecode(word) for word in command]
    else:
        words = [text] if os.path.exists(text) else shlex.split(text)
    name = os.path.basename(words[0]) if words else ""
    return name.startswith(("python", "pypy")) or name == os.path.basename(sys.executable)
