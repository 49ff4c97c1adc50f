"""Whether the program that writes a capture still runs, as far as this process can see."""

from __future__ import annotations

import socket
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLOCKS_DIFFER_S: Final = 2.0
_LONG_S: Final = 30.0
"""A program that runs flushes every second; one of another host that has not for so long is called silent."""


class State(Enum):
    """What became of the recording."""

    WAITING = "waiting for the recording to begin"
    RUNNING = "running"
    ENDED = "ended"
    KILLED = "killed: its process is gone, and the recording has no end"
    SILENT = "silent: its process, on another host, cannot be seen from here"

    @property
    def is_last(self) -> bool:
        """Whether nothing more will be written."""
        return self in (State.ENDED, State.KILLED)


def state_of(meta: Mapping[str, Any], age_s: float) -> State:
    """Return the state of a recording.

    Args:
        meta: the metadata of its capture.
        age_s: seconds since its last flush.
    """
    if not meta:
        return State.WAITING
    if meta.get("complete", True):
        return State.ENDED
    if meta.get("host") != socket.gethostname():
        return State.SILENT if age_s > _LONG_S else State.RUNNING
    return State.RUNNING if _is_alive(int(meta.get("pid", 0)), meta.get("started_s")) else State.KILLED


def _is_alive(pid: int, started_s: float | None) -> bool:
    """Return whether a process runs that is older than its recording: the number may be another's by now."""
    try:
        process = psutil.Process(pid)
        is_older = started_s is None or process.create_time() <= started_s + _CLOCKS_DIFFER_S
        return is_older and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # another user's: it is there
        return True
