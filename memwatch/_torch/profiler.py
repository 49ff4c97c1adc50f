"""torch's profiler: its clock, its allocator events, and a filter for the lines that it prints to stderr.

| torch | here |
| --- | --- |
| torch._C._profiler._get_approximate_time | ticks |
| torch._C._profiler._ApproximateClockToUnixTimeConverter | TickConverter |
| torch._C._autograd._profiler_enabled | is_running() |
| _prepare_profiler, _enable_profiler with a ProfilerConfig and RecordScopes | start_allocator_events() |
| _disable_profiler().experimental_event_tree() | stop_allocator_events() |
| _prepare_profiler, _disable_profiler | drop_allocator_events() |
| node.tag == _EventType.Allocation | is_allocation(event) |
| profiler._prepare_profiler is not torch._C._autograd._prepare_profiler | is_watched() |
| (profiler, "_prepare_profiler"), ... that a program starts a profiler by | STARTERS |
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd import profiler, profiler_legacy

from memwatch._torch.lookup import Part
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@functools.cache
def log_level_flag() -> ctypes.c_int | None:
    """Return the C variable with c10's log level, or None if torch's library lacks it."""
    try:
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError) as error:
        pass_on(error)
        return None


class _MonotonicClock:
    """Convert `time.perf_counter_ns` to unix time. torch has a converter for its own counter."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.perf_counter_ns()

    def to_unix_ns(self, count: int) -> int:
        return count + self._offset_ns


_clock: Final = Part("")  # torch 2.11 and 2.12 need Python's own clock, which is as good
_get_ticks: Final[Any] = _clock.take("torch._C._profiler._get_approximate_time", None)
_Converter: Final[Any] = _clock.take("torch._C._profiler._ApproximateClockToUnixTimeConverter", None)
TICKS_ARE_TORCHS: Final = _clock.complete
"""Whether `ticks` is the counter with which torch's C++ stamps events. Older versions do not export it."""
ticks: Final[Callable[[], int]] = _get_ticks if TICKS_ARE_TORCHS else time.perf_counter_ns
"""Return the count of a cheap clock. A `TickConverter` converts counts to time."""
TickConverter: Final[Callable[[], Any]] = _Converter if TICKS_ARE_TORCHS else _MonotonicClock
"""Make a converter whose `to_unix_ns` turns a count of `ticks` into unix nanoseconds."""

_events: Final = Part("the allocator's own events are not recorded, so workspace inside ops is unknown")
_running: Final[Callable[[], bool]] = _events.take("torch._C._autograd._profiler_enabled", lambda: False)
_prepare: Final[Any] = _events.take("torch._C._autograd._prepare_profiler", None)
_enable: Final[Any] = _events.take("torch._C._autograd._enable_profiler", None)
_disable: Final[Any] = _events.take("torch._C._autograd._disable_profiler", None)
_Config: Final[Any] = _events.take("torch._C._profiler.ProfilerConfig", None)
_KINETO: Final[Any] = _events.take("torch._C._profiler.ProfilerState.KINETO", None)
_CPU: Final[Any] = _events.take("torch._C._profiler.ProfilerActivity.CPU", None)
_NO_OPS: Final[Any] = _events.take("torch._C._profiler.RecordScope.BUILD_FEATURE", None)
_USER_SCOPE: Final[Any] = _events.take("torch._C._profiler.RecordScope.USER_SCOPE", None)
_BACKWARD: Final[Any] = _events.take("torch._C._profiler.RecordScope.BACKWARD_FUNCTION", None)
_ExperimentalConfig: Final[Any] = _events.take("torch._C._profiler._ExperimentalConfig", None)
_ALLOCATION: Final[Any] = _events.take("torch._C._profiler._EventType.Allocation", None)
EVENTS_WORK: Final = _events.complete
"""Whether this torch provides allocator events. `start_allocator_events` raises if not."""

_starters: Final = Part("a program's own torch profiler may fail while memwatch listens to the allocator")
STARTERS: Final[tuple[tuple[Any, str], ...]] = tuple(
    (module, path.rpartition(".")[2])
    for module, path in (
        (profiler, "torch.autograd.profiler._prepare_profiler"),
        (profiler, "torch.autograd.profiler._enable_profiler"),
        (profiler_legacy, "torch.autograd.profiler_legacy._enable_profiler_legacy"),
    )
    if _starters.take(path, None) is not None
)
"""The functions that start any profiler of torch, each with its module."""


def is_running() -> bool:
    """Return True if a torch profiler runs in this thread."""
    return _running()


def is_watched() -> bool:
    """Return True if torch's start functions are patched, for example by an open block of memwatch."""
    return getattr(profiler, "_prepare_profiler", None) is not _prepare


def start_allocator_events(*, of_accelerators: bool) -> Callable[[], object]:
    """Start torch's profiler for the allocator's events only. It records no ops.

    Its tree contains an accelerator's event only if the event lies in a scope. So these events need scopes: one around
    everything, and the scopes of autograd's nodes in the threads of a backward.

    Args:
        of_accelerators: whether accelerators' events are needed too.

    Returns:
        A function to call before the profiler stops.

    Raises:
        MemwatchError: this torch lacks a name that this needs.
    """
    _events.require()
    config = _memory_only()
    _prepare(config, {_CPU})
    _enable(config, {_CPU}, {_USER_SCOPE, _BACKWARD} if of_accelerators else {_NO_OPS})
    around_all = profiler.record_function("memwatch") if of_accelerators else contextlib.nullcontext()
    around_all.__enter__()
    return functools.partial(around_all.__exit__, None, None, None)


def stop_allocator_events() -> list[Any]:
    """Stop the profiler. Return the roots of the tree of its events."""
    roots: list[Any] = _disable().experimental_event_tree()
    return roots


def drop_allocator_events() -> None:
    """Stop this thread's profiler after a profiler of another thread began, whether that one has ended or not.

    kineto has one session per process, and the other profiler replaced ours. Stopping without a session would crash. So
    this starts a new one first.
    """
    _prepare(_memory_only(), {_CPU})
    _disable()


def _memory_only() -> Any:
    return _Config(_KINETO, False, True, False, False, False, _ExperimentalConfig())


def is_allocation(event: Any) -> bool:
    """Return True for the event of an allocation or a free."""
    return bool(event.tag == _ALLOCATION)


_REPLACES_STDERR: Final = threading.RLock()
# as Python's logging does: the thread that may have the lock does not run in the child
os.register_at_fork(after_in_child=_REPLACES_STDERR._at_fork_reinit)  # type: ignore[attr-defined]


@contextlib.contextmanager
def without_kineto_lines() -> Iterator[None]:
    """Drop the `USDT:` lines that kineto prints to stderr in the block; pass on all other output at its end.

    C++ prints them to file descriptor 2, which `contextlib.redirect_stderr` does not reach. Only one thread may replace
    it at a time: the second one would put the first one's replacement back.
    """
    with _REPLACES_STDERR, contextlib.ExitStack() as stack:
        try:
            saved = os.dup(2)
        except OSError as error:  # the program closed its stderr: nothing can be printed
            pass_on(error)
            yield
            return
        held = stack.enter_context(open(os.memfd_create("memwatch"), "w+b", buffering=0))
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            rest = b"".join(line for line in held.readlines() if not line.startswith(b"USDT:"))
            if rest:  # output of other threads or of torch's C++ code
                with open(2, "wb", closefd=False) as stderr:
                    stderr.write(rest)
