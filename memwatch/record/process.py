"""The process of a block: its resident memory, its place in a distributed job, and the processes that it starts.

The place in the job is read while the process group exists, because programs destroy the group at their end. The memory
of a started process is not in the capture, and the report says so.
"""

from __future__ import annotations

import collections
import multiprocessing.process
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import psutil
import torch

from memwatch.job import CHILDREN, JobPlace, has_process_group
from memwatch.record.clock import ticks
from memwatch.record.patches import Patches
from memwatch.record.tables.rows import Rows
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


class JobPlaceSampler:
    """Keep the place that torch.distributed tells, or what the environment tells."""

    def __init__(self) -> None:
        self._place = JobPlace.here()
        self._patches = Patches()

    @property
    def meta(self) -> dict[str, Any]:
        """What a capture keeps of the place."""
        self.look()
        return self._place.meta

    def look(self) -> None:
        """Look the place up once a process group is there; one that is gone leaves what it told."""
        if self._place.backend is None and has_process_group():
            self._place = JobPlace.here()

    def start(self) -> None:
        """Begin to look whenever a process group is destroyed."""
        if torch.distributed.is_available():
            self._patches.put(torch.distributed, "destroy_process_group", self._destroyed)

    def stop(self) -> None:
        """End it."""
        self._patches.take_off()

    def _destroyed(self, destroy: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.look()
        return destroy(*args, **kwargs)


class ProcessSampler:
    """Append rows of `process` when asked, and note the processes that started.

    Args:
        note: takes the kind and the words of a note.
    """

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self.rows = Rows()
        self._note = note
        self._process = psutil.Process()
        self._job_place, self._children = JobPlaceSampler(), StartedProcesses()

    @property
    def meta(self) -> dict[str, Any]:
        """The place in the job, as a capture keeps it."""
        return self._job_place.meta

    def start(self) -> None:
        """Begin to hear of process groups and of processes that start."""
        self._job_place.start()
        self._children.start()

    def stop(self) -> None:
        """End it, and note what started."""
        self._children.stop()
        self._job_place.stop()
        if self._children.text:
            self._note("children", self._children.text)

    def sample(self) -> None:
        """Append one sample, now."""
        self.rows += (ticks(), self._process.memory_info().rss, psutil.virtual_memory().available)
        self._job_place.look()
