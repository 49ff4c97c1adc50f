"""The side of `memwatch attach` in the recorded process: a thread accepts clients, and a further thread serves each.

The threads record nothing themselves. They hand the begin and the end of a recording to the main thread, as a pending
call of Python's, and try again until the main thread is at a quiet point. This needs no signal, so system calls of the
program are not interrupted. An exception of memwatch reaches the client and never the program.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final

from memwatch._version import __version__
from memwatch.attach.channel import AttachError, Channel, listen_at, socket_path
from memwatch.errors import MemwatchError
from memwatch.own_code import OwnThread, is_program_code
from memwatch.signal_handlers import call_later, raised_by_handler

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from types import FrameType

    from memwatch.attach.quiet_points import TorchState
    from memwatch.profile import Profile

_RETRY_S: Final = 0.001
"""The pause after a point that was not quiet. A try takes about 20 us."""
_SILENT_S: Final = 2.0
"""Seconds until the client gets the reason for a delay, and between repetitions. A guess."""
_PATIENCE_S: Final = 3.0
"""Seconds that a beginning waits for a point outside all calls of modules and `inference_mode`. A guess."""
_TICK_S: Final = 0.01
"""Seconds between two checks whether the recording is over. A guess."""
_GREETING_S: Final = 5.0
"""Seconds that a client may take for its first message. A guess."""

_listening: Final[list[tuple[socket.socket, int]]] = []
_served: Final[dict[str, Channel]] = {}
"""The client that is served, under a fixed key: a process has one recording at a time."""


def let_in(_: Mapping[str, Any] | None = None) -> None:
    """Start the thread that accepts clients, if it does not run yet. If that is impossible, print one line."""
    if _listening:
        return
    path = socket_path(os.getpid(), os.geteuid())
    try:
        listener = listen_at(path)
    except (MemwatchError, OSError) as error:
        sys.stderr.write(f"memwatch: nobody can attach to process {os.getpid()}: {error}\n")
        return
    _listening.append((listener, os.getpid()))
    atexit.register(_leave, path)
    OwnThread(target=_serve_all, args=(listener,), name="memwatch-attach", daemon=True).start()


def _leave(path: os.PathLike[str]) -> None:
    if _listening and _listening[0][1] == os.getpid():
        with contextlib.suppress(OSError):
            os.unlink(path)


def _forget_in_child() -> None:
    # a fork lacks the thread, so a client there would get no answer
    _served.clear()
    while _listening:
        _listening.pop()[0].close()


os.register_at_fork(after_in_child=_forget_in_child)


def _serve_all(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        OwnThread(target=_serve, args=(connection,), name="memwatch-attach-client", daemon=True).start()


def _serve(connection: socket.socket) -> None:
    with connection:
        channel = Channel(connection)
        if channel.user not in (0, os.geteuid()):  # only root and the owner of the process may attach
            return
        try:
            request = channel.receive(_GREETING_S)
        except TimeoutError:
            return
        if request is None:
            return
        # `setdefault` is atomic: of two clients at once, one is served
        if _served.setdefault("client", channel) is not channel:
            channel.send(event="error", text="another attach records it already; wait for its end")
            return
        try:
            _Stretch(channel, request).record()
        except Exception as error:
            text = str(error) if isinstance(error, MemwatchError) else f"{type(error).__name__}: {error}"
            channel.send(event="error", text=text)
        finally:
            _served.pop("client", None)


class _ClientGoneError(Exception):
    """The client has gone before the recording began."""


class _Stretch:
    """One recording, from a client's request to its end."""

    def __init__(self, channel: Channel, request: Mapping[str, Any]) -> None:
        if request.get("memwatch") != __version__:
            raise AttachError(
                f"it runs memwatch {__version__}, and you memwatch {request.get('memwatch')}; use the same version"
            )
        self._channel = channel
        self._seconds: float | None = request.get("seconds")
        self._steps: int | None = request.get("steps")
        self._output, self._force = str(request["output"]), bool(request.get("force"))
        self._profile: Profile | None = None
        self._expected: TorchState | None = None
        self._began_in_inference = False
        self._first_optimizer: Callable[[], object] | None = None
        self._steps_ended = 0
        self._is_over = threading.Event()
        self._hook: Any = None
        self._is_complete = False

    def record(self) -> None:
        """Begin, wait for the end, and end. The client gets a message about each."""
        self._channel.send(event="heard")
        # imported in this thread, so that the main thread does not wait for it
        from memwatch.profile import is_recording

        if is_recording():
            raise AttachError(
                "a recording runs in it already, of `memwatch run`, MEMWATCH=1 or memwatch.profile()"
            )
        try:
            self._in_main_thread(self._begin)
        except _ClientGoneError:
            return
        self._channel.send(event="started")
        self._wait()
        self._in_main_thread(self._end)
        if self._is_complete:  # else the process ends, and the closed connection shows this to the client
            self._channel.send(event="ended")

    def _begin(self, frame: FrameType | None, waited_s: float) -> str:
        import torch

        from memwatch.attach.quiet_points import PLAIN, TorchState, is_between_calls, obstacle
        from memwatch.profile import profile

        why = obstacle(frame, PLAIN)
        if why:
            return why
        is_inference = torch.is_inference_mode_enabled()
        if waited_s < _PATIENCE_S and (is_inference or not is_between_calls(frame)):
            return "is in the call of a module or in inference_mode"
        recording = profile(self._output)
        recording.replaces_file = self._force
        recording.__enter__()
        self._profile, self._began_in_inference = recording, is_inference
        self._expected = TorchState.here()
        if self._steps is not None:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._hook = register_optimizer_step_post_hook(self._step_ended)
        return ""

    def _step_ended(self, optimizer: object, *_: object) -> None:
        """Count the steps of the optimizer that steps first, without the one that was under way at the beginning."""
        if self._first_optimizer is None:
            self._first_optimizer = weakref.ref(optimizer)
        if self._first_optimizer() is optimizer:
            self._steps_ended += 1
        if self._steps is not None and self._steps_ended > self._steps:
            self._is_over.set()

    def _wait(self) -> None:
        """Return when the time or the steps are over, or when the client requests the end or is gone."""
        until = None if self._seconds is None else time.monotonic() + self._seconds
        while not self._is_over.is_set() and (until is None or time.monotonic() < until):
            try:
                self._channel.receive(_TICK_S)
            except TimeoutError:
                continue
            return  # any message is the request to end, and so is a closed connection

    def _end(self, frame: FrameType | None, waited_s: float) -> str:
        import torch

        from memwatch.attach.quiet_points import obstacle
        from memwatch.profile import is_recording

        if not is_recording():  # ended at the exit of the program
            return ""
        assert self._profile is not None
        assert self._expected is not None
        why = obstacle(frame, self._expected)
        if why:
            return why
        if torch.is_inference_mode_enabled() and not self._began_in_inference:
            return "is in inference_mode"
        recording, self._profile = self._profile, None
        if self._hook is not None:
            self._hook.remove()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "memwatch: ", RuntimeWarning)  # the failure goes to the client
            recording.__exit__(None, None, None)
        if recording.failure is not None:
            raise recording.failure
        self._is_complete = True
        return ""

    def _in_main_thread(self, act: Callable[[FrameType | None, float], str]) -> None:
        """Have the main thread call a function, again and again until it finds no obstacle.

        Args:
            act: returns the obstacle in words, or "" if it has acted. It gets the innermost frame of the program, and
                the seconds since the first try.

        Raises:
            _ClientGoneError: the client is gone, and the recording has not begun.
            AttachError: the function raised.
        """
        began_s = reported_s = time.monotonic()
        while True:
            attempt = _Attempt(act, time.monotonic() - began_s)
            call_later(attempt)
            while not attempt.is_tried.wait(_SILENT_S):
                if attempt.has_begun:
                    continue
                reported_s = time.monotonic()
                self._tell_of_waiting("has not returned to Python code")
                # False: the main thread is running the call now, so wait for its result
                if self._client_has_left() and attempt.cancel():
                    raise _ClientGoneError
            if attempt.error:
                raise AttachError(attempt.error)
            if not attempt.obstacle:
                return
            if time.monotonic() - reported_s > _SILENT_S:
                reported_s = time.monotonic()
                self._tell_of_waiting(attempt.obstacle)
            if self._client_has_left():
                raise _ClientGoneError
            time.sleep(_RETRY_S)

    def _client_has_left(self) -> bool:
        """Return True if the client is gone and no recording has begun: one that has begun is always ended."""
        if self._profile is not None:
            return False
        try:
            self._channel.receive(0)
        except TimeoutError:
            return False
        return True

    def _tell_of_waiting(self, why: str) -> None:
        self._channel.send(event="waiting", why=why, where=_place_of_main_thread())


class _Attempt:
    """A pending call of the main thread. It calls a function once, and keeps the result.

    Attributes:
        has_begun: whether the main thread calls the function, or has called it.
        is_tried: set once the function has returned or raised.
        obstacle: the reason why the function could not act, if any.
        error: its exception, as text: a traceback would keep frames of the program.
    """

    def __init__(self, act: Callable[[FrameType | None, float], str], waited_s: float) -> None:
        self._act, self._waited_s = act, waited_s
        self._turn = threading.Lock()  # taken once, by the call or by `cancel`, and never released
        self.has_begun = False
        self.is_tried = threading.Event()
        self.obstacle = ""
        self.error = ""

    def cancel(self) -> bool:
        """Have the call do nothing when it comes; return False if it has come."""
        return self._turn.acquire(blocking=False)

    def __call__(self) -> None:
        """Run in the main thread. An exception of a signal handler passes on into the program, which it is for."""
        if not self._turn.acquire(blocking=False):
            return
        self.has_begun = True
        try:
            # beyond our own frames, which the pending call has put on top of the program's
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename == _PENDING_CALLS:
                frame = frame.f_back
            self.obstacle = self._act(frame, self._waited_s)
        except BaseException as error:
            own = isinstance(error, MemwatchError) and str(error)
            self.error = own or f"{type(error).__name__}: {error}"
            if raised_by_handler(error) or not isinstance(error, Exception):
                raise
        finally:
            self.is_tried.set()


_PENDING_CALLS: Final = call_later.__code__.co_filename


def _place_of_main_thread() -> str:
    """Return where in the program the main thread is, as far as it shows: file, line and function."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not is_program_code(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
