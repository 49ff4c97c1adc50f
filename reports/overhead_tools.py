"""The tools whose cost is measured, each as a context manager to be made anew for every block."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import memwatch

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN, FLOOR, HEAVY = "eager", "empty TorchDispatchMode", "MemTracker"


class EmptyMode(TorchDispatchMode):
    """The floor of every tool that is a dispatch mode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass the op on."""
        return func(*args, **(kwargs or {}))


def mem_tracker() -> Any:
    from torch.distributed._tools.mem_tracker import MemTracker

    return MemTracker()


def torch_profiler() -> Any:
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
        acc_events=True,
    )


@contextlib.contextmanager
def memray_tracker() -> Any:
    import memray

    with tempfile.TemporaryDirectory() as folder, memray.Tracker(pathlib.Path(folder) / "run.bin"):
        yield


@contextlib.contextmanager
def python_recorder(**options: Any) -> Any:
    os.environ["MEMWATCH_NATIVE"] = "0"
    try:
        with memwatch.profile(**options) as prof:
            yield prof
    finally:
        del os.environ["MEMWATCH_NATIVE"]


@contextlib.contextmanager
def to_file() -> Any:
    with (
        tempfile.TemporaryDirectory() as folder,
        memwatch.profile(pathlib.Path(folder) / "run.memwatch") as prof,
    ):
        yield prof


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    PLAIN: contextlib.nullcontext,
    "eager again": contextlib.nullcontext,
    FLOOR: EmptyMode,
    HEAVY: mem_tracker,
    "torch.profiler (memory, shapes, stacks)": torch_profiler,
    "memray": memray_tracker,
    "memwatch": memwatch.profile,
    "memwatch, to a file": to_file,
    "memwatch, intercept=mode": lambda: memwatch.profile(intercept="mode"),
    "memwatch, Python recorder": python_recorder,
    "memwatch, Python recorder, mode": lambda: python_recorder(intercept="mode"),
    "memwatch, stacks=False": lambda: memwatch.profile(stacks=False),
    "memwatch, holders=False": lambda: memwatch.profile(holders=False),
    "memwatch, allocator=False": lambda: memwatch.profile(allocator=False),
}
