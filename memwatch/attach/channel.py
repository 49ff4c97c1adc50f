"""Where a process and the client of `memwatch attach` meet, and the messages between them.

The socket lies in a folder that only its user can enter. The kernel also gives both sides the user at the other end.
Messages are lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import Any, Final

from memwatch.errors import MemwatchError

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred of Linux: the process, its user, its group
_MOST_BYTES: Final = 1 << 16
"""Bytes of one message. A guess: memwatch's own messages have a few hundred, so a longer one comes from elsewhere."""


class AttachError(MemwatchError):
    """A process cannot be recorded."""


def socket_path(pid: int, user: int) -> Path:
    """Return the place of a process's socket: the variables that name other temporary folders may differ there."""
    return Path(f"/tmp/memwatch-{user}/{pid}.attach")  # noqa: S108  # the folder is checked: see `require_private`


def require_private(folder: Path, user: int) -> None:
    """Raise unless the folder exists, belongs to the user, and only the user may enter it.

    Raises:
        AttachError: the path belongs to somebody else, is open to others, or is not a folder.
        FileNotFoundError: the folder does not exist.
    """
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise AttachError(
            f"{folder} is not a folder of user {user} alone (mode 0700); remove it, and start again"
        )


def listen_at(path: Path) -> socket.socket:
    """Return a socket that listens at a path; only this user reaches it.

    Raises:
        AttachError: this system hides the user at the other end, or the folder is not private.
        OSError: the socket cannot be made.
    """
    require_credentials()
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    require_private(path.parent, os.geteuid())
    _remove_left_over(path.parent)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


def _remove_left_over(folder: Path) -> None:
    """Remove the sockets of processes that were killed."""
    for path in folder.glob("*.attach"):
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:  # removed meanwhile
                continue


def require_credentials() -> None:
    """Raise an AttachError if the system does not show who is at the other end of a socket."""
    if not sys.platform.startswith("linux"):
        raise AttachError("attach works on Linux only")


class Channel:
    """One end of a connection.

    Attributes:
        pid, user: the process at the other end, and its user.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.user, _ = _CREDENTIALS.unpack(told)

    def send(self, **message: Any) -> None:
        """Send a message; nothing happens where the other end is closed, which `receive` shows."""
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, within_s: float | None) -> dict[str, Any] | None:
        """Return the next message, or None if the other end is closed.

        Raises:
            TimeoutError: no message came within the time.
        """
        self._connection.settimeout(within_s)
        while b"\n" not in self._received:
            try:
                more = self._connection.recv(4096)
            except (TimeoutError, BlockingIOError):
                raise TimeoutError from None
            except OSError:
                more = b""
            if not more or len(self._received) > _MOST_BYTES:
                return None
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None
