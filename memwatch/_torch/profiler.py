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
    """Return the variable that holds the level below which c10 prints nothing; None if it is not found."""
    try:
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError) as error:
        pass_on(error)
        return None


class _MonotonicClock:
    """Convert `time.perf_counter_ns` to unix time, as torch's converter does for its own counter."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.perf_counter_ns()

    def to_unix_ns(self, count: int) -> int:
        return count + self._offset_ns


_clock: Final = Part("")  # Python's own clock, which torch 2.11 and 2.12 have to use, does as well
_get_ticks: Final[Any] = _clock.take("torch._C._profiler._get_approximate_time", None)
_Converter: Final[Any] = _clock.take("torch._C._profiler._ApproximateClockToUnixTimeConverter", None)
TICKS_ARE_TORCHS: Final = _clock.complete
"""Whether `ticks` is the counter that torch's C++ stamps events with, which older versions keep to themselves."""
ticks: Final[Callable[[], int]] = _get_ticks if TICKS_ARE_TORCHS else time.perf_counter_ns
"""Return the count of a cheap clock; a `TickConverter` turns counts into time."""
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
"""Whether allocator events can be had; `start_allocator_events` raises without."""

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
"""Modules, and functions in them, through which every profiler of torch is started."""


def is_running() -> bool:
    """Return True if a torch profiler runs in this thread."""
    return _running()


def is_watched() -> bool:
    """Return True if somebody waits for a torch profiler to start, as a profile of memwatch does to step aside."""
    return getattr(profiler, "_prepare_profiler", None) is not _prepare


def start_allocator_events(*, of_accelerators: bool) -> Callable[[], object]:
    """Start torch's profiler for the allocator's events alone; it records no ops.

    Its tree leaves out what is not the host's and lies in no scope. So an accelerator's events need scopes: one around
    all and, in the threads of a backward, those of autograd's nodes.

    Args:
        of_accelerators: whether they are wanted too.

    Returns:
        What is to be called before the profiler stops.

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
    """Stop the profiler; return the roots of the tree of its events."""
    roots: list[Any] = _disable().experimental_event_tree()
    return roots


def drop_allocator_events() -> None:
    """Stop the profiler of this thread where one of another thread began since, whether that has ended or not.

    kineto has one session in a process. Theirs took the place of ours, and to stop without any is a crash.
    """
    _prepare(_memory_only(), {_CPU})
    _disable()


def _memory_only() -> Any:
    return _Config(_KINETO, False, True, False, False, False, _ExperimentalConfig())


def is_allocation(event: Any) -> bool:
    """Return True for the event of an allocation or a free."""
    return bool(event.tag == _ALLOCATION)


@contextlib.contextmanager
def without_kineto_lines() -> Iterator[None]:
    """Drop the `USDT:` lines that kineto prints to stderr in the block; pass on all other output at its end.

    C++ prints them to file descriptor 2, which `contextlib.redirect_stderr` does not reach.
    """
    try:
        saved = os.dup(2)
    except OSError as error:  # the program closed its stderr: nothing can be printed
        pass_on(error)
        yield
        return
    with open(os.memfd_create("memwatch"), "w+b", buffering=0) as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            rest = b"".join(line for line in held.readlines() if not line.startswith(b"USDT:"))
            if rest:  # what other threads, or torch's C++ code, printed meanwhile
                os.write(2, rest)
